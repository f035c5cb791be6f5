# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Disks that are soon full, for tests of what happens then."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["mounted_disk"]


@contextlib.contextmanager
def mounted_disk(path: Path, options: str) -> Iterator[Path]:
    """A disk in memory, at a folder that is made; skips the test where nothing can be mounted.

    Args:
        path: of the folder.
        options: of tmpfs, such as `size=1m`.
    """
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
