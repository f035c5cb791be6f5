# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of Keras 3.

Source: TensorFlow modelparallel specification, section 3.4.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.tensorflow.patching import RULES, owner_of
from smdistributed.modelparallel.tensorflow.remedies import hooks
from smdistributed.modelparallel.tensorflow.updates.applying import (
    applying,
    are_finite_everywhere,
    asks_others,
    clipping_scale,
    has_pipeline,
    local_pairs,
    require_no_step,
)
from smdistributed.modelparallel.tensorflow.variables import outside_of_functions

__all__ = ["apply_to"]


def apply_to(keras: Any) -> None:
    """Changes the base class of its optimizers. Repeatable."""
    for name, make in (
        ("apply_gradients", _of_pairs),
        ("apply", _of_local_variables),
        ("_backend_apply_gradients", _of_known_variables),
        ("_clip_gradients", _over_pipeline),
    ):
        RULES.replace(owner_of(keras.optimizers.Optimizer, name), name, make)
    for name, make in (
        ("apply", _scaled),
        ("check_finite", _checked_everywhere),
        ("scale_loss", _by_a_variable),
        ("build", _with_its_scale),
    ):
        RULES.replace(keras.optimizers.LossScaleOptimizer, name, make)


def _of_pairs(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = local_pairs(grads_and_vars)
        if pairs:
            return original(self, pairs, *args, **kwargs)
        self.apply([], [])  # the original fails for an empty list
        return self.iterations

    return apply_gradients


def _of_local_variables(original: Callable[..., Any]) -> Callable[..., Any]:
    # Keras 3.3 clips in each call, later ones where accumulated gradients are applied.
    clips_each_time = "_clip_gradients" in original.__code__.co_names

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        require_no_step()
        known = self._trainable_variables if self.built else []
        variables = known if trainable_variables is None else trainable_variables
        pairs = local_pairs(zip(grads, variables, strict=False))
        has_none = len(pairs) == 0 and (trainable_variables is not None or len(grads) == 0)
        if has_none and has_pipeline():
            _take_part(self, clips_each_time)
            return None
        if trainable_variables is not None:
            grads = [gradient for gradient, _ in pairs]
            trainable_variables = [variable for _, variable in pairs]
        if trainable_variables and not self.built and has_pipeline():
            with outside_of_functions(), sys.modules["keras"].name_scope(self.name):
                self.build(trainable_variables)
        with applying([variable for gradient, variable in pairs if gradient is not None]):
            return original(self, grads, trainable_variables)

    return apply


def _of_known_variables(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _backend_apply_gradients(self: Any, grads: Any, trainable_variables: Any) -> Any:
        with applying(trainable_variables):
            return original(self, grads, trainable_variables)

    return _backend_apply_gradients


def _over_pipeline(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _clip_gradients(self: Any, grads: Any) -> Any:
        if asks_others() and _has_global_clipnorm(self):
            scale = clipping_scale(list(grads), self.global_clipnorm)
            # As Keras has it: slices become dense.
            return [None if each is None else each * tf.cast(scale, each.dtype) for each in grads]
        return original(self, grads)

    return _clip_gradients


def _has_global_clipnorm(optimizer: Any) -> bool:
    return not optimizer.clipnorm and bool(optimizer.global_clipnorm)


def _take_part(optimizer: Any, clips_each_time: bool) -> None:
    """Does what a step of this optimizer does on a rank that has no variables of the model."""
    calls = getattr(
        optimizer, "_iterations", None
    )  # later than Keras 3.3: steps and what accumulates
    calls = optimizer.iterations if calls is None else calls
    if _has_global_clipnorm(optimizer):
        steps = optimizer.gradient_accumulation_steps
        if steps and not clips_each_time:
            is_last = (tf.convert_to_tensor(calls) + 1) % steps == 0
            tf.cond(is_last, lambda: _clip_nothing(optimizer), lambda: None)
        else:
            _clip_nothing(optimizer)
    calls.assign_add(1)


def _clip_nothing(optimizer: Any) -> None:
    with applying([]):
        clipping_scale([], optimizer.global_clipnorm)


# Scaled losses -----------------------------------------------------------------------------------


def _scaled(original: Callable[..., Any]) -> Callable[..., Any]:
    """A step of a `LossScaleOptimizer`, which the wrapped optimizer skips or does on all ranks."""

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        require_no_step()
        variables = trainable_variables
        if variables is None:
            variables = self._trainable_variables if self.built else []
        pairs = local_pairs(zip(grads, variables, strict=False))
        if not pairs and not has_pipeline():
            return None
        with applying([variable for _, variable in pairs]):
            gradients = [gradient for gradient, _ in pairs]
            return original(self, gradients, [variable for _, variable in pairs])

    return apply


def _checked_everywhere(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def check_finite(self: Any, grads: Any) -> Any:
        are_finite = original(self, grads)
        return are_finite_everywhere(are_finite) if asks_others() else are_finite

    return check_finite


def _by_a_variable(original: Callable[..., Any]) -> Callable[..., Any]:
    """`scale_loss` in a step, which is traced once, before the optimizer is built.

    Keras would take the number with which the scale begins, and the step would keep it for good.
    """

    @functools.wraps(original)
    def scale_loss(self: Any, loss: Any) -> Any:
        if self.built or not hooks.is_tracing():
            return original(self, loss)
        if not hasattr(self, "dynamic_scale"):
            _make_scale(self)
        return loss * tf.cast(self.dynamic_scale, loss.dtype)

    return scale_loss


def _make_scale(optimizer: Any) -> None:
    """Makes the variables of a `LossScaleOptimizer`, and none of those of the wrapped one."""
    with tf.init_scope(), sys.modules["keras"].name_scope(optimizer.name):
        optimizer.build([])
    optimizer.built = optimizer.inner_optimizer.built = False


def _with_its_scale(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def build(self: Any, var_list: Any) -> None:
        if not hasattr(self, "dynamic_scale"):
            original(self, var_list)
            return
        self.inner_optimizer.build(var_list)
        super(sys.modules["keras"].optimizers.LossScaleOptimizer, self).build(var_list)

    return build
