# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a request says, and a job on this machine does not obey: it is kept, and described.

Source: launch specification, section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["add_kept", "role_arn"]


def add_kept(request: dict[str, Any], estimator: Any, experiment_config: Any = None) -> None:
    """Adds what only Amazon's service would do something with.

    Args:
        request: `CreateTrainingJob`, with all that is obeyed here.
        estimator: an `EstimatorBase`.
        experiment_config: of `fit()`.
    """
    algorithm, resources = request["AlgorithmSpecification"], request["ResourceConfig"]
    credentials = estimator.training_repository_credentials_provider_arn
    image: dict[str, Any] = {}
    _set(image, "TrainingRepositoryAccessMode", estimator.training_repository_access_mode)
    if credentials:
        image["TrainingRepositoryAuthConfig"] = {
            "TrainingRepositoryCredentialsProviderArn": credentials
        }
    profiler = _plain(estimator.profiler_config) or {}
    if estimator.disable_profiler:
        profiler = {**profiler, "DisableProfiler": True}
    for where, key, value in (
        (algorithm, "TrainingImageConfig", image or None),
        (resources, "VolumeKmsKeyId", estimator.volume_kms_key),
        (resources, "KeepAlivePeriodInSeconds", estimator.keep_alive_period_in_seconds),
        (resources, "TrainingPlanArn", estimator.training_plan),
        (resources, "InstancePlacementConfig", estimator.instance_placement_config),
        (request["OutputDataConfig"], "KmsKeyId", estimator.output_kms_key),
        (request, "Tags", _tags(estimator.tags)),
        (request, "VpcConfig", estimator.get_vpc_config()),
        (request, "DebugHookConfig", _plain(estimator.debugger_hook_config)),
        (request, "TensorBoardOutputConfig", _plain(estimator.tensorboard_output_config)),
        (request, "ProfilerConfig", profiler or None),
        (request, "ExperimentConfig", dict(experiment_config) if experiment_config else None),
        (request, "InfraCheckConfig", _wrapped("EnableInfraCheck", estimator.enable_infra_check)),
        (
            request,
            "RemoteDebugConfig",
            _wrapped("EnableRemoteDebug", estimator.enable_remote_debug),
        ),
        (
            request,
            "SessionChainingConfig",
            _wrapped("EnableSessionTagChaining", estimator.enable_session_tag_chaining),
        ),
    ):
        _set(where, key, value)


def role_arn(role: str | None, account: str) -> str:
    """The role's full name; what is only a name gets the rest of one.

    Args:
        role: as the estimator has got it.
        account: whose role it is.
    """
    if role and role.startswith("arn:"):
        return role
    return f"arn:aws:iam::{account}:role/{role or 'smdistributed'}"


def _set(where: dict[str, Any], key: str, value: Any) -> None:
    if value is not None:
        where[key] = value


def _wrapped(key: str, value: Any) -> dict[str, Any] | None:
    return None if value is None else {key: value}


def _plain(config: Any) -> dict[str, Any] | None:
    """Of an object of the SDK's, or a dict; None for False, which switches a debugger off."""
    if isinstance(config, Mapping):
        return dict(config) or None
    as_request = getattr(config, "_to_request_dict", None)
    return dict(as_request()) or None if as_request is not None else None


def _tags(tags: Any) -> list[Any] | None:
    """A list of dicts with Key and Value, also of one dict with names and values."""
    if isinstance(tags, Mapping) and not {"Key", "Value"} <= set(tags):
        return [{"Key": key, "Value": value} for key, value in tags.items()] or None
    return [dict(tags)] if isinstance(tags, Mapping) else list(tags or ()) or None
