# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The estimator of scripts of PyTorch.

Source: launch specification, section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smdistributed.sagemaker.estimator import Framework
from smdistributed.sagemaker.pytorch.model import PyTorchModel

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
        training_recipe, recipe_overrides: a job without a script of its own; `fit` refuses it.
        kwargs: as of `EstimatorBase`.

    Raises:
        ValueError: arguments that cannot work; with the published texts.
    """

    _framework = "pytorch"

    def __init__(
        self,
        entry_point: str | None = None,
        framework_version: str | None = None,
        py_version: str | None = None,
        source_dir: str | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        image_uri: str | None = None,
        distribution: Mapping[str, Any] | None = None,
        compiler_config: Any = None,
        training_recipe: str | None = None,
        recipe_overrides: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if entry_point is None and training_recipe is None:
            raise ValueError("PyTorch() has got no entry_point; expected the path of a script.")
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
        self.training_recipe = training_recipe
        self.recipe_overrides = recipe_overrides
        self.compiler_config = compiler_config

    def create_model(
        self,
        model_server_workers: int | None = None,
        role: str | None = None,
        vpc_config_override: Any = None,
        entry_point: str | None = None,
        source_dir: str | None = None,
        dependencies: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> PyTorchModel:
        """The model of the latest job.

        Args:
            model_server_workers: as of `PyTorchModel`.
            role: None: the estimator's.
            vpc_config_override: accepted.
            entry_point: the file with the model's functions; None: the script that has trained it,
                which is imported.
            source_dir: where that lies; None: in the sources of the job, or here.
            dependencies: go beside it.
            kwargs: of `PyTorchModel`.

        Raises:
            ValueError: there is no job, or it has made no model.
        """
        given = {"role": role, "dependencies": dependencies, **kwargs}
        arguments = self._model_arguments(entry_point or self._program(), source_dir, given)
        arguments.setdefault("framework_version", self.framework_version or "1.3")
        return PyTorchModel(
            py_version=self.py_version, model_server_workers=model_server_workers, **arguments
        )

    def _program(self) -> str:
        """The script, as it is called in the archive of the sources."""
        assert self.entry_point is not None
        return self.entry_point if self.source_dir else Path(self.entry_point).name
