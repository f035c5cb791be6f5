# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The variables by which a training script learns about its job.

They go to processes by the process's own environment and never through a shell: names such as
`SM_HP_BATCH-SIZE` cannot be exported by one.

Source: launch specification, section 7.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.contract.hyperparameters import (
    Hyperparameters,
    command_line,
    variable_text,
)
from smdistributed.launch.contract.paths import BASE_DIRECTORY, Paths
from smdistributed.launch.contract.processes import DISTRIBUTIONS, MIRRORED
from smdistributed.launch.contract.resources import InstanceGroup, Resources

__all__ = ["MASTER_PORT", "MOST_BYTES", "Machine", "Script", "training_environment", "variables"]

MASTER_PORT = 7777

# Linux: of one variable with its name and the byte at its end (MAX_ARG_STRLEN).
MOST_BYTES = 128 << 10

# Of the framework's hyperparameters: one that is true says that a distribution is on.
_DISTRIBUTIONS = (
    *DISTRIBUTIONS,
    MIRRORED,
    "sagemaker_parameter_server_enabled",
)
_DISTRIBUTION_GROUPS = "sagemaker_distribution_instance_groups"


class Script(NamedTuple):
    """What is run.

    Attributes:
        entry_point: the file, such as `train.py`, by its path below the sources.
        submit_directory: where the sources came from, a path or a URI.
        framework_module: what runs it in Amazon's containers.
        job_name: of the job; empty where there is none.
        region: that of Amazon's, for scripts that ask.
        log_level: a number of Python's `logging`.
        torch_version: of PyTorch jobs; None for others.
    """

    entry_point: str
    submit_directory: str
    framework_module: str
    job_name: str
    region: str = "us-east-1"
    log_level: int = 20
    torch_version: str | None = None

    @property
    def module_name(self) -> str:
        """The entry point without the ending of a Python file."""
        return self.entry_point.removesuffix(".py")

    @property
    def job_arn(self) -> str:
        """A well-formed one: scripts take its fields between colons."""
        return f"arn:aws:sagemaker:{self.region}:000000000000:training-job/{self.job_name}"


class Machine(NamedTuple):
    """What a host offers its processes.

    Attributes:
        num_cpus: that the processes of this host may use.
        num_gpus: as the script is told; the true number, unless users want another.
        num_neurons: chips of that kind.
    """

    num_cpus: int
    num_gpus: int = 0
    num_neurons: int = 0


def training_environment(
    paths: Paths,
    resources: Resources,
    hyperparameters: Hyperparameters,
    channels: Mapping[str, Mapping[str, Any]],
    script: Script,
    machine: Machine,
) -> dict[str, Any]:
    """All that a script can learn, by the names of `SM_TRAINING_ENV` and the toolkit's attributes.

    Args:
        paths: as the script sees them.
        resources: the hosts.
        hyperparameters: decoded.
        channels: the content of `inputdataconfig.json`: by channel, how it comes in.
        script: what is run.
        machine: on what.
    """
    group = resources.current_group
    distribution_groups = _distribution_groups(resources, hyperparameters.framework)
    distribution_hosts = [host for each in distribution_groups for host in each.hosts]
    master = (distribution_hosts or group.hosts)[0]
    environment = {
        "additional_framework_parameters": hyperparameters.framework,
        "channel_input_dirs": {name: str(paths.channel(name)) for name in sorted(channels)},
        "current_host": resources.current_host,
        "current_instance_group": group.name,
        "current_instance_group_hosts": list(group.hosts),
        "current_instance_type": group.instance_type,
        "distribution_hosts": distribution_hosts,
        "distribution_instance_groups": [each.name for each in distribution_groups],
        "framework_module": script.framework_module,
        "hosts": resources.hosts,
        "hyperparameters": hyperparameters.user,
        "input_config_dir": str(paths.config),
        "input_data_config": {name: dict(each) for name, each in channels.items()},
        "input_dir": str(paths.input),
        "instance_groups": [each.name for each in resources.groups],
        "instance_groups_dict": {each.name: _as_json(each) for each in resources.groups},
        "is_hetero": len(resources.groups) > 1,
        "is_master": resources.current_host == master,
        "is_modelparallel_enabled": bool(hyperparameters.user.get("mp_parameters")),
        "job_name": script.job_name,
        "log_level": script.log_level,
        "master_hostname": master,
        "model_dir": str(paths.model),
        "module_dir": script.submit_directory,
        "module_name": script.module_name,
        "network_interface_name": resources.network_interface,
        "num_cpus": machine.num_cpus,
        "num_gpus": machine.num_gpus,
        "num_neurons": machine.num_neurons,
        "output_data_dir": str(paths.output_data),
        "output_dir": str(paths.output),
        "output_intermediate_dir": str(paths.intermediate),
        "resource_config": resources.to_json(),
        "user_entry_point": script.entry_point,
    }
    if resources.topology is not None:
        environment["topology"] = dict(resources.topology)
    return environment


def variables(
    paths: Paths,
    resources: Resources,
    hyperparameters: Hyperparameters,
    channels: Mapping[str, Mapping[str, Any]],
    script: Script,
    machine: Machine,
) -> dict[str, str]:
    """The variables of every process of a host, without those that differ between processes.

    The arguments are those of `training_environment`.

    Raises:
        ConfigurationError: one is longer than a process can be given; names the hyperparameter
            that has most of it.
    """
    known = training_environment(paths, resources, hyperparameters, channels, script, machine)
    values: dict[str, Any] = {
        "SM_MODEL_DIR": known["model_dir"],
        "SM_OUTPUT_DIR": known["output_dir"],
        "SM_OUTPUT_DATA_DIR": known["output_data_dir"],
        "SM_OUTPUT_INTERMEDIATE_DIR": known["output_intermediate_dir"],
        "SM_INPUT_DIR": known["input_dir"],
        "SM_INPUT_CONFIG_DIR": known["input_config_dir"],
        "SM_CHANNELS": sorted(channels),
        "SM_HPS": hyperparameters.user,
        "SM_USER_ARGS": command_line(hyperparameters.user),
        "SM_FRAMEWORK_PARAMS": hyperparameters.framework,
        "SM_HOSTS": known["hosts"],
        "SM_CURRENT_HOST": known["current_host"],
        "SM_CURRENT_INSTANCE_TYPE": known["current_instance_type"],
        "SM_CURRENT_INSTANCE_GROUP": known["current_instance_group"],
        "SM_CURRENT_INSTANCE_GROUP_HOSTS": known["current_instance_group_hosts"],
        "SM_INSTANCE_GROUPS": known["instance_groups"],
        "SM_INSTANCE_GROUPS_DICT": known["instance_groups_dict"],
        "SM_DISTRIBUTION_INSTANCE_GROUPS": known["distribution_instance_groups"],
        "SM_IS_HETERO": known["is_hetero"],
        "SM_NUM_GPUS": known["num_gpus"],
        "SM_NUM_CPUS": known["num_cpus"],
        "SM_NUM_NEURONS": known["num_neurons"],
        "SM_NETWORK_INTERFACE_NAME": known["network_interface_name"],
        "SM_RESOURCE_CONFIG": known["resource_config"],
        "SM_INPUT_DATA_CONFIG": known["input_data_config"],
        "SM_MODULE_NAME": known["module_name"],
        "SM_MODULE_DIR": known["module_dir"],
        "SM_USER_ENTRY_POINT": known["user_entry_point"],
        "SM_FRAMEWORK_MODULE": known["framework_module"],
        "SM_LOG_LEVEL": known["log_level"],
        "SM_TRAINING_ENV": known,
        "TRAINING_JOB_NAME": script.job_name,
        "TRAINING_JOB_ARN": script.job_arn,
        "AWS_REGION": script.region,
        "SAGEMAKER_REGION": script.region,
        "SAGEMAKER_JOB_NAME": script.job_name,
        "SAGEMAKER_PROGRAM": script.entry_point,
        "SAGEMAKER_SUBMIT_DIRECTORY": script.submit_directory,
        "CURRENT_HOST": known["current_host"],
        "MASTER_ADDR": known["master_hostname"],
        "MASTER_PORT": MASTER_PORT,
        "NCCL_SOCKET_IFNAME": known["network_interface_name"],
        BASE_DIRECTORY: str(paths.base),
    }
    if resources.topology is not None:
        values["SM_TOPOLOGY"] = known["topology"]
    if script.torch_version is not None:
        values["SM_DLC_TORCH_VERSION"] = script.torch_version
    for name in channels:
        values[f"SM_CHANNEL_{name.upper()}"] = known["channel_input_dirs"][name]
    # Sorted: of names that differ in the case of letters alone, all hosts take the same one.
    for name in sorted(hyperparameters.user):
        values[f"SM_HP_{name.upper()}"] = hyperparameters.user[name]
    texts = {name: variable_text(value) for name, value in values.items()}
    _require_room(texts, hyperparameters)
    return texts


def _distribution_groups(
    resources: Resources, framework: Mapping[str, Any]
) -> tuple[InstanceGroup, ...]:
    """The groups that take part in the distribution; none if there is no distribution."""
    named = framework.get(_DISTRIBUTION_GROUPS)
    if named:
        return tuple(resources.group(name) for name in named)
    return resources.groups if any(framework.get(name) for name in _DISTRIBUTIONS) else ()


def _as_json(group: InstanceGroup) -> dict[str, Any]:
    return {
        "instance_group_name": group.name,
        "instance_type": group.instance_type,
        "hosts": list(group.hosts),
    }


def _require_room(texts: Mapping[str, str], hyperparameters: Hyperparameters) -> None:
    for name, text in texts.items():
        size = len(name.encode()) + len(text.encode("utf-8", "surrogateescape")) + 2
        if size <= MOST_BYTES:
            continue
        user = hyperparameters.user
        largest = max(user, key=lambda key: len(variable_text(user[key])), default=None)
        raise ConfigurationError(
            f"variable {name} has {size:,} bytes, and no process can be given one of more than"
            f" {MOST_BYTES:,}; expected shorter hyperparameters"
            + (f" (the longest is {largest!r})" if largest is not None else "")
            + ". Pass large values as a file in an input channel."
        )
