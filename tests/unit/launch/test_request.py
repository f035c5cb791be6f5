# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that somebody has written: what they must have, to run here."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError, UnsupportedError
from smdistributed.launch.backends.request import checked
from smdistributed.launch.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    (home.buckets / "b").mkdir(parents=True)
    (home.buckets / "b" / "sourcedir.tar.gz").touch()
    return home


def document(**changed: Any) -> dict[str, Any]:
    return {
        "HyperParameters": {
            "sagemaker_program": "train.py",
            "sagemaker_submit_directory": "s3://b/sourcedir.tar.gz",
            "lr": "0.1",
        },
        "ResourceConfig": {"InstanceType": "local", "InstanceCount": 2},
        **changed,
    }


def hyperparameters(**changed: str) -> dict[str, Any]:
    return {"HyperParameters": {**document()["HyperParameters"], **changed}}


def test_a_short_document_is_completed(home: Home) -> None:
    given = document(Local={"cpu_shim": False})
    before = copy.deepcopy(given)
    request, local = checked(given, home)
    assert local == {"cpu_shim": False}
    assert request == {
        **document(),
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "EnableManagedSpotTraining": False,
        "EnableNetworkIsolation": False,
    }
    assert given == before


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"StopingCondition": {}}, "StopingCondition.*did you mean StoppingCondition"),
        ({"Zzz": 1}, "'Zzz', which nobody knows; known are TrainingJobName"),
        ({"Local": {"cpu_shims": False}}, "Local has 'cpu_shims'.* did you mean cpu_shim"),
        ({"Local": {"cpu_shim": 0}}, "cpu_shim of Local is 0; expected true or false"),
        ({"TrainingJobName": 5}, "TrainingJobName of the document is 5; expected text"),
        ({"HyperParameters": {"lr": 0.1}}, r"'lr': 0\.1; expected text"),
        (
            hyperparameters(sagemaker_submit_directory="s3://b/no"),
            "is not there; expected a .tar.gz",
        ),
        ({"ResourceConfig": {"InstanceType": "local"}}, "expected InstanceType, and an Instance"),
        ({"ResourceConfig": {"InstanceType": "x", "InstanceCount": 0}}, "InstanceCount from 1"),
        ({"ResourceConfig": {"InstanceGroups": []}}, "InstanceGroups and more, or none"),
        (
            {"ResourceConfig": {"InstanceGroups": [{"InstanceType": "x", "InstanceCount": 1}]}},
            "of groups a name too",
        ),
        ({"RetryStrategy": {"MaximumRetryAttempts": 31}}, "from 1 to 30"),
        ({"StoppingCondition": {"MaxRuntimeInSeconds": "9"}}, "'9'; expected a whole number"),
        ({"EnableManagedSpotTraining": True}, "max_wait is None"),
        ({"Environment": {"a=b": "c"}}, "expected names without '='"),
        ({"OutputDataConfig": {"S3OutputPath": "nowhere"}}, "names no data"),
        ({"CheckpointConfig": {}}, "CheckpointConfig.S3Uri is None"),
        ({"InputDataConfig": ["x"]}, "expected objects with ChannelName and"),
        ({"InputDataConfig": [{"ChannelName": "a", "DataSource": {"S3DataSource": 5}}]}, "."),
        ({"AlgorithmSpecification": {"MetricDefinitions": [{"Name": "x"}]}}, "metric_definitions"),
    ],
)
def test_what_is_wrong_is_named(home: Home, changed: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        checked(document(**changed), home)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"HyperParameters": {}}, "Containers are not run"),
        ({"EnableNetworkIsolation": True}, "EnableNetworkIsolation is True"),
        ({"AlgorithmSpecification": {"ContainerArguments": ["a"]}}, "ContainerArguments"),
        (hyperparameters(sagemaker_parameter_server_enabled="true"), "parameter_server"),
        (hyperparameters(sagemaker_distribution_instance_groups='["a"]'), "expected all of them"),
        (
            {"CheckpointConfig": {"S3Uri": "s3://b/c", "LocalPath": "/tmp/x"}},
            "a folder of its own below /opt/ml",
        ),
    ],
)
def test_what_cannot_be_done_here_is_named(home: Home, changed: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        checked(document(**changed), home)


@pytest.mark.parametrize("given", [None, [], "x", 5])
def test_a_document_is_an_object(home: Home, given: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected a JSON object"):
        checked(given, home)
