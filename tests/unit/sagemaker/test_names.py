# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The public names of launch specification, section 1, and what importing them loads."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys

import pytest
from machine_speed import scaled

import smdistributed.sagemaker as ours
from tests.unit.sagemaker.sdk import sdk_folder

# A row of the specification's table each; `sagemaker` stands for smdistributed.sagemaker.
TABLE = {
    "sagemaker": (
        "Session LocalSession get_execution_role TrainingInput Predictor TrainingJobAnalytics"
        " InstanceGroup __version__"
    ),
    "sagemaker.estimator": "EstimatorBase Framework Estimator",
    "sagemaker.pytorch": "PyTorch PyTorchModel PyTorchPredictor",
    "sagemaker.pytorch.estimator": "PyTorch",
    "sagemaker.pytorch.model": "PyTorchModel PyTorchPredictor",
    "sagemaker.tensorflow": "TensorFlow TensorFlowModel TensorFlowPredictor",
    "sagemaker.tensorflow.estimator": "TensorFlow",
    "sagemaker.tensorflow.model": "TensorFlowModel TensorFlowPredictor",
    "sagemaker.predictor": "Predictor",
    "sagemaker.huggingface": "HuggingFace",
    "sagemaker.inputs": "TrainingInput FileSystemInput ShuffleConfig",
    "sagemaker.instance_group": "InstanceGroup",
    "sagemaker.serializers": "IdentitySerializer JSONSerializer",
    "sagemaker.deserializers": "BytesDeserializer JSONDeserializer",
    "sagemaker.analytics": "TrainingJobAnalytics",
    "sagemaker.exceptions": "UnexpectedStatusException CapacityError",
    "sagemaker.local": "LocalSession",
    "sagemaker.fw_utils": (
        "validate_distribution validate_smdistributed validate_mp_config parse_mp_parameters"
        " get_mp_parameters"
    ),
    "sagemaker.framework": "Framework",
}


@pytest.mark.parametrize("path", TABLE)
def test_names_are_where_scripts_import_them_from(path: str) -> None:
    module = importlib.import_module(f"smdistributed.{path}")
    for name in TABLE[path].split():
        assert getattr(module, name) is not None


def test_modules_are_attributes_after_the_first_import() -> None:
    code = (
        "import smdistributed.sagemaker as sagemaker; import sys;"
        "loaded = [name for name in sys.modules if name.startswith('smdistributed.sagemaker.')];"
        "assert not loaded, loaded;"
        "assert sagemaker.inputs.TrainingInput is sagemaker.TrainingInput;"
        "sagemaker.pytorch.estimator.PyTorch; sagemaker.local.LocalSession;"
        "assert not {'numpy', 'torch', 'tensorflow', 'botocore'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=scaled(60)
    )
    assert done.returncode == 0, done.stderr


def test_the_version_is_that_of_the_sdk_whose_arguments_are_known() -> None:
    found = importlib.metadata.distributions(name="sagemaker", path=[str(sdk_folder())])
    assert [each.version for each in found] == [ours.__version__]


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'tuner'; expected one of"):
        ours.tuner  # noqa: B018
    assert not hasattr(ours, "Processor")
    assert {"Session", "pytorch"} <= set(dir(ours))
