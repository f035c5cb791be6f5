# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where data lie on this machine that a document names by a URI.

`s3://bucket/key` is a folder of the home directory: a store of this user, for which no account is
needed. Whether it is in an S3 store instead is for `data.places` to say. `file:///path` is that
path.

Source: launch specification, sections 5 and 6.1.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.contract.paths import OPT_ML
from smdistributed.launch.home import Home

__all__ = [
    "TEMPORARY",
    "default_bucket",
    "local_path",
    "new_file",
    "require_bucket",
    "require_seen_by_hosts",
    "require_writable",
]

TEMPORARY = ".smd-"
"""How files and folders are called that are being copied into a bucket: they are no objects yet."""


def local_path(uri: str, home: Home) -> Path:
    """The file or folder that a URI names; it need not be there.

    Raises:
        ConfigurationError: it is no such URI, or leads out of its bucket.
    """
    scheme, _, rest = uri.partition("://")
    if scheme == "file":
        given = rest.removeprefix("localhost")
        path, decoded = Path(given), Path(unquote(given))
        if decoded != path and decoded.exists() and not path.exists():
            path = decoded  # as `Path.as_uri()` makes it
        if not path.is_absolute():
            raise ConfigurationError(
                f"{uri!r} names no file; expected file:// and an absolute path: file:///path."
            )
        return path
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not bucket or bucket.startswith("."):
        raise ConfigurationError(
            f"{uri!r} names no data; expected s3://BUCKET/KEY, or file:// and an absolute path."
        )
    if key.startswith("/") or ".." in PurePosixPath(key).parts:
        raise ConfigurationError(
            f"{uri!r} leads out of its bucket; expected a key that begins with no slash, and has no"
            " '..' in it."
        )
    return home.buckets / bucket / key


def require_bucket(uri: str, home: Home) -> None:
    """Refuses data in a bucket that this store does not have.

    Raises:
        ConfigurationError: names the bucket and where it was looked for.
    """
    scheme, _, rest = uri.partition("://")
    bucket = rest.partition("/")[0]
    if scheme == "s3" and not (home.buckets / bucket).is_dir():
        raise ConfigurationError(
            f"{uri!r} is in bucket {bucket!r}, which this machine's store does not have"
            f" ({home.buckets}); expected a bucket that was filled here, by upload_data() or by a"
            " copy of its files into that folder. No S3 store is asked, as none is named: if it is"
            f" in one, write endpoint_url, or amazon = true, below [s3] in {home.config}, or set"
            " S3_ENDPOINT_URL."
        )


def require_writable(what: str, uri: str, home: Home) -> None:
    """Refuses a place in which nothing can be made: a job would tell so at its end, and not before.

    Args:
        what: the argument that names it.
        uri: of a folder; it need not be there.

    Raises:
        ConfigurationError: as of `local_path`, or the first folder on the way up that is there is a
            file, or this user may not write to it.
    """
    path = local_path(uri, home)
    there = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"{what} is {uri!r}, and {there} is no directory that this user may write to; expected"
            " one, as the job's results are to go there."
        )


def require_seen_by_hosts(what: str, uri: str, home: Home) -> None:
    """Refuses a place that is another one for the hosts of a job: each has its own `/opt/ml`.

    Args:
        what: the argument that names it.
        uri: the place, which hosts write to.

    Raises:
        ConfigurationError: as of `local_path`, or the place is below `/opt/ml`.
    """
    path = local_path(uri, home)
    if not uri.startswith("file://"):
        return  # with a home directory below /opt/ml hosts have no other /opt/ml
    if any(each.is_relative_to(OPT_ML) for each in (path, Path(os.path.realpath(path)))):
        raise ConfigurationError(
            f"{what} is {uri!r}, which is {path} on this machine; expected a place that is not"
            " below /opt/ml, as each host of the job has a folder of its own there, and would keep"
            " nothing in this one."
        )


def default_bucket(region: str = "us-east-1") -> str:
    """The bucket that is taken where none is named; as Amazon's is called."""
    return f"sagemaker-{region}-000000000000"


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[None]:
    """Makes the folders of a file that the block writes. If the block fails, they go with it.

    What was there before stays.

    Raises:
        OSError: the folders cannot be made.
    """
    has_been_there = path.exists()
    above = [each for each in path.parents if not each.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if not has_been_there:
                path.unlink(missing_ok=True)
            for each in above:
                each.rmdir()
        raise
