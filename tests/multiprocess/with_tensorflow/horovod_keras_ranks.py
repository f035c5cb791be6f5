# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks of test_horovod_keras.py: callbacks, `load_model`, gradients added up over passes."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from keras_training import (
    BATCH,
    IS_KERAS_3,
    K,
    data,
    distributed_callbacks,
    fit,
    loop,
    on_rank_0,
    optimizer_arrays,
    require_close,
    share,
    small_model,
)
from tf_ranks import raised, require_same_bits

import smdistributed.compat.horovod.tensorflow.keras as hvd
import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported

PASSES = 2


class Rates(K.callbacks.Callback):
    """The learning rate of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.found.append(float(np.asarray(self.model.optimizer.learning_rate)))


def trained_rates(optimizer: Any, callback: Any, epochs: int = 3, is_traced: bool = False) -> Any:
    """The rates of `fit` with a callback, its history, and the model. To trace takes seconds."""
    model, rates = small_model(), Rates()
    model.compile(optimizer=optimizer, loss="mse", run_eagerly=not is_traced)
    x, y = data(4)
    history = fit(model, x, y, epochs=epochs, callbacks=[callback, rates]).history
    return rates.found, history, model


def check_the_warm_up(rank: int, size: int) -> None:
    warm_up = hvd.callbacks.LearningRateWarmupCallback(
        initial_lr=0.1 * size, warmup_epochs=2, verbose=1
    )
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        found, history, _ = trained_rates(K.optimizers.Adam(0.1 * size), warm_up)
    # As published, of the end of each of four batches.
    epochs = [(batch + 1) / 4 for batch in range(8)]
    expected = [0.1 * (1 + each * (size - 1) / 2) for each in epochs] + [0.1 * size] * 4
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(history["lr"], expected[3::4], rtol=1e-6)
    lines = printed.getvalue().split("\n")
    said = f"Epoch 2: the learning rate has warmed up to {0.1 * size:g}."
    assert (said in lines) is (rank == 0), lines


def check_schedules(rank: int, size: int) -> None:
    make = hvd.callbacks.LearningRateScheduleCallback
    optimizer = K.optimizers.SGD
    found, history, _ = trained_rates(optimizer(0.5), make(0.4, lambda epoch: 0.5**epoch))
    np.testing.assert_allclose(found, np.repeat([0.4, 0.2, 0.1], 4), rtol=1e-6)
    np.testing.assert_allclose(history["lr"], [0.4, 0.2, 0.1], rtol=1e-6)
    found, _, _ = trained_rates(optimizer(0.5), make(0.4, 0.1, start_epoch=1, end_epoch=2))
    np.testing.assert_allclose(found, np.repeat([0.5, 0.4, 0.4], 4), rtol=1e-6)
    found, _, _ = trained_rates(
        optimizer(0.5), make(1.0, lambda epoch: 1 + epoch, staircase=False, steps_per_epoch=4)
    )
    np.testing.assert_allclose(found, 1 + np.arange(12) / 4, rtol=1e-6)
    # What a LossScaleOptimizer scales the loss of.
    K.mixed_precision.set_global_policy("mixed_float16")
    try:
        found, _, _ = trained_rates(optimizer(0.5), make(0.4, 0.5), epochs=2)
    finally:
        K.mixed_precision.set_global_policy("float32")
    np.testing.assert_allclose(found, np.repeat([0.4, 0.2], 4), rtol=1e-6)


def check_rates_that_cannot_be_set(rank: int, size: int) -> None:
    make = hvd.callbacks.LearningRateScheduleCallback
    text = raised(SMDDPConfigInvalid, make, None, 0.1)
    assert "Pass the rate" in text
    schedule = K.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    text = raised(SMDDPUnsupported, trained_rates, K.optimizers.SGD(schedule), make(0.1, 0.1))
    assert "Make the optimizer with a number" in text
    model = small_model()
    model.compile(optimizer=hvd.DistributedOptimizer(K.optimizers.SGD(0.1)), loss="mse")
    x, y = data(1)
    endless = tf.data.Dataset.from_generator(
        lambda: iter([(x, y)]), output_types=(tf.float32, tf.float32)
    )
    text = raised(
        SMDDPConfigInvalid,
        lambda: model.fit(endless, verbose=0, callbacks=[make(0.1, 0.1, staircase=False)]),
    )
    assert "Pass steps_per_epoch=" in text


def check_momentum_correction(rank: int, size: int) -> None:
    """Sums of past updates are multiplied by new rate / old rate, once, where the rate changes."""
    x, y = data(4)
    makers = [K.optimizers.SGD, K.optimizers.RMSprop]
    if not IS_KERAS_3:
        makers += [K.optimizers.legacy.SGD, K.optimizers.legacy.RMSprop]
    for make in makers:
        for corrected in (True, False) if make is K.optimizers.SGD else (True,):
            callback = hvd.callbacks.LearningRateScheduleCallback(
                0.01, lambda epoch: 1 + 4 * epoch, momentum_correction=corrected
            )
            is_traced = make is K.optimizers.SGD and corrected
            trained = trained_rates(make(0.01, momentum=0.9), callback, 2, is_traced)
            found = trained[2].get_weights()
            reference, optimizer = small_model(), make(0.01, momentum=0.9)
            loop(reference, optimizer, x, y)
            optimizer.learning_rate = 0.05
            variables = optimizer.variables
            for each in variables() if callable(variables) else variables:
                name = getattr(each, "path", None) or each.name
                is_sum = "momentum" in name or "/m/" in name
                if corrected and (is_sum or (make is K.optimizers.SGD and each.shape.rank)):
                    each.assign(each * 5.0)
            loop(reference, optimizer, x, y)
            for mine, expected in zip(found, reference.get_weights(), strict=True):
                np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)


def optimizer_makers() -> list[Callable[[], Any]]:
    makers = [
        lambda: K.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.5),
        lambda: K.optimizers.Adam(0.01),
    ]
    if not IS_KERAS_3:
        makers.append(lambda: K.optimizers.legacy.Adam(0.01))
    return makers


def accumulated_by_one(make: Callable[[], Any], is_average: bool) -> list[Any]:
    """Weights of one process that applies the gradients of several batches together."""
    x, y = data()
    model, optimizer = small_model(), make()
    weights = model.trainable_variables
    for start in range(0, len(x), BATCH * PASSES):
        total: Any = None
        for offset in range(0, BATCH * PASSES, BATCH):
            part = slice(start + offset, start + offset + BATCH)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x[part], training=True) - y[part]))
            gradients = tape.gradient(loss, weights)
            total = gradients if total is None else [a + b for a, b in zip(total, gradients)]  # noqa: B905
        if is_average:
            total = [each / PASSES for each in total]
        optimizer.apply_gradients(zip(total, weights, strict=True))
    found: list[Any] = model.get_weights()
    return found


def check_passes_equal_one_process(rank: int, size: int) -> None:
    x, y = data()
    mine = share(x, rank, size), share(y, rank, size)
    for number, make in enumerate(optimizer_makers()):
        for is_average in (False, True):
            expected = on_rank_0(
                rank, lambda make=make, avg=is_average: accumulated_by_one(make, avg)
            )

            def distributed(make: Any = make, is_average: bool = is_average) -> Any:
                return hvd.DistributedOptimizer(
                    make(),
                    backward_passes_per_step=PASSES,
                    average_aggregated_gradients=is_average,
                )

            model = small_model()
            loop(model, distributed(), *mine, size)
            require_close(model.get_weights(), expected, 6)
            # `fit` traces, which takes seconds; the second optimizer is of the first one's kind.
            if not is_average and number != 1:
                model = small_model()
                model.compile(optimizer=distributed(), loss="mse")
                fit(model, *mine, size, callbacks=distributed_callbacks())
                require_close(model.get_weights(), expected, 6)


def check_passes_change_nothing_but_the_last(rank: int, size: int) -> None:
    for make in optimizer_makers():
        variable = tf.Variable([1.0, 1.0])
        optimizer = sdp.DistributedOptimizer(make(), backward_passes_per_step=3)

        def step(value: Any, optimizer: Any = optimizer, variable: Any = variable) -> None:
            optimizer.apply_gradients([(tf.stack([value, value]), variable)])

        for one_pass in (step, tf.function(step)):  # one goes on where the other has ended
            for number in range(6):
                before = variable.numpy()
                one_pass(tf.constant(rank + number + 1.0))
                changed = not np.array_equal(before, variable.numpy())
                assert changed is (number % 3 == 2)
        assert int(optimizer.iterations) == 4
        require_same_bits(variable.numpy())


def check_gradients_that_come_and_go(rank: int, size: int) -> None:
    for make in (lambda: K.optimizers.SGD(1.0), *optimizer_makers()[2:]):
        first, second = tf.Variable([0.0]), tf.Variable(tf.zeros([3, 1]))
        optimizer = sdp.DistributedOptimizer(make(), backward_passes_per_step=2)
        one, rows = tf.constant([1.0]), tf.IndexedSlices(tf.ones([2, 1]), [rank % 3, 2])

        def step(a: Any, b: Any, optimizer: Any = optimizer, pair: Any = (first, second)) -> None:
            optimizer.apply_gradients(zip((a, b), pair, strict=True))

        step(one * (rank + 1), None)
        assert first.numpy().tolist() == [0.0]
        step(None, rows)
        if "SGD" in type(optimizer).__name__:
            np.testing.assert_allclose(first, [-(size + 1) / 2], rtol=1e-6)
            expected = np.zeros([3, 1])
            for each in range(size):
                expected[each % 3] -= 1 / size
            expected[2] -= 1
            np.testing.assert_allclose(second, expected, rtol=1e-6)
        require_same_bits(first.numpy(), second.numpy())
    # In graphs: with a variable whose first gradient comes in a later one.
    pair = tf.Variable([0.0]), tf.Variable([0.0])
    optimizer = sdp.DistributedOptimizer(K.optimizers.SGD(1.0), backward_passes_per_step=2)
    graphs = [
        tf.function(lambda: optimizer.apply_gradients(zip((one, None), pair, strict=True))),
        tf.function(lambda: optimizer.apply_gradients(zip((one, one), pair, strict=True))),
    ]
    graphs[0]()
    assert "UnconnectedGradients.ZERO" in raised(SMDDPUnsupported, graphs[1])


def check_passes_with_loss_scaling(rank: int, size: int) -> None:
    x, y = data()
    expected = on_rank_0(rank, lambda: accumulated_by_one(lambda: K.optimizers.SGD(0.05), True))
    for is_outside in (False, True):
        optimizer = K.optimizers.SGD(0.05)
        scale = K.optimizers.LossScaleOptimizer if IS_KERAS_3 else None
        scale = scale or K.mixed_precision.LossScaleOptimizer
        options = {"backward_passes_per_step": PASSES, "average_aggregated_gradients": True}
        if is_outside:
            optimizer = sdp.DistributedOptimizer(scale(optimizer), **options)
        else:
            optimizer = scale(sdp.DistributedOptimizer(optimizer, **options))
        model = small_model()
        model.compile(optimizer=optimizer, loss="mse")
        fit(model, share(x, rank, size), share(y, rank, size), size)
        require_close(model.get_weights(), expected, 60)


def check_passes_that_cannot_be(rank: int, size: int) -> None:
    for passes in (0, -1, 1.5, True, "2"):
        text = raised(
            SMDDPConfigInvalid,
            sdp.DistributedOptimizer,
            K.optimizers.SGD(0.1),
            backward_passes_per_step=passes,
        )
        assert "Pass 1 for every batch" in text
    if IS_KERAS_3:
        text = raised(
            SMDDPConfigInvalid,
            sdp.DistributedOptimizer,
            K.optimizers.SGD(0.1, gradient_accumulation_steps=2),
            backward_passes_per_step=2,
        )
        assert "Leave one out" in text


class OwnAdam(K.optimizers.Adam):
    pass


def check_load_model(rank: int, size: int) -> None:
    x, y = data()
    mine = share(x, rank, size), share(y, rank, size)
    own, by_class, by_name = lambda: OwnAdam(0.01), [OwnAdam], {"OwnAdam": OwnAdam}
    cases: list[Any] = [
        ("Adam", lambda: K.optimizers.Adam(0.01), (".keras", ".h5"), {}),
        ("OwnAdam", own, (".keras",), {"custom_optimizers": by_class}),
        ("OwnAdam", own, (".h5",), {"custom_objects": by_name}),
    ]
    if not IS_KERAS_3:  # which keeps no state of its legacy optimizers in `.keras`
        legacy = lambda: K.optimizers.legacy.Adam(0.01)  # noqa: E731
        cases.append(("Adam", legacy, (".h5",), {"legacy_opts": True}))
    with tempfile.TemporaryDirectory() as folder:
        for name, make, suffixes, arguments in cases:
            for suffix in suffixes:
                model = small_model()
                optimizer = hvd.DistributedOptimizer(make())
                model.compile(optimizer=optimizer, loss=K.losses.MeanSquaredError())
                loop(model, optimizer, *mine, size)
                path = os.path.join(folder, "model" + suffix)
                model.save(path)
                loaded = hvd.load_model(path, **arguments)
                assert loaded.optimizer.__class__.__name__ == name
                assert "already" in raised(
                    SMDDPConfigInvalid, sdp.DistributedOptimizer, loaded.optimizer
                )
                assert int(loaded.optimizer.iterations) == 6
                for each in (model, loaded):
                    loop(each, each.optimizer, *mine, size)
                require_same_bits(*loaded.get_weights(), *optimizer_arrays(loaded.optimizer))
                for found, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
                    np.testing.assert_allclose(found, expected, rtol=1e-6)
        small_model().save(path)
        assert getattr(hvd.load_model(path), "optimizer", None) is None
        if IS_KERAS_3:
            text = raised(SMDDPUnsupported, hvd.load_model, path, legacy_opts=True)
            assert "TF_USE_LEGACY_KERAS=1" in text


def check_the_best_model(rank: int, size: int) -> None:
    x, y = data(1)
    with tempfile.TemporaryDirectory() as folder:
        for only_weights, name in ((False, "best.keras"), (True, "best.weights.h5")):
            model = small_model()
            model.compile(optimizer="sgd", loss="mse", run_eagerly=True)
            best = hvd.callbacks.BestModelCheckpoint("loss", save_weights_only=only_weights)
            text = raised(SMDDPConfigInvalid, lambda: fit(model, x, y, callbacks=[best]))  # noqa: B023
            assert "callback.filepath =" in text
            best.filepath = os.path.join(folder, name)
            fit(model, x, y, callbacks=[best])
            assert os.path.exists(best.filepath)
