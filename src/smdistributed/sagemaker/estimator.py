# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Estimators: a script, its data and the size of a cluster, as one object that trains.

`fit` makes the request `CreateTrainingJob` of it, packs the sources, and gives both to a backend.

Source: launch specification, sections 2 and 3.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.metadata
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from smdistributed._common.errors import ConfigurationError, UnsupportedError
from smdistributed._common.log import get_logger
from smdistributed.launch.backends.limits import check_limits
from smdistributed.launch.backends.request import check_checkpoints, check_environment
from smdistributed.launch.contract.archives import check_sources, pack_sources
from smdistributed.launch.contract.hyperparameters import encode, encode_plainly
from smdistributed.launch.data import buckets
from smdistributed.launch.data.places import require_there, require_writable_place
from smdistributed.launch.data.sources import InputMode, check_channels
from smdistributed.launch.jobs.directory import create_job
from smdistributed.launch.jobs.names import (
    base_name_of_image,
    check_name,
    later_names,
    made_name,
)
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.metrics import MetricDefinition
from smdistributed.launch.storage import require_seen_by_hosts
from smdistributed.sagemaker.analytics import TrainingJobAnalytics
from smdistributed.sagemaker.arguments import (
    by_either_name,
    known_arguments,
    refuse_unknown,
    renamed,
    require_whole,
    typed,
)
from smdistributed.sagemaker.described import (
    arguments_of,
    model_of,
    require_model,
    sources_with,
)
from smdistributed.sagemaker.distribution import distribution_hyperparameters
from smdistributed.sagemaker.fw_utils import validate_distribution
from smdistributed.sagemaker.git import Code, checked_out
from smdistributed.sagemaker.inputs import TrainingInput, channels
from smdistributed.sagemaker.instance_group import InstanceGroup
from smdistributed.sagemaker.job import TrainingJob, prints_logs
from smdistributed.sagemaker.kept import add_kept, role_arn
from smdistributed.sagemaker.model import Model
from smdistributed.sagemaker.service_model import check_request
from smdistributed.sagemaker.session import ACCOUNT, Session

__all__ = ["Estimator", "EstimatorBase", "Framework"]

_log = get_logger()

_OWN_NETWORK = object()


_PACKAGES = {"pytorch": "torch", "tensorflow": "tensorflow"}


class EstimatorBase:
    """What all estimators have: where a job runs, and what is made of its results.

    Arguments that mean nothing on this machine are kept as attributes. Those that nobody knows are
    accepted with a warning each, as published notebooks pass some; `strict=True` refuses them.

    Args:
        role: of Amazon's service; accepted.
        instance_count, instance_type: how many hosts, of what kind; or `instance_groups`.
        keep_alive_period_in_seconds: accepted.
        volume_size: in GB; told to nobody here.
        max_run: seconds that the script may run.
        use_spot_instances, max_wait: the job may be interrupted, and starts again then; the seconds
            from its creation to its end, at least `max_run`.
        max_retry_attempts: how often the job is tried again, after a failure that was not the
            script's, 1 to 30; None: never.
        input_mode: how data come in: `File`, `Pipe` or `FastFile`.
        output_path: URI of a folder for the results; None: the session's bucket.
        base_job_name: names of jobs begin with it.
        sagemaker_session: knows jobs and buckets; None: this machine's.
        model_uri, model_channel_name: a channel with a model to begin with.
        metric_definitions: dicts with Name and Regex; searched for in what ranks print.
        environment: variables of the job.
        instance_groups: `InstanceGroup`s, instead of count and type.
        cpu_shim: where GPUs are missing that the instance type names, the CPU shims are on.
        emulate_gpus: `SM_NUM_GPUS` is the number of processes of a host, not that of its GPUs.
        strict: unknown arguments are a TypeError.

    Raises:
        ValueError: arguments that cannot work; with the published texts.
    """

    def __init__(
        self,
        role: str | None = None,
        instance_count: int | None = None,
        instance_type: str | None = None,
        keep_alive_period_in_seconds: int | None = None,
        volume_size: int = 30,
        volume_kms_key: str | None = None,
        max_run: int = 86400,
        input_mode: str = "File",
        output_path: str | None = None,
        output_kms_key: str | None = None,
        base_job_name: str | None = None,
        sagemaker_session: Session | None = None,
        tags: Any = None,
        subnets: Sequence[str] | None = None,
        security_group_ids: Sequence[str] | None = None,
        model_uri: str | None = None,
        model_channel_name: str = "model",
        metric_definitions: Sequence[Mapping[str, str]] | None = None,
        encrypt_inter_container_traffic: bool = False,
        use_spot_instances: bool = False,
        max_wait: int | None = None,
        checkpoint_s3_uri: str | None = None,
        checkpoint_local_path: str | None = None,
        rules: Any = None,
        debugger_hook_config: Any = None,
        tensorboard_output_config: Any = None,
        enable_sagemaker_metrics: bool | None = None,
        enable_network_isolation: bool = False,
        profiler_config: Any = None,
        disable_profiler: bool = False,
        environment: Mapping[str, str] | None = None,
        max_retry_attempts: int | None = None,
        source_dir: str | None = None,
        git_config: Mapping[str, str] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        container_log_level: int = 20,
        code_location: str | None = None,
        entry_point: str | None = None,
        dependencies: Sequence[str] | None = None,
        instance_groups: Sequence[InstanceGroup] | None = None,
        training_repository_access_mode: str | None = None,
        training_repository_credentials_provider_arn: str | None = None,
        enable_infra_check: bool | None = None,
        container_entry_point: Sequence[str] | None = None,
        container_arguments: Sequence[str] | None = None,
        disable_output_compression: bool = False,
        enable_remote_debug: bool | None = None,
        enable_session_tag_chaining: bool | None = None,
        training_plan: str | None = None,
        instance_placement_config: Mapping[str, Any] | None = None,
        *,
        image_uri: str | None = None,
        distribution: Mapping[str, Any] | None = None,
        cpu_shim: bool = True,
        emulate_gpus: bool = False,
        strict: bool = False,
        **kwargs: Any,
    ) -> None:
        given = renamed(kwargs)
        kind = type(self)
        refuse_unknown(kind.__name__, given, known_arguments(kind), strict)
        self.instance_count = by_either_name(given, "instance_count", instance_count)
        self.instance_type = by_either_name(given, "instance_type", instance_type)
        self.max_run = by_either_name(given, "max_run", max_run)
        self.max_wait = by_either_name(given, "max_wait", max_wait)
        self.use_spot_instances = by_either_name(given, "use_spot_instances", use_spot_instances)
        self.volume_size = by_either_name(given, "volume_size", volume_size)
        self.volume_kms_key = by_either_name(given, "volume_kms_key", volume_kms_key)
        self.image_uri: str | None = by_either_name(given, "image_uri", image_uri)
        self.distribution = dict(by_either_name(given, "distribution", distribution) or {})
        self.role = role
        self.instance_groups = list(instance_groups) if instance_groups else None
        self.keep_alive_period_in_seconds = keep_alive_period_in_seconds
        self.input_mode = input_mode
        self.output_path = typed("output_path", output_path, str)
        self.output_kms_key = output_kms_key
        self.base_job_name = base_job_name
        self.sagemaker_session = typed("sagemaker_session", sagemaker_session, Session) or Session()
        self.tags = tags
        self.subnets = subnets
        self.security_group_ids = security_group_ids
        self.model_uri = model_uri
        self.model_channel_name = model_channel_name
        typed("metric_definitions", metric_definitions, Sequence)
        self.metric_definitions: list[Any] = list(metric_definitions or ())
        self.encrypt_inter_container_traffic = encrypt_inter_container_traffic
        self.checkpoint_s3_uri = typed("checkpoint_s3_uri", checkpoint_s3_uri, str)
        self.checkpoint_local_path = checkpoint_local_path
        self.rules = rules
        self.debugger_hook_config = debugger_hook_config
        self.tensorboard_output_config = tensorboard_output_config
        self.enable_sagemaker_metrics = enable_sagemaker_metrics
        self.profiler_config = profiler_config
        self.disable_profiler = disable_profiler
        self.environment = dict(typed("environment", environment, Mapping) or {})
        self.max_retry_attempts = max_retry_attempts
        self.source_dir = None if source_dir is None else os.fspath(source_dir)
        self.git_config = typed("git_config", git_config, Mapping)
        self._code: Code | None = None
        self._undone_if_refused = contextlib.ExitStack()
        self.container_log_level = container_log_level
        self.code_location = code_location.rstrip("/") if code_location else None
        self.entry_point = None if entry_point is None else os.fspath(entry_point)
        typed("subnets", subnets, Sequence)
        typed("security_group_ids", security_group_ids, Sequence)
        typed("dependencies", dependencies, Sequence)
        self.dependencies = [os.fspath(each) for each in dependencies or ()]
        self.training_repository_access_mode = training_repository_access_mode
        self.training_repository_credentials_provider_arn = (
            training_repository_credentials_provider_arn
        )
        self.enable_infra_check = enable_infra_check
        self.container_entry_point = container_entry_point
        self.container_arguments = container_arguments
        self.disable_output_compression = disable_output_compression
        self.enable_remote_debug = enable_remote_debug
        self.enable_session_tag_chaining = enable_session_tag_chaining
        self.training_plan = training_plan
        self.instance_placement_config = instance_placement_config
        self.cpu_shim = typed("cpu_shim", cpu_shim, bool)
        self.emulate_gpus = typed("emulate_gpus", emulate_gpus, bool)
        self._enable_network_isolation = enable_network_isolation
        typed("hyperparameters", hyperparameters, Mapping)
        self._hyperparameters: dict[str, Any] = dict(hyperparameters or {})
        self.debugged: dict[str, Any] = {}  # of `smd run --debug`: debug_rank and terminal
        self.jobs: list[TrainingJob] = []
        self.latest_training_job: TrainingJob | None = None
        self.uploaded_code: str | None = None
        self._check()

    def _check(self) -> None:
        """What can be known to be wrong before a job is made."""
        if self.instance_groups is not None:
            if self.instance_count is not None or self.instance_type is not None:
                raise ValueError(
                    "instance_count and instance_type cannot be set when instance_groups is set"
                )
        elif self.instance_count is None or self.instance_type is None:
            raise ValueError(
                "instance_count and instance_type must be set if instance_groups is not set"
            )
        require_whole("instance_count", self.instance_count)
        require_whole("container_log_level", self.container_log_level)
        check_limits(self.max_retry_attempts, self.max_run, self.max_wait)
        if self.max_wait is not None and not self.use_spot_instances:
            _log.warning("max_wait has no effect without use_spot_instances")
        check_environment(self.environment)
        if self.instance_type is not None and not isinstance(self.instance_type, str):
            raise ValueError(f"instance_type is {self.instance_type!r}; expected text.")
        MetricDefinition.all_of(self.metric_definitions)
        if self.base_job_name is not None and not isinstance(self.base_job_name, str):
            raise ValueError(f"base_job_name is {self.base_job_name!r}; expected text.")

    # --- hyperparameters -------------------------------------------------------------------------

    def hyperparameters(self) -> dict[str, Any]:
        """Those of the script, by name: a copy."""
        return dict(self._hyperparameters)

    def set_hyperparameters(self, **kwargs: Any) -> None:
        """Adds hyperparameters, or replaces them."""
        self._hyperparameters.update(kwargs)

    def _encoded(self, values: Mapping[str, Any]) -> dict[str, str]:
        return encode(values)

    def _leave_to_distribution(self) -> None:
        """Takes out hyperparameters that the distribution brings again."""

    # --- a job -----------------------------------------------------------------------------------

    def fit(
        self,
        inputs: Any = None,
        wait: bool = True,
        logs: str | bool | Sequence[str] = "All",
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
    ) -> None:
        """Trains.

        Args:
            inputs: where data are: a URI, an input object, a dict of them by channel, or None.
            wait: return when the job has ended. It goes on without this process if not.
            logs: what is printed meanwhile: `"All"`, `"Training"`, `"Rules"`, `"None"`; True or
                False.
            job_name: None: one is made.
            experiment_config: kept with the job.

        Raises:
            ValueError: arguments that cannot work; nothing has been made then.
            UnexpectedStatusException: the job has failed; says why.
        """
        prints_logs(logs)
        check_limits(self.max_retry_attempts, self.max_run, self.max_wait, self.use_spot_instances)
        self._refuse_what_is_not_there_yet()
        session = self.sagemaker_session
        sources = channels(inputs)
        if self.model_uri is not None:
            sources.append(self._model_channel(sources))
        if self.entry_point is None:
            raise UnsupportedError(
                "the estimator has no entry_point, and containers are not run; expected a"
                " script. Give entry_point, and source_dir if it needs other files."
            )
        if self.output_path:
            require_writable_place("output_path", self.output_path, session.home)
        if intermediate := self._hyperparameters.get("sagemaker_s3_output"):
            require_seen_by_hosts("sagemaker_s3_output", str(intermediate), session.home)
        if self.checkpoint_s3_uri:
            check_checkpoints(self.checkpoint_s3_uri, self.checkpoint_local_path, session.home)
        check_channels(sources, self.input_mode, session.home)
        now = dt.datetime.now(dt.UTC)
        names = [check_name(job_name)] if job_name else later_names(self._base_name(), now)

        def record_of(name: str) -> JobRecord:
            request = self._request(name, sources, experiment_config)
            arn = f"arn:aws:sagemaker:{session.boto_region_name}:{ACCOUNT}:training-job/{name}"
            local = {"Backend": session.backend.name, **self._local()}
            return JobRecord.new(request, local, arn, now)

        with self._code_there():
            job = create_job(session.home, names, record_of)
        self.latest_training_job = TrainingJob(session, job.name)
        self.jobs.append(self.latest_training_job)
        session.backend.submit(job)
        if wait:
            self.latest_training_job.follow(logs)

    @contextlib.contextmanager
    def _code_there(self) -> Iterator[None]:
        """In its block the sources are on this machine, also those of a git repository.

        If the block fails, what was made of them goes.
        """
        assert self.entry_point is not None
        given = Code(self.entry_point, self.source_dir, self.dependencies)
        with checked_out(self.git_config, given) as code:
            if self._has_packed_sources:
                self._require_packed_sources()
            else:
                check_sources(code.entry_point, code.source_dir)
            with contextlib.ExitStack() as self._undone_if_refused:
                self._code = code
                yield

    def _local(self) -> dict[str, Any]:
        """What the request has no words for, and `attach` gives back."""
        local: dict[str, Any] = {"Distribution": self.distribution}
        if not self.cpu_shim:
            local["cpu_shim"] = False
        if self.emulate_gpus:
            local["emulate_gpus"] = True
        return {**local, **self.debugged}

    @property
    def _has_packed_sources(self) -> bool:
        given = str(self.source_dir or "")
        return given.startswith(("s3://", "file://")) and given.endswith(".tar.gz")

    def _require_packed_sources(self) -> None:
        require_there(
            str(self.source_dir),
            self.sagemaker_session.home,
            "source_dir",
            "expected a .tar.gz of sources, as jobs have them. Give the folder of the sources, or"
            " bring it back.",
        )

    def logs(self) -> None:
        """Prints what the latest job has logged, and goes on until it has ended."""
        self._latest("logs()").wait("All")

    @property
    def model_data(self) -> str | dict[str, Any] | None:
        """The URI of the model that the latest job has made; None if there is none.

        With `disable_output_compression` it is a dict, `{"S3DataSource": {"S3Uri": ...}}`.
        """
        return model_of(self._latest("model_data").describe())

    @property
    def training_job_analytics(self) -> TrainingJobAnalytics:
        """The metrics of the latest job."""
        name = self._latest("training_job_analytics").name
        return TrainingJobAnalytics(name, sagemaker_session=self.sagemaker_session)

    def _latest(self, what: str) -> TrainingJob:
        if self.latest_training_job is None:
            raise ValueError(
                f"Estimator is not associated with a training job; {what} needs one. Call fit()"
                " first."
            )
        return self.latest_training_job

    def _base_name(self) -> str:
        if self.base_job_name:
            return self.base_job_name
        return base_name_of_image(self.image_uri) if self.image_uri else self._default_base_name()

    def _default_base_name(self) -> str:
        return "training"

    def _model_channel(self, others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        name = self.model_channel_name
        if any(each["ChannelName"] == name for each in others):
            raise ValueError(f"Duplicate channel {name} not allowed.")
        assert self.model_uri is not None
        content_type = "application/x-sagemaker-model"
        model = TrainingInput(self.model_uri, content_type=content_type, input_mode="File")
        return channels({name: model})[0]

    def _request(
        self,
        name: str,
        sources: list[dict[str, Any]],
        experiment_config: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The request `CreateTrainingJob`; puts the sources where it says that they are."""
        session = self.sagemaker_session
        bucket = session.default_uri()
        request: dict[str, Any] = {
            "TrainingJobName": name,
            "HyperParameters": self._encoded(self._hyperparameters),
            "AlgorithmSpecification": {
                "TrainingInputMode": self.input_mode,
                "EnableSageMakerMetricsTimeSeries": self.enable_sagemaker_metrics is not False,
            },
            "RoleArn": role_arn(self.role, ACCOUNT),
            "OutputDataConfig": {"S3OutputPath": self.output_path or f"{bucket}/"},
            "ResourceConfig": {"VolumeSizeInGB": self.volume_size},
            "StoppingCondition": {"MaxRuntimeInSeconds": self.max_run},
            "EnableNetworkIsolation": self._enable_network_isolation,
            "EnableInterContainerTrafficEncryption": self.encrypt_inter_container_traffic,
            "EnableManagedSpotTraining": self.use_spot_instances,
        }
        if sources:
            request["InputDataConfig"] = sources
        if self.disable_output_compression:
            request["OutputDataConfig"]["CompressionType"] = "NONE"
        if self.image_uri:
            request["AlgorithmSpecification"]["TrainingImage"] = self.image_uri
        if self.metric_definitions:
            request["AlgorithmSpecification"]["MetricDefinitions"] = self.metric_definitions
        if self.instance_groups is not None:
            groups = [group.to_request_dict() for group in self.instance_groups]
            request["ResourceConfig"]["InstanceGroups"] = groups
        else:
            request["ResourceConfig"]["InstanceType"] = self.instance_type
            request["ResourceConfig"]["InstanceCount"] = self.instance_count
        if self.environment:
            request["Environment"] = {str(k): str(v) for k, v in self.environment.items()}
        if self.checkpoint_s3_uri:
            request["CheckpointConfig"] = {"S3Uri": self.checkpoint_s3_uri}
            if self.checkpoint_local_path:
                request["CheckpointConfig"]["LocalPath"] = self.checkpoint_local_path
        if self.max_retry_attempts is not None:
            request["RetryStrategy"] = {"MaximumRetryAttempts": self.max_retry_attempts}
        if self.max_wait is not None:
            request["StoppingCondition"]["MaxWaitTimeInSeconds"] = self.max_wait
        add_kept(request, self, experiment_config)
        check_request("CreateTrainingJob", request)
        if self.entry_point is not None:
            request["HyperParameters"].update(self._upload_code(name, bucket))
        return request

    def _upload_code(self, name: str, bucket: str) -> dict[str, str]:
        """Returns: the hyperparameters that say how the script is started."""
        assert self.entry_point is not None
        uri = f"{self.code_location or bucket}/{name}/source/sourcedir.tar.gz"
        if self._has_packed_sources:
            uri = str(self.source_dir)
        else:
            home = self.sagemaker_session.home
            code = self._code or Code(self.entry_point, self.source_dir, self.dependencies)

            def pack(archive: Path) -> None:
                pack_sources(archive, *code, without=home.root)

            self._undone_if_refused.enter_context(buckets.made(uri, home, pack))
        self.uploaded_code = uri
        program = self.entry_point if self.source_dir else Path(self.entry_point).name
        return encode(
            {
                "sagemaker_program": program,
                "sagemaker_submit_directory": uri,
                "sagemaker_container_log_level": self.container_log_level,
                "sagemaker_job_name": name,
                "sagemaker_region": self.sagemaker_session.boto_region_name,
            }
        )

    def _refuse_what_is_not_there_yet(self) -> None:
        for name, value in (
            ("training_recipe", getattr(self, "training_recipe", None)),
            ("container_entry_point", self.container_entry_point),
            ("container_arguments", self.container_arguments),
            ("distribution of Estimator", self._leaves_distribution_out()),
            ("parameter_server", _is_enabled(self.distribution, "parameter_server")),
            ("instance_groups of the distribution", self._leaves_groups_out()),
            ("enable_network_isolation", self._enable_network_isolation),
        ):
            if value:
                raise UnsupportedError(
                    f"{name} is {value!r}, which this version does not know how to do on this"
                    " machine yet; expected an estimator without it."
                )
        if self.input_mode not in list(InputMode):
            known = ", ".join(repr(str(each)) for each in InputMode)
            raise ConfigurationError(f"input_mode is {self.input_mode!r}; expected {known}.")

    def _leaves_distribution_out(self) -> Mapping[str, Any]:
        """A distribution that nothing here would make of what it says."""
        return {} if isinstance(self, Framework) else self.distribution

    def _leaves_groups_out(self) -> list[str]:
        """Names of the groups that take part, if others do not."""
        named = {
            getattr(each, "instance_group_name", each)
            for each in self.distribution.get("instance_groups") or ()
        }
        known = {each.instance_group_name for each in self.instance_groups or ()}
        return sorted(map(str, named)) if named and named != known else []

    @classmethod
    def attach(
        cls,
        training_job_name: str,
        sagemaker_session: Session | None = None,
        model_channel_name: str = "model",
    ) -> Self:
        """The estimator of a job that there is; waits, without its log, until that has ended.

        Raises:
            ConfigurationError: (a ValueError) there is no such job, or it is of another framework.
            UnexpectedStatusException: it has failed.
        """
        session = sagemaker_session or Session()
        described = session.describe_training_job(training_job_name)
        local = session.job(training_job_name).read().local
        arguments = {
            **arguments_of(described),
            **cls._own_arguments(training_job_name, described, local),
            "distribution": local.get("Distribution"),
            "cpu_shim": local.get("cpu_shim", True),
            "emulate_gpus": local.get("emulate_gpus", False),
            "sagemaker_session": session,
            "model_channel_name": model_channel_name,
        }
        estimator = cls(**arguments)
        estimator._leave_to_distribution()
        job = TrainingJob(session, training_job_name)
        estimator.latest_training_job = job
        estimator.jobs.append(job)
        job.wait("None")
        return estimator

    @classmethod
    def _own_arguments(
        cls, name: str, described: Mapping[str, Any], local: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Those of this class."""
        return {}

    # --- what Amazon's service alone has ---------------------------------------------------------

    def enable_network_isolation(self) -> bool:
        """Whether jobs may not use the network."""
        return self._enable_network_isolation

    def get_vpc_config(self, vpc_config_override: Any = _OWN_NETWORK) -> dict[str, Any] | None:
        """The subnets and groups that were given; None without them.

        Args:
            vpc_config_override: what it says instead, if it is given; None too.
        """
        if vpc_config_override is not _OWN_NETWORK:
            return dict(vpc_config_override) if vpc_config_override else None
        if not (self.subnets and self.security_group_ids):
            return None
        return {"Subnets": list(self.subnets), "SecurityGroupIds": list(self.security_group_ids)}

    def training_image_uri(self, region: str | None = None) -> str | None:
        """The image that was given; None: the script runs in this Python.

        Args:
            region: accepted, and not used.
        """
        return self.image_uri

    def deploy(
        self,
        initial_instance_count: int | None = None,
        instance_type: str | None = None,
        serializer: Any = None,
        deserializer: Any = None,
        accelerator_type: str | None = None,
        endpoint_name: str | None = None,
        use_compiled_model: bool = False,
        wait: bool = True,
        model_name: str | None = None,
        kms_key: str | None = None,
        data_capture_config: Any = None,
        tags: Any = None,
        serverless_inference_config: Any = None,
        async_inference_config: Any = None,
        volume_size: int | None = None,
        model_data_download_timeout: int | None = None,
        container_startup_health_check_timeout: int | None = None,
        inference_recommendation_id: str | None = None,
        explainer_config: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Serves the model of the latest job.

        Args:
            model_name: None: one is made.
            use_compiled_model: refused.
            kwargs: of `create_model`.
            initial_instance_count, instance_type, serializer, deserializer, accelerator_type,
            endpoint_name, wait, kms_key, data_capture_config, tags, serverless_inference_config,
            async_inference_config, volume_size, model_data_download_timeout,
            container_startup_health_check_timeout, inference_recommendation_id, explainer_config:
                as of `Model.deploy`.

        Returns: a predictor.

        Raises:
            ValueError: there is no job, or it has made no model; says why.
            UnexpectedStatusException: the model could not be loaded; says why.
            UnsupportedError: what is not known on this machine, or needs a package.
        """
        if use_compiled_model:
            raise UnsupportedError(
                "use_compiled_model is True, and models are not compiled on this machine; expected"
                " deploy() without it."
            )
        kwargs.setdefault("name", model_name)
        model = self.create_model(**kwargs)
        endpoint_name = endpoint_name or made_name(self._base_name(), dt.datetime.now(dt.UTC))
        return model.deploy(
            initial_instance_count,
            instance_type,
            serializer=serializer,
            deserializer=deserializer,
            accelerator_type=accelerator_type,
            endpoint_name=endpoint_name,
            tags=tags,
            kms_key=kms_key,
            wait=wait,
            data_capture_config=data_capture_config,
            async_inference_config=async_inference_config,
            serverless_inference_config=serverless_inference_config,
            volume_size=volume_size,
            model_data_download_timeout=model_data_download_timeout,
            container_startup_health_check_timeout=container_startup_health_check_timeout,
            inference_recommendation_id=inference_recommendation_id,
            explainer_config=explainer_config,
        )

    def create_model(self, **kwargs: Any) -> Model:
        """The model of the latest job.

        Args:
            kwargs: of the model's class.

        Raises:
            UnsupportedError: there is no class of models for this estimator.
        """
        raise UnsupportedError(
            f"{type(self).__name__} has no model that this machine serves; expected an estimator"
            " PyTorch or TensorFlow. Make a PyTorchModel or a TensorFlowModel of model_data, with"
            " an entry_point."
        )

    def _model_arguments(
        self, entry_point: str | None, source_dir: str | None, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Of a model of the latest job.

        Args:
            entry_point: the file with its functions, or None.
            source_dir: where that lies; None: in the sources of the job, or here.
            given: others, which come first.
        """
        described = self._latest("a model").describe()
        data = require_model(described)
        if entry_point is not None and source_dir is None:
            source_dir = sources_with(entry_point, described, self.sagemaker_session.home)
        arguments: dict[str, Any] = {
            "model_data": data,
            "role": self.role,
            "entry_point": entry_point,
            "source_dir": source_dir,
            "sagemaker_session": self.sagemaker_session,
            "container_log_level": self.container_log_level,
            "code_location": self.code_location,
            "image_uri": self.image_uri,
        }
        return {**arguments, **{key: value for key, value in given.items() if value is not None}}

    def transformer(self, *args: Any, **kwargs: Any) -> Any:
        """Batch transform: not on this machine."""
        raise _only_there("transformer()")

    def register(self, *args: Any, **kwargs: Any) -> Any:
        """The model registry: not on this machine."""
        raise _only_there("register()")


class Estimator(EstimatorBase):
    """An estimator of any script: hyperparameters are sent as plain text.

    Args:
        image_uri: of a container; kept.
        kwargs: as of `EstimatorBase`.
    """

    def __init__(
        self,
        image_uri: str | None = None,
        role: str | None = None,
        instance_count: int | None = None,
        instance_type: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(role, instance_count, instance_type, image_uri=image_uri, **kwargs)

    def _encoded(self, values: Mapping[str, Any]) -> dict[str, str]:
        return encode(values) if self.source_dir else encode_plainly(values)

    @classmethod
    def _own_arguments(
        cls, name: str, described: Mapping[str, Any], local: Mapping[str, Any]
    ) -> dict[str, Any]:
        if local.get("Framework"):
            raise ConfigurationError(
                f"Training job: {name} is of {local['Framework']}, whose distribution Estimator"
                " does not know; expected a job of Estimator. Attach it with the class that made"
                " it."
            )
        return {}


class Framework(EstimatorBase):
    """An estimator of a framework's script; its hyperparameters keep their types.

    Args:
        entry_point: the script.
        source_dir: the directory that it lies in, which goes to the job.
        hyperparameters: of the script.
        kwargs: as of `EstimatorBase`.
    """

    # What the distribution's rules call the framework, and what jobs are known by.
    _framework: Any = "pytorch"
    _kind = "pytorch"

    def __init__(
        self,
        entry_point: str | None,
        source_dir: str | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        *,
        framework_version: str | None = None,
        py_version: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.framework_version = framework_version
        self.py_version = py_version
        self._tell_of_version()
        super().__init__(
            entry_point=entry_point,
            source_dir=source_dir,
            hyperparameters=hyperparameters,
            **kwargs,
        )
        if self.image_uri is None and None in (framework_version, py_version):
            raise ValueError(
                "framework_version or py_version was None, yet image_uri was also None. Either"
                " specify both framework_version and py_version, or specify image_uri."
            )
        self.distribution = validate_distribution(
            self.distribution,
            self.instance_groups,
            self._framework,
            framework_version,
            py_version,
            self.image_uri,
            {"entry_point": entry_point, "instance_type": self.instance_type},
        )
        added = distribution_hyperparameters(
            self.distribution, self._framework, self.instance_type, self.instance_groups
        )
        for notice in added.notices:
            _log.warning("%s", notice)
        self._of_distribution = added.hyperparameters

    def hyperparameters(self) -> dict[str, Any]:
        """Those of the script and of the distribution, by name: a copy."""
        return {**self._hyperparameters, **self._of_distribution}

    def _leave_to_distribution(self) -> None:
        for name in self._of_distribution:
            self._hyperparameters.pop(name, None)

    def _request(
        self,
        name: str,
        sources: list[dict[str, Any]],
        experiment_config: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        request = super()._request(name, sources, experiment_config)
        request["HyperParameters"].update(encode(self._of_distribution))
        return request

    def _default_base_name(self) -> str:
        return f"{self._framework}-training"

    def _local(self) -> dict[str, Any]:
        return {
            **super()._local(),
            "Framework": self._kind,
            "FrameworkVersion": self.framework_version,
            "PyVersion": self.py_version,
        }

    def _tell_of_version(self) -> None:
        """The script was written for another version than the one that will run it."""
        try:
            there = importlib.metadata.version(_PACKAGES[self._framework])
        except importlib.metadata.PackageNotFoundError:
            return
        wanted = self.framework_version
        if wanted and there.split(".")[:2] != [*wanted.split("."), "0"][:2]:
            _log.warning(
                "framework_version is %s, and %s %s is what runs the script here",
                wanted,
                _PACKAGES[self._framework],
                there,
            )

    @classmethod
    def _own_arguments(
        cls, name: str, described: Mapping[str, Any], local: Mapping[str, Any]
    ) -> dict[str, Any]:
        if local.get("Framework") != cls._kind:
            raise ConfigurationError(
                f"Training job: {name} didn't use image for requested framework; it is of"
                f" {local.get('Framework') or 'no framework'}, and {cls.__name__} attaches jobs of"
                f" {cls._kind}."
            )
        return {
            "framework_version": local.get("FrameworkVersion"),
            "py_version": local.get("PyVersion"),
        }


def _is_enabled(distribution: Mapping[str, Any], strategy: str) -> bool:
    return bool((distribution.get(strategy) or {}).get("enabled"))


def _only_there(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} is not there in this version, on this machine; expected fit(), logs(), attach()"
        " and what the session has. model_data says where the model is."
    )
