# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The job, as a script asks for it by Python: `environment.Environment()` of the open toolkit.

It reads the files of the contract. Where a file is missing, as outside of a job, it has what one
host without data would have.

Source: launch specification, section 7.2.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from smdistributed.launch.contract import files
from smdistributed.launch.contract.hyperparameters import Hyperparameters, command_line, decode
from smdistributed.launch.contract.paths import BASE_DIRECTORY, OPT_ML, Paths
from smdistributed.launch.contract.resources import (
    HOMOGENEOUS,
    InstanceGroup,
    Resources,
    host_names,
)
from smdistributed.launch.contract.variables import (
    Machine,
    Script,
    training_environment,
    variables,
)
from smdistributed.launch.environment import usable_cores, visible_accelerators

__all__ = ["Environment"]


class Environment(Mapping[str, Any]):
    """What is known of the job, by key and as attributes: the keys of `SM_TRAINING_ENV`.

    Args:
        resource_config: the content of `resourceconfig.json`; None: that of the file.
        input_data_config: that of `inputdataconfig.json`; None: that of the file.
        hyperparameters: that of `hyperparameters.json`, or decoded; None: that of the file.

    Raises:
        ConfigurationError: a file cannot be read.
    """

    def __init__(
        self,
        resource_config: Mapping[str, Any] | None = None,
        input_data_config: Mapping[str, Any] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        paths = Paths(os.environ.get(BASE_DIRECTORY) or OPT_ML)
        resources = (
            files.read_resources(paths)
            if resource_config is None
            else Resources.of_json(json.dumps(resource_config))
        )
        self._parts: tuple[Any, ...] = (
            paths,
            resources or _alone(),
            Hyperparameters.of(
                files.read_hyperparameters(paths)
                if hyperparameters is None
                else decode(hyperparameters)
            ),
            files.read_channels(paths) if input_data_config is None else input_data_config,
        )
        script = _script(self._parts[2].job)
        num_gpus = visible_accelerators(os.environ)
        self._parts += (script, Machine(usable_cores(), num_gpus))
        self._known = training_environment(*self._parts)

    def __getitem__(self, key: str) -> Any:
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __getattr__(self, name: str) -> Any:
        known = self.__dict__.get("_known", {})
        if name in known:
            return known[name]
        raise AttributeError(
            f"the training environment has no {name!r}; expected one of:"
            f" {', '.join(sorted(known))}."
        )

    def __repr__(self) -> str:
        return f"Environment({self._known!r})"

    def to_cmd_args(self) -> list[str]:
        """The script's arguments."""
        return command_line(self._known["hyperparameters"])

    def to_env_vars(self) -> dict[str, str]:
        """The script's variables."""
        return variables(*self._parts)


def _alone() -> Resources:
    (host,) = host_names(1)
    return Resources(host, (InstanceGroup(HOMOGENEOUS, "local", (host,)),))


def _script(job: Mapping[str, Any]) -> Script:
    def told(key: str, variable: str, otherwise: str = "") -> str:
        return str(job.get(key) or os.environ.get(variable) or otherwise)

    level = job.get("sagemaker_container_log_level")
    return Script(
        entry_point=told("sagemaker_program", "SAGEMAKER_PROGRAM"),
        submit_directory=told("sagemaker_submit_directory", "SAGEMAKER_SUBMIT_DIRECTORY"),
        framework_module=os.environ.get("SM_FRAMEWORK_MODULE", ""),
        job_name=told("sagemaker_job_name", "TRAINING_JOB_NAME"),
        region=told("sagemaker_region", "AWS_REGION", "us-east-1"),
        log_level=level if isinstance(level, int) else 20,
    )
