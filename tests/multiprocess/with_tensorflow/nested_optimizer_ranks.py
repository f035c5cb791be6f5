# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks of test_nested_optimizers.py."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf
from tf_ranks import raised, require_same_bits, tagged

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.tensorflow import keras as sdp_keras

K = tf.keras
SIZES = (3, 2)


def several(distributes_parts: bool, of_a_function: bool = False) -> Any:
    """One optimizer for the first variable, another one for the rest."""
    first, rest = K.optimizers.SGD(1.0), K.optimizers.SGD(0.5)
    if distributes_parts:
        first, rest = sdp.DistributedOptimizer(first), sdp.DistributedOptimizer(rest)
    if of_a_function:  # Keras learns which there are when the variables are there
        return K.optimizers.MultiOptimizer(lambda each: first if each.shape[0] == 3 else rest)
    return K.optimizers.MultiOptimizer(K.optimizers.OptimizerMap(rest, {"first": first}))


def variables() -> list[Any]:
    return [K.Variable(np.zeros(SIZES[0]), name="first"), K.Variable(np.zeros(SIZES[1]))]


def check_parts_reduce_their_own(rank: int, size: int) -> None:
    for of_a_function in (False, True):
        optimizer, weights = several(True, of_a_function), variables()
        gradients = [tf.constant(tagged(rank, [count])) for count in SIZES]
        optimizer.apply(gradients, weights)
        for weight, rate, count in zip(weights, (1.0, 0.5), SIZES, strict=True):
            mean = np.mean([tagged(each, [count]) for each in range(size)], axis=0)
            np.testing.assert_allclose(weight.numpy(), -rate * mean, 1e-6)


def check_loss_scaling_around_parts_is_refused(rank: int, size: int) -> None:
    """Ranks skipped different steps, and went on with different weights."""
    for of_a_function in (False, True):
        for wrap in (tf.function, lambda function: function):
            optimizer = K.optimizers.LossScaleOptimizer(several(True, of_a_function))
            weights = variables()
            optimizer.build(weights)

            gradients = [tf.ones([count]) for count in SIZES]
            apply = functools.partial(optimizer.apply, gradients, weights)
            text = raised(SMDDPConfigInvalid, wrap(lambda apply=apply: apply()))
            assert "DistributedOptimizer(MultiOptimizer(...))" in text
            assert all((each.numpy() == 0).all() for each in weights)


def check_loss_scaling_around_the_whole(rank: int, size: int) -> None:
    """As the refusal says: an overflow on one rank is a step that all ranks skip."""
    for wrap in (
        lambda: K.optimizers.LossScaleOptimizer(sdp.DistributedOptimizer(several(False)), 4.0),
        lambda: sdp.DistributedOptimizer(K.optimizers.LossScaleOptimizer(several(False), 4.0)),
    ):
        optimizer, weights = wrap(), variables()
        for overflows in (True, False):
            bad = np.inf if overflows and rank == size - 1 else 1.0
            optimizer.apply([tf.fill([count], bad * (rank + 1.0)) for count in SIZES], weights)
            if overflows:
                assert all((each.numpy() == 0).all() for each in weights)
        mean = np.mean(np.arange(size) + 1.0)
        for weight, rate in zip(weights, (1.0, 0.5), strict=True):
            np.testing.assert_allclose(weight.numpy(), -rate * mean / 2.0)  # the halved scale
        require_same_bits(*[each.numpy() for each in weights])


def check_parts_are_not_compiled_by_xla(rank: int, size: int) -> None:
    trainer = next(base for base in K.Model.__mro__ if base.__name__ == "Trainer")
    chosen = trainer._resolve_auto_jit_compile
    trainer._resolve_auto_jit_compile = lambda self: True  # as on a machine with a GPU
    try:
        for distributes, wanted in ((True, False), (False, True)):
            model = K.Sequential([K.Input([3]), K.layers.Dense(1)])
            model.compile(several(distributes), "mse")
            assert model.jit_compile is wanted
    finally:
        trainer._resolve_auto_jit_compile = chosen


def check_the_broadcast_leaves_what_parts_accumulate(rank: int, size: int) -> None:
    """Their sums are of what this rank saw, until they are reduced."""
    part = sdp.DistributedOptimizer(K.optimizers.SGD(1.0, gradient_accumulation_steps=2))
    model = K.Sequential([K.Input([2]), K.layers.Dense(1, kernel_initializer="zeros")])
    optimizer = K.optimizers.MultiOptimizer(K.optimizers.OptimizerMap(part))
    model.compile(optimizer, loss=lambda _, prediction: prediction, run_eagerly=True)
    callback = sdp_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    x = np.full([2, 2], rank + 1.0)
    model.fit(x, np.zeros([2, 1]), batch_size=1, verbose=0, callbacks=[callback])
    wanted = -np.mean(np.arange(size) + 1.0)
    np.testing.assert_allclose(model.get_weights()[0], np.full([2, 1], wanted), 1e-6)
