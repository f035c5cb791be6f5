# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Initial values: drawn late, by one rank, and still what they would be on any other.

    who has given a seed                       the value is drawn with
    the script, to the initializer             that seed
    `keras.utils.set_random_seed`              the seed that the initializer took when it was made:
                                               the values of the script without this library
    `tf.random.set_seed` only, or nobody       a seed of the variable: a hash of the script's seed,
                                               or else of the job's, and of the variable's path

Functions that are no initializers of Keras (`tf.Variable(lambda: tf.random.normal(...))`) find all
generators that they may use seeded with the variable's seed, whatever the row.

Source: our choice; the specification leaves initial values to a broadcast between replicas.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context  # the state of eager random numbers is nowhere else

from smdistributed.dataparallel.tensorflow.patching import RULES

__all__ = ["InitialValue", "is_keras_seeded", "mark_drawn_seeds", "seed_of", "seed_of_the_script"]

_CONSTANT = ("Zeros", "Ones", "Constant")  # initializers of both Kerases


def seed_of_the_script() -> int | None:
    """What `tf.random.set_seed` was given, also by `keras.utils.set_random_seed`; or None."""
    seed = context.global_seed()
    return None if seed is None else int(seed)


def seed_of(job_seed: int, path: str, occurrence: int) -> int:
    """The seed of a variable: 31 bits, not 0.

    Args:
        job_seed: the same on all ranks.
        path: of the variable.
        occurrence: how many variables of that path were made before it.
    """
    text = f"{job_seed}/{path}/{occurrence}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest()) % (2**31 - 1) + 1


class _DrawnSeed(int):
    """A seed that Keras 3 has drawn. Some layers hand it on as if it were one of the script."""


def mark_drawn_seeds() -> None:
    """Marks the seeds that initializers of Keras 3 draw. May be called again."""
    if "keras" in sys.modules:
        from keras.src.backend import random as random_of_keras

        RULES.replace(random_of_keras, "make_default_seed", _marking)


def _marking(draw: Callable[[], int]) -> Callable[[], int]:
    return functools.wraps(draw)(lambda: _DrawnSeed(draw()))


def _is_drawn(seed: Any) -> bool:
    return seed is None or isinstance(seed, _DrawnSeed)


@dataclasses.dataclass
class InitialValue:
    """How the initial value of a variable is made.

    Attributes:
        make: gives the value; a tensor, or what can become one.
        keeps_its_seed: whether `initializer` uses the seed that it has, though the script has not
            given it one.
        initializer: of Keras, if `make` calls one.
    """

    make: Callable[[], Any]
    keeps_its_seed: bool
    initializer: Any = None

    def __post_init__(self) -> None:
        generator = getattr(self.initializer, "_random_generator", None)
        if self.keeps_its_seed and generator is not None:
            generator._maybe_init()  # tf-keras: takes its seed now, as it would without us

    @property
    def is_constant(self) -> bool:
        """Whether nothing is drawn: an initializer of Keras that fills with one value."""
        return _is_of_keras(self.initializer) and type(self.initializer).__name__ in _CONSTANT

    def draw(self, seed: int) -> Any:
        """The value.

        Args:
            seed: the variable's.
        """
        with _seeded(seed):
            state = _initial_state_of_a_seed_generator(self.initializer, seed)
            if state is not None and not self.keeps_its_seed:
                return state
            with _seeded_initializer(self.initializer, seed, self.keeps_its_seed):
                return self.make() if _is_of_keras(self.initializer) else _fresh(self.make)


def _is_of_keras(initializer: Any) -> bool:
    kerases = (sys.modules[name] for name in ("keras", "tf_keras") if name in sys.modules)
    return isinstance(initializer, tuple(each.initializers.Initializer for each in kerases))


def _fresh(make: Callable[[], Any]) -> Any:
    """What a function gives, with random operations that begin.

    Eager random operations of one seed go on where the last one ended, whoever called it. Those of
    a new graph do not.
    """
    try:
        return tf.function(make, autograph=False)()
    except Exception:  # it may need to be called eagerly; if that is not it, it raises once more
        return make()


def is_keras_seeded() -> bool:
    """Whether `set_random_seed` of the Keras in use has been called, on this thread.

    Keras remembers it by thread, though the generator that it seeds, Python's, is the process's.
    """
    if "keras" in sys.modules:
        from keras.src.backend.common import global_state

        if global_state.get_global_attribute("global_random_seed") is not None:
            return True
    if "tf_keras" in sys.modules:
        from tf_keras.src import backend

        return getattr(backend._SEED_GENERATOR, "generator", None) is not None
    return False


def _initial_state_of_a_seed_generator(initializer: Any, seed: int) -> Any:
    """What the variable of a `keras.random.SeedGenerator` begins with; None for other variables."""
    if "keras" not in sys.modules:
        return None
    from keras.random import SeedGenerator

    for cell in getattr(initializer, "__closure__", None) or ():
        generator = cell.cell_contents
        if isinstance(generator, SeedGenerator) and generator._initial_seed is None:
            return np.array([seed, 0])
    return None


@contextlib.contextmanager
def _seeded_initializer(initializer: Any, seed: int, keeps_its_seed: bool) -> Iterator[None]:
    """Gives an initializer of Keras that seed for now, unless one of its own counts."""
    generator = getattr(initializer, "_random_generator", None)
    if generator is not None:  # of tf-keras
        if keeps_its_seed or initializer.seed is not None:
            yield
            return
        saved = generator._seed, generator._built
        generator._seed, generator._built = seed, False
        try:
            yield
        finally:
            generator._seed, generator._built = saved
    elif hasattr(initializer, "_init_seed"):  # of Keras 3
        saved = initializer.seed
        if not isinstance(saved, int):
            # A SeedGenerator. Its state depends on what was drawn before, here or elsewhere.
            of_the_script = saved._initial_seed
            initializer.seed = (
                seed if of_the_script is None else seed_of(of_the_script, str(seed), 0)
            )
        elif _is_drawn(initializer._init_seed) and not keeps_its_seed:
            initializer.seed = seed
        try:
            yield
        finally:
            initializer.seed = saved
    else:
        yield


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """All generators that a function may use without naming one start at that seed, for now."""
    eager = context.context()
    saved = eager._seed, getattr(eager, "_rng", None)
    of_python, of_numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    # Not by `tf.random.set_seed`: that forgets the states of all eager operations of the script.
    eager._seed, eager._rng = seed, random.Random(seed)
    try:
        with _seeded_keras_3(seed), _seeded_tf_keras(seed):
            yield
    finally:
        eager._seed, eager._rng = saved
        random.setstate(of_python)
        np.random.set_state(of_numpy)


@contextlib.contextmanager
def _seeded_keras_3(seed: int) -> Iterator[None]:
    if "keras" not in sys.modules:
        yield
        return
    from keras.random import SeedGenerator
    from keras.src.backend.common import global_state
    from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

    saved = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    # With a name: a generator without one counts up the names of those of the script.
    mine = SeedGenerator(seed, name="initial_values")
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, mine)
    try:
        yield
    finally:
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, saved)


@contextlib.contextmanager
def _seeded_tf_keras(seed: int) -> Iterator[None]:
    if "tf_keras" not in sys.modules:
        yield
        return
    from tf_keras.src import backend

    saved = getattr(backend._SEED_GENERATOR, "generator", None)
    backend._SEED_GENERATOR.generator = random.Random(seed)
    try:
        yield
    finally:
        backend._SEED_GENERATOR.generator = saved
