# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Input channels.

Source: launch specification, section 5.
"""

import copy
import inspect
import re
from typing import Any

import pytest

from smdistributed.sagemaker.inputs import (
    FileSystemInput,
    ShuffleConfig,
    TrainingInput,
    channels,
)


def s3(uri: str, **more: Any) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated"}
    return {"DataSource": {"S3DataSource": source | more}}


def fsx(**more: str) -> dict[str, Any]:
    source = {
        "FileSystemId": "fs-1",
        "FileSystemType": "FSxLustre",
        "DirectoryPath": "/m/data",
        "FileSystemAccessMode": "ro",
    }
    return {"DataSource": {"FileSystemDataSource": source | more}}


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (None, []),
        ("s3://b/p", [{"ChannelName": "training", **s3("s3://b/p")}]),
        ("file:///d", [{"ChannelName": "training", **s3("file:///d")}]),
        ("s3://b/übung", [{"ChannelName": "training", **s3("s3://b/übung")}]),
        (TrainingInput("s3://b/p"), [{"ChannelName": "training", **s3("s3://b/p")}]),
        (
            FileSystemInput("fs-1", "FSxLustre", "/m/data"),
            [{"ChannelName": "training", **fsx()}],
        ),
        (
            {
                "z": "s3://b/z",
                "a": TrainingInput("file:///a", content_type="text/csv"),
                "f": FileSystemInput("fs-1", "FSxLustre", "/m/data"),
            },
            [
                {"ChannelName": "z", **s3("s3://b/z")},
                {"ChannelName": "a", **s3("file:///a"), "ContentType": "text/csv"},
                {"ChannelName": "f", **fsx()},
            ],
        ),
        ({}, []),
    ],
)
def test_section_5_table_of_inputs(inputs: Any, expected: list[dict[str, Any]]) -> None:
    assert channels(inputs) == expected


@pytest.mark.parametrize("uri", ["", "/data", "S3://b", "https://b", "s3:/b", "данные"])
@pytest.mark.parametrize("in_dict", [False, True])
def test_section_5_other_string(uri: str, in_dict: bool) -> None:
    text = f'URI input {uri} must be a valid S3 or FILE URI: must start with "s3://" or "file://"'
    with pytest.raises(ValueError, match=re.escape(text) + r"\Z"):
        channels({"train": uri} if in_dict else uri)


@pytest.mark.parametrize("uri", ["/data", None, 5])
def test_section_5_other_string_in_a_training_input(uri: Any) -> None:
    with pytest.raises(ValueError, match=f"URI input {uri} must be a valid S3 or FILE URI"):
        channels(TrainingInput(uri))


def test_section_5_up_to_20_channels() -> None:
    twenty = {f"c{index}": "s3://b" for index in range(20)}
    assert [each["ChannelName"] for each in channels(twenty)] == list(twenty)
    with pytest.raises(ValueError, match="inputs has 21 channels; a job has at most 20"):
        channels(twenty | {"one-more": "s3://b"})


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "a b", "a\n", "x" * 65, None, 5])
def test_names_that_no_channel_has(name: Any) -> None:
    with pytest.raises(ValueError, match="is no name of a channel"):
        channels({name: "s3://b"})


@pytest.mark.parametrize("name", ["my-data", "a.b", "...", "_", "x" * 64])
def test_names_of_channels(name: str) -> None:
    assert channels({name: "s3://b"})[0]["ChannelName"] == name


@pytest.mark.parametrize("source", [5, True, b"s3://b", ["s3://b"], object()])
@pytest.mark.parametrize("in_dict", [False, True])
def test_sources_of_other_types(source: Any, in_dict: bool) -> None:
    with pytest.raises(ValueError, match="expected a URI as a string, a TrainingInput or"):
        channels({"training": source} if in_dict else source)


@pytest.mark.parametrize("source", [None, {"nested": "s3://b"}])
def test_sources_that_are_right_only_outside_of_a_dict(source: Any) -> None:
    with pytest.raises(ValueError, match="The channel 'train' is"):
        channels({"train": source})


FILES_ON_SAGEMAKER = "File URIs are supported in local mode only. Please use a S3 URI instead."


@pytest.mark.parametrize(
    "inputs",
    ["file:///d", {"a": "s3://b", "b": "file:///d"}, {"a": TrainingInput("file:///d")}],
)
def test_section_5_files_of_this_machine_are_no_source_on_sagemaker(inputs: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(FILES_ON_SAGEMAKER) + r"\Z"):
        channels(inputs, is_remote=True)
    assert "file:///d" in str(channels(inputs))


def test_other_sources_are_right_on_sagemaker() -> None:
    inputs: dict[str, Any] = {"a": "s3://b", "f": FileSystemInput("fs-1", "FSxLustre", "/m/data")}
    assert channels(inputs, is_remote=True) == channels(inputs)


def test_section_5_signature_of_training_input() -> None:
    parameters = inspect.signature(TrainingInput).parameters
    assert {name: each.default for name, each in parameters.items()} == {
        "s3_data": inspect.Parameter.empty,
        "distribution": None,
        "compression": None,
        "content_type": None,
        "record_wrapping": None,
        "s3_data_type": "S3Prefix",
        "instance_groups": None,
        "input_mode": None,
        "attribute_names": None,
        "target_attribute_name": None,
        "shuffle_config": None,
        "hub_access_config": None,
        "model_access_config": None,
    }
    assert list(parameters)[:2] == ["s3_data", "distribution"]


@pytest.mark.parametrize(
    ("arguments", "in_source", "beside"),
    [
        ({}, {}, {}),
        ({"distribution": "ShardedByS3Key"}, {"S3DataDistributionType": "ShardedByS3Key"}, {}),
        ({"distribution": None}, {"S3DataDistributionType": "FullyReplicated"}, {}),
        ({"compression": "Gzip"}, {}, {"CompressionType": "Gzip"}),
        ({"content_type": "text/csv"}, {}, {"ContentType": "text/csv"}),
        ({"record_wrapping": "RecordIO"}, {}, {"RecordWrapperType": "RecordIO"}),
        ({"s3_data_type": "ManifestFile"}, {"S3DataType": "ManifestFile"}, {}),
        ({"instance_groups": ("g", "h")}, {"InstanceGroupNames": ["g", "h"]}, {}),
        ({"input_mode": "FastFile"}, {}, {"InputMode": "FastFile"}),
        ({"attribute_names": ["ref", "Größe"]}, {"AttributeNames": ["ref", "Größe"]}, {}),
        ({"target_attribute_name": "y"}, {}, {"TargetAttributeName": "y"}),
        ({"shuffle_config": ShuffleConfig(0)}, {}, {"ShuffleConfig": {"Seed": 0}}),
    ],
)
def test_section_5_config_of_training_input(
    arguments: dict[str, Any], in_source: dict[str, Any], beside: dict[str, Any]
) -> None:
    assert TrainingInput("s3://b/p", **arguments).config == s3("s3://b/p", **in_source) | beside


@pytest.mark.parametrize("seed", [0, 1, -5, 2**40])
def test_section_5_shuffle_config(seed: int) -> None:
    assert ShuffleConfig(seed).seed == seed


@pytest.mark.parametrize("seed", [None, True, "1", 1.0])
def test_seeds_that_are_no_integers(seed: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"seed is {seed!r}; expected an integer")):
        ShuffleConfig(seed)


def test_section_5_signature_of_file_system_input() -> None:
    parameters = inspect.signature(FileSystemInput).parameters
    assert {name: each.default for name, each in parameters.items()} == {
        "file_system_id": inspect.Parameter.empty,
        "file_system_type": inspect.Parameter.empty,
        "directory_path": inspect.Parameter.empty,
        "file_system_access_mode": "ro",
        "content_type": None,
    }


@pytest.mark.parametrize("kind", ["FSxLustre", "EFS"])
@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_section_5_config_of_file_system_input(kind: str, mode: str) -> None:
    given = FileSystemInput("fs-1", kind, "/m/data", mode)
    assert given.config == fsx(FileSystemType=kind, FileSystemAccessMode=mode)
    given = FileSystemInput("fs-1", kind, "/m/data", mode, content_type="text/csv")
    assert given.config["ContentType"] == "text/csv"


@pytest.mark.parametrize("kind", ["fsxlustre", "NFS", "", None, 5, ["EFS"]])
def test_section_5_unknown_file_system_type(kind: Any) -> None:
    text = f"Unrecognized file system type: {kind}. Valid values: FSxLustre, EFS."
    with pytest.raises(ValueError, match=re.escape(text) + r"\Z"):
        FileSystemInput("fs-1", kind, "/m/data")


@pytest.mark.parametrize("mode", ["RO", "w", "", None, True])
def test_section_5_unknown_access_mode(mode: Any) -> None:
    text = f"Unrecognized file system access mode: {mode}. Valid values: ro, rw."
    with pytest.raises(ValueError, match=re.escape(text) + r"\Z"):
        FileSystemInput("fs-1", "EFS", "/m/data", mode)


def test_nothing_of_the_caller_is_changed_or_shared() -> None:
    given = {"a": TrainingInput("s3://b", attribute_names=["x"])}
    before = copy.deepcopy(given["a"].config)
    (channel,) = channels(given)
    channel["DataSource"]["S3DataSource"]["AttributeNames"].append("y")
    assert given["a"].config == before
    assert list(given) == ["a"]


def test_lists_of_the_caller_are_copied() -> None:
    names = ["x"]
    made = TrainingInput("s3://b", attribute_names=names, instance_groups=names)
    names.append("y")
    source = made.config["DataSource"]["S3DataSource"]
    assert (source["AttributeNames"], source["InstanceGroupNames"]) == (["x"], ["x"])


def test_names_that_have_one_variable_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="smdistributed"):
        channels({"Train": "s3://b/x", "train": "s3://b/y", "test": "s3://b/z"})
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "the channels 'Train' and 'train' have one variable, SM_CHANNEL_TRAIN:"
    )
