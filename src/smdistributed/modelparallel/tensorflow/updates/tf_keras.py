# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of tf-keras, old and new.

Source: TensorFlow modelparallel specification, section 3.4.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.tensorflow.patching import RULES, owner_of
from smdistributed.modelparallel.tensorflow.updates.applying import (
    applying,
    are_finite_everywhere,
    asks_others,
    clipping_scale,
    has_pipeline,
    local_pairs,
)
from smdistributed.modelparallel.tensorflow.updates.clipping import clipped
from smdistributed.modelparallel.tensorflow.variables import outside_of_functions

__all__ = ["apply_to"]


def apply_to(keras: Any) -> None:
    """Changes the base classes of its optimizers. Repeatable."""
    new, legacy = keras.optimizers.Optimizer, keras.optimizers.legacy.Optimizer
    scaling = sys.modules[keras.mixed_precision.LossScaleOptimizer.__module__]
    for each in (new, legacy, scaling.LossScaleOptimizer, scaling.LossScaleOptimizerV3):
        RULES.replace(owner_of(each, "apply_gradients"), "apply_gradients", _of_local_variables)
    RULES.replace(owner_of(new, "_clip_gradients"), "_clip_gradients", _over_pipeline)
    name = "_transform_gradients"
    RULES.replace(owner_of(legacy, name), name, _legacy_over_pipeline)
    RULES.replace(scaling, "_is_all_finite", _checked_everywhere)


def _of_local_variables(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = local_pairs(grads_and_vars)
        if pairs:
            if has_pipeline() and hasattr(self, "build") and not hasattr(self, "inner_optimizer"):
                with tf.name_scope(self.name), outside_of_functions():
                    self.build([variable for _, variable in pairs])
            with applying([variable for gradient, variable in pairs if gradient is not None]):
                return original(self, pairs, *args, **kwargs)
        if has_pipeline():
            _take_part(self)
        return self.iterations

    return apply_gradients


def _over_pipeline(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _clip_gradients(self: Any, grads: Any) -> Any:
        if asks_others() and not self.clipnorm and self.global_clipnorm:
            return clipped(grads, clipping_scale(grads, self.global_clipnorm))
        return original(self, grads)

    return _clip_gradients


def _legacy_over_pipeline(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _transform_gradients(self: Any, grads_and_vars: Any) -> Any:
        if not asks_others() or self.global_clipnorm is None:
            return original(self, grads_and_vars)
        clip = self._global_clipnorm_fn
        self._global_clipnorm_fn = functools.partial(_clipped_pairs, self.global_clipnorm)
        try:
            return original(self, grads_and_vars)
        finally:
            self._global_clipnorm_fn = clip

    return _transform_gradients


def _clipped_pairs(clip_norm: Any, grads_and_vars: Any) -> list[Any]:
    pairs = list(grads_and_vars)
    gradients = [gradient for gradient, _ in pairs]
    found = clipped(gradients, clipping_scale(gradients, clip_norm))
    return list(zip(found, [variable for _, variable in pairs], strict=True))


def _checked_everywhere(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _is_all_finite(grads: Any) -> Any:
        if not asks_others():
            return original(grads)
        return are_finite_everywhere(original(grads) if len(grads) else tf.constant(True))

    return _is_all_finite


def _take_part(optimizer: Any) -> None:
    """Does what a step of this optimizer does on a rank that has no variables of the model."""
    scale = getattr(optimizer, "_loss_scale", None)
    if scale is not None:
        _take_part_in_scaling(optimizer, scale)
        return
    if hasattr(optimizer, "_compute_current_learning_rate"):
        optimizer._compute_current_learning_rate()
    if optimizer.global_clipnorm:
        with applying([]):
            clipping_scale([], optimizer.global_clipnorm)
    _count(optimizer)


def _take_part_in_scaling(optimizer: Any, scale: Any) -> None:
    inner = optimizer.inner_optimizer
    if not optimizer.dynamic:
        _take_part(inner)
        return
    with applying([]):
        _, are_all_finite = scale.update([])
    tf.cond(are_all_finite, lambda: _take_part(inner), lambda: _count(inner))


def _count(optimizer: Any) -> None:
    with tf.init_scope():
        iterations = optimizer.iterations  # old optimizers make it when it is asked for
    iterations.assign_add(1, read_value=False)
