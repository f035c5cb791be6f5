# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Puts a line for the interpreter's start beside the modules; all else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

START = "smdistributed_sagemaker_alias.pth"


class _BuildWithStart(build_py):
    """Setuptools has no words for a file at the top of the environment that is no module."""

    def run(self) -> None:
        super().run()
        self.copy_file(START, str(Path(self.build_lib) / START), preserve_mode=False)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs: list[str] = super().get_outputs(include_bytecode)
        return [*outputs, str(Path(self.build_lib) / START)]


setup(cmdclass={"build_py": _BuildWithStart})
