# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where a script finds its things: the layout that containers have at `/opt/ml`.

Source: launch specification, section 7.1.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["BASE_DIRECTORY", "OPT_ML", "Paths"]

OPT_ML = Path("/opt/ml")
"""Where scripts have it in Amazon's containers."""

BASE_DIRECTORY = "SAGEMAKER_BASE_DIR"
"""Variable: where the layout is, if it is not at `/opt/ml`."""


class Paths:
    """The layout below one directory.

    Args:
        base: `/opt/ml`, or what takes its place.

    Attributes:
        code: the script's sources, its working directory.
        input, config, data: what comes in; files about it; a folder for each channel.
        model, output, output_data, intermediate, checkpoints: what goes out.
        failure, success: written at the end by who runs the script: why it failed, or nothing.
        hyperparameters, input_data_config, resource_config: the files of `config`.
    """

    def __init__(self, base: str | Path = OPT_ML) -> None:
        self.base = Path(base)
        self.code = self.base / "code"
        self.input = self.base / "input"
        self.config = self.input / "config"
        self.data = self.input / "data"
        self.model = self.base / "model"
        self.output = self.base / "output"
        self.output_data = self.output / "data"
        self.intermediate = self.output / "intermediate"
        self.checkpoints = self.base / "checkpoints"
        self.failure = self.output / "failure"
        self.success = self.output / "success"
        self.hyperparameters = self.config / "hyperparameters.json"
        self.input_data_config = self.config / "inputdataconfig.json"
        self.resource_config = self.config / "resourceconfig.json"

    def channel(self, name: str) -> Path:
        """The folder of a channel."""
        return self.data / name

    def make(self) -> None:
        """Makes all directories, for their owner alone."""
        for path in (
            self.base,
            self.code,
            self.input,
            self.config,
            self.data,
            self.model,
            self.output,
            self.output_data,
            self.intermediate,
            self.checkpoints,
        ):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
