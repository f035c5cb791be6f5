# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What goes to a cluster with an endpoint, as the zip of a working directory of Ray's.

    endpoint.json       the record, whose URIs are those that it has there
    config.toml         how its S3 store is reached
    model, code         archives of the model and of its functions

What is in an S3 store, or in a folder that the cluster has too, stays where it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.in_cluster.package import settings_of
from smdistributed.launch.backends.ray.api import MOST_PACKAGE
from smdistributed.launch.data.places import s3_place, s3_settings
from smdistributed.launch.home import Home
from smdistributed.launch.serve.record import EndpointRecord, ServedModel
from smdistributed.launch.storage import local_path

__all__ = ["open_package", "open_record", "packed", "with_environment"]

_HERE = "package://"


@contextlib.contextmanager
def packed(
    record: EndpointRecord, home: Home, shared: Sequence[Path]
) -> Iterator[tuple[BinaryIO, int]]:
    """A file with the package of an endpoint, at its start, and how many bytes it has.

    Args:
        record: of the endpoint.
        home: has the model, and settings.
        shared: folders that the cluster has at the same path.

    Raises:
        ConfigurationError: the model is not here, or too large.
        OSError: it cannot be read, or written.
    """
    with tempfile.TemporaryFile() as file:
        with zipfile.ZipFile(file, "w", strict_timestamps=False) as package:  # they are compressed
            model = record.model
            there = dataclasses.replace(
                model,
                data=_take(package, "model", model.data, home, shared),
                code=_take(package, "code", model.code, home, shared) if model.code else "",
            )
            document = dataclasses.replace(record, model=there).to_json()
            package.writestr("endpoint.json", json.dumps(document))
            package.writestr("config.toml", settings_of(s3_settings(home)))
        size = file.tell()
        if size >= MOST_PACKAGE:
            raise ConfigurationError(
                f"the model {model.data} and its code have {size:,} bytes, and Ray takes less than"
                f" {MOST_PACKAGE:,} with an endpoint; expected a model of that size. Put a larger"
                " one into an S3 store, or into a folder that the nodes have too, and name that as"
                " shared under [ray]."
            )
        file.seek(0)
        yield file, size


def _take(package: zipfile.ZipFile, name: str, uri: str, home: Home, shared: Sequence[Path]) -> str:
    """Takes what a URI names along, unless the cluster has it. Returns: its URI there."""
    if s3_place(uri, home) is not None:
        return uri
    path = local_path(uri, home)
    if any(path.is_relative_to(each) for each in shared):
        return f"file://{path}"
    if not path.is_dir():
        package.write(path, name)
        return _HERE + name
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w:gz", dereference=True) as tar:
            tar.add(path, ".")
        file.seek(0)
        with package.open(name, "w", force_zip64=True) as target:
            while content := file.read(1 << 20):
                target.write(content)
    return _HERE + name


def open_package(package: Path, home: Home) -> EndpointRecord:
    """The record of an endpoint as it is served there, by one instance.

    Args:
        package: the folder to which Ray has brought it.
        home: gets its settings.

    Raises:
        OSError, ValueError, LookupError, TypeError: it is no such package.
    """
    record = open_record(package)
    home.make()
    home.config.write_bytes((package / "config.toml").read_bytes())
    model = dataclasses.replace(
        record.model,
        data=_found(record.model.data, package),
        code=_found(record.model.code, package),
    )
    return dataclasses.replace(record, model=model, instance_count=1, backend="local")


def open_record(package: Path) -> EndpointRecord:
    """The record in a package.

    Raises:
        OSError, ValueError, LookupError, TypeError: it is no such package.
    """
    return EndpointRecord.of_json(json.loads((package / "endpoint.json").read_bytes()))


def _found(uri: str, package: Path) -> str:
    return f"file://{package}/{uri.removeprefix(_HERE)}" if uri.startswith(_HERE) else uri


def with_environment(record: EndpointRecord, **variables: str) -> EndpointRecord:
    """The record with variables that its own ones overrule."""
    model = record.model
    environment = {**variables, **model.environment}
    changed: ServedModel = dataclasses.replace(model, environment=environment)
    return dataclasses.replace(record, model=changed)
