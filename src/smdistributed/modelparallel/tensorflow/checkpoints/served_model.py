# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A model that is served without this library: a SavedModel, for batches of any size.

Source: TensorFlow modelparallel specification, section 5.4.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.exceptions import ModelNotPartitionedError
from smdistributed.modelparallel.tensorflow.checkpoints import files
from smdistributed.modelparallel.tensorflow.variables import raw

__all__ = ["write_served_model"]


def write_served_model(model: Any, path: str) -> None:
    """Writes a SavedModel of a model that is whole here. One at the path is replaced.

    Raises:
        ValueError: the path is on something that is not a file system.
        ModelNotPartitionedError: it has not been called yet.
        OSError: it cannot be written.
    """
    absolute = os.path.abspath(files.require_local(path))
    files.make_directory(os.path.dirname(absolute))
    files.write_whole(absolute, lambda hidden: tf.saved_model.save(_served(model), hidden))


class _Served(tf.Module):  # type: ignore[misc] # no types
    """What is in a SavedModel: the variables, and a function of the model's arguments."""

    def __init__(self, variables: Sequence[Any], serve: Any) -> None:
        super().__init__()
        self.served_variables = variables
        self.serve = serve


def _served(model: Any) -> tf.Module:
    """The model with batches of any size, as it predicts."""
    call = model._smp_private.call
    if call is None:
        raise ModelNotPartitionedError(
            f"{type(model).__name__} has not been called yet, so what it takes is not known;"
            " expected a call in a function with @smp.step before model.save_model(). Call one"
            " first."
        )
    specs, rebuild = _open_batches(call)

    @tf.function(input_signature=specs, autograph=False)  # type: ignore[untyped-decorator]
    def serve(*tensors: Any) -> Any:
        arguments = rebuild(tensors)
        if "training" in arguments or "training" in _names(model.call):
            arguments["training"] = False
        first = next(iter(arguments))
        result = model(arguments.pop(first), **arguments)
        flat = tf.nest.flatten(result)
        if isinstance(result, dict) and len(flat) == len(result):
            return result
        return {f"output_{number}": each for number, each in enumerate(flat)}

    served = _Served([raw(each) for each in model.smp_all_variables], serve)
    serve.get_concrete_function()
    return served


def _names(call: Any) -> Sequence[str]:
    return list(inspect.signature(call).parameters)


def _open_batches(
    call: Mapping[str, Any],
) -> tuple[list[tf.TensorSpec], Callable[[Sequence[Any]], dict[str, Any]]]:
    """Specs of the tensors among arguments, of any batch size; and what takes such tensors."""
    flat = tf.nest.flatten(dict(call))
    sizes = [each.shape[0] for each in flat if isinstance(each, tf.TensorSpec) and each.shape.rank]
    specs = []
    for name, value in call.items():
        tensors = [each for each in tf.nest.flatten(value) if isinstance(each, tf.TensorSpec)]
        for number, each in enumerate(tensors):
            shape = each.shape.as_list()
            if shape and shape[0] == sizes[0]:
                shape[0] = None
            alone = name if len(tensors) == 1 else f"{name}_{number}"
            specs.append(tf.TensorSpec(shape, each.dtype, alone))

    def rebuild(tensors: Sequence[Any]) -> dict[str, Any]:
        waiting = iter(tensors)
        return {
            name: tf.nest.map_structure(
                lambda each: next(waiting) if isinstance(each, tf.TensorSpec) else each, value
            )
            for name, value in call.items()
        }

    return specs, rebuild
