# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A virtual environment of its own, with this package as pip would have put it there.

The files are those of the checkout; only the line for the interpreter's start is a copy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from launchers import clean_environment
from machine_speed import scaled

ROOT = Path(__file__).parents[3]
START = ROOT / "src" / "smdistributed_open_horovod.pth"
STAND_IN = ROOT / "src" / "smdistributed" / "compat" / "horovod" / "stand_in" / "horovod"
IN_A_JOB = {"SMDDP_HOROVOD": "stand-in"}


class Installed:
    """The environment; `packages` is where other packages would be installed."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "venv", "--without-pip", str(path)]
        subprocess.run(command, check=True, timeout=scaled(60))
        self.python = str(path / "bin" / "python")
        (self.packages,) = path.glob("lib/python*/site-packages")
        shutil.copy(START, self.packages)
        # As an editable installation; and numpy, torch and what the environment of the tests has.
        others = [each for each in sys.path if each.endswith("site-packages")]
        lines = [str(ROOT / "src"), *dict.fromkeys([*site.getsitepackages(), *others])]
        (self.packages / "_editable_smdistributed_open.pth").write_text("\n".join(lines) + "\n")

    def run(
        self,
        *arguments: str | Path,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs this environment's interpreter to its end."""
        variables = {
            name: text
            for name, text in clean_environment(environment).items()
            if name != "PYTHONPATH" or name in (environment or {})
        }
        return subprocess.run(
            [self.python, *map(str, arguments)],
            cwd=folder,
            env=variables,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=scaled(60),
        )

    @contextlib.contextmanager
    def without_this_package(self) -> Iterator[None]:
        """For a while it is not installed here."""
        for path in self.packages.glob("*smdistributed_open*.pth"):
            path.rename(path.with_suffix(".away"))
        try:
            yield
        finally:
            for path in self.packages.glob("*.away"):
                path.rename(path.with_suffix(".pth"))


def write_package(folder: Path, name: str = "horovod", version: str = "real") -> Path:
    """A package that another distribution would have; returns the folder in which it lies."""
    (folder / name / "torch").mkdir(parents=True)
    (folder / name / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (folder / name / "torch" / "__init__.py").touch()
    return folder


def path_with(folder: Path) -> dict[str, str]:
    """The variables by which `folder` is searched."""
    return {"PYTHONPATH": os.fspath(folder)}
