# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The estimator of scripts of TensorFlow.

Source: launch specification, sections 2.1 and 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smdistributed.launch.contract.hyperparameters import decode
from smdistributed.sagemaker.estimator import Framework
from smdistributed.sagemaker.tensorflow.model import TensorFlowModel

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

    def create_model(
        self,
        role: str | None = None,
        vpc_config_override: Any = None,
        entry_point: str | None = None,
        source_dir: str | None = None,
        dependencies: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> TensorFlowModel:
        """The model of the latest job.

        Args:
            role: None: the estimator's.
            vpc_config_override: accepted.
            entry_point: the file with the model's functions; None: the SavedModel as it is.
            source_dir: where that lies; None: in the sources of the job, or here.
            dependencies: go beside it.
            kwargs: of `TensorFlowModel`.

        Raises:
            ValueError: there is no job, or it has made no model.
        """
        given = {"role": role, "dependencies": dependencies, **kwargs}
        arguments = self._model_arguments(entry_point, source_dir, given)
        return TensorFlowModel(framework_version=self.framework_version, **arguments)

    @classmethod
    def _own_arguments(
        cls, name: str, described: Mapping[str, Any], local: Mapping[str, Any]
    ) -> dict[str, Any]:
        given = decode(described["HyperParameters"]).get("model_dir", False)
        return {**super()._own_arguments(name, described, local), "model_dir": given}
