# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks run that take gradients by tapes in steps. For `test_tapes.py`.

Each case of the zoo by a tape and by `get_gradients`; and bodies that use tapes in other ways, as a
step, and with a plain model in a `tf.function` that is called microbatch by microbatch.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from one_process import require_close, require_same_bits, set_values
from zoo import CASES, parameters_of, rewind

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.dataparallel.exceptions import SMDDPMismatch
from smdistributed.modelparallel.exceptions import StepAborted
from smdistributed.modelparallel.tensorflow.variables import raw
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

MICROBATCHES = 2
WIDTH = 4
X = np.random.RandomState(0).randn(8, WIDTH).astype(np.float32)
LABELS = np.random.RandomState(1).randint(0, 5, (8,)).astype(np.int64)


@contextlib.contextmanager
def a_job(**parameters: Any) -> Iterator[None]:
    tf.keras.utils.set_random_seed(1)
    smp.init({"microbatches": MICROBATCHES, **parameters})
    try:
        yield
    finally:
        smp.reset()


def __getattr__(name: str) -> Any:
    """A check for each case of the zoo."""
    if name not in CASES:
        raise AttributeError(name)
    return lambda rank, size: _check_same_bits(name, size)


def _check_same_bits(name: str, size: int) -> None:
    with a_job(partitions=size, **parameters_of(name)):
        case = CASES[name](smp.DistributedModel)
        optimizer = tf.keras.optimizers.SGD(0.1)

        @smp.step
        def by_name(*tensors: Any) -> Any:
            return case.step(optimizer.get_gradients, *tensors)

        @smp.step
        def by_tape(*tensors: Any) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                return case.step(tape.gradient, *tensors)

        batch = [tf.constant(each) for each in case.batch]
        found = []
        is_counting = hasattr(tf.keras.backend, "experimental")  # tf-keras counts its traces
        if is_counting:  # and the first step of a model is traced twice
            smp.step(lambda *tensors: case.step(optimizer.get_gradients, *tensors))(*batch)
        for step in (by_name, by_tape):
            rewind(case.model)
            step(*batch)  # makes the variables, once
        states = [raw(each) for each in case.model.variables]
        values = [each.numpy() for each in states]
        for step in (by_name, by_tape):
            for state, value in zip(states, values, strict=True):
                state.assign(value)
            results = tf.nest.flatten(step(*batch))
            found.append([part for each in results for part in _parts(each)])
        assert len(found[0]) == len(found[1]) > 1
        for place, (one, other) in enumerate(zip(*found, strict=True)):
            require_same_bits(one, other, f"result {place}")


def _parts(output: Any) -> list[Any]:
    """Arrays, of all microbatches."""
    found = []
    for each in output.outputs:
        is_sparse = isinstance(each, tf.IndexedSlices)
        found += [each.values.numpy(), each.indices.numpy()] if is_sparse else [each.numpy()]
    return found


# ---- bodies --------------------------------------------------------------------------------------


def model_of(base: Any) -> Any:
    """An embedding and two layers, a function and a loop between them."""

    class Model(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__(name="m")
            layers = tf.keras.layers
            self.first = layers.Dense(WIDTH, activation="tanh", name="first")
            self.words = layers.Embedding(5, WIDTH, name="words")
            self.second = layers.Dense(3, activation="tanh", name="second")
            self.unused = layers.Dense(2, name="unused")

        def call(self, x: Any, words: Any) -> Any:
            self.unused(x)
            return self.second(tf.sin(self.first(x)) + self.words(words))

        def everything(self) -> list[Any]:
            """Trained variables, of all ranks."""
            parts = (self.first, self.words, self.second, self.unused)
            return [raw(each) for part in parts for each in part.trainable_variables]

    return Model()


def of_arguments_and_variables(model: Any, x: Any, words: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch([x, {"nothing": ()}])
        loss = tf.reduce_sum(model(x, words) ** 2)
    watched = sorted(each.name for each in tape.watched_variables())
    gradients = tape.gradient(loss, {"x": x, "variables": model.everything()})
    return loss, gradients, len(watched)


def second_order(model: Any, x: Any, words: Any) -> Any:
    """A penalty on gradients with respect to the argument."""
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            score = tf.reduce_sum(model(x, words), axis=1)
        slope = inner.gradient(score, x)
        loss = tf.reduce_mean(score) + tf.reduce_mean((tf.norm(slope, axis=1) - 1.0) ** 2)
    return slope, loss, outer.gradient(loss, model.everything())


def what_is_inside(model: Any, x: Any, words: Any) -> Any:
    """A tensor that the model makes, watched when it is there; and one that is watched too late."""
    with tf.GradientTape(persistent=True) as tape:
        middle = model(x, words)
        tape.watch(middle)
        loss = tf.reduce_sum(middle**3)
        late = x * 2.0
        before = tf.reduce_sum(late * x)
        tape.watch(x)
        after = tf.reduce_sum(x**2)
    gradients = tape.gradient(loss, [middle, *model.everything()])
    return gradients, tape.gradient(before, x), tape.gradient(after, [x, late])


def what_is_not_recorded(model: Any, x: Any, words: Any) -> Any:
    before = model(x, words)
    with tf.GradientTape(persistent=True) as tape:
        y = model(x, words)
        with tape.stop_recording():
            constant = tf.reduce_sum(model(x, words))
        loss = tf.reduce_sum(y) * constant + tf.reduce_sum(before * y)
    beyond = loss * 2.0
    sources = model.everything()
    with tape:
        again = tf.reduce_sum(y * y)
    found = [tape.gradient(each, sources) for each in (loss, beyond, before, again)]
    with tf.GradientTape() as tape:
        lost = tf.reduce_sum(model(x, words))
        tape.reset()
        kept = tf.reduce_sum(model(x, words)) + lost
    return found, tape.gradient(kept, sources)


def chosen_variables(model: Any, x: Any, words: Any) -> Any:
    with tf.GradientTape(watch_accessed_variables=False, persistent=True) as tape:
        chosen = model.first.trainable_variables
        tape.watch(chosen if isinstance(model, smp.DistributedModel) else [raw(v) for v in chosen])
        tape.watch(x)
        loss = tf.reduce_sum(model(x, words))
    return tape.gradient(loss, [x, *model.everything()]), tape.gradient(x, x)


def without_connection(model: Any, x: Any, words: Any) -> Any:
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss = tf.reduce_sum(model(x, words) ** 2)
        count = tf.size(x)
    zero = tf.UnconnectedGradients.ZERO
    sources = model.everything()
    constant = tf.constant([1.0, 2.0])
    return (
        tape.gradient(loss, [constant, *sources], unconnected_gradients=zero),
        tape.gradient(loss, [constant, *sources]),
        tape.gradient(count, x),
        tape.gradient(count, x, unconnected_gradients="zero"),
    )


def given_gradients(model: Any, x: Any, words: Any) -> Any:
    with tf.GradientTape() as tape:
        y = model(x, words)
        z = tf.reduce_sum(y)
    return tape.gradient([y, z], model.everything(), output_gradients=[y * 2.0, tf.constant(3.0)])


def functions_and_loops(model: Any, x: Any, words: Any) -> Any:
    @tf.function
    def inner(y: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(y)
            z = tf.reduce_sum(y**3)
        return z, tape.gradient(z, y)

    @tf.custom_gradient
    def doubled(y: Any) -> Any:
        return tf.identity(y), lambda upstream: 2.0 * upstream

    with tf.GradientTape() as tape:
        y = model(x, words)
        value, slope = inner(y)
        looped = tf.while_loop(lambda i, _: i < 3, lambda i, z: (i + 1, z * y), [0, y])[1]
        branched = tf.cond(value > 0.0, lambda: y * 2.0, lambda: y * 3.0)
        loss = value + tf.reduce_sum(slope * doubled(looped) + branched)
    return slope, tape.gradient(loss, model.everything())


def check_values(rank: int, size: int) -> None:
    bodies: tuple[Callable[..., Any], ...] = (
        of_arguments_and_variables,
        second_order,
        what_is_inside,
        what_is_not_recorded,
        chosen_variables,
        without_connection,
        given_gradients,
        functions_and_loops,
    )
    with a_job(partitions=size):
        theirs, mine = two_alike()
        num_elsewhere = 0
        for body in bodies:
            step = smp.step(lambda x, words, body=body: body(theirs, x, words))
            function = tf.function(lambda x, words, body=body: body(mine, x, words))
            num_elsewhere += _compare(step, function, f"in {body.__name__}")
        assert num_elsewhere > 0


def two_alike(make: Callable[[Any], Any] = model_of) -> tuple[Any, Any]:
    """A cut model and a plain one, with equal values."""
    theirs, mine = make(smp.DistributedModel), make(tf.keras.Model)
    mine(X, LABELS)
    set_values(mine.everything())
    smp.step(lambda x, words: theirs(x, words))(X, LABELS)
    for one, other in zip(theirs.everything(), mine.everything(), strict=True):
        if any(one is raw(each) for each in theirs.variables):
            one.assign(other)
    return theirs, mine


def _compare(step: Any, function: Any, where: str) -> int:
    """Values of this rank are those of the plain model; how many are elsewhere."""
    found = tf.nest.flatten(step(X, LABELS))
    half = len(X) // MICROBATCHES
    expected = [
        tf.nest.flatten(function(X[start : start + half], LABELS[start : start + half]))
        for start in range(0, len(X), half)
    ]
    assert len(found) == len(expected[0]), where
    num_elsewhere = 0
    for place, output in enumerate(found):
        rows = [row[place] for row in expected]
        if output is None or rows[0] is None:
            assert output is None, (where, place, output, rows[0])
            assert rows[0] is None, (where, place, output, rows[0])
        elif not output.is_local:
            num_elsewhere += 1
            assert output.accumulate() is None
        else:
            for one, other in zip(output.outputs, rows, strict=True):
                _require_close(one, other, f"{where}, result {place}")
    return num_elsewhere


def _require_close(one: Any, other: Any, where: str) -> None:
    assert isinstance(one, tf.IndexedSlices) == isinstance(other, tf.IndexedSlices), where
    one, other = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
    require_close(one.numpy(), other.numpy(), 1e-5, where)


def physics_of(base: Any) -> Any:
    """Its output has a part that is a gradient, so training it takes second ones."""

    class Physics(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__(name="m")
            layers = tf.keras.layers
            self.parts = [layers.Dense(WIDTH, activation="tanh") for _ in range(2)]
            self.head = layers.Dense(1)

        def call(self, x: Any, words: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                middle = self.parts[0](x)
                tape.watch(middle)
                y = self.parts[1](middle)
            of_middle, of_x = tape.gradient(y, [middle, x])
            return self.head(y + of_middle), of_x

        def everything(self) -> list[Any]:
            return [raw(v) for part in (*self.parts, self.head) for v in part.trainable_variables]

    return Physics()


def residual(model: Any, x: Any, words: Any) -> Any:
    with tf.GradientTape() as tape:
        y, slope = model(x, words)
        loss = tf.reduce_sum(y**2) + tf.reduce_sum(slope**2)
    return loss, slope, tape.gradient(loss, model.everything())


def check_a_tape_in_call(rank: int, size: int) -> None:
    with a_job(partitions=size):
        theirs, mine = two_alike(physics_of)
        step = smp.step(lambda x, words: residual(theirs, x, words))
        assert _compare(step, tf.function(functools.partial(residual, mine)), "residual") > 0


def check_what_is_refused(rank: int, size: int) -> None:
    with a_job(partitions=size):
        model, _ = two_alike()
        kept: list[Any] = []
        values = smp.step(lambda x, words: tf.reduce_sum(model(x, words)))

        def gradient(target: Callable[[Any], Any], keeps: bool = False) -> Any:
            @smp.step
            def step(x: Any, words: Any) -> Any:
                with tf.GradientTape(persistent=True) as tape:
                    loss = tf.reduce_sum(model(x, words))
                if keeps:
                    kept.extend((tape, loss))
                return target(tape, loss)

            return step(X, LABELS)

        def own(tape: Any, loss: Any) -> Any:
            return tape.gradient(loss, model.everything())

        loss = values(X, LABELS)
        gradient(own, keeps=True)
        old_tape, old_loss = kept[0], kept[-1]
        for kind, target, words in (
            (ValueError, lambda tape, _: own(tape, old_loss), "of an earlier call"),
            (ValueError, lambda tape, _: own(tape, loss[0]), "that has its value already"),
            (ValueError, lambda tape, loss: tape.gradient(loss, old_loss), "of another graph"),
            (TypeError, lambda tape, _: own(tape, loss), "in the step that makes the value"),
            (RuntimeError, lambda _, loss: own(old_tape, loss), "open a tape in this one"),
            (
                NotImplementedError,
                lambda tape, loss: tape.jacobian(loss, model.everything()),
                "take the gradient of each element",
            ),
        ):
            text = raised(kind, gradient, target)
            assert words in text, text
        _check_plain_gradients(model)
        _check_tapes_around(rank, values)


def _check_plain_gradients(model: Any) -> None:
    @smp.step
    def step(x: Any, words: Any) -> Any:
        loss = tf.reduce_sum(model(x, words))
        return tf.gradients(loss, list(map(raw, model.trainable_variables)))

    text = raised(SMDDPMismatch, step, X, LABELS)
    assert "optimizer.get_gradients(loss, model.trainable_variables)" in text, text


def _check_tapes_around(rank: int, values: Any) -> None:
    function = tf.function(lambda: values(X, LABELS).reduce_mean())
    weight = tf.Variable(1.0)
    for call in (function, lambda: values(X, LABELS), function):
        with tf.GradientTape() as tape:
            text = raised(RuntimeError, call)
            with tape.stop_recording():
                call()
            tf.sin(weight)
        assert "called while a tf.GradientTape records" in text or "gradients were taken" in text
        assert "return loss, tape.gradient(loss, model.trainable_variables)" in text, text
    if rank == 0:
        with tf.GradientTape():
            raised(RuntimeError, values, X, LABELS)
    else:
        assert "while a tf.GradientTape records" in raised(StepAborted, values, X, LABELS)
    values(X, LABELS)


def check_training(rank: int, size: int) -> None:
    """Batches of two sizes, tests in between, sparse gradients; as a plain model is trained."""
    with a_job(partitions=size):
        theirs, mine = two_alike()
        optimizers = [tf.keras.optimizers.Adam(0.05) for _ in range(2)]
        everything = theirs.everything()[:-2]  # without those that nobody uses

        @smp.step
        def step(x: Any, words: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(theirs(x, words) ** 2)
            return loss, tape.gradient(loss, everything)

        @tf.function
        def train(x: Any, words: Any, method: str) -> Any:
            loss, gradients = step(x, words)
            pairs = [
                (each.accumulate(method), v) for each, v in zip(gradients, everything, strict=True)
            ]
            optimizers[0].apply_gradients(pairs)
            return loss.reduce_mean()

        evaluate = smp.step(lambda x, words: tf.reduce_mean(theirs(x, words) ** 2))

        @tf.function
        def plain(x: Any, words: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(mine(x, words) ** 2)
            found = tape.gradient(loss, mine.everything()[:-2])
            assert any(isinstance(each, tf.IndexedSlices) for each in found)
            optimizers[1].apply_gradients(zip(found, mine.everything()[:-2], strict=True))
            return loss

        for number, method in enumerate(("variable", "add_n", "accumulate_n", "variable")):
            count = 8 if number % 2 else 4
            x, words = X[:count], LABELS[:count]
            require_close(train(x, words, method).numpy(), plain(x, words).numpy(), 1e-5, "loss")
            test = evaluate(x, words).reduce_mean().numpy()
            require_close(test, tf.reduce_mean(mine(x, words) ** 2).numpy(), 1e-5, "test")
        for one, other in zip(theirs.everything(), mine.everything(), strict=True):
            if any(one is raw(each) for each in theirs.variables):
                require_close(one.numpy(), other.numpy(), 1e-5, one.name)
        names = {str(each.shape) for each in theirs.variables}
        slots = optimizers[0].variables
        slots = slots() if callable(slots) and not isinstance(slots, list) else slots
        assert {str(each.shape) for each in slots} <= names | {"()"}, slots
