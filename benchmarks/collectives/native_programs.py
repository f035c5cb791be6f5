# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the small C programs of this benchmark on first use."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

BUILD_FOLDER = Path(__file__).resolve().parents[1] / ".build"


class CannotBuild(Exception):
    """No compiler, or the compiler refused; the text says which."""


def build(source: Path, flags: Sequence[str]) -> Path:
    """Compile ``source`` unless the program is newer than it; returns the program's path.

    The compiler is ``$CC``, else ``cc``. Raises ``CannotBuild``.
    """
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise CannotBuild(
            f"C compiler {compiler!r} was not found; expected one on PATH to build {source.name}. "
            "Install gcc, or name another compiler in CC."
        )
    BUILD_FOLDER.mkdir(exist_ok=True)
    (BUILD_FOLDER / ".gitignore").write_text("*\n")
    program = BUILD_FOLDER / source.stem
    if program.exists() and program.stat().st_mtime >= source.stat().st_mtime:
        return program
    command = [compiler, *flags, "-o", str(program), str(source)]
    outcome = subprocess.run(command, capture_output=True, text=True)
    if outcome.returncode != 0:
        raise CannotBuild(
            f"{compiler} could not build {source.name} (exit status {outcome.returncode}): "
            f"{outcome.stderr.strip()[:400]} Read the compiler's message, or set CC."
        )
    return program
