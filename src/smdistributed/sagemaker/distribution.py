# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a `distribution` adds to the hyperparameters of a job.

The container reads those hyperparameters and chooses by them how to start the processes.

Source: launch specification, section 4.2.
"""

import dataclasses
import difflib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from smdistributed.sagemaker.fw_utils import (
    STRATEGIES,
    enabled_strategies,
    get_mp_parameters,
    training_group,
)

__all__ = ["DistributionHyperparameters", "Framework", "distribution_hyperparameters"]

Framework = Literal["pytorch", "tensorflow"]

_ALL: tuple[str, ...] = get_args(Framework)
_DATAPARALLEL_FLAG = "sagemaker_distributed_dataparallel_enabled"
_DATAPARALLEL_OPTIONS = "sagemaker_distributed_dataparallel_custom_mpi_options"


@dataclasses.dataclass(frozen=True)
class DistributionHyperparameters:
    """What a distribution means to a job.

    Attributes:
        hyperparameters: values as Python objects; the estimator encodes them.
        notices: what the user should be told, as warnings.
    """

    hyperparameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    notices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Strategy:
    """A row of the table of forms.

    Attributes:
        flag: the hyperparameter that says that the strategy is enabled.
        flag_value: its value.
        frameworks: those that have the strategy.
        names_instance_type: the container needs the instance type.
        mpi_options: the hyperparameter that `custom_mpi_options` becomes; None if it has none.
        default_mpi_options: sent if the user gives none; None sends nothing.
        settings: keys of its dict.
    """

    flag: str
    flag_value: bool = True
    frameworks: tuple[str, ...] = _ALL
    names_instance_type: bool = False
    mpi_options: str | None = None
    default_mpi_options: str | None = ""
    settings: tuple[str, ...] = ("enabled",)


_TABLE = {
    "dataparallel": _Strategy(
        _DATAPARALLEL_FLAG,
        names_instance_type=True,
        mpi_options=_DATAPARALLEL_OPTIONS,
        settings=("enabled", "custom_mpi_options"),
    ),
    "modelparallel": _Strategy(
        _DATAPARALLEL_FLAG,
        flag_value=False,
        names_instance_type=True,
        settings=("enabled", "parameters"),
    ),
    "mpi": _Strategy(
        "sagemaker_mpi_enabled",
        mpi_options="sagemaker_mpi_custom_mpi_options",
        settings=("enabled", "processes_per_host", "custom_mpi_options"),
    ),
    # It runs as dataparallel does, so its options have the same name.
    "pytorchddp": _Strategy(
        "sagemaker_pytorch_ddp_enabled",
        frameworks=("pytorch",),
        names_instance_type=True,
        mpi_options=_DATAPARALLEL_OPTIONS,
        default_mpi_options=None,
        settings=("enabled", "custom_mpi_options"),
    ),
    "torch_distributed": _Strategy(
        "sagemaker_torch_distributed_enabled", frameworks=("pytorch",), names_instance_type=True
    ),
    "parameter_server": _Strategy("sagemaker_parameter_server_enabled"),
    "multi_worker_mirrored_strategy": _Strategy(
        "sagemaker_multi_worker_mirrored_strategy_enabled", frameworks=("tensorflow",)
    ),
}
_KEYS = (*STRATEGIES, "smdistributed", "instance_groups", "pytorchxla")


def distribution_hyperparameters(
    distribution: Mapping[str, Any] | None,
    framework: Framework,
    instance_type: str | None = None,
    instance_groups: Sequence[Any] | None = None,
) -> DistributionHyperparameters:
    """Says which hyperparameters a distribution adds.

    `pytorchddp` wins over every other strategy, in silence. `torch_distributed` goes with
    `smdistributed`, which brings `mpi` along, and with nothing else.

    Args:
        distribution: of an estimator; also what `validate_distribution` returned. Not changed.
        framework: whose estimator it is.
        instance_type: None if the estimator has instance groups.
        instance_groups: those of the estimator; None if all instances are of one type.

    Raises:
        ValueError: a structural rule is broken, or a value has a wrong type, or model parallelism
            is enabled and nothing that starts its processes.
        UnsupportedError: `pytorchxla` is asked for.
    """
    if framework not in _ALL:
        raise ValueError(
            f"framework is {framework!r}; expected one of {', '.join(_ALL)}. Change it."
        )
    if distribution is None:
        return DistributionHyperparameters()
    enabled = enabled_strategies(distribution)
    counting, notices = _counting(enabled, framework)
    if "pytorchddp" not in counting:
        notices += _unknown_keys(distribution, _KEYS, "distribution")
    group = training_group(distribution, instance_groups, bool(counting))
    if group is not None:
        instance_type = group.instance_type

    added: dict[str, Any] = {}
    for name, settings in counting.items():
        row = _TABLE[name]
        notices += _unknown_keys(settings, row.settings, name)
        added[row.flag] = row.flag_value
        if row.names_instance_type and instance_type is not None:
            added["sagemaker_instance_type"] = instance_type
        if row.mpi_options is not None:
            options = _mpi_options(settings, name, row.default_mpi_options)
            if options is not None:
                added[row.mpi_options] = options
                notices += _joined_flags(options, name)
    if "mpi" in counting:
        processes = _processes_per_host(counting["mpi"])
        if processes is not None:
            added["sagemaker_mpi_num_of_processes_per_host"] = processes
    if "modelparallel" in counting:
        if counting.keys().isdisjoint(("mpi", "torch_distributed")):
            raise ValueError(
                "modelparallel is enabled, but nothing that starts its processes; expected mpi "
                'beside smdistributed. Add "mpi": {"enabled": True, "processes_per_host": 8} to '
                "distribution."
            )
        parameters = get_mp_parameters(distribution)
        if parameters:
            added["mp_parameters"] = parameters
    if group is not None:
        added["sagemaker_distribution_instance_groups"] = [group.instance_group_name]
    return DistributionHyperparameters(added, tuple(notices))


def _counting(
    enabled: Mapping[str, Mapping[str, Any]], framework: str
) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """Those of the enabled strategies that have an effect, and why others have none."""
    counting = {
        name: each for name, each in enabled.items() if framework in _TABLE[name].frameworks
    }
    if "pytorchddp" in counting:
        return {"pytorchddp": counting["pytorchddp"]}, []
    notices = [
        f"{name} of distribution has no effect with {framework}; it is for "
        f"{' and '.join(_TABLE[name].frameworks)}. Leave it out."
        for name in enabled
        if name not in counting
    ]
    if "torch_distributed" in counting and counting.keys().isdisjoint(
        ("dataparallel", "modelparallel")
    ):
        notices += [
            f"{name} of distribution has no effect, since torch_distributed starts the processes. "
            "Enable one of the two."
            for name in counting
            if name != "torch_distributed"
        ]
        counting = {"torch_distributed": counting["torch_distributed"]}
    return counting, notices


def _unknown_keys(given: Mapping[str, Any], known: Sequence[str], where: str) -> list[str]:
    notices = []
    for key in given:
        if key in known:
            continue
        near = difflib.get_close_matches(str(key), known, n=1)
        advice = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(known)}."
        notices.append(f"{key!r} in {where} is no known key and has no effect. {advice}")
    return notices


def _mpi_options(settings: Mapping[str, Any], name: str, default: str | None) -> str | None:
    options = settings.get("custom_mpi_options")
    if options is None:
        return default
    if not isinstance(options, str):
        raise ValueError(
            f"custom_mpi_options of {name} is {options!r}; expected one string. Join the flags by "
            'spaces, such as "-x A=1 -x B=2".'
        )
    return options


def _joined_flags(options: str, name: str) -> list[str]:
    """A notice for each `-x A=1-x`, which two strings joined without a space give."""
    words = options.split()
    return [
        f"custom_mpi_options of {name} sets {value!r}, which ends in a flag; a space is missing in "
        f"front of {flag}. Write {value.removesuffix(flag)!r}, a space and {flag!r}."
        for before, value in itertools.pairwise(words)
        for flag in ("-x", "--NCCL_DEBUG")
        if before.endswith("-x") and value.endswith(flag) and value != flag
    ]


def _processes_per_host(mpi: Mapping[str, Any]) -> int | None:
    given = mpi.get("processes_per_host")
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ValueError(
            f"processes_per_host of mpi is {given!r}; expected an integer from 1. Change it, or "
            "leave it out for one process on each GPU."
        )
    return given
