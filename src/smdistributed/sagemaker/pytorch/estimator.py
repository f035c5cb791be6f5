# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The estimator of scripts of PyTorch.

Source: launch specification, section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smdistributed.sagemaker.estimator import Framework

__all__ = ["PyTorch"]


class PyTorch(Framework):
    """Trains a script of PyTorch.

    Args:
        entry_point: the script.
        framework_version, py_version: of the container that it was written for; kept.
        source_dir: the directory that it lies in, which goes to the job.
        hyperparameters: of the script.
        image_uri: of a container; kept.
        distribution: how its processes work together.
        compiler_config: accepted.
        kwargs: as of `EstimatorBase`.

    Raises:
        ValueError: arguments that cannot work; with the published texts.
    """

    _framework = "pytorch"

    def __init__(
        self,
        entry_point: str,
        framework_version: str | None = None,
        py_version: str | None = None,
        source_dir: str | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        image_uri: str | None = None,
        distribution: Mapping[str, Any] | None = None,
        compiler_config: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            entry_point,
            source_dir,
            hyperparameters,
            framework_version=framework_version,
            py_version=py_version,
            image_uri=image_uri,
            distribution=distribution,
            **kwargs,
        )
        self.compiler_config = compiler_config
