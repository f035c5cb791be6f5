# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A script that asks by Python learns what the variables say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.contract import files
from smdistributed.launch.contract.hyperparameters import encode
from smdistributed.launch.contract.paths import Paths
from smdistributed.launch.contract.reader import Environment
from smdistributed.launch.contract.resources import InstanceGroup, Resources, host_names

RESOURCES = Resources("algo-2", (InstanceGroup("homogeneousCluster", "local", host_names(2)),))
HYPERPARAMETERS = {
    "epochs": 3,
    "name": "x y",
    "sagemaker_program": "train.py",
    "sagemaker_job_name": "job-1",
    "sagemaker_distributed_dataparallel_enabled": True,
}
CHANNEL = {
    "ChannelName": "train",
    "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/train"}},
    "ContentType": "text/csv",
}


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    for name in ("SAGEMAKER_PROGRAM", "TRAINING_JOB_NAME", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    paths = Paths(tmp_path)
    paths.make()
    return paths


def write(paths: Paths) -> None:
    channels = {"train": files.channel_config(CHANNEL)}
    files.write(paths, encode(HYPERPARAMETERS), channels, RESOURCES)


def test_it_is_a_mapping_and_has_attributes(paths: Paths) -> None:
    write(paths)
    environment = Environment()
    assert environment["hosts"] == environment.hosts == ["algo-1", "algo-2"]
    assert environment.hyperparameters == {"epochs": 3, "name": "x y"}
    assert environment.additional_framework_parameters == {
        "sagemaker_distributed_dataparallel_enabled": True
    }
    assert environment.channel_input_dirs == {"train": str(paths.channel("train"))}
    assert environment.input_data_config["train"]["ContentType"] == "text/csv"
    assert environment.current_host == "algo-2"
    assert environment.is_master is False
    assert environment.job_name == "job-1"
    assert environment.module_name == "train"
    assert dict(environment).keys() == set(environment)
    assert len(environment) == len(dict(environment))


def test_arguments_and_variables_are_those_of_the_script(paths: Paths) -> None:
    write(paths)
    environment = Environment()
    assert environment.to_cmd_args() == ["--epochs", "3", "--name", "x y"]
    told = environment.to_env_vars()
    assert told["SM_HP_EPOCHS"] == "3"
    assert told["SM_CHANNEL_TRAIN"] == str(paths.channel("train"))
    assert json.loads(told["SM_TRAINING_ENV"]) == dict(environment)


def test_an_attribute_that_is_not_there_names_those_that_are(paths: Paths) -> None:
    environment = Environment()
    with pytest.raises(AttributeError, match=r"no 'hots'; expected one of: .*hosts"):
        _ = environment.hots
    assert not hasattr(environment, "__array__")


def test_outside_of_a_job_there_is_one_host(paths: Paths) -> None:
    environment = Environment()
    assert environment.hosts == ["algo-1"]
    assert environment.is_master is True
    assert environment.hyperparameters == {}
    assert environment.num_cpus >= 1


def test_what_is_passed_counts_before_the_files(paths: Paths) -> None:
    write(paths)
    environment = Environment(
        {"current_host": "a", "hosts": ["a"]}, {"test": {}}, {"epochs": "5", "lr": 0.1}
    )
    assert environment.hosts == ["a"]
    assert list(environment.channel_input_dirs) == ["test"]
    assert environment.hyperparameters == {"epochs": 5, "lr": 0.1}


@pytest.mark.parametrize("content", ["", "{", "[]", "5", "\x00"])
@pytest.mark.parametrize("name", ["hyperparameters", "input_data_config", "resource_config"])
def test_a_file_that_cannot_be_used_is_named(paths: Paths, name: str, content: str) -> None:
    write(paths)
    path: Path = getattr(paths, name)
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=path.name):
        Environment()


def test_a_file_that_is_no_text_is_named(paths: Paths) -> None:
    paths.hyperparameters.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"hyperparameters.json cannot be read"):
        Environment()


@pytest.mark.parametrize(
    ("channel", "told"),
    [
        (
            CHANNEL,
            {
                "TrainingInputMode": "File",
                "S3DistributionType": "FullyReplicated",
                "RecordWrapperType": "None",
                "ContentType": "text/csv",
            },
        ),
        (
            {
                "InputMode": "Pipe",
                "RecordWrapperType": "RecordIO",
                "DataSource": {"S3DataSource": {"S3DataDistributionType": "ShardedByS3Key"}},
            },
            {
                "TrainingInputMode": "Pipe",
                "S3DistributionType": "ShardedByS3Key",
                "RecordWrapperType": "RecordIO",
            },
        ),
        (
            {"DataSource": {"FileSystemDataSource": {"FileSystemId": "fs-1"}}},
            {
                "TrainingInputMode": "File",
                "S3DistributionType": "FullyReplicated",
                "RecordWrapperType": "None",
            },
        ),
    ],
)
def test_what_a_script_is_told_of_a_channel(
    channel: dict[str, object], told: dict[str, str]
) -> None:
    assert files.channel_config(channel) == told


def test_a_file_system_is_never_piped() -> None:
    """It has "always mode File" (launch specification, section 5)."""
    channel = {"DataSource": {"FileSystemDataSource": {"FileSystemId": "fs-1"}}}
    assert files.channel_config(channel, "Pipe")["TrainingInputMode"] == "File"
    assert files.channel_config({}, "Pipe")["TrainingInputMode"] == "Pipe"
