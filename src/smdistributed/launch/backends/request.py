# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A request `CreateTrainingJob` that somebody has written: what it must have, to run here.

Source: launch specification, sections 2.1, 4.1, 6.3 and 7.4.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError, UnsupportedError
from smdistributed.launch.backends.limits import check_limits
from smdistributed.launch.contract.hyperparameters import Hyperparameters, decode
from smdistributed.launch.contract.variables import MOST_BYTES
from smdistributed.launch.data.places import require_there, require_writable_place
from smdistributed.launch.data.sources import check_channels
from smdistributed.launch.home import Home
from smdistributed.launch.metrics import MetricDefinition
from smdistributed.launch.storage import local_path, require_seen_by_hosts

__all__ = ["check_checkpoints", "check_environment", "checked"]

# Of the request, by type; and those of them that mean nothing on this machine, and are kept.
_FIELDS: dict[str, type] = {
    "TrainingJobName": str,
    "HyperParameters": dict,
    "AlgorithmSpecification": dict,
    "InputDataConfig": list,
    "OutputDataConfig": dict,
    "ResourceConfig": dict,
    "StoppingCondition": dict,
    "CheckpointConfig": dict,
    "RetryStrategy": dict,
    "Environment": dict,
    "EnableManagedSpotTraining": bool,
    "EnableNetworkIsolation": bool,
    "EnableInterContainerTrafficEncryption": bool,
    "RoleArn": str,
    "Tags": list,
    "VpcConfig": dict,
    "DebugHookConfig": dict,
    "DebugRuleConfigurations": list,
    "TensorBoardOutputConfig": dict,
    "ExperimentConfig": dict,
    "ProfilerConfig": dict,
    "ProfilerRuleConfigurations": list,
    "InfraCheckConfig": dict,
    "RemoteDebugConfig": dict,
    "SessionChainingConfig": dict,
    "Local": dict,
}
_LOCAL: dict[str, type] = {
    "cpu_shim": bool,
    "emulate_gpus": bool,
    "Framework": str,
    "BaseFramework": str,
}
"""What `Local` of a document may have, by type; the request has no words for it."""

_TIMES = {"MaxRuntimeInSeconds": int, "MaxWaitTimeInSeconds": int, "MaxPendingTimeInSeconds": int}
_GROUP = {"InstanceGroupName": str, "InstanceType": str, "InstanceCount": int}

# Below /opt/ml: what comes back there would take the place of something else.
_NO_CHECKPOINTS = ((), ("code",), ("input",), ("model",), ("output",))


def checked(document: Any, home: Home) -> tuple[dict[str, Any], dict[str, Any]]:
    """A request that can be met here, and what its `Local` says.

    Args:
        document: as it was read. Not changed.
        home: where buckets lie.

    Returns: the request, complete but for its name and with this machine's defaults; and `Local`.

    Raises:
        ConfigurationError: (a ValueError) says which field is wrong, and what was expected.
        UnsupportedError: it asks for what this machine cannot do.
    """
    _require_fields("the document", document, _FIELDS)
    local = dict(document.get("Local", {}))
    _require_fields("Local", local, _LOCAL)
    try:
        return _checked(document, home), local
    except (LookupError, TypeError, AttributeError) as error:  # something below has another form
        raise ConfigurationError(
            f"the document has a part that cannot be read ({type(error).__name__}: {error});"
            " expected the request CreateTrainingJob, as the service documents it."
        ) from None


def _checked(document: Mapping[str, Any], home: Home) -> dict[str, Any]:
    request = copy.deepcopy({key: value for key, value in document.items() if key != "Local"})
    request["AlgorithmSpecification"] = {
        "TrainingInputMode": "File",
        **request.get("AlgorithmSpecification", {}),
    }
    request["StoppingCondition"] = {
        "MaxRuntimeInSeconds": 86400,
        **request.get("StoppingCondition", {}),
    }
    for key in ("EnableManagedSpotTraining", "EnableNetworkIsolation"):
        request.setdefault(key, False)
    request.setdefault("InputDataConfig", [])
    _check_script(request, home)
    _check_algorithm(request)
    _check_resources(request)
    stopping = request["StoppingCondition"]
    _require_fields("StoppingCondition", stopping, _TIMES)
    check_limits(
        request.get("RetryStrategy", {}).get("MaximumRetryAttempts"),
        stopping["MaxRuntimeInSeconds"],
        stopping.get("MaxWaitTimeInSeconds"),
        request["EnableManagedSpotTraining"],
    )
    output = request.get("OutputDataConfig", {}).get("S3OutputPath")
    if output is not None:
        local_path(_text("OutputDataConfig.S3OutputPath", output), home)
    kept = request.get("CheckpointConfig")
    if kept is not None:
        uri = _text("CheckpointConfig.S3Uri", kept.get("S3Uri"))
        check_checkpoints(uri, kept.get("LocalPath"), home)
    check_environment(request.get("Environment", {}))
    for channel in request["InputDataConfig"]:
        if not isinstance(channel, dict) or not isinstance(channel.get("DataSource"), dict):
            raise ConfigurationError(
                f"InputDataConfig has {channel!r:.200}; expected objects with ChannelName and"
                " DataSource."
            )
        _text("ChannelName of InputDataConfig", channel.get("ChannelName"))
    mode = request["AlgorithmSpecification"]["TrainingInputMode"]
    check_channels(request["InputDataConfig"], mode, home)
    if not request["InputDataConfig"]:  # the service's model has no empty list
        del request["InputDataConfig"]
    return request


def check_checkpoints(uri: str, here: str | None, home: Home) -> None:
    """Refuses places for checkpoints that this machine cannot have.

    Args:
        uri: of the store.
        here: the folder that the script writes to; None: `/opt/ml/checkpoints`.
        home: where buckets lie.

    Raises:
        ConfigurationError: the URI is none.
        UnsupportedError: the folder is none of its own below `/opt/ml`.
    """
    require_seen_by_hosts("checkpoint_s3_uri", uri, home)
    require_writable_place("checkpoint_s3_uri", uri, home)
    here = here or "/opt/ml/checkpoints"
    parts = Path(here).parts
    if parts[:3] != ("/", "opt", "ml") or ".." in parts or parts[3:4] in _NO_CHECKPOINTS:
        raise UnsupportedError(
            f"checkpoint_local_path is {here!r}; expected a folder of its own below /opt/ml, such"
            " as /opt/ml/checkpoints: each host of this machine has its own there."
        )


def check_environment(environment: Mapping[Any, Any]) -> None:
    """Refuses variables that no process can be given.

    Raises:
        ConfigurationError: names the variable.
    """
    for name, value in environment.items():
        text = f"{name}={value}"
        is_name = isinstance(name, str) and name and "=" not in name
        try:
            size = len(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            size = MOST_BYTES
        if not is_name or "\0" in text or size >= MOST_BYTES - 1:
            raise ConfigurationError(
                f"environment has {name!r}={value!r:.100}; expected names without '=', and values"
                f" without NUL characters of less than {MOST_BYTES:,} bytes, which a process can be"
                " given."
            )


def _check_script(request: Mapping[str, Any], home: Home) -> None:
    texts = request.get("HyperParameters", {})
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ConfigurationError(
                f"HyperParameters has {name!r}: {value!r:.100}; expected text, in JSON's form: a"
                f' number as "5", text as "\\"abc\\"".'
            )
    hyperparameters = Hyperparameters.of(decode(texts))
    for name, what in (
        ("sagemaker_program", "the script's name in its archive, such as train.py"),
        ("sagemaker_submit_directory", "the URI of the .tar.gz with the sources"),
    ):
        if not isinstance(hyperparameters.job.get(name), str) or not hyperparameters.job[name]:
            raise UnsupportedError(
                f"HyperParameters has {name!r}: {hyperparameters.job.get(name)!r}; expected {what}."
                " Containers are not run."
            )
    uri = hyperparameters.job["sagemaker_submit_directory"]
    require_there(uri, home, "sagemaker_submit_directory", "expected a .tar.gz with the sources.")
    framework = hyperparameters.framework
    if framework.get("sagemaker_parameter_server_enabled") is True:
        raise UnsupportedError(
            "sagemaker_parameter_server_enabled is true, which this version does not know how to do"
            " yet; expected another distribution."
        )
    named = framework.get("sagemaker_distribution_instance_groups")
    known = [
        each.get("InstanceGroupName")
        for each in request.get("ResourceConfig", {}).get("InstanceGroups", ())
    ]
    if named and sorted(named) != sorted(map(str, known)):
        raise UnsupportedError(
            f"sagemaker_distribution_instance_groups is {named!r}, and the groups are {known!r};"
            " expected all of them."
        )


def _check_algorithm(request: Mapping[str, Any]) -> None:
    algorithm = request["AlgorithmSpecification"]
    MetricDefinition.all_of(algorithm.get("MetricDefinitions", ()))
    for where, key in (
        (algorithm, "ContainerEntrypoint"),
        (algorithm, "ContainerArguments"),
        (request, "EnableNetworkIsolation"),
    ):
        if where.get(key):
            raise UnsupportedError(
                f"{key} is {where[key]!r}, which this version does not know how to do on this"
                " machine yet; expected a request without it."
            )


def _check_resources(request: Mapping[str, Any]) -> None:
    resources = request.get("ResourceConfig", {})
    groups = resources.get("InstanceGroups")
    own = {key: resources[key] for key in ("InstanceType", "InstanceCount") if key in resources}
    if groups is not None and (own or not isinstance(groups, list) or not groups):
        raise ConfigurationError(
            "ResourceConfig has InstanceGroups and more, or none in them; expected a list of"
            " groups, or InstanceType and InstanceCount alone."
        )
    hosts = groups or [{"InstanceGroupName": "all", **own}]
    for each in hosts:
        _require_fields("a group of ResourceConfig", each, _GROUP)
        if len(each) < len(_GROUP) or each["InstanceCount"] < 1:
            raise ConfigurationError(
                f"ResourceConfig is {resources!r:.300}; expected InstanceType, and an InstanceCount"
                " from 1; of groups a name too."
            )


def _require_fields(where: str, given: Any, known: Mapping[str, type]) -> None:
    if not isinstance(given, dict):
        raise ConfigurationError(f"{where} is {given!r:.200}; expected a JSON object.")
    for key, value in given.items():
        kind = known.get(key)
        if kind is None:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}."
            raise ConfigurationError(f"{where} has {key!r}, which nobody knows; {hint}")
        if type(value) is not kind:
            raise ConfigurationError(
                f"{key} of {where} is {value!r:.100}; expected {_NAMES[kind]}."
            )


_NAMES = {
    str: "text",
    dict: "an object",
    list: "a list",
    bool: "true or false",
    int: "a whole number",
}


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{where} is {value!r:.100}; expected text.")
    return value
