# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The estimator of scripts of Hugging Face's libraries.

Source: launch specification, section 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smdistributed.sagemaker.estimator import Framework

__all__ = ["HuggingFace"]


class HuggingFace(Framework):
    """Trains a script of Hugging Face's libraries, on PyTorch or TensorFlow.

    Args:
        py_version: of the container that it was written for; kept.
        entry_point: the script.
        transformers_version: kept.
        pytorch_version, tensorflow_version: one of them, which says the framework.
        source_dir: the directory that it lies in, which goes to the job.
        hyperparameters: of the script.
        image_uri: of a container; kept.
        distribution: how its processes work together.
        compiler_config: accepted.
        kwargs: as of `EstimatorBase`.

    Raises:
        ValueError: arguments that cannot work; with the published texts.
    """

    _kind = "huggingface"

    def __init__(
        self,
        py_version: str | None,
        entry_point: str,
        transformers_version: str | None = None,
        tensorflow_version: str | None = None,
        pytorch_version: str | None = None,
        source_dir: str | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        image_uri: str | None = None,
        distribution: Mapping[str, Any] | None = None,
        compiler_config: Any = None,
        **kwargs: Any,
    ) -> None:
        if tensorflow_version is not None and pytorch_version is not None:
            raise ValueError(
                f"tensorflow_version is {tensorflow_version!r} and pytorch_version"
                f" {pytorch_version!r}; expected one of them."
            )
        self._framework = "tensorflow" if tensorflow_version is not None else "pytorch"
        super().__init__(
            entry_point,
            source_dir,
            hyperparameters,
            framework_version=tensorflow_version or pytorch_version,
            py_version=py_version,
            image_uri=image_uri,
            distribution=distribution,
            **kwargs,
        )
        self.transformers_version = transformers_version
        self.pytorch_version = pytorch_version
        self.tensorflow_version = tensorflow_version
        self.compiler_config = compiler_config

    def _local(self) -> dict[str, Any]:
        return {
            **super()._local(),
            "TransformersVersion": self.transformers_version,
            "BaseFramework": self._framework,
        }

    @classmethod
    def _own_arguments(
        cls, name: str, described: Mapping[str, Any], local: Mapping[str, Any]
    ) -> dict[str, Any]:
        own = super()._own_arguments(name, described, local)
        return {
            "py_version": own["py_version"],
            f"{local.get('BaseFramework', 'pytorch')}_version": own["framework_version"],
            "transformers_version": local.get("TransformersVersion"),
        }

    def _default_base_name(self) -> str:
        return f"huggingface-{self._framework}-training"
