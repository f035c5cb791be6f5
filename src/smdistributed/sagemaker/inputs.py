# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The data of a job: what `fit(inputs=...)` takes, and the channels that it means.

A channel is an entry of `InputDataConfig` in the request `CreateTrainingJob`. A `file://` URI
stands there in the place of an S3 URI. So every backend reads one form, and clients that check the
form of a request accept it.

Source: launch specification, section 5.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from smdistributed._common.log import get_logger
from smdistributed.launch.data.settings import FILE_SYSTEM_TYPES

__all__ = [
    "DEFAULT_CHANNEL",
    "MAX_CHANNELS",
    "FileSystemInput",
    "ShuffleConfig",
    "TrainingInput",
    "channels",
]

_log = get_logger()

DEFAULT_CHANNEL = "training"
MAX_CHANNELS = 20

_ACCESS_MODES = ("ro", "rw")
_S3 = "s3://"
_FILE = "file://"
# The service's rule, without "." and "..", as a name is also that of a folder.
_CHANNEL_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9.\-_]{1,64}")


class ShuffleConfig:
    """Shuffles the order of S3 objects, or of a manifest's lines, before each epoch.

    Attributes:
        seed: makes the order the same in each run.

    Raises:
        ValueError: `seed` is no integer.
    """

    def __init__(self, seed: int) -> None:
        given: object = seed
        if not isinstance(given, int) or isinstance(given, bool):
            raise ValueError(
                f"seed is {given!r}; expected an integer. Write, for instance, ShuffleConfig(1)."
            )
        self.seed = given


class TrainingInput:
    """Data in S3, or in files, and how a job gets them.

    Values are passed on as they are: the backend that runs the job says which of them it supports.

    Args:
        s3_data: an `s3://` or `file://` URI.
        distribution: `FullyReplicated` (also for None) or `ShardedByS3Key`.
        compression: None or `Gzip`.
        content_type: MIME type of the data.
        record_wrapping: None or `RecordIO`.
        s3_data_type: `S3Prefix`, `ManifestFile` or `AugmentedManifestFile`.
        instance_groups: names of the instance groups that get the data; None for all.
        input_mode: `File`, `Pipe` or `FastFile`; None for the mode of the estimator.
        attribute_names: attributes that are read from an augmented manifest.
        target_attribute_name: the attribute to predict.
        shuffle_config: None keeps the order.
        hub_access_config, model_access_config: of models of Amazon's hub; dicts.

    Attributes:
        config: the channel as a request has it, without its name.
    """

    config: dict[str, Any]

    def __init__(
        self,
        s3_data: str,
        distribution: str | None = None,
        compression: str | None = None,
        content_type: str | None = None,
        record_wrapping: str | None = None,
        s3_data_type: str = "S3Prefix",
        instance_groups: Sequence[str] | None = None,
        input_mode: str | None = None,
        attribute_names: Sequence[str] | None = None,
        target_attribute_name: str | None = None,
        shuffle_config: ShuffleConfig | None = None,
        hub_access_config: Mapping[str, Any] | None = None,
        model_access_config: Mapping[str, Any] | None = None,
    ) -> None:
        source = {
            "S3DataType": s3_data_type,
            "S3Uri": s3_data,
            "S3DataDistributionType": distribution or "FullyReplicated",
            "InstanceGroupNames": list(instance_groups) if instance_groups else None,
            "AttributeNames": list(attribute_names) if attribute_names else None,
            "HubAccessConfig": hub_access_config,
            "ModelAccessConfig": model_access_config,
        }
        channel = {
            "CompressionType": compression,
            "ContentType": content_type,
            "RecordWrapperType": record_wrapping,
            "InputMode": input_mode,
            "TargetAttributeName": target_attribute_name,
            "ShuffleConfig": {"Seed": shuffle_config.seed} if shuffle_config else None,
        }
        # S3Uri stays even if it is None: channels() then names the mistake.
        given = {key: value for key, value in source.items() if value or key == "S3Uri"}
        self.config = {
            "DataSource": {"S3DataSource": given},
            **{key: value for key, value in channel.items() if value},
        }


class FileSystemInput:
    """Data in a file system that is mounted on each host.

    Args:
        file_system_id: such as `fs-0123456789abcdef0`.
        file_system_type: `FSxLustre` or `EFS`.
        directory_path: the folder; with `FSxLustre` it starts with the name of the mount.
        file_system_access_mode: `ro` or `rw`.
        content_type: MIME type of the data.

    Attributes:
        config: the channel as a request has it, without its name.

    Raises:
        ValueError: there is no such type or access mode.
    """

    config: dict[str, Any]

    def __init__(
        self,
        file_system_id: str,
        file_system_type: str,
        directory_path: str,
        file_system_access_mode: str = "ro",
        content_type: str | None = None,
    ) -> None:
        if file_system_type not in FILE_SYSTEM_TYPES:
            raise ValueError(
                f"Unrecognized file system type: {file_system_type}. "
                f"Valid values: {', '.join(FILE_SYSTEM_TYPES)}."
            )
        if file_system_access_mode not in _ACCESS_MODES:
            raise ValueError(
                f"Unrecognized file system access mode: {file_system_access_mode}. "
                f"Valid values: {', '.join(_ACCESS_MODES)}."
            )
        self.config = {
            "DataSource": {
                "FileSystemDataSource": {
                    "FileSystemId": file_system_id,
                    "FileSystemType": file_system_type,
                    "DirectoryPath": directory_path,
                    "FileSystemAccessMode": file_system_access_mode,
                }
            }
        }
        if content_type:
            self.config["ContentType"] = content_type


Source = str | TrainingInput | FileSystemInput


def channels(
    inputs: Source | Mapping[str, Source] | None, *, is_remote: bool = False
) -> list[dict[str, Any]]:
    """Says which channels a value of `fit(inputs=...)` means.

    Args:
        inputs: one source, which becomes the channel `training`; or sources by the names of their
            channels; or None for no channel. It is not changed, and nothing of it is shared.
        is_remote: the job runs on real SageMaker, which cannot read the files of this machine.

    Returns:
        Entries of `InputDataConfig`, in the order of `inputs`. Two whose names differ in capitals
        alone, and so have one variable, are a warning.

    Raises:
        ValueError: a URI, a name or a type of a source is wrong, or there are too many channels.
    """
    if inputs is None:
        return []
    sources = inputs if isinstance(inputs, Mapping) else {DEFAULT_CHANNEL: inputs}
    if len(sources) > MAX_CHANNELS:
        raise ValueError(
            f"inputs has {len(sources)} channels; a job has at most {MAX_CHANNELS}. Put data that "
            "are used together into one channel."
        )
    found = [_channel(name, source, is_remote) for name, source in sources.items()]
    of_variable: dict[str, str] = {}
    for name in sources:
        other = of_variable.setdefault(name.upper(), name)
        if other != name:
            _log.warning(
                "the channels %r and %r have one variable, SM_CHANNEL_%s: a script that uses it"
                " finds the data of one of them; rename one",
                other,
                name,
                name.upper(),
            )
    return found


def _channel(name: object, source: Source, is_remote: bool) -> dict[str, Any]:
    if not isinstance(name, str) or not _CHANNEL_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name of a channel; expected 1 to 64 letters A to Z, digits, dots, "
            "hyphens and underscores. Change this key of inputs."
        )
    if isinstance(source, str):
        source = TrainingInput(source)
    if not isinstance(source, TrainingInput | FileSystemInput):
        raise ValueError(
            f"The channel {name!r} is {source!r}; expected a URI as a string, a TrainingInput or a "
            "FileSystemInput. Give one of them."
        )
    config = copy.deepcopy(source.config)
    if isinstance(source, TrainingInput):
        _check_uri(config["DataSource"]["S3DataSource"]["S3Uri"], is_remote)
    return {"ChannelName": name, **config}


def _check_uri(uri: object, is_remote: bool) -> None:
    if not isinstance(uri, str) or not uri.startswith((_S3, _FILE)):
        raise ValueError(
            f'URI input {uri} must be a valid S3 or FILE URI: must start with "{_S3}" or "{_FILE}"'
        )
    if is_remote and uri.startswith(_FILE):
        raise ValueError("File URIs are supported in local mode only. Please use a S3 URI instead.")
