# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of both Kerases, and of TensorFlow 1, by their names of TensorFlow 2.3.

    line of a script                                  without a remedy
    optimizer.get_gradients(loss, params)             no such attribute
    optimizer.compute_gradients(loss, variables)      no such attribute; or it wants a tape
    optimizer.apply_gradients(pairs, name="train")    Keras 3: unknown argument
    optimizer.get_weights()                           no such attribute
    SGD(lr=0.1)                                       Keras 3: unknown argument; tf-keras: ignored
    optimizer.lr                                      Keras 3: no such attribute
    SGD(decay=0.1)                                    Keras 3: ignored
    tf.compat.v1.train.SGD... on variables of Keras 3 no such attribute

Source: TensorFlow modelparallel specification, section 6.2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.tensorflow.patching import REMEDIES, owner_of
from smdistributed.modelparallel.tensorflow.remedies import hooks

__all__ = ["apply_to_keras_3", "apply_to_tensorflow_1", "apply_to_tf_keras"]


def apply_to_keras_3(keras: Any) -> None:
    """Changes the base class of its optimizers. May be called again."""
    optimizer = keras.optimizers.Optimizer
    REMEDIES.add(optimizer, "get_gradients", _get_gradients)
    REMEDIES.add(optimizer, "compute_gradients", _compute_gradients)
    REMEDIES.add(optimizer, "get_weights", _get_weights)
    REMEDIES.add(optimizer, "lr", property(_learning_rate, _set_learning_rate))
    REMEDIES.replace(
        owner_of(optimizer, "apply_gradients"), "apply_gradients", _with_dropped_arguments
    )
    REMEDIES.replace(owner_of(optimizer, "__init__"), "__init__", _with_old_arguments)


def apply_to_tf_keras(keras: Any) -> None:
    """Changes the base classes of its optimizers, old and new. May be called again."""
    new, legacy = keras.optimizers.Optimizer, keras.optimizers.legacy.Optimizer
    REMEDIES.add(new, "get_gradients", _get_gradients)
    REMEDIES.add(new, "get_weights", _get_weights)
    REMEDIES.replace(owner_of(new, "compute_gradients"), "compute_gradients", _in_steps)
    REMEDIES.replace(owner_of(legacy, "get_gradients"), "get_gradients", _legacy_in_steps)
    REMEDIES.replace(owner_of(new, "_process_kwargs"), "_process_kwargs", _keeping_lr)
    REMEDIES.replace(owner_of(new, "_build_learning_rate"), "_build_learning_rate", _of_lr)


def apply_to_tensorflow_1() -> None:
    """Changes `tf.compat.v1.train.Optimizer`. May be called again."""
    optimizer = tf.compat.v1.train.Optimizer
    REMEDIES.replace(optimizer, "compute_gradients", _of_raw_variables)
    REMEDIES.replace(optimizer, "apply_gradients", _to_raw_variables)


# Gradients -------------------------------------------------------------------------------------


def _get_gradients(self: Any, loss: Any, params: Any) -> list[Any]:
    """Gradients of a loss with respect to variables. In graphs only, as in TensorFlow 2.3.

    They are not clipped: `apply_gradients` does that, to what microbatches have added up to.

    Args:
        loss: a tensor of a graph.
        params: variables.

    Raises:
        RuntimeError: it was called eagerly.
        ValueError: the loss does not depend on a variable of this rank.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "get_gradients() was called eagerly; expected a graph. Call it in a function with"
            " @smp.step and return the gradients, or use tf.GradientTape."
        )
    params = list(params)
    found = hooks.gradients(loss, params)
    for gradient, variable in zip(found, params, strict=True):
        if gradient is None and not hooks.is_elsewhere(variable):
            raise ValueError(
                f"The gradient of the variable {_name(variable)} is None: the loss does not depend"
                " on it; expected a gradient for each variable. Leave it out of `params`, or use it"
                " in the model."
            )
    return found


def _compute_gradients(self: Any, loss: Any, var_list: Any, *_: Any, **__: Any) -> list[Any]:
    """Pairs of gradient and variable, in a step. The gradient of another rank's variable is None.

    Raises:
        RuntimeError: it was called outside of a step.
    """
    if not hooks.is_tracing():
        raise RuntimeError(
            "compute_gradients() was called outside of a step; Keras 3 has it in functions with"
            " @smp.step only. Call it there, or use tf.GradientTape."
        )
    return _pairs(loss, var_list)


def _pairs(loss: Any, var_list: Any) -> list[Any]:
    variables = list(var_list() if callable(var_list) else var_list)
    found = hooks.gradients(loss() if callable(loss) else loss, variables)
    return list(zip(found, variables, strict=True))


def _in_steps(original: Callable[..., Any]) -> Callable[..., Any]:
    """`compute_gradients` of tf-keras, which accepts a tensor in a step."""

    @functools.wraps(original)
    def compute_gradients(self: Any, loss: Any, var_list: Any, tape: Any = None) -> Any:
        if hooks.is_tracing() and tape is None:
            return _pairs(loss, var_list)
        return original(self, loss, var_list, tape)

    return compute_gradients


def _legacy_in_steps(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_gradients(self: Any, loss: Any, params: Any) -> Any:
        return (_get_gradients if hooks.is_tracing() else original)(self, loss, params)

    return get_gradients


# Application of gradients ----------------------------------------------------------------------


def _with_dropped_arguments(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply_gradients(
        self: Any,
        grads_and_vars: Any,
        name: Any = None,
        experimental_aggregate_gradients: Any = None,
        **kwargs: Any,
    ) -> Any:
        return original(self, grads_and_vars, **kwargs)

    return apply_gradients


# Other names -----------------------------------------------------------------------------------


def _get_weights(self: Any) -> list[Any]:
    """Values of the optimizer's variables, on this rank: arrays."""
    variables = self.variables() if callable(self.variables) else self.variables
    return [np.array(hooks.raw(each)) for each in variables]


def _with_old_arguments(original: Callable[..., Any]) -> Callable[..., Any]:
    """`lr` is `learning_rate`; `decay` is gone, and says so loudly: the training is another one."""

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if kwargs.get("lr") is not None:
            _warn("lr")
            kwargs["learning_rate"] = kwargs["lr"]
            args = args[1:]  # a subclass may have passed its default by position
        kwargs.pop("lr", None)
        if kwargs.get("decay"):
            get_logger().error(
                "%s(decay=%s): Keras 3 has no `decay` and trains without it. Give a"
                " keras.optimizers.schedules.InverseTimeDecay(learning_rate, 1, %s) as the learning"
                " rate instead.",
                type(self).__name__,
                kwargs["decay"],
                kwargs["decay"],
            )
        original(self, *args, **kwargs)

    return __init__


def _keeping_lr(original: Callable[..., Any]) -> Callable[..., Any]:
    """tf-keras says that `lr` is an old name, and forgets its value."""

    @functools.wraps(original)
    def _process_kwargs(self: Any, kwargs: dict[str, Any]) -> Any:
        lr = kwargs.pop("lr", None)
        if lr is not None:
            _warn("lr")
            self._lr_of_the_script = lr
        return original(self, kwargs)

    return _process_kwargs


def _of_lr(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _build_learning_rate(self: Any, learning_rate: Any) -> Any:
        return original(self, self.__dict__.pop("_lr_of_the_script", learning_rate))

    return _build_learning_rate


def _learning_rate(self: Any) -> Any:
    """The name of `learning_rate` before Keras 3."""
    _warn("lr")
    return self.learning_rate


def _set_learning_rate(self: Any, value: Any) -> None:
    _warn("lr")
    self.learning_rate = value


@functools.cache
def _warn(name: str) -> None:
    get_logger().warning("`%s` of an optimizer is the old name of `learning_rate`: use that", name)


# TensorFlow 1 ----------------------------------------------------------------------------------


def _of_raw_variables(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compute_gradients(
        self: Any, loss: Any, var_list: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        variables = None if var_list is None else [hooks.raw(each) for each in var_list]
        if not hooks.is_tracing():
            return original(self, loss, variables, *args, **kwargs)
        if variables is None:
            raise ValueError(
                "compute_gradients(loss) in a step has no `var_list`; expected the variables. Write"
                " compute_gradients(loss, model.trainable_variables)."
            )
        return _pairs(loss, variables)

    return compute_gradients


def _to_raw_variables(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = [(gradient, hooks.raw(variable)) for gradient, variable in grads_and_vars]
        return original(self, pairs, *args, **kwargs)

    return apply_gradients


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)
