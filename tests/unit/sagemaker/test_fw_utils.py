# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The rules of `distribution`, their texts, and where they hold.

Source: launch specification, section 4.3.
"""

import copy
import inspect
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import UnsupportedError
from smdistributed.sagemaker import fw_utils
from smdistributed.sagemaker.fw_utils import (
    enabled_strategies,
    get_mp_parameters,
    parse_mp_parameters,
    validate_distribution,
    validate_mp_config,
    validate_smdistributed,
)
from smdistributed.sagemaker.instance_group import InstanceGroup

ON = {"enabled": True}
OFF = {"enabled": False}
DATAPARALLEL = {"smdistributed": {"dataparallel": ON}}
MODELPARALLEL = {"smdistributed": {"modelparallel": ON}, "mpi": ON}
TORCH = {"torch_distributed": ON}
P4 = "ml.p4d.24xlarge"
CUDA_12_IMAGE = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.0.1-gpu-py310-cu121"
)


def exactly(text: str) -> str:
    return rf"\A{re.escape(text)}\Z"


def check_smdistributed(distribution: Any, **changes: Any) -> None:
    """Checks it for PyTorch 1.13.1 on a type that is right, unless `changes` say otherwise."""
    right = {
        "instance_type": P4,
        "framework_name": "pytorch",
        "framework_version": "1.13.1",
        "py_version": "py39",
        "distribution": distribution,
        "image_uri": None,
    }
    validate_smdistributed(**(right | changes))


def check(distribution: Any, **changes: Any) -> dict[str, Any]:
    """Checks all of it for PyTorch 1.13.1 on a type that is right, unless `changes` do not."""
    right = {
        "distribution": distribution,
        "instance_groups": None,
        "framework_name": "pytorch",
        "framework_version": "1.13.1",
        "py_version": "py39",
        "image_uri": None,
        "kwargs": {"instance_type": P4, "entry_point": "train.py"},
    }
    return validate_distribution(**(right | changes))


# Published names and signatures.


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        (
            "validate_distribution",
            (
                "distribution instance_groups framework_name framework_version py_version image_uri"
                " kwargs"
            ),
        ),
        (
            "validate_smdistributed",
            "instance_type framework_name framework_version py_version distribution image_uri",
        ),
        ("validate_mp_config", "config"),
        ("parse_mp_parameters", "params"),
        ("get_mp_parameters", "distribution"),
    ],
)
def test_section_1_published_names_and_arguments(name: str, parameters: str) -> None:
    assert name in fw_utils.__all__
    signature = inspect.signature(getattr(fw_utils, name))
    published = [
        key for key, each in signature.parameters.items() if each.kind is not each.KEYWORD_ONLY
    ]
    assert published == parameters.split()


# The structure of `distribution`.


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize(
    ("smdistributed", "text"),
    [
        ("dataparallel", "smdistributed strategy requires a dictionary"),
        (None, "smdistributed strategy requires a dictionary"),
        (True, "smdistributed strategy requires a dictionary"),
        ([ON], "smdistributed strategy requires a dictionary"),
        (
            {"dataparallel": ON, "modelparallel": ON},
            (
                "Cannot use more than 1 smdistributed strategy. \n"
                "Choose one of the following supported strategies:['dataparallel', 'modelparallel']"
            ),
        ),
        (
            {"dataparallel": ON, "ring": ON},
            (
                "Cannot use more than 1 smdistributed strategy. \n"
                "Choose one of the following supported strategies:['dataparallel', 'modelparallel']"
            ),
        ),
        (
            {"кольцо": ON},
            (
                "Invalid smdistributed strategy provided: кольцо \n"
                "Supported strategies: ['dataparallel', 'modelparallel']"
            ),
        ),
        (
            {5: ON},
            (
                "Invalid smdistributed strategy provided: 5 \n"
                "Supported strategies: ['dataparallel', 'modelparallel']"
            ),
        ),
    ],
)
def test_section_4_3_structure_of_smdistributed(
    smdistributed: Any, text: str, is_remote: bool
) -> None:
    distribution = {"smdistributed": smdistributed}
    with pytest.raises(ValueError, match=exactly(text)):
        check_smdistributed(distribution, is_remote=is_remote)
    with pytest.raises(ValueError, match=exactly(text)):
        check(distribution, is_remote=is_remote)
    with pytest.raises(ValueError, match=exactly(text)):
        get_mp_parameters(distribution)


@pytest.mark.parametrize("distribution", [5, "mpi", True, ["mpi"]])
def test_a_distribution_is_a_dict(distribution: Any) -> None:
    with pytest.raises(ValueError, match=r"distribution is .*; expected a dict"):
        check(distribution)


@pytest.mark.parametrize(
    "key", ["mpi", "pytorchddp", "torch_distributed", "dataparallel", "modelparallel"]
)
@pytest.mark.parametrize("settings", [None, True, "on", []])
def test_settings_of_a_strategy_are_a_dict(key: str, settings: Any) -> None:
    form = {key: settings}
    with pytest.raises(ValueError, match=f"{key} of distribution is .*; expected a dict"):
        check({"smdistributed": form} if key.endswith("parallel") else form)


@pytest.mark.parametrize("enabled", [None, 1, 0, "True", "false", []])
def test_enabled_is_a_bool(enabled: Any) -> None:
    with pytest.raises(ValueError, match=r"enabled of mpi is .*; expected True or False"):
        check({"mpi": {"enabled": enabled}})


def test_enabled_strategies() -> None:
    mpi = ON | {"processes_per_host": 2}
    assert enabled_strategies({"mpi": mpi, "pytorchddp": OFF, "torch_distributed": {}}) == {
        "mpi": mpi
    }
    assert enabled_strategies(DATAPARALLEL) == {"dataparallel": ON}
    assert enabled_strategies(None) == {}


@pytest.mark.parametrize("settings", [ON, {}, None])
def test_section_4_2_pytorchxla_is_refused_at_construction(settings: Any) -> None:
    with pytest.raises(UnsupportedError, match="pytorchxla"):
        check({"pytorchxla": settings})


# Instance types, versions, Python: errors on real SageMaker, log lines elsewhere.

DATAPARALLEL_TYPES = (
    "ml.p3.16xlarge",
    "ml.p3dn.24xlarge",
    "ml.p4d.24xlarge",
    "ml.p4de.24xlarge",
    "local_gpu",
)
P5_TEXT = "SMModelParallel and SMDataParallel currently do not support p5 instances."
CUDA_TEXT = f"SMDistributed is currently incompatible with DLC image: {CUDA_12_IMAGE}"


def type_text(instance_type: object) -> str:
    return (
        f"Provided instance_type {instance_type} is not supported by smdataparallel.\n"
        f"Please specify one of the supported instance types:{DATAPARALLEL_TYPES}"
    )


def version_text(version: object, supported: list[str]) -> str:
    return (
        f"Provided framework_version {version} is not supported by smdataparallel.\n"
        f"Please specify one of the supported framework versions: {supported} "
    )


def python_text(py_version: str, strategy: str) -> str:
    return (
        f"Provided py_version {py_version} is not supported by {strategy}.\n"
        "Please specify py_version>=py3"
    )


TF_VERSIONS = ["2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10", "2.11"]
PT_VERSIONS = ["1.6", "1.7", "1.8", "1.9", "1.10", "1.11", "1.12", "1.13", "2.0", "2.0.1"]

SERVICE_RULES = [
    (DATAPARALLEL, {"instance_type": "ml.g5.12xlarge"}, type_text("ml.g5.12xlarge")),
    (DATAPARALLEL, {"instance_type": None}, type_text(None)),
    (DATAPARALLEL, {"instance_type": 5}, type_text(5)),
    (DATAPARALLEL, {"framework_version": "2.0.2"}, version_text("2.0.2", PT_VERSIONS)),
    (DATAPARALLEL, {"framework_version": "1.5.1"}, version_text("1.5.1", PT_VERSIONS)),
    (DATAPARALLEL, {"framework_version": "2.1"}, version_text("2.1", PT_VERSIONS)),
    (DATAPARALLEL, {"framework_version": "2"}, version_text("2", PT_VERSIONS)),
    (DATAPARALLEL, {"framework_version": None}, version_text(None, PT_VERSIONS)),
    (DATAPARALLEL, {"framework_version": True}, version_text(True, PT_VERSIONS)),
    (DATAPARALLEL, {"framework_version": "neu"}, version_text("neu", PT_VERSIONS)),
    (
        DATAPARALLEL,
        {"framework_name": "tensorflow", "framework_version": "2.2.1"},
        version_text("2.2.1", TF_VERSIONS),
    ),
    (
        DATAPARALLEL,
        {"framework_name": "tensorflow", "framework_version": "2.12"},
        version_text("2.12", TF_VERSIONS),
    ),
    (DATAPARALLEL, {"py_version": "py2"}, python_text("py2", "smdataparallel")),
    (
        DATAPARALLEL,
        {"instance_type": "local", "framework_version": "1.0", "py_version": "py27"},
        "\n".join(
            [
                type_text("local"),
                version_text("1.0", PT_VERSIONS),
                python_text("py27", "smdataparallel"),
            ]
        ),
    ),
    (DATAPARALLEL, {"image_uri": CUDA_12_IMAGE}, CUDA_TEXT),
    (MODELPARALLEL, {"image_uri": CUDA_12_IMAGE}, CUDA_TEXT),
    (MODELPARALLEL, {"instance_type": "ml.p5.48xlarge"}, P5_TEXT),
    (
        DATAPARALLEL,
        {"instance_type": "ml.p5.48xlarge"},
        type_text("ml.p5.48xlarge") + "\n" + P5_TEXT,
    ),
]


@pytest.mark.parametrize(("distribution", "changes", "text"), SERVICE_RULES)
def test_section_4_3_service_rules_are_errors_on_sagemaker(
    distribution: Any, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=exactly(text)):
        check_smdistributed(distribution, **changes, is_remote=True)


@pytest.mark.parametrize(("distribution", "changes", "text"), SERVICE_RULES)
def test_section_4_3_service_rules_are_debug_lines_elsewhere(
    distribution: Any, changes: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "smdistributed"):
        check_smdistributed(distribution, **changes)
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert record.getMessage().endswith(text)


@pytest.mark.parametrize(
    ("distribution", "changes"),
    [
        *((DATAPARALLEL, {"instance_type": each}) for each in DATAPARALLEL_TYPES),
        *(
            (DATAPARALLEL, {"framework_version": each})
            for each in ["1.6", "1.6.0", "1.13.1", "2.0", "2.0.0", "2.0.1", "2.0.1+cpu"]
        ),
        *(
            (DATAPARALLEL, {"framework_name": "tensorflow", "framework_version": each})
            for each in ["2.3", "2.3.2", "2.11", "2.11.1"]
        ),
        (DATAPARALLEL, {"py_version": "py3"}),
        (DATAPARALLEL, {"py_version": "py310"}),
        # "skipped with `image_uri`"
        (DATAPARALLEL, {"framework_version": "9.9", "image_uri": "my/image:cu118"}),
        (DATAPARALLEL, {"framework_version": None, "py_version": None, "image_uri": "my/image"}),
        (DATAPARALLEL, {"image_uri": "pytorch-training:2.0.0-gpu-py310-cu118-ubuntu20.04"}),
        (MODELPARALLEL, {"framework_version": "2.2", "instance_type": "ml.g5.12xlarge"}),
        (MODELPARALLEL | TORCH, {"instance_type": "ml.p5.48xlarge"}),
        (MODELPARALLEL | TORCH, {"image_uri": CUDA_12_IMAGE}),
        (DATAPARALLEL | TORCH, {"image_uri": CUDA_12_IMAGE}),
        ({"smdistributed": {"dataparallel": OFF}}, {"instance_type": "ml.p5.48xlarge"}),
        ({"smdistributed": {"modelparallel": OFF}}, {"image_uri": CUDA_12_IMAGE}),
        ({"smdistributed": {}}, {"instance_type": None}),
        ({"mpi": ON}, {"instance_type": "ml.p5.48xlarge", "image_uri": CUDA_12_IMAGE}),
        ({}, {"instance_type": None, "py_version": "py2"}),
    ],
)
def test_section_4_3_what_sagemaker_takes(
    distribution: Any, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    check_smdistributed(distribution, **changes, is_remote=True)
    with caplog.at_level(logging.DEBUG, "smdistributed"):
        check_smdistributed(distribution, **changes)
    assert not caplog.records


TORCH_TYPE_TEXT = "Currently torch_distributed is supported only for GPU and Trainium instances.\n"

FRAMEWORK_RULES = [
    ({"pytorchddp": ON}, {"py_version": "py2"}, python_text("py2", "pytorchddp")),
    (TORCH, {"py_version": "py2"}, python_text("py2", "torch_distributed")),
    (TORCH, {"kwargs": {"instance_type": "ml.c5.xlarge"}}, TORCH_TYPE_TEXT),
    (TORCH, {"kwargs": {"instance_type": "ml.inf1.xlarge"}}, TORCH_TYPE_TEXT),
    (TORCH, {"kwargs": {"instance_type": "local"}}, TORCH_TYPE_TEXT),
    (TORCH, {"kwargs": {"instance_type": None}}, TORCH_TYPE_TEXT),
    (TORCH, {"kwargs": {}}, TORCH_TYPE_TEXT),
    (DATAPARALLEL, {"kwargs": {"instance_type": "local"}}, type_text("local")),
    (DATAPARALLEL, {"kwargs": {"train_instance_type": "local"}}, type_text("local")),
    (
        {"multi_worker_mirrored_strategy": ON},
        {"framework_name": "tensorflow", "framework_version": "2.8.0"},
        (
            "framework_version is 2.8.0; multi_worker_mirrored_strategy needs TensorFlow 2.9. "
            "Take a newer version, or another strategy."
        ),
    ),
]


@pytest.mark.parametrize(("distribution", "changes", "text"), FRAMEWORK_RULES)
def test_section_4_3_rules_of_a_framework_are_errors_on_sagemaker(
    distribution: Any, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=exactly(text)):
        check(distribution, **changes, is_remote=True)


@pytest.mark.parametrize(("distribution", "changes", "text"), FRAMEWORK_RULES)
def test_section_4_3_rules_of_a_framework_are_debug_lines_elsewhere(
    distribution: Any, changes: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "smdistributed"):
        assert check(distribution, **changes) == distribution
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert record.getMessage().endswith(text)


@pytest.mark.parametrize(
    ("distribution", "changes"),
    [
        *(
            (TORCH, {"kwargs": {"instance_type": each}})
            for each in ["ml.p3.2xlarge", "ml.p5.48xlarge", "ml.g5.xlarge", "ml.trn1.2xlarge"]
        ),
        (TORCH, {"kwargs": {"instance_type": "local_gpu"}}),
        ({"pytorchddp": ON}, {"py_version": None, "image_uri": "my/image"}),
        (TORCH, {"framework_name": "tensorflow", "py_version": "py2"}),
        *(
            (
                {"multi_worker_mirrored_strategy": ON},
                {"framework_name": "tensorflow", "framework_version": each},
            )
            for each in ["2.9", "2.9.1", "2.10", None]
        ),
        ({"mpi": ON}, {"framework_name": None, "framework_version": None, "py_version": None}),
        (DATAPARALLEL, {"framework_name": "mxnet"}),
        ({}, {}),
    ],
)
def test_section_4_3_what_sagemaker_takes_of_a_framework(
    distribution: Any, changes: dict[str, Any]
) -> None:
    assert check(distribution, **changes, is_remote=True) == distribution


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("entry_point", ["train.sh", "train", "train.PY", "поезд", 5])
def test_section_4_3_torch_distributed_entry_point(entry_point: Any, is_remote: bool) -> None:
    text = (
        "Unsupported entry point type for the distribution torch_distributed.\n"
        "Only python programs (*.py) are supported."
    )
    kwargs = {"instance_type": P4, "entry_point": entry_point}
    with pytest.raises(ValueError, match=exactly(text)):
        check(TORCH, kwargs=kwargs, is_remote=is_remote)
    assert check({"mpi": ON}, kwargs=kwargs) == {"mpi": ON}
    assert check({"torch_distributed": OFF}, kwargs=kwargs) == {"torch_distributed": OFF}


@pytest.mark.parametrize("entry_point", [None, "train.py", "поезд.py", Path("code/train.py")])
def test_section_4_3_entry_points_that_torch_distributed_takes(entry_point: Any) -> None:
    kwargs = {"instance_type": P4, "entry_point": entry_point}
    assert check(TORCH, kwargs=kwargs, is_remote=True) == TORCH


def test_section_4_3_local_gpu_with_several_instances_is_lifted() -> None:
    kwargs = {"instance_type": "local_gpu", "instance_count": 4}
    assert check(DATAPARALLEL, kwargs=kwargs) == DATAPARALLEL


# Instance groups.

CPU = InstanceGroup("cpu", "ml.c5.xlarge", 1)
GPU = InstanceGroup("gpu", P4, 2)


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize(
    ("groups_of_estimator", "named", "text"),
    [
        (None, [GPU], "Instance groups not specified in the estimator !"),
        ([GPU], [GPU, CPU], "Train instance groups oversubscribed !"),
        ([], [GPU], "Train instance groups oversubscribed !"),
        ([CPU, GPU], [CPU, GPU], "Distribution should only contain one instance group name !"),
        ([CPU, GPU], [InstanceGroup("x")], "Invalid training instance group x !"),
        ([CPU, GPU], ["größe"], "Invalid training instance group größe !"),
        ([CPU, GPU], [None], "Invalid training instance group None !"),
        ([CPU], [InstanceGroup("cpu", P4, 1)], "Invalid training instance group cpu !"),
    ],
)
def test_section_4_3_instance_groups(
    groups_of_estimator: Any, named: Any, text: str, is_remote: bool
) -> None:
    distribution = {"mpi": ON, "instance_groups": named}
    with pytest.raises(ValueError, match=exactly(text)):
        check(distribution, instance_groups=groups_of_estimator, is_remote=is_remote)


@pytest.mark.parametrize(
    "form", [{}, {"mpi": OFF}, {"smdistributed": {}}, {"smdistributed": {"dataparallel": OFF}}]
)
def test_section_4_3_instance_groups_without_a_strategy(form: dict[str, Any]) -> None:
    text = "Don't set training instance groups while no distribution strategies enabled!"
    with pytest.raises(ValueError, match=exactly(text)):
        check(form | {"instance_groups": [GPU]}, instance_groups=[CPU, GPU])


@pytest.mark.parametrize("named", [GPU, "gpu", 5, {"gpu": GPU}, True])
def test_instance_groups_are_a_list(named: Any) -> None:
    with pytest.raises(ValueError, match=r"instance_groups of distribution is .*expected a list"):
        check({"mpi": ON, "instance_groups": named}, instance_groups=[CPU, GPU])


@pytest.mark.parametrize(
    ("groups_of_estimator", "form", "expected"),
    [
        ([CPU, GPU], DATAPARALLEL | {"instance_groups": [GPU]}, ["gpu"]),
        ([CPU, GPU], DATAPARALLEL | {"instance_groups": ("gpu",)}, ["gpu"]),
        ([GPU], DATAPARALLEL, ["gpu"]),
        ([GPU], DATAPARALLEL | {"instance_groups": []}, ["gpu"]),
        ([GPU], DATAPARALLEL | {"instance_groups": None}, ["gpu"]),
        ([CPU, GPU], {"mpi": ON}, None),
        ([GPU], {"mpi": OFF}, None),
        (None, {"mpi": ON, "instance_groups": []}, None),
    ],
)
def test_groups_stand_by_name_in_what_is_returned(
    groups_of_estimator: Any, form: Any, expected: list[str] | None
) -> None:
    # No type beside the groups: that of the group counts, else this would be an error.
    checked = check(form, instance_groups=groups_of_estimator, kwargs={}, is_remote=True)
    assert checked.get("instance_groups") == expected
    assert check(checked, instance_groups=groups_of_estimator, kwargs={}, is_remote=True) == checked


def test_the_type_of_the_group_is_checked() -> None:
    with pytest.raises(ValueError, match=r"Provided instance_type ml\.c5\.xlarge"):
        check(DATAPARALLEL | {"instance_groups": [CPU]}, instance_groups=[CPU, GPU], is_remote=True)


def test_none_is_no_distribution() -> None:
    assert check(None, instance_groups=[GPU]) == {}


def test_validation_changes_nothing_and_shares_nothing() -> None:
    given = {
        "smdistributed": {"modelparallel": ON | {"parameters": {"partitions": 2}}},
        "mpi": dict(ON),
        "instance_groups": [GPU],
    }
    before = copy.deepcopy(given)
    checked = check(given, instance_groups=[CPU, GPU])
    checked["smdistributed"]["modelparallel"]["parameters"]["partitions"] = 5
    checked["mpi"]["enabled"] = False
    checked["instance_groups"].append("x")
    assert given == before


# Parameters of model parallelism.

BOOLEANS = ["auto_partition", "contiguous", "load_partition", "horovod", "ddp"]
BOOLEANS += ["deterministic_server"]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"pipeline": "ring"}, "pipeline is 'ring'; it must be a value in: [simple, interleaved, "),
        ({"pipeline": None}, "pipeline is None; it must be a value in: ["),
        ({"placement_strategy": "far"}, "it must be a value in: [spread, cluster"),
        ({"placement_strategy": "PDD"}, "it must be a value in: [spread, cluster"),
        ({"optimize": "größe"}, "it must be a value in: [speed, memory]"),
        ({"optimize": ["speed"]}, "it must be a value in: [speed, memory]"),
        *(
            ({key: value}, f"{key} is {value!r}; it must be a positive integer")
            for key in ["microbatches", "partitions", "active_microbatches"]
            for value in [0, -1, 1.0, "2", True, None, [1]]
        ),
        ({"pipeline_parallel_degree": 0}, "pipeline_parallel_degree is 0; it must be a positive"),
        *(
            ({key: value}, f"{key} is {value!r}; it must be a value in: [True, False]")
            for key in BOOLEANS
            for value in [1, 0, "True", None]
        ),
        ({"auto_partition": False}, "default_partition must be supplied if auto_partition is set"),
        (
            {"auto_partition": False, "default_partition": None},
            "default_partition must be supplied if auto_partition is set to False",
        ),
        (
            {"auto_partition": False, "default_partition": 2, "partitions": 2},
            "default_partition is 2; it must be less than the number of partitions, 2",
        ),
        ({"default_partition": 1}, "it must be less than the number of partitions, 1"),
        (
            {"default_partition": 4, "pipeline_parallel_degree": 4},
            "it must be less than the number of partitions, 4",
        ),
        *(
            ({"default_partition": value, "partitions": 4}, f"default_partition is {value!r}; exp")
            for value in [-1, True, "0", 1.0, None]
        ),
        *(
            ({"memory_weight": value}, "memory_weight must be between 0.0 and 1.0")
            for value in [-0.1, 1.1, 2, True, "0.5", None, float("nan")]
        ),
        ({"ddp_port": 5}, "ddp_port is 5, which needs `ddp` to be set"),
        ({"ddp_port": 5, "ddp": False}, "ddp_port is 5, which needs `ddp` to be set"),
        ({"ddp_dist_backend": "nccl"}, "ddp_dist_backend is 'nccl', which needs `ddp` to be set"),
        ({"horovod": True, "ddp": True}, "ddp and horovod cannot be simultaneously enabled"),
    ],
)
def test_section_4_3_model_parallel_parameters(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        validate_mp_config(config)
    with pytest.raises(ValueError, match=re.escape(text)):
        validate_mp_config(config, is_remote=True)
    given = {"smdistributed": {"modelparallel": ON | {"parameters": config}}, "mpi": ON}
    with pytest.raises(ValueError, match=re.escape(text)):
        check(given)
    with pytest.raises(ValueError, match=re.escape(text)):
        get_mp_parameters(given)


RIGHT_CONFIGS: list[dict[str, Any]] = [
    {},
    *({"pipeline": each} for each in ["simple", "interleaved", "_only_forward"]),
    *({"placement_strategy": each} for each in ["spread", "cluster"]),
    *({"optimize": each} for each in ["speed", "memory"]),
    *({key: 1} for key in ["microbatches", "partitions", "active_microbatches"]),
    *({key: True} for key in BOOLEANS),
    *({key: False} for key in BOOLEANS if key != "auto_partition"),
    {"auto_partition": False, "default_partition": 0, "partitions": 1},
    {"auto_partition": False, "default_partition": 3, "pipeline_parallel_degree": 4},
    *({"memory_weight": each} for each in [0, 1, 0.0, 0.5, 1.0]),
    {"ddp": True, "ddp_port": 5, "ddp_dist_backend": "nccl"},
    {"horovod": True, "ddp": False},
    {"tensor_parallel_degree": 8, "größe": None},
]


@pytest.mark.parametrize("config", RIGHT_CONFIGS)
@pytest.mark.parametrize("is_remote", [False, True])
def test_section_4_3_model_parallel_parameters_that_are_right(
    config: dict[str, Any], is_remote: bool
) -> None:
    validate_mp_config(config, is_remote=is_remote)
    given = {"smdistributed": {"modelparallel": ON | {"parameters": config}}, "mpi": ON}
    assert get_mp_parameters(given) == config
    assert check(given, is_remote=is_remote) == given


@pytest.mark.parametrize("strategy", ["DPT", "DTP", "PDT", "PTD", "TDP", "TPD"])
def test_section_4_3_the_sdk_knows_fewer_placements_than_the_library(strategy: str) -> None:
    config = {"placement_strategy": strategy}
    validate_mp_config(config)
    text = f"placement_strategy is '{strategy}'; it must be a value in: [spread, cluster]."
    with pytest.raises(ValueError, match=exactly(text)):
        validate_mp_config(config, is_remote=True)
    given = {"smdistributed": {"modelparallel": ON | {"parameters": config}}, "mpi": ON}
    with pytest.raises(ValueError, match=exactly(text)):
        check(given, is_remote=True)


@pytest.mark.parametrize("config", [None, 5, "partitions", ["partitions"], True])
def test_parameters_are_a_dict(config: Any) -> None:
    with pytest.raises(ValueError, match=r"The parameters of modelparallel is .*expected a dict"):
        validate_mp_config(config)


def test_section_4_3_parameters_as_a_dict_are_copied() -> None:
    given = {"partitions": 2, "more": [1]}
    parsed = parse_mp_parameters(given)
    assert parsed == given
    parsed["more"].append(2)
    parsed["partitions"] = 5
    assert given == {"partitions": 2, "more": [1]}


def test_section_4_3_parameters_as_the_path_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "größe.json"
    path.write_text(json.dumps({"partitions": 2, "größe": "ж"}, ensure_ascii=False), "utf-8")
    assert parse_mp_parameters(path) == {"partitions": 2, "größe": "ж"}
    assert parse_mp_parameters(str(path)) == {"partitions": 2, "größe": "ж"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "cannot be read as a JSON file"),
        (b"{'partitions': 2}", "cannot be read as a JSON file"),
        (b'{"partitions": "\xff"}', "cannot be read as a JSON file"),
        (b"[1]", "holds a JSON list; expected one object"),
        (b"null", "holds a JSON NoneType; expected one object"),
    ],
)
def test_section_4_3_files_without_parameters(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "mp.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=text):
        parse_mp_parameters(str(path))


def test_section_4_3_paths_without_a_file(tmp_path: Path) -> None:
    for path in [str(tmp_path), str(tmp_path / "missing.json"), "a\0b", ""]:
        with pytest.raises(ValueError, match="cannot be read as a JSON file"):
            parse_mp_parameters(path)


@pytest.mark.parametrize("params", [None, 5, 0, True, b"mp.json", [1]])
def test_section_4_3_neither_dict_nor_path(params: Any) -> None:
    with pytest.raises(ValueError, match="expected a dict or the path to a JSON file"):
        parse_mp_parameters(params)


@pytest.mark.parametrize(
    "distribution",
    [
        {},
        {"mpi": ON},
        DATAPARALLEL,
        {"smdistributed": {"modelparallel": OFF | {"parameters": {"partitions": 0}}}},
        {"smdistributed": {"modelparallel": {}}},
    ],
)
def test_without_model_parallelism_there_are_no_parameters(distribution: dict[str, Any]) -> None:
    assert get_mp_parameters(distribution) is None


def test_model_parallelism_without_parameters() -> None:
    assert get_mp_parameters(MODELPARALLEL) == {}
