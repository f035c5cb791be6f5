# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where variables are made: each `tf.Variable` in a scope is made without a value.

TensorFlow asks a stack of creators for each variable, in graphs and outside, and both Kerases make
their variables so. Keras 3 knows more about a variable than TensorFlow is told; its variable class
is patched to pass that on.

Variables of metrics and optimizers get a value at once: every rank has them. Whose a variable is,
the stack of Python calls tells: the innermost object among them that is a metric, an optimizer or
a layer.

Source: our choice.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import default_variable_creator_v2

from smdistributed.dataparallel.tensorflow.patching import RULES
from smdistributed.modelparallel.tensorflow.remedies import hooks

__all__ = [
    "KerasVariable",
    "creator_scope",
    "eager_value",
    "is_global_seed",
    "outside_of_functions",
]

# Makes what `fit` counts batches with.
_COUNTERS_OF_TF_KERAS = "_create_counter_variable"
_FIRST = 1000  # TensorFlow asks its creators by priority; its own have 100 or less

# Makes the variable of such keyword arguments, which are those of `tf.Variable`.
Create = Callable[["KerasVariable | None", dict[str, Any]], Any]


class KerasVariable:
    """What Keras 3 knows of the variable that it is making.

    Attributes:
        variable: the `keras.Variable`.
        initializer: what gives the value, a function of shape and dtype; None if it has the value.
    """

    def __init__(self, variable: Any, initializer: Any) -> None:
        self.variable = variable
        self.initializer = initializer


class _Thread(threading.local):
    creating: KerasVariable | None = None


_this_thread = _Thread()


@contextlib.contextmanager
def creator_scope(create: Create, *, all_kinds: bool = False) -> Iterator[None]:
    """While it is open, `create` makes this thread's variables that layers and models will own.

    Args:
        create: makes a variable.
        all_kinds: it makes those of metrics and optimizers, too.
    """
    _patch_keras_3()

    def creator(next_creator: Any, **kwargs: Any) -> Any:
        # Made from a definition or a handle: it is another name of a variable that is there.
        is_new = kwargs.get("variable_def") is None and kwargs.get("handle") is None
        if not is_new or (not all_kinds and _is_on_every_rank()):
            if is_new and not callable(kwargs["initial_value"]):
                kwargs["initial_value"] = eager_value(kwargs)
            with _creating(None):  # its initializer may make a variable of its own
                return default_variable_creator_v2(**kwargs)
        return create(_this_thread.creating, kwargs)

    # Before the creator of `wrap_function`, which refuses a second variable of one name, and tells
    # variables of Keras 3 apart by the last part of their names.
    with tf.compat.v1.get_default_graph()._variable_creator_scope(creator, priority=_FIRST):
        yield


@contextlib.contextmanager
def outside_of_functions() -> Iterator[None]:
    """As `tf.init_scope`; and no `tf.function` takes variables for its own that are made here.

    A function that has variables is lost if its first trace fails.
    """

    def creator(next_creator: Any, **kwargs: Any) -> Any:
        return default_variable_creator_v2(**kwargs)

    graph = tf.compat.v1.get_default_graph()
    with graph._variable_creator_scope(creator, priority=_FIRST - 1), tf.init_scope():
        yield


def eager_value(kwargs: dict[str, Any]) -> Any:
    """The initial value of a variable that has it already, as an eager tensor.

    Args:
        kwargs: of `tf.Variable`.

    Raises:
        ValueError: the value is a tensor of a graph that is no constant.
    """
    value = kwargs["initial_value"]
    if tf.is_tensor(value) and not hasattr(value, "numpy"):
        constant = tf.get_static_value(value)
        if constant is None:
            raise ValueError(
                f"The initial value of the variable {kwargs.get('name')!r} is a tensor of a graph,"
                f" {value.name}; expected a value, or a function that gives one. Write"
                " `tf.Variable(lambda: ...)` in `build` and `call`."
            )
        value = constant
    with tf.init_scope():
        return tf.convert_to_tensor(value, kwargs.get("dtype"))


def _patch_keras_3() -> None:
    keras = sys.modules.get("keras")
    if keras is None:
        return
    for name, make in (("_initialize", _noted), ("_initialize_with_initializer", _noted)):
        owner = next((cls for cls in keras.Variable.__mro__ if name in vars(cls)), None)
        if owner is None:
            raise NotImplementedError(
                f"Keras {keras.__version__} has no keras.Variable.{name}; expected it, to make"
                " variables without values. Use Keras 3.5 or later, or tf-keras"
                " (TF_USE_LEGACY_KERAS=1)."
            )
        RULES.replace(owner, name, make)


def _noted(original: Callable[..., Any]) -> Callable[..., Any]:
    """The variable is known to creators while it is made."""

    @functools.wraps(original)
    def initialize(self: Any, value: Any) -> Any:
        outer = _this_thread.creating
        if outer is not None and outer.variable is self:  # one of these methods calls the other
            return original(self, value)
        with _creating(KerasVariable(self, value if callable(value) else None)):
            return original(self, value)

    return initialize


@contextlib.contextmanager
def _creating(what: KerasVariable | None) -> Iterator[None]:
    outer, _this_thread.creating = _this_thread.creating, what
    try:
        yield
    finally:
        _this_thread.creating = outer


def _is_on_every_rank() -> bool:
    """Whether the variable that is being made is no layer's: every rank needs its value."""
    creating = _this_thread.creating
    if creating is not None and getattr(creating.variable, "synchronization", "") == "on_read":
        return True  # a metric's, that Keras could not make when the metric asked for it
    everywhere, of_layers, global_seed = _classes()
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code is global_seed:  # a generator of the process, which outlives the model
            return True
        if code.co_name == _COUNTERS_OF_TF_KERAS:
            return True
        if code.co_argcount and code.co_varnames[0] == "self":
            owner = frame.f_locals.get("self")
            if isinstance(owner, everywhere):
                return True
            if isinstance(owner, of_layers):
                return False
        frame = frame.f_back
    return False


def is_global_seed(handle: Any) -> bool:
    """Whether a handle is of the seeds that Keras 3 draws where a layer has none of its own."""
    keras = sys.modules.get("keras")
    if keras is None:
        return False
    from keras.src.backend.common import global_state

    generator = global_state.get_global_attribute("global_seed_generator")
    return generator is not None and hooks.raw(generator.state).handle is handle


def _classes() -> tuple[tuple[type, ...], tuple[type, ...], Any]:
    """Metrics and optimizers; layers; the code that makes Keras 3's global seed generator."""
    everywhere: list[type] = [tf.compat.v1.train.Optimizer]
    of_layers: list[type] = []
    global_seed = None
    if (keras := sys.modules.get("keras")) is not None:
        from keras.src.random.seed_generator import global_seed_generator

        everywhere += [keras.metrics.Metric, keras.optimizers.Optimizer]
        of_layers += [keras.layers.Layer]
        global_seed = global_seed_generator.__code__
    if (keras := sys.modules.get("tf_keras")) is not None:
        everywhere += [keras.metrics.Metric, keras.optimizers.Optimizer]
        everywhere += [keras.optimizers.legacy.Optimizer]
        of_layers += [keras.layers.Layer]
    return tuple(everywhere), tuple(of_layers), global_seed
