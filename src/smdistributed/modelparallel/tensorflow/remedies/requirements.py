# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What model parallelism uses of TensorFlow that is not public: looked for before all else.

Source: our choice.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence

import tensorflow as tf

__all__ = ["NOT_PUBLIC", "require_what_is_not_public"]

_VERSIONS = "2.16 to 2.21"

NOT_PUBLIC = (
    ("tensorflow.core.framework.tensor_pb2", "TensorProto"),
    ("tensorflow", "__internal__.FuncGraph.capture"),
    ("tensorflow", "__internal__.FuncGraph.captures"),
    ("tensorflow", "__internal__.EagerTensor"),
    ("tensorflow", "__internal__.CompositeTensor"),
    ("tensorflow", "__internal__.tracking.AutoTrackable"),
    ("tensorflow", "__internal__.autograph.control_status_ctx"),
    ("tensorflow", "__internal__.autograph.tf_convert"),
    ("tensorflow", "GradientTape._push_tape"),
    ("tensorflow", "GradientTape._pop_tape"),
    ("tensorflow.python.pywrap_tfe", "TFE_Py_TapeSetIsStopped"),
    ("tensorflow.python.pywrap_tfe", "TFE_Py_TapeSetRestartOnThread"),
    ("tensorflow.python.pywrap_tfe", "TFE_Py_TapeSetStopOnThread"),
    ("tensorflow.python.eager.context", "context"),
    ("tensorflow", "__internal__.tracking.Trackable"),
    ("tensorflow.core.protobuf.trackable_object_graph_pb2", "TrackableObjectGraph"),
    ("tensorflow.python.checkpoint.checkpoint_management", "generate_checkpoint_state_proto"),
    ("tensorflow.python.checkpoint.graph_view", "ObjectGraphView"),
    ("tensorflow.python.checkpoint.save_util", "serialize_graph_view"),
    ("tensorflow.python.framework.op_def_registry", "get"),
    ("tensorflow.python.trackable.base", "TrackableReference"),
    ("tensorflow.python.trackable.python_state", "PythonState"),
    ("tensorflow.python.trackable.trackable_utils", "object_path_to_string"),
    ("tensorflow.python.training.py_checkpoint_reader", "NewCheckpointReader"),
    ("tensorflow.python.training.saving.saveable_object", "SaveSpec"),
    ("tensorflow.python.eager.imperative_grad", "imperative_grad"),
    (
        "tensorflow.python.eager.polymorphic_function.atomic_function",
        "InterpolateRuntimeError.interpolate",
    ),
    (
        "tensorflow.python.eager.polymorphic_function.atomic_function",
        "AtomicFunction.call_flat",
    ),
    (
        "tensorflow.python.eager.polymorphic_function.concrete_function",
        "ConcreteFunction.inference_fn",
    ),
    ("tensorflow.python.eager.polymorphic_function.tracing_compilation", "call_function"),
    ("tensorflow.python.eager.record", "could_possibly_record"),
    ("tensorflow.python.eager.record", "stop_recording"),
    ("tensorflow.python.ops.resource_variable_ops", "ResourceVariable"),
    ("tensorflow.python.ops.resource_variable_ops", "UninitializedVariable"),
    ("tensorflow.python.ops.resource_variable_ops", "default_variable_creator_v2"),
)
"""Module, and path in it."""


def require_what_is_not_public(needed: Sequence[tuple[str, str]] = NOT_PUBLIC) -> None:
    """Fails if this TensorFlow lacks something.

    Raises:
        ImportError: names all that is missing, and the versions that have it.
    """
    missing = [f"{module}.{path}" for module, path in needed if not _is_there(module, path)]
    if missing:
        raise ImportError(
            f"TensorFlow {tf.__version__} has no {', '.join(missing)}, with which model parallelism"
            f" cuts graphs; expected one of the versions {_VERSIONS}, which have it. Run: pip"
            " install smdistributed-open[tensorflow]"
        )


def _is_there(module: str, path: str) -> bool:
    try:
        functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        return False
    return True
