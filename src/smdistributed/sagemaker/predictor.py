# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What asks an endpoint.

Source: launch specification, section 10.2.
"""

from __future__ import annotations

import contextlib
import http.client
import io
from collections.abc import Mapping
from typing import Any

from smdistributed._common.errors import UnsupportedError
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.serve.record import EndpointRecord, EndpointStatus
from smdistributed.sagemaker.deserializers import BytesDeserializer
from smdistributed.sagemaker.exceptions import ModelError, UnexpectedStatusException
from smdistributed.sagemaker.serializers import IdentitySerializer
from smdistributed.sagemaker.session import Session

__all__ = ["Predictor"]

_HEADER = "X-Amzn-SageMaker-"
_VARIANT = "AllTraffic"
# Of an answer, beyond what the server gives a model.
_MORE_S = 30.0


class Predictor:
    """Asks one endpoint. Any process of this user may, by its name.

    Args:
        endpoint_name: of the endpoint.
        sagemaker_session: knows endpoints; None: this machine's.
        serializer: makes bodies of what `predict` is given.
        deserializer: reads what comes back.
        component_name: of Amazon's service; refused.
        kwargs: accepted.
    """

    def __init__(
        self,
        endpoint_name: str,
        sagemaker_session: Session | None = None,
        serializer: Any = None,
        deserializer: Any = None,
        component_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        _refuse("component_name", component_name)
        self.endpoint_name = endpoint_name
        self.sagemaker_session = sagemaker_session or Session()
        self.serializer = IdentitySerializer() if serializer is None else serializer
        self.deserializer = BytesDeserializer() if deserializer is None else deserializer

    @property
    def content_type(self) -> str:
        """Of the bodies that are sent."""
        return str(self.serializer.CONTENT_TYPE)

    @property
    def accept(self) -> tuple[str, ...]:
        """The types that are read."""
        return tuple(self.deserializer.ACCEPT)

    def predict(
        self,
        data: Any,
        initial_args: Mapping[str, Any] | None = None,
        target_model: str | None = None,
        target_variant: str | None = None,
        inference_id: str | None = None,
        custom_attributes: str | None = None,
        component_name: str | None = None,
    ) -> Any:
        """What the model says.

        Args:
            data: what the serializer takes.
            initial_args: of the request: `ContentType`, `Accept`, `CustomAttributes`,
                `InferenceId`.
            target_variant: `AllTraffic`, the only one.
            inference_id, custom_attributes: the model's functions find them in the header.
            target_model, component_name: refused.

        Returns: what the deserializer makes of the answer.

        Raises:
            ModelError: the model has not answered well; says how.
            UnexpectedStatusException: the endpoint does not serve.
            ConfigurationError: (a ValueError) there is no such endpoint.
        """
        _refuse("target_model", target_model)
        _refuse("component_name", component_name)
        if target_variant not in (None, _VARIANT):
            raise ValueError(f"target_variant is {target_variant!r}; expected {_VARIANT!r}.")
        given = dict(initial_args or {})
        headers = {
            "Content-Type": given.get("ContentType", self.content_type),
            "Accept": given.get("Accept", ", ".join(self.accept)),
        }
        for name, value in (
            ("Custom-Attributes", custom_attributes or given.get("CustomAttributes")),
            ("Inference-Id", inference_id or given.get("InferenceId")),
        ):
            if value is not None:
                headers[_HEADER + name] = value
        body = self.serializer.serialize(data)
        if isinstance(body, str):
            body = body.encode("utf-8")
        content, content_type = self._ask(body, headers)
        return self.deserializer.deserialize(io.BytesIO(content), content_type)

    def delete_endpoint(self, delete_endpoint_config: bool = True) -> None:
        """Ends the endpoint; returns when none of its processes is left."""
        self.sagemaker_session.delete_endpoint(self.endpoint_name)

    def delete_predictor(self, wait: bool = False) -> None:
        """As `delete_endpoint`."""
        self.delete_endpoint()

    def delete_model(self) -> None:
        """Nothing: the endpoint has its model, which goes with it; the archive stays."""

    def update_endpoint(self, *args: Any, **kwargs: Any) -> None:
        """Not on this machine."""
        raise UnsupportedError(
            "update_endpoint() is not known on this machine; expected delete_endpoint(), and"
            " deploy() with what is to be changed."
        )

    def _ask(self, body: Any, headers: Mapping[str, str]) -> tuple[bytes, str]:
        record = self.sagemaker_session.endpoint(self.endpoint_name).poll()
        if record.status in (EndpointStatus.FAILED, EndpointStatus.DELETING):
            raise self._not_in_service(record)
        if not record.port:
            raise ModelError(
                f"endpoint {self.endpoint_name} is {record.status}, and does not listen yet;"
                " expected InService. sagemaker_session.wait_for_endpoint() waits for that.",
                503,
                b"",
            )
        connection = http.client.HTTPConnection(
            record.host, record.port, timeout=record.timeout_s + _MORE_S
        )
        try:
            # It may answer before all was sent: the body is too long.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request("POST", f"{record.prefix}/invocations", body, dict(headers))
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._require_in_service()
            raise ModelError(
                f"endpoint {self.endpoint_name} has not answered: {type(error).__name__}: {error};"
                " expected an answer. Its log may say why.",
                0,
                b"",
            ) from None
        finally:
            connection.close()
        if response.status == 404 and not record.is_here:  # Serve knows no such route
            self._require_in_service()
        if response.status != 200:
            text = content.decode("utf-8", "replace")
            raise ModelError(
                f"endpoint {self.endpoint_name} has answered with status {response.status}:"
                f" {text[:4000]}",
                response.status,
                content,
            )
        return content, response.headers.get("Content-Type", "")

    def _require_in_service(self) -> None:
        with contextlib.suppress(BackendError):  # then nobody knows more than the caller
            now = self.sagemaker_session.endpoint_record(self.endpoint_name)
            if now.status is EndpointStatus.FAILED:
                raise self._not_in_service(now) from None

    def _not_in_service(self, record: EndpointRecord) -> UnexpectedStatusException:
        return UnexpectedStatusException(
            f"endpoint {self.endpoint_name} is {record.status}: {record.failure_reason}",
            allowed_statuses=["InService"],
            actual_status=str(record.status),
        )


def _refuse(name: str, value: Any) -> None:
    if value is not None:
        raise UnsupportedError(
            f"{name} is {value!r}, which is not known on this machine; expected None: an endpoint"
            " serves one model."
        )
