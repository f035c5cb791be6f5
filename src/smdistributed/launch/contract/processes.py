# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How many processes run on each host.

Source: launch specification, section 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smdistributed._common.errors import ConfigurationError

__all__ = ["DISTRIBUTIONS", "MIRRORED", "gpus_of", "is_distributed", "processes_per_host"]

DISTRIBUTIONS = (
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_mpi_enabled",
    "sagemaker_pytorch_ddp_enabled",
    "sagemaker_torch_distributed_enabled",
)
"""Hyperparameters of which one that is true has several processes of a host be ranks of a job."""

MIRRORED = "sagemaker_multi_worker_mirrored_strategy_enabled"
"""Hyperparameter that, if true, has each host be a worker of TensorFlow's strategy of that name. It
wins over the others."""

_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
_MOST = 1024

# GPUs of an instance, by what stands before its size and by the size.
_SIZES: dict[str, dict[str, int]] = {
    "p2": {"xlarge": 1, "8xlarge": 8, "16xlarge": 16},
    "p3": {"2xlarge": 1, "8xlarge": 4, "16xlarge": 8},
    "p3dn": {"24xlarge": 8},
    "p4d": {"24xlarge": 8},
    "p4de": {"24xlarge": 8},
    "p5": {"4xlarge": 1, "48xlarge": 8},
    "p5e": {"48xlarge": 8},
    "p5en": {"48xlarge": 8},
    "g4dn": {"12xlarge": 4, "metal": 8},
    "g5": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8},
    "g6": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8},
    "g6e": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8},
}
_ONE_GPU = ("g4dn", "g5", "g6", "g6e")


def gpus_of(instance_type: str) -> int:
    """How many GPUs an instance type names; 0 if it names none, or is not known."""
    family, _, size = instance_type.removeprefix("ml.").partition(".")
    return _SIZES.get(family, {}).get(size, 1 if family in _ONE_GPU and size else 0)


def is_distributed(framework: Mapping[str, Any]) -> bool:
    """Whether the processes are ranks of one job.

    Args:
        framework: the framework's hyperparameters, decoded.
    """
    if framework.get(MIRRORED) is True:
        return False
    return any(framework.get(name) is True for name in DISTRIBUTIONS)


def processes_per_host(framework: Mapping[str, Any], instance_type: str, num_gpus: int) -> int:
    """The first that is known of: what was asked for, GPUs that are here, GPUs of the type, one.

    Args:
        framework: the framework's hyperparameters, decoded.
        instance_type: of the host.
        num_gpus: that its processes see.

    Raises:
        ConfigurationError: what was asked for is no number of processes.
    """
    if not is_distributed(framework):
        return 1
    asked = framework.get(_PER_HOST)
    if asked is None:
        return num_gpus or gpus_of(instance_type) or 1
    if type(asked) is not int or not 1 <= asked <= _MOST:
        raise ConfigurationError(
            f"processes_per_host is {asked!r}; expected a whole number from 1 to {_MOST}."
        )
    return asked
