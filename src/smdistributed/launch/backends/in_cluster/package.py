# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A job with all that it needs of this machine, as a folder that goes to a cluster.

    home.tar                    of these
    home/jobs/NAME/job.json     its record; its URIs are those that it has there
    home/buckets/...            its sources, data and checkpoints
    home/config.toml            how its S3 store is reached
    version                     of this package here

It is a home directory, in which the job's process runs there. What is `file://` here lies in a
bucket there; what is in an S3 store, or in a folder that the cluster has too, stays where it is.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed._common.version import __version__
from smdistributed.launch.backends.plans import members_of
from smdistributed.launch.contract.hyperparameters import Hyperparameters, decode, encode
from smdistributed.launch.data.places import s3_place, s3_settings
from smdistributed.launch.data.sources import keys_below, sources_of
from smdistributed.launch.data.stores.s3 import S3Settings
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.storage import local_path

__all__ = ["JOB_FILES", "Package", "settings_of", "stores_of"]

JOB_FILES = ("job.json", "plan.json", "report.json")
"""Files of a job's directory that are told whole, by their names."""

_FILES = "smd-files"
"""Bucket for what is `file://` here."""


@dataclasses.dataclass(frozen=True)
class Package:
    """Of one job.

    Args:
        job: its directory here.
        shared: folders that the cluster has at the same path.
    """

    job: JobDirectory
    shared: Sequence[Path] = ()

    @property
    def _home(self) -> Home:
        return Home(self.job.path.parent.parent)

    def write(self, folder: Path) -> None:
        """Makes it.

        Args:
            folder: an empty one.

        Raises:
            ConfigurationError: the job asks for what this machine does not have.
            OSError: it cannot be written.
        """
        (folder / "version").write_text(__version__)
        there = Home(folder / "home")
        there.make()
        self._fill(there)
        # A .zip, as Ray wants one, has no modes and no empty folders.
        with tarfile.open(folder / "home.tar", "w") as tar:
            tar.add(there.root, "home")
        shutil.rmtree(there.root)

    def _fill(self, there: Home) -> None:
        record = self.job.read()
        request = copy.deepcopy(dict(record.request))
        self._take_channels(request, there)
        self._take_sources(request, there)
        for store, uri in _uris_of(record.request, record.name).items():
            if not self._is_there(uri):
                _set_uri(request, store, f"s3://{_FILES}/{store}")
                if store == "checkpoints":
                    kept = local_path(uri, self._home)
                    target = there.buckets / _FILES / store
                    target.mkdir(parents=True)
                    if kept.is_dir():
                        _take(kept, keys_below(kept), target)
        path = there.jobs / record.name
        path.mkdir(mode=0o700)
        JobDirectory(path).write(dataclasses.replace(record, request=request))
        (there.buckets / _FILES).mkdir(mode=0o700, exist_ok=True)
        there.config.write_text(settings_of(s3_settings(self._home)))

    def _is_there(self, uri: str) -> bool:
        """Whether the cluster has what a URI names, as this machine has it."""
        if s3_place(uri, self._home) is not None:
            return True
        path = local_path(uri, self._home)
        return any(path.is_relative_to(each) for each in self.shared)

    def _take_channels(self, request: dict[str, Any], there: Home) -> None:
        mode = request["AlgorithmSpecification"].get("TrainingInputMode", "File")
        members = members_of(request)
        for channel in request.get("InputDataConfig", []):
            data = channel["DataSource"].get("S3DataSource")
            if data is None or self._is_there(data["S3Uri"]):
                continue
            name = channel["ChannelName"]
            if data.get("S3DataType") == "ManifestFile":
                raise ConfigurationError(
                    f"channel {name!r} is the manifest {data['S3Uri']}, which lies on this machine;"
                    " expected one in an S3 store, or in a folder that the cluster has too."
                )
            target = there.buckets / _FILES / "data" / name
            target.mkdir(parents=True)
            # With all keys there, each host finds its share by itself.
            whole = {**channel, "DataSource": {"S3DataSource": {**data}}}
            whole["DataSource"]["S3DataSource"].pop("S3DataDistributionType", None)
            for source in list(sources_of(whole, mode, members, self._home).values())[:1]:
                root = Path(source.root)
                if source.objects is None:
                    _take(root, keys_below(root), target)
                    _take_folders(root, target)
                else:
                    for found, key, *_ in source.objects:
                        _take_one(root / key, target / found)
            data["S3Uri"] = f"s3://{_FILES}/data/{name}/"

    def _take_sources(self, request: dict[str, Any], there: Home) -> None:
        texts = request.get("HyperParameters", {})
        uri = Hyperparameters.of(decode(texts)).job.get("sagemaker_submit_directory")
        if not uri or self._is_there(str(uri)):
            return
        archive = local_path(str(uri), self._home)
        if not archive.is_file():
            raise ConfigurationError(
                f"sagemaker_submit_directory is {uri}, and {archive} is no file; expected a .tar.gz"
                " with the sources."
            )
        # Scripts are told of this URI: it is the same one there.
        scheme, _, rest = str(uri).partition("://")
        key = rest if scheme == "s3" else f"{_FILES}/code/{archive.name}"
        _take_one(archive, there.buckets / key)
        texts.update(encode({"sagemaker_submit_directory": f"s3://{key}"}))


def stores_of(request: dict[str, Any] | Any, name: str, home: Home) -> dict[str, Path]:
    """Folders of the stores of a job, as its request has them; those in an S3 store are none.

    Args:
        request: of the job.
        name: of the job.
        home: where the request's URIs are.
    """
    return {
        store: local_path(uri, home)
        for store, uri in _uris_of(request, name).items()
        if s3_place(uri, home) is None
    }


def settings_of(s3: S3Settings | None) -> str:
    """How a cluster reaches an S3 store, as of `config.toml`. Credentials are the cluster's own."""
    if s3 is None:
        return ""
    where = {"endpoint_url": s3.endpoint_url} if s3.endpoint_url else {"amazon": True}
    region = {"region": s3.region} if s3.region else {}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**where, **region}.items()]
    return "\n".join(["[s3]", *lines, ""])


def _uris_of(request: Any, name: str) -> dict[str, str]:
    uris = {"output": f"{request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{name}/output"}
    if request.get("CheckpointConfig"):
        uris["checkpoints"] = request["CheckpointConfig"]["S3Uri"]
    texts = request.get("HyperParameters", {})
    kept = Hyperparameters.of(decode(texts)).job.get("sagemaker_s3_output")
    if kept:
        uris["intermediate"] = f"{str(kept).rstrip('/')}/{name}/output/intermediate"
    return uris


def _set_uri(request: dict[str, Any], store: str, uri: str) -> None:
    if store == "output":
        request["OutputDataConfig"] = {**request["OutputDataConfig"], "S3OutputPath": uri}
    elif store == "checkpoints":
        request["CheckpointConfig"] = {**request["CheckpointConfig"], "S3Uri": uri}
    else:
        texts = request["HyperParameters"]
        request["HyperParameters"] = {**texts, **encode({"sagemaker_s3_output": uri})}


def _take(root: Path, keys: Iterable[str], target: Path) -> None:
    for key in keys:
        _take_one(root / key, target / key)


def _take_folders(root: Path, target: Path) -> None:
    """Also those without a file; links are followed, which have an end then."""
    for above, _, _ in os.walk(root, topdown=False, followlinks=True):
        folder = target / os.path.relpath(above, root)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(os.stat(above).st_mode & 0o777)


def _take_one(source: Path, target: Path) -> None:
    """A link where that can be, else a copy: it is read once, to be sent."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copy2(source, target)
