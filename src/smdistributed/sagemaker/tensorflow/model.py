# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models of TensorFlow, and what asks them.

Source: launch specification, sections 10.1, 10.2 and 10.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from smdistributed.launch.serve.record import Framework
from smdistributed.sagemaker.deserializers import JSONDeserializer
from smdistributed.sagemaker.model import FrameworkModel
from smdistributed.sagemaker.predictor import Predictor
from smdistributed.sagemaker.serializers import JSONSerializer
from smdistributed.sagemaker.session import Session

__all__ = ["TensorFlowModel", "TensorFlowPredictor"]


class TensorFlowPredictor(Predictor):
    """Sends and returns what JSON takes.

    Args:
        endpoint_name, sagemaker_session, serializer, deserializer, component_name: as of
            `Predictor`.
        model_name, model_version: the functions of the model are told.
        kwargs: accepted.
    """

    def __init__(
        self,
        endpoint_name: str,
        sagemaker_session: Session | None = None,
        serializer: Any = None,
        deserializer: Any = None,
        model_name: str | None = None,
        model_version: int | str | None = None,
        component_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            endpoint_name,
            sagemaker_session,
            JSONSerializer() if serializer is None else serializer,
            JSONDeserializer() if deserializer is None else deserializer,
            component_name,
            **kwargs,
        )
        self._attributes = {
            "tfs-model-name": model_name,
            "tfs-model-version": model_version,
        }

    def classify(self, data: Any) -> Any:
        """As `predict`, with the method `classify`, which functions of the model may know.

        Raises:
            ValueError: the predictor does not send JSON.
        """
        return self._with_method("classify", data)

    def regress(self, data: Any) -> Any:
        """As `predict`, with the method `regress`, which functions of the model may know.

        Raises:
            ValueError: the predictor does not send JSON.
        """
        return self._with_method("regress", data)

    def predict(
        self,
        data: Any,
        initial_args: Mapping[str, Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As of `Predictor`."""
        given = dict(initial_args or {})
        attributes = [f"{key}={value}" for key, value in self._attributes.items() if value]
        if given.get("CustomAttributes"):
            attributes.append(given["CustomAttributes"])
        if attributes:
            given["CustomAttributes"] = ",".join(attributes)
        return super().predict(data, given, *args, **kwargs)

    def _with_method(self, method: str, data: Any) -> Any:
        if self.content_type != "application/json":
            raise ValueError(
                f"{method}() sends JSON, and the serializer makes {self.content_type}; expected a"
                " JSONSerializer."
            )
        return self.predict(data, {"CustomAttributes": f"tfs-method={method}"})


class TensorFlowModel(FrameworkModel):
    """A model of TensorFlow: a SavedModel in a folder whose name is a number.

    Args:
        model_data: URI of `model.tar.gz`.
        role: accepted.
        entry_point: the file with `handler`, or `input_handler` and `output_handler`; None: what
            the model has in `code/inference.py`, or none.
        image_uri, framework_version: kept.
        container_log_level: None: 20.
        predictor_cls: as of `Model`.
        kwargs: as of `FrameworkModel`.
    """

    _framework = Framework.TENSORFLOW

    def __init__(
        self,
        model_data: str | Mapping[str, Any] | None,
        role: str | None = None,
        entry_point: str | None = None,
        image_uri: str | None = None,
        framework_version: str | None = None,
        container_log_level: int | None = None,
        predictor_cls: Callable[..., Any] | None = TensorFlowPredictor,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            model_data,
            image_uri,
            role,
            entry_point,
            predictor_cls=predictor_cls,
            container_log_level=20 if container_log_level is None else container_log_level,
            framework_version=framework_version,
            **kwargs,
        )
