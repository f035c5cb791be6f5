# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch, and what asks them.

Source: launch specification, sections 10.1 and 10.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from smdistributed.launch.serve.record import Framework
from smdistributed.sagemaker.arguments import require_whole
from smdistributed.sagemaker.deserializers import NumpyDeserializer
from smdistributed.sagemaker.model import FrameworkModel
from smdistributed.sagemaker.predictor import Predictor
from smdistributed.sagemaker.serializers import NumpySerializer
from smdistributed.sagemaker.session import Session

__all__ = ["PyTorchModel", "PyTorchPredictor"]


class PyTorchPredictor(Predictor):
    """Sends arrays, and returns arrays.

    Args:
        endpoint_name, sagemaker_session, serializer, deserializer, component_name: as of
            `Predictor`.
    """

    def __init__(
        self,
        endpoint_name: str,
        sagemaker_session: Session | None = None,
        serializer: Any = None,
        deserializer: Any = None,
        component_name: str | None = None,
    ) -> None:
        super().__init__(
            endpoint_name,
            sagemaker_session,
            NumpySerializer() if serializer is None else serializer,
            # What our server sends has no objects in it, and nothing else is to be trusted.
            NumpyDeserializer(allow_pickle=False) if deserializer is None else deserializer,
            component_name,
        )


class PyTorchModel(FrameworkModel):
    """A model of PyTorch.

    Args:
        model_data: URI of `model.tar.gz`.
        role: accepted.
        entry_point: the file with `model_fn` and others; None: what the model has in
            `code/inference.py`, or the defaults, which load TorchScript.
        framework_version, py_version, image_uri: kept.
        predictor_cls: as of `Model`.
        model_server_workers: processes of each instance; None: as many as there are processors.
        kwargs: as of `FrameworkModel`.
    """

    _framework = Framework.PYTORCH

    def __init__(
        self,
        model_data: str | Mapping[str, Any] | None,
        role: str | None = None,
        entry_point: str | None = None,
        framework_version: str = "1.3",
        py_version: str | None = None,
        image_uri: str | None = None,
        predictor_cls: Callable[..., Any] | None = PyTorchPredictor,
        model_server_workers: int | None = None,
        **kwargs: Any,
    ) -> None:
        require_whole("model_server_workers", model_server_workers)
        super().__init__(
            model_data,
            image_uri,
            role,
            entry_point,
            predictor_cls=predictor_cls,
            framework_version=framework_version,
            py_version=py_version,
            **kwargs,
        )
        self.model_server_workers = model_server_workers
        if model_server_workers is not None:
            self.env["SAGEMAKER_MODEL_SERVER_WORKERS"] = str(model_server_workers)
