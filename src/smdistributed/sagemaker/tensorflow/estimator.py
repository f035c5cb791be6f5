# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The estimator of scripts of TensorFlow.

Source: launch specification, sections 2.1 and 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smdistributed.launch.contract.hyperparameters import decode
from smdistributed.sagemaker.estimator import Framework

__all__ = ["TensorFlow"]


class TensorFlow(Framework):
    """Trains a script of TensorFlow.

    Args:
        py_version, framework_version: of the container that it was written for; kept.
        model_dir: is passed to the script as `--model_dir`; None: the folder of the model; False:
            the script gets no such argument.
        image_uri: of a container; kept.
        distribution: how its processes work together.
        compiler_config: accepted.
        kwargs: `entry_point`, `source_dir`, `hyperparameters`, and those of `EstimatorBase`.

    Raises:
        ValueError: arguments that cannot work; with the published texts.
    """

    _framework = _kind = "tensorflow"

    def __init__(
        self,
        py_version: str | None = None,
        framework_version: str | None = None,
        model_dir: str | bool | None = None,
        image_uri: str | None = None,
        distribution: Mapping[str, Any] | None = None,
        compiler_config: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            framework_version=framework_version,
            py_version=py_version,
            image_uri=image_uri,
            distribution=distribution,
            **kwargs,
        )
        self.model_dir = model_dir
        if model_dir is not False:
            self.set_hyperparameters(model_dir=model_dir or "/opt/ml/model")
        self.compiler_config = compiler_config

    @classmethod
    def _own_arguments(
        cls, name: str, described: Mapping[str, Any], local: Mapping[str, Any]
    ) -> dict[str, Any]:
        given = decode(described["HyperParameters"]).get("model_dir", False)
        return {**super()._own_arguments(name, described, local), "model_dir": given}
