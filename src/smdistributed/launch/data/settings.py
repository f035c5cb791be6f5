# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The user's settings, `config.toml` in the home directory. It need not be there.

    default_backend = "local"

    [s3]
    endpoint_url = "https://s3.example.org"
    region = "us-east-1"

    [file_systems.FSxLustre.fs-0123456789abcdef0]
    "/abcdefgh" = "/mnt/fsx"

    [slurm]
    partition = "gpu"

A table of the name of a backend is read by that backend. One below `file_systems` has the type and
the id of a file system as its name. Each of its entries says that a directory of the file system is
a directory of this machine. `s3` says where buckets are that this machine does not have: at an
address, or, with `amazon = true`, at Amazon.

Source: launch specification, sections 5 and 11.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.stores.s3 import S3Settings
from smdistributed.launch.home import Home

__all__ = ["BACKENDS", "FILE_SYSTEM_TYPES", "Settings"]

FILE_SYSTEM_TYPES = ("FSxLustre", "EFS")
BACKENDS = ("local", "kubernetes", "ray", "slurm", "ssh")
"""Where jobs run; the first is this machine."""
_TABLES = ("kubernetes", "ray", "s3", "slurm", "ssh")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `config.toml` says.

    Attributes:
        file: it.
        default_backend: where jobs run if nothing else says so.
        mounts: by type and id of a file system, where its directories are on this machine.
        tables: by its name, what else is there, as it was read.
        s3: where buckets are that this machine does not have; None: nowhere.
    """

    file: Path
    default_backend: str
    mounts: Mapping[tuple[str, str], Mapping[PurePosixPath, Path]]
    tables: Mapping[str, Mapping[str, Any]]
    s3: S3Settings | None = None

    @classmethod
    def of(cls, home: Home) -> Settings:
        """Reads the file.

        Raises:
            ConfigurationError: it is wrong; names the file, and the line or the key.
        """
        file = home.config
        try:
            document = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            document = {}
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigurationError(
                f"{file} cannot be read: {error}; expected a file in TOML, as"
                " https://toml.io describes it."
            ) from None
        known = ("default_backend", "file_systems", *_TABLES)
        unknown = sorted(document.keys() - set(known))
        if unknown:
            raise ConfigurationError(
                f"{file} has the key {unknown[0]!r}, which nobody knows; expected"
                f" {', '.join(known)}. Remove it, or correct its name."
            )
        backend = document.get("default_backend", BACKENDS[0])
        if backend not in BACKENDS:
            raise ConfigurationError(
                f"default_backend in {file} is {backend!r}; expected one of"
                f" {', '.join(map(repr, BACKENDS))}, of which 'local' is this machine."
            )
        tables = {
            name: _table(document.get(name, {}), name, file, f"expected a table, [{name}]")
            for name in _TABLES
        }
        mounts = _mounts_of(document.get("file_systems", {}), file)
        s3 = _s3_of(tables["s3"], file) if "s3" in document else None
        return cls(file, backend, mounts, tables, s3)

    def place_of(self, kind: str, identity: str, directory: str) -> Path:
        """Where a directory of a file system is on this machine; it need not be there.

        Args:
            kind: `FSxLustre` or `EFS`.
            identity: such as `fs-0123456789abcdef0`.
            directory: an absolute path; with `FSxLustre` it starts with the name of the mount.

        Raises:
            ConfigurationError: the file says nothing about it, or it is no such path. The text has
                the key that is to be added.
        """
        path = PurePosixPath(directory)
        if not path.is_absolute() or ".." in path.parts:
            raise ConfigurationError(
                f"directory_path of {identity} is {directory!r}; expected an absolute path without"
                " '..' in it, such as /data."
            )
        if kind == "FSxLustre" and len(path.parts) < 2:
            raise ConfigurationError(
                f"directory_path of {identity} is {directory!r}; expected a path that starts with"
                " the name of the mount, such as /abcdefgh/data, as this is FSxLustre."
            )
        known = self.mounts.get((kind, identity), {})
        for above in (path, *path.parents):
            if above in known:
                return known[above] / path.relative_to(above)
        example = PurePosixPath(*path.parts[:2])
        raise ConfigurationError(
            f"the file system {identity} ({kind}) is not mounted for {directory!r}, as far as"
            f" {self.file} says; expected there, under [file_systems.{kind}.{identity}], the line"
            f' "{example}" = "/where/it/is/mounted". Add it.'
        )


def _mounts_of(document: Any, file: Path) -> Mapping[tuple[str, str], Mapping[PurePosixPath, Path]]:
    expected = (
        "expected tables such as [file_systems.FSxLustre.fs-0123456789abcdef0], whose lines are"
        ' such as "/abcdefgh" = "/mnt/fsx": two absolute paths without ".." in them'
    )
    found: dict[tuple[str, str], dict[PurePosixPath, Path]] = {}
    for kind, systems in _table(document, "file_systems", file, expected).items():
        if kind not in FILE_SYSTEM_TYPES:
            raise ConfigurationError(
                f"file_systems.{kind} in {file} is of no known type; expected"
                f" {' or '.join(FILE_SYSTEM_TYPES)} in the place of {kind!r}."
            )
        for identity, mounts in _table(systems, f"file_systems.{kind}", file, expected).items():
            key = f"file_systems.{kind}.{identity}"
            for directory, mount in _table(mounts, key, file, expected).items():
                for path in (directory, mount):
                    if not _is_plain(path):
                        raise ConfigurationError(
                            f"{key} in {file} has {directory!r} = {mount!r}; {expected}."
                        )
                of_system = found.setdefault((kind, identity), {})
                if PurePosixPath(directory) in of_system:
                    raise ConfigurationError(
                        f"{key} in {file} has {directory!r} twice, once with a slash at its end;"
                        " expected one line for each directory. Remove one."
                    )
                of_system[PurePosixPath(directory)] = Path(mount)
    return found


def _s3_of(given: Mapping[str, Any], file: Path) -> S3Settings:
    expected = (
        'expected endpoint_url = "https://..." for a store of your own, or amazon = true for'
        ' Amazon\'s; and region = "..." if it is not the usual one'
    )
    for key, value in given.items():
        kind = {"endpoint_url": str, "region": str, "amazon": bool}.get(key)
        if kind is None or type(value) is not kind:
            shown = f"{value!r:.100}" if kind is not None else "..."  # which may be a secret
            raise ConfigurationError(f"s3 in {file} has {key} = {shown}; {expected}.")
    endpoint_url = given.get("endpoint_url", "")
    if bool(endpoint_url) == given.get("amazon", False):
        raise ConfigurationError(
            f"s3 in {file} has {'both' if endpoint_url else 'neither'} endpoint_url"
            f" {'and' if endpoint_url else 'nor'} amazon = true; {expected}."
        )
    try:
        return S3Settings(endpoint_url, given.get("region", ""))
    except ConfigurationError as error:
        raise ConfigurationError(f"s3 in {file}: {error}") from None


def _table(value: Any, key: str, file: Path, expected: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{key} in {file} is {value!r:.100}; {expected}.")
    return value


def _is_plain(path: Any) -> bool:
    if not isinstance(path, str):
        return False
    return PurePosixPath(path).is_absolute() and ".." not in PurePosixPath(path).parts
