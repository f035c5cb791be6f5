# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of an estimator's `distribution`, under the names that tools built on the SDK import.

Rules about the form of the dict always hold. Rules about instance types, Python and the versions of
frameworks describe Amazon's machines and images: they are errors if the job runs there
(`is_remote=True`). Elsewhere the job uses other machines, and the framework that is installed on
them; a broken rule is then a line in the debug log.

No function changes what it is given.

Source: launch specification, sections 4.2 and 4.3.
"""

import copy
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from smdistributed._common.errors import UnsupportedError
from smdistributed._common.log import get_logger

__all__ = [
    "SMDISTRIBUTED_STRATEGIES",
    "STRATEGIES",
    "enabled_strategies",
    "get_mp_parameters",
    "parse_mp_parameters",
    "training_group",
    "validate_distribution",
    "validate_mp_config",
    "validate_smdistributed",
]

# Keys of `distribution` that choose how processes are started, and those within "smdistributed".
STRATEGIES = (
    "mpi",
    "pytorchddp",
    "torch_distributed",
    "parameter_server",
    "multi_worker_mirrored_strategy",
)
SMDISTRIBUTED_STRATEGIES = ("dataparallel", "modelparallel")

_DATAPARALLEL_INSTANCE_TYPES = (
    "ml.p3.16xlarge",
    "ml.p3dn.24xlarge",
    "ml.p4d.24xlarge",
    "ml.p4de.24xlarge",
    "local_gpu",
)
# From the first entry to the last, with all patch releases of an entry that names none.
_DATAPARALLEL_VERSIONS = {
    "tensorflow": [f"2.{minor}" for minor in range(3, 12)],
    "pytorch": [*(f"1.{minor}" for minor in range(6, 14)), "2.0", "2.0.1"],
}
_MIRRORED_STRATEGY_SINCE = (2, 9)

_P5 = re.compile(r"ml[._]p5")
_GPU_OR_TRAINIUM = re.compile(r"ml[._]([gp]\d|trn)|local_gpu$")
_CUDA_OF_IMAGE = re.compile(r"-cu(\d\d)\d")

# Rules of model parallel parameters. Off SageMaker the job runs our library, which knows more
# placements than the SDK lets through: any order of the three axes.
_PLACEMENTS = ("spread", "cluster")
_PLACEMENTS_BY_AXES = ("DPT", "DTP", "PDT", "PTD", "TDP", "TPD")
_CHOICES: dict[str, tuple[object, ...]] = {
    "pipeline": ("simple", "interleaved", "_only_forward"),
    "optimize": ("speed", "memory"),
    "auto_partition": (True, False),
    "contiguous": (True, False),
    "load_partition": (True, False),
    "horovod": (True, False),
    "ddp": (True, False),
    "deterministic_server": (True, False),
}
# `pipeline_parallel_degree` is the newer name of `partitions`.
_POSITIVE = ("microbatches", "partitions", "active_microbatches", "pipeline_parallel_degree")
_NEED_DDP = ("ddp_port", "ddp_dist_backend")


def validate_distribution(
    distribution: Mapping[str, Any] | None,
    instance_groups: Sequence[Any] | None,
    framework_name: str | None,
    framework_version: str | None,
    py_version: str | None,
    image_uri: str | None,
    kwargs: Mapping[str, Any],
    *,
    is_remote: bool = False,
) -> dict[str, Any]:
    """Checks all of an estimator's `distribution`.

    Args:
        distribution: None is the same as an empty dict.
        instance_groups: those of the estimator; None if all instances are of one type.
        framework_name: `pytorch` or `tensorflow`; others have fewer rules.
        framework_version: None if only the image is given.
        py_version: None if only the image is given.
        image_uri: None if SageMaker chooses the image.
        kwargs: further arguments of the estimator; `instance_type` and `entry_point` are read.
        is_remote: the job runs on real SageMaker.

    Returns:
        A copy of `distribution`, which refers to its instance group by name.

    Raises:
        ValueError: a rule is broken; the text names it.
        UnsupportedError: `pytorchxla` is asked for.
    """
    strategies = enabled_strategies(distribution)
    if distribution is None:
        return {}
    group = training_group(distribution, instance_groups, bool(strategies))
    instance_type = kwargs.get("instance_type", kwargs.get("train_instance_type"))
    if group is not None:
        instance_type = group.instance_type

    if framework_name == "pytorch" and "torch_distributed" in strategies:
        _check_python_program(kwargs.get("entry_point"))
    if "modelparallel" in strategies:
        validate_mp_config(_mp_parameters(strategies["modelparallel"]), is_remote=is_remote)
    validate_smdistributed(
        instance_type,
        framework_name,
        framework_version,
        py_version,
        distribution,
        image_uri,
        is_remote=is_remote,
    )
    _break_or_log(
        _framework_problems(strategies, framework_name, framework_version, py_version)
        + _torch_distributed_problems(strategies, framework_name, instance_type),
        is_remote,
    )
    checked = {
        key: copy.deepcopy(value) for key, value in distribution.items() if key != "instance_groups"
    }
    if group is not None:
        checked["instance_groups"] = [group.instance_group_name]
    return checked


def validate_smdistributed(
    instance_type: str | None,
    framework_name: str | None,
    framework_version: str | None,
    py_version: str | None,
    distribution: Mapping[str, Any],
    image_uri: str | None = None,
    *,
    is_remote: bool = False,
) -> None:
    """Checks what stands in `distribution` under `smdistributed`; without that key all is right.

    Args:
        instance_type: None if unknown.
        framework_name: `pytorch` or `tensorflow`.
        framework_version: not looked at if `image_uri` is given.
        py_version: None if only the image is given.
        distribution: as an estimator takes it.
        image_uri: None if SageMaker chooses the image.
        is_remote: the job runs on real SageMaker.

    Raises:
        ValueError: a rule is broken; the text names it.
        UnsupportedError: `pytorchxla` is asked for.
    """
    strategies = enabled_strategies(distribution)
    problems = []
    if "dataparallel" in strategies:
        if instance_type not in _DATAPARALLEL_INSTANCE_TYPES:
            problems.append(
                f"Provided instance_type {instance_type} is not supported by smdataparallel.\n"
                "Please specify one of the supported instance types:"
                f"{_DATAPARALLEL_INSTANCE_TYPES}"
            )
        if not image_uri:
            problems += _dataparallel_version_problems(framework_name, framework_version)
        problems += _python_problems(py_version, "smdataparallel")
    if "torch_distributed" not in strategies and not strategies.keys().isdisjoint(
        SMDISTRIBUTED_STRATEGIES
    ):
        if _P5.match(str(instance_type)):
            problems.append(
                "SMModelParallel and SMDataParallel currently do not support p5 instances."
            )
        cuda = _CUDA_OF_IMAGE.search(image_uri or "")
        if cuda and int(cuda[1]) >= 12:
            problems.append(f"SMDistributed is currently incompatible with DLC image: {image_uri}")
    _break_or_log(problems, is_remote)


def validate_mp_config(config: Mapping[str, Any], *, is_remote: bool = False) -> None:
    """Checks the parameters of model parallelism; keys without a rule are left to the library.

    Args:
        config: the parameters.
        is_remote: the job runs on real SageMaker, whose SDK knows fewer placement strategies.

    Raises:
        ValueError: a value cannot work; the text names its key.
    """
    _dict_or_refuse(config, "The parameters of modelparallel", '{"partitions": 2}')
    placements = _PLACEMENTS if is_remote else (*_PLACEMENTS, *_PLACEMENTS_BY_AXES)
    for key, allowed in {**_CHOICES, "placement_strategy": placements}.items():
        if key in config and not _is_one_of(config[key], allowed):
            listed = ", ".join(map(str, allowed))
            raise ValueError(f"{key} is {config[key]!r}; it must be a value in: [{listed}].")
    for key in _POSITIVE:
        if key in config and not (_is_int(config[key]) and config[key] >= 1):
            raise ValueError(f"{key} is {config[key]!r}; it must be a positive integer.")
    _check_default_partition(config)
    if "memory_weight" in config:
        weight = config["memory_weight"]
        if not ((_is_int(weight) or isinstance(weight, float)) and 0 <= weight <= 1):
            raise ValueError(f"memory_weight must be between 0.0 and 1.0; got {weight!r}.")
    for key in _NEED_DDP:
        if key in config and not config.get("ddp", False):
            raise ValueError(f"{key} is {config[key]!r}, which needs `ddp` to be set to True.")
    if config.get("horovod", False) and config.get("ddp", False):
        raise ValueError("ddp and horovod cannot be simultaneously enabled; choose one.")


def parse_mp_parameters(params: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """Returns a copy of the parameters of model parallelism, or reads them from a file.

    Args:
        params: a dict, or the path to a file with one JSON object.

    Raises:
        ValueError: it is neither, or there is no such file, or the file holds something else.
    """
    given: object = params
    if isinstance(given, Mapping):
        return copy.deepcopy(dict(given))
    if not isinstance(given, str | os.PathLike):
        raise ValueError(
            f"The parameters of modelparallel are {given!r}; expected a dict or the path to a JSON "
            'file. Write, for instance, "parameters": {"partitions": 2}.'
        )
    try:
        with open(given, encoding="utf-8") as file:
            parsed = json.load(file)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"The parameters of modelparallel are {given!r}, which cannot be read as a JSON file "
            f"({error}); expected the path to a file with one JSON object. Mend the path or the "
            "file."
        ) from error
    if not isinstance(parsed, dict):
        raise ValueError(
            f"The file {given!r} holds a JSON {type(parsed).__name__}; expected one object, such "
            'as {"partitions": 2}. Mend the file.'
        )
    return parsed


def get_mp_parameters(distribution: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a copy of the parameters of model parallelism, checked; None if it is not enabled.

    Args:
        distribution: as an estimator takes it.

    Raises:
        ValueError: a structural rule of `distribution` or of the parameters is broken.
        UnsupportedError: `pytorchxla` is asked for.
    """
    settings = enabled_strategies(distribution).get("modelparallel")
    if settings is None:
        return None
    parameters = _mp_parameters(settings)
    validate_mp_config(parameters)
    return parameters


def enabled_strategies(distribution: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """Returns the settings of the strategies that are enabled, by their keys.

    The two strategies of `smdistributed` stand under keys of their own.

    Args:
        distribution: as an estimator takes it.

    Raises:
        ValueError: `distribution` or a strategy is no dict, or `enabled` is no bool, or a rule of
            `smdistributed` is broken.
        UnsupportedError: `pytorchxla` is asked for.
    """
    if distribution is None:
        return {}
    _dict_or_refuse(distribution, "distribution", '{"mpi": {"enabled": True}}')
    _refuse_pytorchxla(distribution)
    found = {key: distribution[key] for key in STRATEGIES if key in distribution}
    found |= _of_smdistributed(distribution.get("smdistributed", {}))
    for key, settings in found.items():
        _dict_or_refuse(settings, f"{key} of distribution", '{"enabled": True}')
        if not isinstance(settings.get("enabled", False), bool):
            raise ValueError(
                f"enabled of {key} is {settings['enabled']!r}; expected True or False. Change it "
                "in distribution."
            )
    return {key: settings for key, settings in found.items() if settings.get("enabled", False)}


def training_group(
    distribution: Mapping[str, Any], instance_groups: Sequence[Any] | None, any_strategy: bool
) -> Any:
    """Returns the instance group that a distribution is for; None if it is for all instances.

    Args:
        distribution: under `instance_groups`, a list of one group or of its name. If there is no
            list and the estimator has a single group, it is that one.
        instance_groups: those of the estimator; None if all instances are of one type.
        any_strategy: a strategy is enabled.

    Raises:
        ValueError: the estimator has no such group, or there is more than one, or no strategy.
    """
    named = distribution.get("instance_groups")
    if named is None:
        named = []
    if not isinstance(named, list | tuple):
        raise ValueError(
            f"instance_groups of distribution is {named!r}; expected a list of one InstanceGroup. "
            "Put the group into a list."
        )
    if not named:
        if any_strategy and instance_groups is not None and len(instance_groups) == 1:
            return instance_groups[0]
        return None
    if instance_groups is None:
        raise ValueError("Instance groups not specified in the estimator !")
    if len(named) > len(instance_groups):
        raise ValueError("Train instance groups oversubscribed !")
    if len(named) > 1:
        raise ValueError("Distribution should only contain one instance group name !")
    wanted = named[0]
    for group in instance_groups:
        if wanted in (group, group.instance_group_name):
            break
    else:
        name = getattr(wanted, "instance_group_name", wanted)
        raise ValueError(f"Invalid training instance group {name} !")
    if not any_strategy:
        raise ValueError(
            "Don't set training instance groups while no distribution strategies enabled!"
        )
    return group


def _of_smdistributed(smdistributed: object) -> dict[str, Any]:
    if not isinstance(smdistributed, Mapping):
        raise ValueError("smdistributed strategy requires a dictionary")
    supported = list(SMDISTRIBUTED_STRATEGIES)
    if len(smdistributed) > 1:
        raise ValueError(
            "Cannot use more than 1 smdistributed strategy. \n"
            f"Choose one of the following supported strategies:{supported}"
        )
    for strategy in smdistributed:
        if strategy not in supported:
            raise ValueError(
                f"Invalid smdistributed strategy provided: {strategy} \n"
                f"Supported strategies: {supported}"
            )
    return dict(smdistributed)


def _refuse_pytorchxla(distribution: Mapping[str, Any]) -> None:
    settings = distribution.get("pytorchxla", {"enabled": False})
    if not (isinstance(settings, Mapping) and settings.get("enabled") is False):
        raise UnsupportedError(
            "distribution asks for pytorchxla, which this library does not support; expected one "
            f"of {', '.join((*STRATEGIES, 'smdistributed'))}. For PyTorch on GPUs use "
            '{"torch_distributed": {"enabled": True}}.'
        )


def _check_python_program(entry_point: object) -> None:
    # An estimator without one has a message of its own.
    if entry_point is not None and not str(entry_point).endswith(".py"):
        raise ValueError(
            "Unsupported entry point type for the distribution torch_distributed.\n"
            "Only python programs (*.py) are supported."
        )


def _mp_parameters(settings: Mapping[str, Any]) -> dict[str, Any]:
    return parse_mp_parameters(settings.get("parameters", {}))


def _check_default_partition(config: Mapping[str, Any]) -> None:
    partition: Any = config.get("default_partition")
    if partition is None and config.get("auto_partition") is False:
        raise ValueError(
            "default_partition must be supplied if auto_partition is set to False: the modules "
            "that the script assigns to no partition go there."
        )
    if "default_partition" not in config:
        return
    if not (_is_int(partition) and partition >= 0):
        raise ValueError(
            f"default_partition is {partition!r}; expected the index of a partition, from 0. "
            "Change it, or leave it out."
        )
    partitions = config.get("partitions", config.get("pipeline_parallel_degree", 1))
    if partition >= partitions:
        raise ValueError(
            f"default_partition is {partition}; it must be less than the number of partitions, "
            f"{partitions}."
        )


def _dataparallel_version_problems(framework: str | None, version: str | None) -> list[str]:
    supported = _DATAPARALLEL_VERSIONS.get(framework or "")
    if supported is None:
        return []  # the two lists are all that is known
    parts, first, last = _version(version), _version(supported[0]), _version(supported[-1])
    if len(parts) >= 2 and first <= parts and parts[: len(last)] <= last:
        return []
    return [
        (
            f"Provided framework_version {version} is not supported by smdataparallel.\n"
            f"Please specify one of the supported framework versions: {supported} "
        )
    ]


def _python_problems(py_version: str | None, strategy: str) -> list[str]:
    if py_version is None or str(py_version).startswith("py3"):
        return []
    return [
        (
            f"Provided py_version {py_version} is not supported by {strategy}.\n"
            "Please specify py_version>=py3"
        )
    ]


def _framework_problems(
    strategies: Mapping[str, Any],
    framework: str | None,
    version: str | None,
    py_version: str | None,
) -> list[str]:
    problems = []
    if framework == "pytorch":
        for strategy in ("pytorchddp", "torch_distributed"):
            if strategy in strategies:
                problems += _python_problems(py_version, strategy)
    if framework == "tensorflow" and "multi_worker_mirrored_strategy" in strategies:
        parts = _version(version)
        if parts and parts < _MIRRORED_STRATEGY_SINCE:
            problems.append(
                f"framework_version is {version}; multi_worker_mirrored_strategy needs TensorFlow "
                "2.9. Take a newer version, or another strategy."
            )
    return problems


def _torch_distributed_problems(
    strategies: Mapping[str, Any], framework: str | None, instance_type: object
) -> list[str]:
    if framework != "pytorch" or "torch_distributed" not in strategies:
        return []
    if _GPU_OR_TRAINIUM.match(str(instance_type)):
        return []
    return ["Currently torch_distributed is supported only for GPU and Trainium instances.\n"]


def _break_or_log(problems: Sequence[str], is_remote: bool) -> None:
    if not problems:
        return
    text = "\n".join(problems)
    if is_remote:
        raise ValueError(text)
    get_logger().debug("On real SageMaker this would be an error: %s", text)


def _dict_or_refuse(value: object, what: str, example: str) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is {value!r}; expected a dict. Write, for instance, {example}.")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_one_of(value: object, allowed: Sequence[object]) -> bool:
    # True == 1, and neither may stand for the other.
    return any(value == each and type(value) is type(each) for each in allowed)


def _version(text: object) -> tuple[int, ...]:
    """The numbers at the head: (2, 0, 1) for "2.0.1+cpu", () for None."""
    head = re.match(r"\d+(?:\.\d+)*", text) if isinstance(text, str) else None
    return tuple(map(int, head[0].split("."))) if head else ()
