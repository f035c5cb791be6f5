# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What keeps documented scripts alive on Keras 3. They were written for Keras 2.

    line of a script                                        without a remedy
    opt.variables()                                         'list' object is not callable
    model.compile(..., experimental_run_tf_function=False)  unknown argument
    model.save(folder), save_model(model, folder)           "Invalid filepath extension"
    metric.reset_states()                                   no such attribute

Each remedy changes only what would be an error. This module imports no Keras: TensorFlow has done
so by now, and the one that it uses is meant. Keras 3 beside a TensorFlow that uses tf-keras gets
its remedies from `DistributedOptimizer`. tf-keras needs none, and gets none.

Source: dataparallel specification, section 7.9; where models are saved to folders: our choice, see
`_save_model`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from smdistributed.dataparallel.tensorflow.patching import REMEDIES, owner_of

__all__ = ["CallableList", "apply_to", "install"]

_KERAS = "keras"


def install() -> None:
    """Applies the remedies to Keras 3, if it has been imported. May be called again.

    Source: specification, section 7.9.
    """
    keras = sys.modules.get(_KERAS)
    if keras is not None:
        apply_to(keras)


def apply_to(keras: Any) -> None:
    """Applies the remedies to an imported Keras, if it is one that needs them; once.

    Args:
        keras: the module.
    """
    if int(keras.__version__.partition(".")[0]) < 3:
        return
    for optimizer in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        REMEDIES.replace(owner_of(optimizer, "variables"), "variables", _with_callable_list)
    REMEDIES.replace(owner_of(keras.Model, "compile"), "compile", _without_dropped_keyword)
    for module in _modules_with(keras.saving.save_model):
        REMEDIES.replace(module, "save_model", _save_model)
    REMEDIES.add(keras.metrics.Metric, "reset_states", _reset_states)


class CallableList(list[Any]):
    """A list that may be called, and then returns itself: `opt.variables` and `opt.variables()`."""

    def __call__(self) -> CallableList:
        """The list itself."""
        return self


def _with_callable_list(original: property) -> property:
    assert original.fget is not None
    read = original.fget

    @functools.wraps(read)
    def variables(self: Any) -> CallableList:
        return CallableList(read(self))

    return property(variables, original.fset, original.fdel, original.__doc__)


def _without_dropped_keyword(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A001 -- Keras's name
        kwargs.pop("experimental_run_tf_function", None)
        return original(self, *args, **kwargs)

    return compile


def _save_model(original: Callable[..., Any]) -> Callable[..., Any]:
    """`save_model` that exports a SavedModel where Keras 3 would refuse the path.

    In jobs only: processes that a launcher started, and those that have called `init()`. A path is
    meant for a folder if it has no extension. What is written is what `model.export` writes: it
    serves, and `tf.saved_model.load` reads it; Keras 3 does not turn it into a model again.
    """

    @functools.wraps(original)
    def save_model(
        model: Any, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any
    ) -> Any:
        has_no_extension = isinstance(filepath, str | os.PathLike) and not (
            os.path.splitext(os.fspath(filepath))[1] or str(filepath).startswith("hf://")
        )
        wants_a_folder = kwargs.get("save_format") in (None, "tf") and not (
            kwargs.get("zipped") is False or args
        )
        if not (has_no_extension and wants_a_folder and _is_in_job()):
            return original(model, filepath, overwrite, *args, **kwargs)
        if os.path.exists(os.path.join(filepath, "saved_model.pb")) and not overwrite:
            raise FileExistsError(
                f"{filepath} holds a SavedModel, and overwrite=False; expected a new folder. Choose"
                " another one, or let it be overwritten."
            )
        from smdistributed._common.log import get_logger

        get_logger().info("model.save(): %s has no extension; a SavedModel goes there", filepath)
        return model.export(os.fspath(filepath))

    return save_model


def _is_in_job() -> bool:
    from smdistributed._common.discovery import discover
    from smdistributed._common.errors import ConfigurationError
    from smdistributed.dataparallel.tensorflow import job

    if job.is_initialized():
        return True
    try:
        return discover().source != "none"
    except ConfigurationError:  # somebody started it as a rank, if in a wrong way
        return True


def _reset_states(self: Any) -> Any:
    """The name of `reset_state` before Keras 3."""
    return self.reset_state()


def _modules_with(function: Any) -> list[Any]:
    """Keras's own modules that have a function: they have imported it from each other by name."""
    return [
        module
        for name, module in list(sys.modules.items())  # which may hold anything
        if name.partition(".")[0] == _KERAS
        and getattr(module, "__dict__", {}).get(function.__name__) is function
    ]
