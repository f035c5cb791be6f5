# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The variables of a model, in the order in which they were made, and who gets their values.

    book = Book(job_seed)                          # the same seed on all ranks
    with without_values(book):                     # while the model is built and traced
        model = Model()
        with tracing():
            graph = trace(model)
    book.allocate(lambda record: ...)              # after the decision: which are this rank's

Building and tracing take no memory for weights. `allocate` may be called again, for variables that
were made since.

Source: TensorFlow modelparallel specification, section 3.4: the memory of variables of other ranks
is not to be taken.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.tensorflow.variables.creation import (
    KerasVariable,
    creator_scope,
    eager_value,
)
from smdistributed.modelparallel.tensorflow.variables.drawing import (
    InitialValue,
    is_keras_seeded,
    mark_drawn_seeds,
    seed_of,
    seed_of_the_script,
)
from smdistributed.modelparallel.tensorflow.variables.guarded import (
    GuardedVariable,
    State,
    guard,
    raw,
    take_away,
    tracing,
)
from smdistributed.modelparallel.tensorflow.variables.slots import guard_slots, slots_of_all

__all__ = ["Book", "Record", "empty_optimizers", "without_values"]


class Record:
    """A variable that was made without a value.

    Attributes:
        variable: what the script has: a `keras.Variable` of Keras 3, else the `tf.Variable`.
        raw: the `tf.Variable` that holds the value, or will.
        path: its name: Keras 3's path, else the name without ":0". Not always unique.
        shape: a `tf.TensorShape`; of unknown dimensions where the script said so.
        dtype: a `tf.DType`: what is stored.
        initial: how its value is made; None once it has one, or will have none.
    """

    def __init__(self, variable: Any, raw: GuardedVariable, initial: InitialValue | None) -> None:
        self.variable = variable
        self.raw = raw
        self.path = raw.path
        self.shape = raw.shape
        self.dtype = raw.dtype
        self.initial = initial

    def __repr__(self) -> str:
        return f"<Record {self.path} {self.shape} {self.dtype.name} {self.raw.state.name}>"

    @property
    def trainable(self) -> bool:
        """Whether it is trained; of Keras 3, whether it is now."""
        return bool(self.variable.trainable)

    @property
    def nbytes(self) -> int:
        """What its value takes; unknown dimensions count as 1, strings as one byte each."""
        dimensions = self.shape.as_list() if self.shape.rank is not None else []
        elements: int = math.prod(1 if each is None else each for each in dimensions)
        return elements * max(int(self.dtype.size), 1)

    @property
    def is_decided(self) -> bool:
        """Whether `allocate` has been called since the variable was made."""
        return self.raw.state in (State.HERE, State.ELSEWHERE)


class Book:
    """The variables that were made in `without_values`.

    Args:
        job_seed: what seeds of variables derive from, the same on all ranks. Where the script has
            called `tf.random.set_seed` by the time of `allocate`, that seed takes its place, so
            that runs repeat.

    Attributes:
        records: in the order in which the variables were made.
    """

    def __init__(self, job_seed: int) -> None:
        self.records: list[Record] = []
        self._job_seed = job_seed
        # Where the model is made; the step that builds it may run on a thread of its own.
        self._is_keras_seeded = is_keras_seeded()
        self._by_id: dict[int, Record] = {}  # of what lives as long as the records

    def record_of(self, variable: Any) -> Record | None:
        """The record of a variable, of its `tf.Variable` or of a handle; None if it has none."""
        of_object = self._by_id.get(id(variable))
        if of_object is not None or isinstance(variable, tf.Tensor):
            return of_object
        return self._by_id.get(id(raw(variable)))  # another object around the same `tf.Variable`

    def allocate(self, is_mine: Callable[[Record], bool]) -> None:
        """Gives this rank's variables their values, and the others none. Eagerly, at any place.

        A value that was assigned before is kept by the owner and dropped elsewhere. Others are
        drawn in the order in which the variables were made, from seeds of their own: which
        variables a rank has does not change them.

        Args:
            is_mine: whether this rank owns the variable of a record. Asked once for each that is
                not decided.
        """
        of_the_script = seed_of_the_script()
        job_seed = self._job_seed if of_the_script is None else of_the_script
        made_before: collections.Counter[str] = collections.Counter()
        with tf.init_scope():
            for record in self.records:
                occurrence = made_before[record.path]
                made_before[record.path] += 1
                if record.is_decided:
                    continue
                if is_mine(record):
                    _give_value(record, seed_of(job_seed, record.path, occurrence))
                else:
                    take_away(record.raw)
                record.initial = None

    def create(self, of_keras: KerasVariable | None, kwargs: dict[str, Any]) -> Any:
        """Makes a variable without a value and writes it down.

        Args:
            of_keras: what Keras 3 knows of it; None if another library makes it.
            kwargs: of `tf.Variable`.
        """
        keeps_its_seed = self._is_keras_seeded or is_keras_seeded()
        initial = _initial_value(of_keras, kwargs["initial_value"], keeps_its_seed)
        value: Any = eager_value(kwargs) if initial is None else None
        del kwargs["initial_value"]
        shape, dtype = kwargs.pop("shape", None), kwargs.pop("dtype", None)
        if initial is not None and of_keras is not None:
            shape = of_keras.variable._shape  # which Keras does not tell TensorFlow
        if initial is None:
            shape, dtype = (value.shape if shape is None else shape), value.dtype
        elif not (_is_complete(shape) and dtype is not None):
            found = _spec_of(initial.make, dtype)
            shape, dtype = (found.shape if shape is None else shape), found.dtype
        made = GuardedVariable(path="", shape=shape, dtype=dtype, **kwargs)
        variable = made if of_keras is None else of_keras.variable
        made.path = made.name.partition(":")[0] if of_keras is None else variable.path
        if initial is not None and initial.is_constant and not made.trainable:
            made.constant = initial.make
        if initial is None:
            with tf.init_scope():
                made.assign(value, read_value=False)
        self._add(Record(variable, made, initial))
        return made

    def adopt(self, variable: Any) -> None:
        """Takes up a variable that was made with a value, before the model was.

        Args:
            variable: of either Keras, or a `tf.Variable`. What `tf.Variable` does not make by
                itself, such as one of a distribution strategy, is left alone.
        """
        path = str(getattr(variable, "path", variable.name)).partition(":")[0]
        if self.record_of(variable) is None and guard(raw(variable), path):
            self._add(Record(variable, raw(variable), None))

    def _add(self, record: Record) -> None:
        self.records.append(record)
        for each in (record.variable, record.raw, record.raw.handle):
            self._by_id[id(each)] = record


@contextlib.contextmanager
def without_values(book: Book) -> Iterator[None]:
    """While it is open, variables that this thread makes have no values and take no memory.

    `book` records them. Variables of metrics and optimizers are left alone. A variable whose value
    is there when it is made (`tf.Variable(tensor)`) has it until `Book.allocate`, on every rank.
    """
    guard_slots()
    mark_drawn_seeds()
    with creator_scope(book.create):
        yield


@contextlib.contextmanager
def empty_optimizers() -> Iterator[None]:
    """While it is open, slots that optimizers make have no values and take no memory.

    They may be of variables of any rank. What such an optimizer knows is which variables it has,
    and of which shapes.
    """
    guard_slots()
    book = Book(0)

    def create(of_keras: KerasVariable | None, kwargs: dict[str, Any]) -> Any:
        value = kwargs["initial_value"]
        if tf.is_tensor(value):  # zeros, or the variable itself, which may be elsewhere
            kwargs.update(shape=value.shape, dtype=value.dtype, initial_value=lambda: value)
        return book.create(of_keras, kwargs)

    with slots_of_all(), creator_scope(create, all_kinds=True):
        yield


def _initial_value(
    of_keras: KerasVariable | None, value: Any, keeps_its_seed: bool
) -> InitialValue | None:
    """How the value of a variable will be made; None if it is there."""
    if not callable(value):
        return None
    if of_keras is not None:
        return InitialValue(value, keeps_its_seed, of_keras.initializer)
    if isinstance(value, functools.partial):  # what tf-keras makes of an initializer
        return InitialValue(value, keeps_its_seed, value.func)
    return InitialValue(value, keeps_its_seed)


def _is_complete(shape: Any) -> bool:
    return shape is not None and tf.TensorShape(shape).is_fully_defined()


def _spec_of(make: Callable[[], Any], dtype: Any) -> tf.TensorSpec:
    """Shape and dtype of what a function gives, found without calling it eagerly."""
    graph = tf.__internal__.FuncGraph("initial_value")
    with tracing(), graph.as_default():
        value = tf.convert_to_tensor(make(), dtype)
    return tf.TensorSpec(value.shape, value.dtype)


def _give_value(record: Record, seed: int) -> None:
    if record.raw.state is State.WITHOUT_VALUE:
        assert record.initial is not None
        with tf.device(record.raw.device):
            record.raw.assign(record.initial.draw(seed), read_value=False)
    record.raw.state = State.HERE
