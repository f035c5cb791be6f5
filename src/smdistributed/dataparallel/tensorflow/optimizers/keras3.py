# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of Keras 3 that reduce gradients before they apply them.

`apply` is the one door: `fit` and loops of one's own come through it, `apply_gradients` calls it.
Clipping, weight decay and averages of weights are behind it, so they see reduced gradients.

With `gradient_accumulation_steps`, micro-steps add up local gradients, and the sum is reduced in
the step that uses it: Keras clips there, which is where this joins in. All ranks must count their
steps alike, and they do unless one of them has loaded an optimizer that others have not.

Loss scaling looks at gradients before the optimizer within gets them, and skips the step if one is
not finite. That has to be the same step on all ranks, so its `apply` reduces first, and the
optimizer within does not again. Where that one is no distributed optimizer and has several in it (a
`MultiOptimizer`), nobody reduces before the look, and so the first of them refuses.

Source: dataparallel specification, sections 6.3, 7.7 and 8.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
from typing import Any

import tensorflow as tf

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported
from smdistributed.dataparallel.tensorflow import remedies
from smdistributed.dataparallel.tensorflow.optimizers.reducer import GradientReducer, reducer_of
from smdistributed.dataparallel.tensorflow.xla import UNSUPPORTED_TEXT

__all__ = ["Keras3Distributed", "accumulate", "prepare_keras"]

_MARK = "_smddp_wraps"
# What a loss-scaling optimizer wraps that has looked at gradients which nobody reduced before.
_scaled_alone: contextvars.ContextVar[Any] = contextvars.ContextVar("scaled_alone", default=None)


class Keras3Distributed:
    """What a distributed optimizer of Keras 3 does in another way."""

    _smddp_reducer: GradientReducer
    gradient_accumulation_steps: int | None
    _trainable_variables: list[Any]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduces, then applies; arguments as Keras has them."""
        parent: Any = super()
        reducer = self._smddp_reducer
        gradients = list(grads)
        variables = None if trainable_variables is None else list(trainable_variables)
        targets = self._trainable_variables if variables is None else variables
        if len(gradients) != len(targets):
            return parent.apply(gradients, variables)  # which knows what is wrong with that
        given, accumulates = gradients, self._accumulates(targets)
        if reducer.passes > 1 and accumulates and gradients:
            pairs = reducer.present.filled(list(zip(gradients, targets, strict=True)))
            gradients, targets = map(list, zip(*pairs, strict=True))
            variables = targets
        if reducer.is_suspended:
            return parent.apply(gradients, variables)
        _require_no_look_before(reducer)
        is_open = not reducer.knows_reduced(given)
        if is_open and accumulates:
            with reducer.deferred(gradients, targets):
                return parent.apply(gradients, variables)
        if is_open:
            gradients = reducer.reduce(gradients, targets)
        with reducer.suspended():
            return parent.apply(gradients, variables)

    def _accumulates(self, variables: list[Any]) -> bool:
        # Gradients that overwrite their variables (scales of 8-bit types) do so in every step.
        return bool(getattr(self, "gradient_accumulation_steps", None)) and not any(
            getattr(variable, "overwrite_with_gradient", False) for variable in variables
        )

    def _clip_gradients(self, grads: Any) -> Any:
        parent: Any = super()
        reducer = self._smddp_reducer
        reduced = reducer.reduce_deferred(grads)
        if reducer.passes > 1 and not reducer.is_average_of_passes:
            reduced = [gradient * reducer.passes for gradient in reduced]  # Keras averages
        return parent._clip_gradients(reduced)


def _require_no_look_before(reducer: GradientReducer) -> None:
    outer = _scaled_alone.get()
    if outer is None:
        return
    whole = type(outer).__name__
    raise SMDDPConfigInvalid(
        f"{reducer.optimizer_name} is a DistributedOptimizer within a {whole} that is none, and a"
        " LossScaleOptimizer around them skips a step by this rank's gradients alone; expected"
        " gradients that are reduced before, or ranks skip different steps. Distribute the whole,"
        f" and not its parts: DistributedOptimizer({whole}(...))."
    )


def accumulate(optimizer: Any, passes: int) -> None:
    """Has Keras add up gradients over so many steps; its own mechanism, also in what it saves.

    Raises:
        SMDDPConfigInvalid: (a ValueError) it does so already.
        SMDDPUnsupported: it is made of several.
    """
    if optimizer.gradient_accumulation_steps:
        raise SMDDPConfigInvalid(
            f"DistributedOptimizer got backward_passes_per_step={passes}, and an optimizer with"
            f" gradient_accumulation_steps={optimizer.gradient_accumulation_steps}, which is the"
            " same thing in Keras 3; expected one of them. Leave one out."
        )
    if getattr(optimizer, "optimizers", None):
        raise SMDDPUnsupported(
            f"DistributedOptimizer got backward_passes_per_step={passes} and a"
            f" {type(optimizer).__name__} of several optimizers; expected one optimizer. Make each"
            " of them with gradient_accumulation_steps= instead."
        )
    optimizer.gradient_accumulation_steps = passes
    if optimizer.built:
        optimizer._accumulated_gradients = [
            optimizer.add_variable_from_reference(variable, name="gradient_accumulator")
            for variable in optimizer._trainable_variables
        ]
    # From now on it counts passes, and says `iterations` of what is that many times fewer.
    optimizer._iterations.assign(optimizer._iterations * passes)


def prepare_keras(keras: Any) -> None:
    """Makes Keras 3 mind distributed optimizers in loss scaling and in `compile`; once.

    Args:
        keras: the module.
    """
    remedies.apply_to(keras)
    _wrap(keras.optimizers.LossScaleOptimizer, "apply", _apply_loss_scaled)
    _wrap(keras.Model, "compile", _compile)


def _wrap(cls: type, name: str, wrapper: Any) -> None:
    """Replaces a method where it is defined, by `wrapper(original, self, *args, **kwargs)`."""
    owner = next(base for base in cls.__mro__ if name in vars(base))
    original = vars(owner)[name]
    if getattr(original, _MARK, None) is wrapper:
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, self, *args, **kwargs)

    setattr(method, _MARK, wrapper)
    setattr(owner, name, method)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _apply_loss_scaled(
    original: Any, self: Any, grads: Any, trainable_variables: Any = None
) -> Any:
    reducer = reducer_of(self)
    gradients = list(grads)
    variables = None if trainable_variables is None else list(trainable_variables)
    targets = self._trainable_variables if variables is None else variables
    if reducer is None:
        before = _scaled_alone.set(self.inner_optimizer)
        try:
            return original(self, gradients, variables)
        finally:
            _scaled_alone.reset(before)
    if reducer.is_suspended or len(gradients) != len(targets):
        return original(self, gradients, variables)
    gradients = reducer.reduce(gradients, targets)
    with reducer.suspended():
        return original(self, gradients, variables)


def _compile(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    parameters = inspect.signature(original).parameters
    known = {key: value for key, value in kwargs.items() if key in parameters}
    others = {key: value for key, value in kwargs.items() if key not in parameters}
    bound = inspect.signature(original).bind(self, *args, **known)
    reducer = _reducer_within(bound.arguments.get("optimizer"))
    if reducer is None:
        return original(self, *args, **kwargs)
    wish = bound.arguments.get("jit_compile", "auto")
    if wish is True:
        raise SMDDPUnsupported(UNSUPPORTED_TEXT)
    if wish == "auto":
        bound.arguments["jit_compile"] = False
        if tf.config.list_physical_devices("GPU"):  # where Keras would have chosen XLA
            get_logger().info(
                "model.compile(): jit_compile is False, since %s communicates and XLA compiles no"
                " communication",
                reducer.optimizer_name,
            )
    return original(*bound.args, **bound.kwargs, **others)


def _reducer_within(optimizer: Any) -> GradientReducer | None:
    """As `reducer_of`; else of the first of its parts that has one."""
    whole = getattr(optimizer, "inner_optimizer", optimizer)
    candidates = [optimizer, *(getattr(whole, "optimizers", None) or ())]
    return next(filter(None, map(reducer_of, candidates)), None)
