# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models: what a job has made, with the functions that serve it.

Source: launch specification, sections 10.1 and 10.4.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from smdistributed._common.errors import UnsupportedError
from smdistributed._common.log import get_logger
from smdistributed.launch.contract.archives import check_sources, pack_sources
from smdistributed.launch.data import buckets
from smdistributed.launch.data.places import require_there
from smdistributed.launch.endpoints import create as create_endpoint
from smdistributed.launch.jobs.names import check_name, made_name
from smdistributed.launch.serve.endpoints import require_free_name
from smdistributed.launch.serve.record import EndpointRecord, Framework, ServedModel
from smdistributed.sagemaker.arguments import require_whole
from smdistributed.sagemaker.predictor import Predictor
from smdistributed.sagemaker.session import ACCOUNT, Session

__all__ = ["FrameworkModel", "Model"]

_log = get_logger()

# Arguments of `deploy` that would change what an endpoint does.
_NOT_HERE = (
    "accelerator_type",
    "async_inference_config",
    "data_capture_config",
    "explainer_config",
    "inference_component_name",
    "managed_instance_scaling",
    "resources",
    "serverless_inference_config",
    "update_endpoint",
)


# Variables that this process may have for all endpoints. They stand in the record of each, where
# predictors find them.
_OF_THE_SERVER = (
    "SAGEMAKER_BIND_TO_PORT",
    "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT",
    "SAGEMAKER_MAX_PAYLOAD_IN_MB",
    "SAGEMAKER_MODEL_SERVER_TIMEOUT",
    "SAGEMAKER_MODEL_SERVER_WORKERS",
    "SAGEMAKER_STARTUP_TIMEOUT",
)


class Model:
    """An archive of a model, and the sources of its functions.

    Args:
        image_uri: of a container; kept.
        model_data: URI of `model.tar.gz`, or a dict with an `S3DataSource`.
        role: accepted.
        predictor_cls: is called with the endpoint's name and the session; None: `deploy` returns
            None.
        env: variables of the server.
        name: of the model; None: one is made.
        sagemaker_session: knows endpoints and buckets; None: this machine's.
        source_dir: the directory of the sources, or the URI of their archive.
        code_location: URI below which sources are kept; None: the session's bucket.
        entry_point: the file with the functions; below `source_dir` if that is given.
        container_log_level: number of Python's logging.
        dependencies: files and directories that go beside the sources.
        vpc_config, enable_network_isolation, model_kms_key, image_config, resources,
        additional_model_data_sources, model_reference_arn: of Amazon's service; accepted.
        git_config: refused.

    Raises:
        ValueError: arguments that cannot work.
    """

    _framework: Framework | None = None

    def __init__(
        self,
        image_uri: str | None = None,
        model_data: str | Mapping[str, Any] | None = None,
        role: str | None = None,
        predictor_cls: Callable[..., Any] | None = None,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        vpc_config: Any = None,
        sagemaker_session: Session | None = None,
        enable_network_isolation: bool | None = None,
        model_kms_key: str | None = None,
        image_config: Any = None,
        source_dir: str | None = None,
        code_location: str | None = None,
        entry_point: str | None = None,
        container_log_level: int = 20,
        dependencies: Sequence[str] | None = None,
        git_config: Mapping[str, str] | None = None,
        resources: Any = None,
        additional_model_data_sources: Any = None,
        model_reference_arn: str | None = None,
    ) -> None:
        if git_config:
            raise UnsupportedError(
                "git_config of a model is not known on this machine; expected source_dir and"
                " entry_point here. Clone the repository first."
            )
        self.image_uri = image_uri
        self.model_data = model_data
        self.role = role
        self.predictor_cls = predictor_cls
        self.env = {str(key): str(value) for key, value in (env or {}).items()}
        self.name = name
        self.vpc_config = vpc_config
        self.sagemaker_session = sagemaker_session or Session()
        self.model_kms_key = model_kms_key
        self.image_config = image_config
        self.source_dir = source_dir
        self.code_location = code_location.rstrip("/") if code_location else None
        self.entry_point = entry_point
        self.container_log_level = container_log_level
        self.dependencies = list(dependencies or ())
        self.resources = resources
        self.additional_model_data_sources = additional_model_data_sources
        self.model_reference_arn = model_reference_arn
        self.endpoint_name: str | None = None
        self._enable_network_isolation = bool(enable_network_isolation)

    def enable_network_isolation(self) -> bool:
        """Whether the server may not use the network; nothing sees to it here."""
        return self._enable_network_isolation

    def deploy(
        self,
        initial_instance_count: int | None = None,
        instance_type: str | None = None,
        serializer: Any = None,
        deserializer: Any = None,
        accelerator_type: str | None = None,
        endpoint_name: str | None = None,
        tags: Any = None,
        kms_key: str | None = None,
        wait: bool = True,
        data_capture_config: Any = None,
        async_inference_config: Any = None,
        serverless_inference_config: Any = None,
        volume_size: int | None = None,
        model_data_download_timeout: int | None = None,
        container_startup_health_check_timeout: int | None = None,
        inference_recommendation_id: str | None = None,
        explainer_config: Any = None,
        accept_eula: bool | None = None,
        endpoint_logging: bool = False,
        resources: Any = None,
        endpoint_type: Any = None,
        managed_instance_scaling: Any = None,
        inference_component_name: str | None = None,
        routing_config: Any = None,
        model_reference_arn: str | None = None,
        inference_ami_version: str | None = None,
        update_endpoint: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Serves the model on this machine, or on a Ray cluster if jobs run there.

        Its processes outlive this one.

        Args:
            initial_instance_count: each has as many workers as there are processors for it, or
                `SAGEMAKER_MODEL_SERVER_WORKERS`. On Ray each is a replica of Serve.
            instance_type: accepted.
            serializer, deserializer: of the predictor; None: those of its class.
            endpoint_name: None: one is made.
            wait: return when the model is loaded.
            container_startup_health_check_timeout: seconds for the model to be loaded.
            tags, kms_key, volume_size, model_data_download_timeout, inference_recommendation_id,
            accept_eula, endpoint_logging, endpoint_type, routing_config, model_reference_arn,
            inference_ami_version, kwargs: accepted.
            accelerator_type, data_capture_config, async_inference_config,
            serverless_inference_config, explainer_config, resources, managed_instance_scaling,
            inference_component_name, update_endpoint: refused.

        Returns: what `predictor_cls` makes of the endpoint's name and the session; None without it.

        Raises:
            BackendError: the Ray cluster does not answer.
            ValueError: arguments that cannot work, a model that is not there, a name that is taken.
            UnexpectedStatusException: the model could not be loaded; says why.
            UnsupportedError: what is not known on this machine, or needs a package.
        """
        given = dict(locals())
        for each in _NOT_HERE:
            if given[each]:
                raise UnsupportedError(
                    f"{each} is {given[each]!r:.100}, which is not known on this machine; expected"
                    " deploy() without it."
                )
        if initial_instance_count is None or instance_type is None:
            raise ValueError(
                "Must specify instance type and instance count unless using serverless inference"
            )
        require_whole("initial_instance_count", initial_instance_count)
        require_whole(_STARTUP, container_startup_health_check_timeout)
        name = endpoint_name or made_name(self._base_name(), dt.datetime.now(dt.UTC))
        session = self.sagemaker_session
        require_free_name(session.home, check_name(name, "an endpoint"))
        served = self._served(name)
        if container_startup_health_check_timeout is not None:
            timeout = {"SAGEMAKER_STARTUP_TIMEOUT": str(container_startup_health_check_timeout)}
            served = dataclasses.replace(served, environment={**served.environment, **timeout})
        now = dt.datetime.now(dt.UTC)
        region = session.boto_region_name
        record = EndpointRecord(
            name=name,
            arn=f"arn:aws:sagemaker:{region}:{ACCOUNT}:endpoint/{name.lower()}",
            model=served,
            instance_count=initial_instance_count,
            instance_type=instance_type,
            created=now,
            modified=now,
            backend="ray" if session.backend.name == "ray" else "local",
        )
        create_endpoint(session.home, record)
        self.endpoint_name = name
        if wait:
            session.wait_for_endpoint(name)
        return self._predictor(serializer, deserializer)

    def delete_model(self) -> None:
        """Nothing: an endpoint has its model, and its archive stays where it is."""

    def transformer(self, *args: Any, **kwargs: Any) -> Any:
        """Batch transform: not on this machine."""
        raise _only_there("transformer()")

    def register(self, *args: Any, **kwargs: Any) -> Any:
        """The model registry: not on this machine."""
        raise _only_there("register()")

    def _predictor(self, serializer: Any, deserializer: Any) -> Any:
        if self.predictor_cls is None:
            return None
        given = {"serializer": serializer, "deserializer": deserializer}
        chosen = {key: value for key, value in given.items() if value is not None}
        return self.predictor_cls(self.endpoint_name, self.sagemaker_session, **chosen)

    def _base_name(self) -> str:
        return self.name or "model"

    def _served(self, endpoint: str) -> ServedModel:
        """What is served. Puts the sources where it says that they are."""
        if self._framework is None:
            raise UnsupportedError(
                f"{type(self).__name__} names no framework, and containers are not run on this"
                " machine; expected PyTorchModel or TensorFlowModel."
            )
        data = _uri_of(self.model_data)
        expected = "expected the archive of a model. Was the job that makes it successful?"
        require_there(data, self.sagemaker_session.home, "model_data", expected)
        name = self.name = check_name(self.name or endpoint, "a model")
        program = self.entry_point or ""
        if self.source_dir is None:  # the file goes alone
            program = Path(program).name
        return ServedModel(
            name=name,
            framework=self._framework,
            data=data,
            code=self._upload_code(name),
            program=program,
            environment={
                "SAGEMAKER_CONTAINER_LOG_LEVEL": str(self.container_log_level),
                "SAGEMAKER_REGION": self.sagemaker_session.boto_region_name,
                **{name: os.environ[name] for name in _OF_THE_SERVER if name in os.environ},
                **self.env,
            },
        )

    def _upload_code(self, name: str) -> str:
        """Returns: the URI of the archive of the sources; empty if there are none."""
        if self.entry_point is None:
            if self.source_dir is not None:
                raise ValueError(
                    f"source_dir is {self.source_dir!r}, and entry_point is None; expected both."
                    " Name the file with the functions."
                )
            return ""
        given = str(self.source_dir or "")
        if given.startswith(("s3://", "file://")) and given.endswith(".tar.gz"):
            return given
        check_sources(self.entry_point, self.source_dir)
        session = self.sagemaker_session
        # Of this call alone: an endpoint unpacks it later, and another deploy() has other sources.
        key = f"{name}/{secrets.token_hex(4)}/sourcedir.tar.gz"
        uri = f"{self.code_location or session.default_uri()}/{key}"
        code = self.entry_point, self.source_dir, self.dependencies

        def pack(archive: Path) -> None:
            pack_sources(archive, *code, without=session.home.root)

        with buckets.made(uri, session.home, pack):
            return uri


_STARTUP = "container_startup_health_check_timeout"


class FrameworkModel(Model):
    """A model of a framework.

    Args:
        model_data: URI of `model.tar.gz`.
        image_uri: of a container; kept.
        role: accepted.
        entry_point, source_dir, predictor_cls, env, name, container_log_level, code_location,
        sagemaker_session, dependencies, git_config, kwargs: as of `Model`.
    """

    def __init__(
        self,
        model_data: str | Mapping[str, Any] | None,
        image_uri: str | None = None,
        role: str | None = None,
        entry_point: str | None = None,
        source_dir: str | None = None,
        predictor_cls: Callable[..., Any] | None = Predictor,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        container_log_level: int = 20,
        code_location: str | None = None,
        sagemaker_session: Session | None = None,
        dependencies: Sequence[str] | None = None,
        git_config: Mapping[str, str] | None = None,
        *,
        framework_version: str | None = None,
        py_version: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            image_uri,
            model_data,
            role,
            source_dir=source_dir,
            predictor_cls=predictor_cls,
            env=env,
            name=name,
            container_log_level=container_log_level,
            code_location=code_location,
            sagemaker_session=sagemaker_session,
            entry_point=entry_point,
            dependencies=dependencies,
            git_config=git_config,
            **kwargs,
        )
        self.framework_version = framework_version
        self.py_version = py_version

    def _base_name(self) -> str:
        return self.name or f"{self._framework}-inference"


def _uri_of(model_data: str | Mapping[str, Any] | None) -> str:
    if isinstance(model_data, Mapping):
        return str(model_data["S3DataSource"]["S3Uri"]).rstrip("/")
    if not model_data:
        raise ValueError("model_data is None; expected the URI of a model.tar.gz.")
    return model_data


def _only_there(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} is not there on this machine; expected deploy() and the predictor that it returns."
    )
