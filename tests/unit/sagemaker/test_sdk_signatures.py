# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Our classes take what the published SDK's classes take (launch specification, sections 1 and 2).

Both are asked: ours as it is, the SDK's by its source.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, NamedTuple

import pytest

from tests.unit.sagemaker.sdk import SdkMethod, sdk_methods

_MODULE = "smdistributed.sagemaker"


class Row(NamedTuple):
    """A class of ours, and the SDK's.

    Attributes:
        module: below `sagemaker`.
        name: of the class.
        files: of the SDK's class, then of its bases that get its other keywords: `file:Class`.
    """

    module: str
    name: str
    files: tuple[str, ...]


_BASE = "estimator.py:EstimatorBase"
_FRAMEWORK = ("estimator.py:Framework", _BASE)
_MODEL = ("model.py:FrameworkModel", "model.py:Model")
ROWS = [
    Row("estimator", "EstimatorBase", (_BASE,)),
    Row("estimator", "Estimator", ("estimator.py:Estimator", _BASE)),
    Row("estimator", "Framework", _FRAMEWORK),
    Row("pytorch", "PyTorch", ("pytorch/estimator.py:PyTorch", *_FRAMEWORK)),
    Row("tensorflow", "TensorFlow", ("tensorflow/estimator.py:TensorFlow", *_FRAMEWORK)),
    Row("huggingface", "HuggingFace", ("huggingface/estimator.py:HuggingFace", *_FRAMEWORK)),
    Row("inputs", "TrainingInput", ("inputs.py:TrainingInput",)),
    Row("inputs", "FileSystemInput", ("inputs.py:FileSystemInput",)),
    Row("inputs", "ShuffleConfig", ("inputs.py:ShuffleConfig",)),
    Row("instance_group", "InstanceGroup", ("instance_group.py:InstanceGroup",)),
    Row("session", "Session", ("session.py:Session",)),
    Row("local", "LocalSession", ("local/local_session.py:LocalSession",)),
    Row("predictor", "Predictor", ("base_predictor.py:Predictor",)),
    Row("model", "Model", _MODEL[1:]),
    Row("model", "FrameworkModel", _MODEL),
    Row("pytorch.model", "PyTorchModel", ("pytorch/model.py:PyTorchModel", *_MODEL)),
    Row(
        "pytorch.model",
        "PyTorchPredictor",
        ("pytorch/model.py:PyTorchPredictor", "base_predictor.py:Predictor"),
    ),
    Row("tensorflow.model", "TensorFlowModel", ("tensorflow/model.py:TensorFlowModel", *_MODEL)),
    Row(
        "tensorflow.model",
        "TensorFlowPredictor",
        ("tensorflow/model.py:TensorFlowPredictor", "base_predictor.py:Predictor"),
    ),
    Row(
        "analytics",
        "TrainingJobAnalytics",
        ("analytics.py:TrainingJobAnalytics", "analytics.py:AnalyticsMetricsBase"),
    ),
    *(
        Row("serializers", f"{each}Serializer", (f"base_serializers.py:{each}Serializer",))
        for each in (
            "Base", "SimpleBase", "CSV", "Numpy", "JSON", "Identity", "JSONLines", "SparseMatrix",
            "LibSVM", "Data", "String", "TorchTensor",
        )
    ),
    *(
        Row("deserializers", f"{each}Deserializer", (f"base_deserializers.py:{each}Deserializer",))
        for each in (
            "Base", "SimpleBase", "String", "Bytes", "CSV", "Stream", "Numpy", "JSON", "Pandas",
            "JSONLines", "TorchTensor",
        )
    ),
]  # fmt: skip

# Methods that the specification leaves out (section 2.2), or that Amazon's service alone has. They
# are not there, and a script that calls one ends with an AttributeError.
LEFT_OUT = {
    "EstimatorBase": {
        "prepare_workflow_for_training", "latest_job_debugger_artifacts_path",
        "latest_job_tensorboard_artifacts_path", "latest_job_profiler_artifacts_path",
        "compile_model", "enable_default_profiling", "disable_profiling", "update_profiler",
        "get_remote_debug_config", "get_session_chaining_config", "enable_remote_debug",
        "disable_remote_debug", "get_app_url",
    },
    "TrainingInput": {"add_hub_access_config", "add_model_access_config"},
    "Predictor": {
        "disable_data_capture", "enable_data_capture", "endpoint_context", "list_monitors",
        "list_related_models", "predict_stream", "update_data_capture_config", "update_predictor",
    },
    "Model": {
        "add_tags", "attach", "compile", "create", "is_repack", "package_for_edge",
        "prepare_container_def", "remove_tag_with_key", "tune",
    },
    "FrameworkModel": {"is_repack", "prepare_container_def"},
    "PyTorchModel": {"prepare_container_def", "serving_image_uri"},
    "TensorFlowModel": {"prepare_container_def", "serving_image_uri"},
}  # fmt: skip

# The SDK's own class differs from its base behind the seventeenth argument.
OTHER_ORDERS = {("TensorFlowModel", "deploy")}

# The service's are many, and scripts call few of them (section 1).
OF_SESSION = {
    "__init__", "upload_data", "default_bucket", "account_id", "describe_training_job",
    "stop_training_job",
}  # fmt: skip

# Defaults that say the same in other words, by class: for the SDK's None it looks elsewhere first.
# Of pickled arrays ours loads plain values only, whatever it is told.
OTHER_DEFAULTS = {
    "EstimatorBase": {
        "volume_size", "max_run", "input_mode", "model_channel_name", "use_spot_instances",
        "encrypt_inter_container_traffic", "enable_network_isolation", "disable_profiler",
        "disable_output_compression", "container_log_level",
    },
    "NumpyDeserializer": {"allow_pickle"},
    "FrameworkModel": {"predictor_cls"},
}  # fmt: skip

IDS = [row.name for row in ROWS]


def class_of(row: Row) -> type:
    found: type = getattr(importlib.import_module(f"{_MODULE}.{row.module}"), row.name)
    return found


def own_method(kind: type, name: str) -> Any:
    return inspect.unwrap(getattr(kind, name))


def accepted(kind: type, name: str) -> set[str]:
    """Names of all arguments, also of those that go on to a base."""
    names: set[str] = set()
    for each in kind.__mro__:
        if name in vars(each):
            given = inspect.signature(getattr(each, name)).parameters
            names |= set(given)
            if not any(one.kind is one.VAR_KEYWORD for one in given.values()):
                break
    return names


def expected(row: Row, name: str) -> set[str]:
    names: set[str] = set()
    for where in row.files:
        method = sdk_methods(*where.split(":")).get(name)
        if method is not None:
            names |= {*method.positions, *method.keywords}
            if not method.takes_more:
                break
    return names


def methods_of(row: Row) -> dict[str, SdkMethod]:
    """The SDK's, which ours must have too."""
    found: dict[str, SdkMethod] = {}
    for where in reversed(row.files):
        left_out = LEFT_OUT.get(where.partition(":")[2], set())
        methods = sdk_methods(*where.split(":"))
        found |= {name: each for name, each in methods.items() if name not in left_out}
    if row.name == "Session":
        return {name: found[name] for name in OF_SESSION}
    if row.name == "LocalSession":
        return {"__init__": found["__init__"]}
    return found


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_every_argument_of_the_sdk_is_known(row: Row) -> None:
    kind = class_of(row)
    for name in methods_of(row):
        assert hasattr(kind, name), f"{row.name} has no {name}()"
        method = own_method(kind, name)
        if name == "__init__" and method is object.__init__:
            assert not expected(row, name)
            continue
        given = inspect.signature(method).parameters
        is_open = name != "__init__" and any(
            each.kind is each.VAR_KEYWORD for each in given.values()
        )
        missing = set() if is_open else expected(row, name) - accepted(kind, name)
        assert not missing, f"{row.name}.{name}() does not know {sorted(missing)}"


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_arguments_without_names_mean_the_same(row: Row) -> None:
    kind = class_of(row)
    for name, theirs in methods_of(row).items():
        method = own_method(kind, name)
        if method is object.__init__ or (row.name, name) in OTHER_ORDERS:
            continue
        ours = [
            each.name
            for each in inspect.signature(method).parameters.values()
            if each.kind is each.POSITIONAL_OR_KEYWORD and each.name != "self"
        ]
        # Where ours has fewer of them, more of them without names are a TypeError.
        both = min(len(ours), len(theirs.positions))
        assert ours[:both] == theirs.positions[:both], f"{row.name}.{name}()"


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_defaults_are_the_sdks(row: Row) -> None:
    kind = class_of(row)
    for name, theirs in methods_of(row).items():
        method = own_method(kind, name)
        if method is object.__init__:
            continue
        others = OTHER_DEFAULTS.get(row.name, set()) if name == "__init__" else set()
        for argument, ours in inspect.signature(method).parameters.items():
            if argument in theirs.defaults and argument not in others:
                assert ours.default == theirs.defaults[argument], f"{row.name}.{name}({argument}=)"


def test_what_is_left_out_is_not_there() -> None:
    # Else the list hides arguments that nobody compares.
    for row in ROWS:
        there = [name for name in LEFT_OUT.get(row.name, ()) if hasattr(class_of(row), name)]
        assert not there, f"{row.name} has {there}; take them out of LEFT_OUT"
