# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON files by which a container learns about its job, written and read.

Source: launch specification, sections 4.1, 5 and 7.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.contract.hyperparameters import decode
from smdistributed.launch.contract.paths import Paths
from smdistributed.launch.contract.resources import Resources

__all__ = ["channel_config", "read_channels", "read_hyperparameters", "read_resources", "write"]


def write(
    paths: Paths,
    hyperparameters: Mapping[str, str],
    channels: Mapping[str, Mapping[str, Any]],
    resources: Resources,
) -> None:
    """Writes the three files, for a script that has not started.

    Args:
        paths: of the host.
        hyperparameters: as they stand in the request: text by name.
        channels: of each channel, what `channel_config` makes.
        resources: as this host knows them.

    Raises:
        OSError: they cannot be written.
    """
    for path, document in (
        (paths.hyperparameters, dict(hyperparameters)),
        (paths.input_data_config, {name: dict(each) for name, each in channels.items()}),
        (paths.resource_config, resources.to_json()),
    ):
        path.write_text(json.dumps(document, sort_keys=True, indent=1), encoding="utf-8")


def channel_config(channel: Mapping[str, Any], input_mode: str = "File") -> dict[str, str]:
    """What the script is told of a channel.

    Args:
        channel: its entry in the request's `InputDataConfig`.
        input_mode: of the job; a channel may have its own.
    """
    data = channel.get("DataSource", {})
    if "FileSystemDataSource" in data:  # which is always there as files
        input_mode = "File"
    source = data.get("S3DataSource", {})
    told = {
        "TrainingInputMode": channel.get("InputMode") or input_mode,
        "S3DistributionType": source.get("S3DataDistributionType") or "FullyReplicated",
        "RecordWrapperType": channel.get("RecordWrapperType") or "None",
    }
    if channel.get("ContentType"):
        told["ContentType"] = channel["ContentType"]
    return told


def read_hyperparameters(paths: Paths) -> dict[str, Any]:
    """The decoded hyperparameters; none if there is no file.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    return decode(_object(paths.hyperparameters))


def read_channels(paths: Paths) -> dict[str, Any]:
    """By channel, how it comes in; none if there is no file.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    return _object(paths.input_data_config)


def read_resources(paths: Paths) -> Resources | None:
    """The hosts; None if there is no file.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    text = _text(paths.resource_config)
    return None if text is None else Resources.of_json(text)


def _object(path: Path) -> dict[str, Any]:
    text = _text(path)
    if text is None:
        return {}
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{path} is no JSON ({error}); expected an object. It begins with {text[:200]!r}."
        ) from None
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path} holds {type(document).__name__}; expected a JSON object.")
    return document


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}.") from None
