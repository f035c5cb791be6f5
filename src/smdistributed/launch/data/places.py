# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a URI is of this machine, or of an S3 store.

`file://` is of this machine. So is `s3://` in a bucket that the home directory has, and in the
default bucket, whose name no bucket of Amazon's has. Any other bucket is in an S3 store if the user
has named one, by `[s3]` of `config.toml` or by a variable, which goes first. Credentials alone, or
the name of an instance type, name none.

Source: launch specification, section 5.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.settings import Settings
from smdistributed.launch.data.stores.s3 import S3Settings, S3Store
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.files import write_whole
from smdistributed.launch.storage import local_path, require_writable

__all__ = [
    "ENDPOINTS",
    "S3Place",
    "keep_settings",
    "kept_settings",
    "require_there",
    "require_writable_place",
    "s3_place",
    "s3_settings",
]

ENDPOINTS = ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Variables that name an S3 store by its URL; the first of them that is set counts."""

_KEPT = "s3.json"
_DEFAULT_BUCKET = re.compile(r"sagemaker-[a-z0-9-]+-000000000000")


@dataclasses.dataclass(frozen=True)
class S3Place:
    """An object of an S3 store, or the prefix of several.

    Attributes:
        bucket: its name.
        key: the rest of the URI, without a slash in front.
        settings: of the store.
    """

    bucket: str
    key: str
    settings: S3Settings

    def store(self, prefix: str = "") -> S3Store:
        """The bucket, below a prefix."""
        return S3Store(self.bucket, self.settings, prefix)

    @property
    def folder(self) -> str:
        """The key as a prefix for what is below it."""
        return f"{self.key.rstrip('/')}/" if self.key.strip("/") else ""


def s3_settings(home: Home, environ: Mapping[str, str] | None = None) -> S3Settings | None:
    """The S3 store that the user has named; None if none is.

    Args:
        home: has the settings.
        environ: the variables; None: those of this process.

    Raises:
        ConfigurationError: what names it is wrong.
    """
    environ = os.environ if environ is None else environ
    settings = Settings.of(home).s3
    for name in ENDPOINTS:
        if environ.get(name):
            try:
                return S3Settings(environ[name], settings.region if settings else "")
            except ConfigurationError as error:
                raise ConfigurationError(f"{name}: {error}") from None
    return settings


def s3_place(uri: str, home: Home, settings: S3Settings | None = None) -> S3Place | None:
    """Where a URI is in an S3 store; None if it is of this machine.

    Args:
        uri: `s3://bucket/key` or `file:///path`.
        home: has buckets and settings.
        settings: of the store; None: as `s3_settings` finds them.

    Raises:
        ConfigurationError: it is no such URI, or what names the store is wrong.
    """
    local_path(uri, home)
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or _DEFAULT_BUCKET.fullmatch(bucket) or (home.buckets / bucket).is_dir():
        return None
    settings = settings or s3_settings(home)
    return None if settings is None else S3Place(bucket, key, settings)


def keep_settings(job: Path, settings: S3Settings) -> None:
    """Has a job remember how its S3 store is reached: who ends it may have other variables.

    Raises:
        OSError: its directory cannot be written.
    """
    write_whole(job / _KEPT, json.dumps(dataclasses.asdict(settings)).encode())


def kept_settings(job: Path) -> S3Settings | None:
    """What `keep_settings` has kept; None if that is nothing."""
    try:
        return S3Settings(**json.loads((job / _KEPT).read_bytes()))
    except FileNotFoundError:
        return None


def require_there(uri: str, home: Home, what: str, expected: str) -> None:
    """Refuses a URI of what is not there: a file here, or an object.

    Args:
        uri: of it; or of a folder, or the prefix of objects.
        home: as of `s3_place`.
        what: the argument that names it.
        expected: what is, and what to do, in words.

    Raises:
        ConfigurationError: it is not there, or nobody can say.
    """
    place = s3_place(uri, home)
    if place is None:
        path = local_path(uri, home)
        if not path.exists():
            raise ConfigurationError(f"{what} is {uri!r}, and {path} is not there; {expected}")
        return
    store = place.store()
    if store.find(place.key) is None and next(store.objects(place.folder), None) is None:
        raise ConfigurationError(
            f"{what} is {uri!r}, and {place.settings.called} has nothing there; {expected}"
        )


def require_writable_place(what: str, uri: str, home: Home) -> None:
    """Refuses a place of this machine in which nothing can be made. An S3 store is not asked.

    Args:
        what: the argument that names it.
        uri: of a folder or prefix.
        home: as of `s3_place`.

    Raises:
        ConfigurationError: it cannot be written to.
    """
    if s3_place(uri, home) is None:
        require_writable(what, uri, home)
