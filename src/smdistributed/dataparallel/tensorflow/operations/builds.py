# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which builds of TensorFlow take our kernels: tried once for each build, not read off a version.

The kernels rely on how TensorFlow's C interface passes a callback
(native/tensorflow_ops/invocation.cc). A vendor's build may carry any version number. So a
build is known by the digest of its framework library. One that the tests run with is in the list
here; another one is tried in a child process, and the verdict is kept in a file of the user's, so
that the next process need not try.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from smdistributed._common.log import get_logger

__all__ = ["judge"]

Verdict = tuple[bool, str]

_LIBRARY = "libtensorflow_framework.so.2"
# SHA-256 of the framework library.
_KNOWN_BUILDS = frozenset(
    {
        # tensorflow 2.21.0 for Linux on x86-64, from PyPI
        "f060b323b26ef80add21b9df9428de3aeaf2843d772c5bb098745f7abff3709b",
    }
)


def _framework_library() -> Path:
    """The library of this process's TensorFlow that has the C functions."""
    return Path(tf.sysconfig.get_lib()) / _LIBRARY


def judge(kernels: Path, try_out: Callable[[], Verdict]) -> Verdict:
    """Whether this TensorFlow takes the kernels; else why not, in words.

    Args:
        kernels: our library.
        try_out: tries it, for seconds. Called where nobody knows.
    """
    framework = _framework_library()
    if not framework.is_file():  # a build of another shape: nothing to know it by
        return try_out()
    with _notes() as notes:
        build = _digest(framework, notes)
        if build in _KNOWN_BUILDS:
            return True, ""
        key = f"{build} {_identity(kernels)}"
        kept = notes.get(key)
        if isinstance(kept, list) and kept == [True, ""]:
            return True, ""
        verdict = try_out()
        if verdict[0]:  # what failed may have failed for want of memory or time
            notes[key] = list(verdict)
        return verdict


def _digest(path: Path, notes: dict[str, Any]) -> str:
    key = f"sha256 of {_identity(path)}"
    if not isinstance(notes.get(key), str):
        with path.open("rb") as file:
            notes[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return str(notes[key])


def _identity(path: Path) -> str:
    """A file as long as nobody writes to it."""
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns} {status.st_ino}"


@contextlib.contextmanager
def _notes() -> Iterator[dict[str, Any]]:
    """What has been found out before, for one process at a time; kept if it has changed.

    Without a place to keep it, it is found out again.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(base, "smdistributed", "tensorflow_builds.json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        get_logger().debug("smddp keeps no notes on builds of TensorFlow: %s", error)
        yield {}
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # other ranks wait for the first one's trial
        file.seek(0)
        try:
            notes = json.loads(file.read())
        except ValueError:
            notes = {}
        if not isinstance(notes, dict):
            notes = {}
        before = json.dumps(notes)
        yield notes
        after = json.dumps(notes)
        if after != before:
            with contextlib.suppress(OSError):  # the disk is full: found out again
                file.truncate(0)
                file.write(after)
