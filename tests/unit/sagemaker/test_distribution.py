# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What each form of `distribution` adds to the hyperparameters.

Source: launch specification, section 4.2.
"""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import UnsupportedError
from smdistributed.sagemaker.distribution import (
    DistributionHyperparameters,
    distribution_hyperparameters,
)
from smdistributed.sagemaker.fw_utils import validate_distribution
from smdistributed.sagemaker.instance_group import InstanceGroup

TYPE = "ml.p4d.24xlarge"
ON = {"enabled": True}
OFF = {"enabled": False}

DATAPARALLEL = {"smdistributed": {"dataparallel": ON}}
MODELPARALLEL = {"smdistributed": {"modelparallel": ON | {"parameters": {"partitions": 2}}}}
MPI = {"mpi": ON | {"processes_per_host": 8, "custom_mpi_options": "-x A=1"}}
TORCH = {"torch_distributed": ON}

ADDS_MPI = {
    "sagemaker_mpi_enabled": True,
    "sagemaker_mpi_num_of_processes_per_host": 8,
    "sagemaker_mpi_custom_mpi_options": "-x A=1",
}
ADDS_DATAPARALLEL = {
    "sagemaker_distributed_dataparallel_enabled": True,
    "sagemaker_distributed_dataparallel_custom_mpi_options": "",
    "sagemaker_instance_type": TYPE,
}
ADDS_MODELPARALLEL = {
    "mp_parameters": {"partitions": 2},
    "sagemaker_distributed_dataparallel_enabled": False,
    "sagemaker_instance_type": TYPE,
}
ADDS_TORCH = {"sagemaker_torch_distributed_enabled": True, "sagemaker_instance_type": TYPE}
ADDS_DDP = {"sagemaker_pytorch_ddp_enabled": True, "sagemaker_instance_type": TYPE}


def added(distribution: Any, framework: Any = "pytorch", **more: Any) -> dict[str, Any]:
    """Hyperparameters of a distribution that the user need not be told about."""
    result = distribution_hyperparameters(distribution, framework, TYPE, **more)
    assert result.notices == ()
    return result.hyperparameters


def notices(distribution: Any, framework: Any = "pytorch") -> tuple[str, ...]:
    return distribution_hyperparameters(distribution, framework, TYPE).notices


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (None, {}),
        ({}, {}),
        (DATAPARALLEL, ADDS_DATAPARALLEL),
        (
            {"smdistributed": {"dataparallel": ON | {"custom_mpi_options": "-verbose"}}},
            ADDS_DATAPARALLEL
            | {"sagemaker_distributed_dataparallel_custom_mpi_options": "-verbose"},
        ),
        (MODELPARALLEL | MPI, ADDS_MODELPARALLEL | ADDS_MPI),
        (MPI, ADDS_MPI),
        (
            {"mpi": ON},
            {"sagemaker_mpi_enabled": True, "sagemaker_mpi_custom_mpi_options": ""},
        ),
        ({"parameter_server": ON}, {"sagemaker_parameter_server_enabled": True}),
    ],
)
def test_section_4_2_forms_of_both_frameworks(
    framework: str, distribution: Any, expected: dict[str, Any]
) -> None:
    assert added(distribution, framework) == expected


@pytest.mark.parametrize(
    ("framework", "distribution", "expected"),
    [
        ("pytorch", {"pytorchddp": ON}, ADDS_DDP),
        ("pytorch", TORCH, ADDS_TORCH),
        ("pytorch", TORCH | DATAPARALLEL, ADDS_TORCH | ADDS_DATAPARALLEL),
        ("pytorch", TORCH | MODELPARALLEL, ADDS_TORCH | ADDS_MODELPARALLEL),
        ("pytorch", TORCH | MODELPARALLEL | MPI, ADDS_TORCH | ADDS_MODELPARALLEL | ADDS_MPI),
        (
            "tensorflow",
            {"multi_worker_mirrored_strategy": ON},
            {"sagemaker_multi_worker_mirrored_strategy_enabled": True},
        ),
    ],
)
def test_section_4_2_forms_of_one_framework(
    framework: str, distribution: Any, expected: dict[str, Any]
) -> None:
    assert added(distribution, framework) == expected


@pytest.mark.parametrize(
    ("framework", "key"),
    [
        ("tensorflow", "pytorchddp"),
        ("tensorflow", "torch_distributed"),
        ("pytorch", "multi_worker_mirrored_strategy"),
    ],
)
def test_section_4_2_forms_of_the_other_framework_have_no_effect(framework: str, key: str) -> None:
    result = distribution_hyperparameters({key: ON} | MPI, framework, TYPE)  # type: ignore[arg-type]
    assert result.hyperparameters == ADDS_MPI
    (notice,) = result.notices
    assert f"{key} of distribution has no effect with {framework}" in notice


@pytest.mark.parametrize("settings", [ON, {}, True, None, ON | {"x": 1}])
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_section_4_2_pytorchxla_is_refused_by_name(settings: Any, framework: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"pytorchxla.*torch_distributed"):
        distribution_hyperparameters({"pytorchxla": settings}, framework, TYPE)


def test_pytorchxla_may_be_switched_off() -> None:
    assert added({"pytorchxla": OFF} | MPI) == ADDS_MPI


@pytest.mark.parametrize(
    "key",
    [
        "mpi",
        "pytorchddp",
        "torch_distributed",
        "parameter_server",
        "multi_worker_mirrored_strategy",
    ],
)
@pytest.mark.parametrize("settings", [OFF, {}])
def test_a_strategy_that_is_off_adds_nothing(key: str, settings: dict[str, bool]) -> None:
    assert added({key: settings}) == {}


@pytest.mark.parametrize("key", ["dataparallel", "modelparallel"])
def test_an_smdistributed_strategy_that_is_off_adds_nothing(key: str) -> None:
    assert added({"smdistributed": {key: OFF}}) == {}
    assert added({"smdistributed": {}}) == {}


def test_section_4_2_pytorchddp_wins_and_the_rest_is_silently_ignored() -> None:
    every = {"pytorchddp": ON, "wishes": 1, "parameter_server": ON} | TORCH | MODELPARALLEL | MPI
    assert added(every) == ADDS_DDP


def test_section_4_2_pytorchddp_that_is_off_wins_nothing() -> None:
    assert added({"pytorchddp": OFF} | MPI) == ADDS_MPI


def test_section_4_2_pytorchddp_forwards_custom_mpi_options() -> None:
    assert added({"pytorchddp": ON | {"custom_mpi_options": "-x A=1"}}) == ADDS_DDP | {
        "sagemaker_distributed_dataparallel_custom_mpi_options": "-x A=1"
    }


def test_torch_distributed_alone_starts_the_processes() -> None:
    result = distribution_hyperparameters(TORCH | MPI, "pytorch", TYPE)
    assert result.hyperparameters == ADDS_TORCH
    (notice,) = result.notices
    assert "mpi of distribution has no effect" in notice


@pytest.mark.parametrize("settings", [ON, ON | {"parameters": {}}])
def test_section_4_2_empty_parameters_are_not_sent(settings: dict[str, Any]) -> None:
    expected = ADDS_MODELPARALLEL | ADDS_MPI
    del expected["mp_parameters"]
    assert added({"smdistributed": {"modelparallel": settings}} | MPI) == expected


def test_section_4_2_parameters_are_a_dict_also_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "größe.json"
    path.write_text(json.dumps({"partitions": 2}), encoding="utf-8")
    settings = ON | {"parameters": str(path)}
    assert added({"smdistributed": {"modelparallel": settings}} | MPI) == (
        ADDS_MODELPARALLEL | ADDS_MPI
    )


@pytest.mark.parametrize(
    ("framework", "beside"),
    [
        ("pytorch", {}),
        ("pytorch", {"mpi": OFF}),
        ("pytorch", {"parameter_server": ON}),
        ("tensorflow", TORCH),
    ],
)
def test_modelparallel_needs_what_starts_its_processes(framework: Any, beside: Any) -> None:
    with pytest.raises(ValueError, match="modelparallel is enabled, but nothing that starts"):
        distribution_hyperparameters(MODELPARALLEL | beside, framework, TYPE)


def test_without_an_instance_type_none_is_sent() -> None:
    result = distribution_hyperparameters(TORCH | DATAPARALLEL, "pytorch")
    assert "sagemaker_instance_type" not in result.hyperparameters
    assert result.hyperparameters["sagemaker_torch_distributed_enabled"] is True


GROUPS = [InstanceGroup("cpu", "ml.c5.xlarge", 1), InstanceGroup("gpu", "ml.p3.16xlarge", 2)]


@pytest.mark.parametrize("group", [GROUPS[1], "gpu", InstanceGroup("gpu", "ml.p3.16xlarge", 2)])
@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (DATAPARALLEL, ADDS_DATAPARALLEL),
        (MODELPARALLEL | MPI, ADDS_MODELPARALLEL | ADDS_MPI),
        (MPI, ADDS_MPI),
        (TORCH, ADDS_TORCH),
        ({"pytorchddp": ON}, ADDS_DDP),
        ({"parameter_server": ON}, {"sagemaker_parameter_server_enabled": True}),
    ],
)
def test_section_4_2_any_with_instance_groups(group: Any, form: Any, expected: Any) -> None:
    given = form | {"instance_groups": [group]}
    result = distribution_hyperparameters(given, "pytorch", None, GROUPS)
    expected = expected | {"sagemaker_distribution_instance_groups": ["gpu"]}
    if "sagemaker_instance_type" in expected:
        expected["sagemaker_instance_type"] = "ml.p3.16xlarge"
    assert result == DistributionHyperparameters(expected)


def test_section_4_2_instance_groups_as_the_validation_returns_them() -> None:
    given = MPI | {"instance_groups": [GROUPS[1]]}
    checked = validate_distribution(given, GROUPS, "pytorch", None, None, "image", {})
    assert distribution_hyperparameters(
        checked, "pytorch", None, GROUPS
    ) == distribution_hyperparameters(given, "pytorch", None, GROUPS)


def test_a_single_group_need_not_be_named() -> None:
    result = distribution_hyperparameters(TORCH, "pytorch", None, GROUPS[1:])
    assert result.hyperparameters == {
        "sagemaker_torch_distributed_enabled": True,
        "sagemaker_instance_type": "ml.p3.16xlarge",
        "sagemaker_distribution_instance_groups": ["gpu"],
    }
    assert distribution_hyperparameters({}, "pytorch", None, GROUPS[1:]).hyperparameters == {}
    assert distribution_hyperparameters(MPI, "pytorch", None, GROUPS).hyperparameters == ADDS_MPI


@pytest.mark.parametrize(
    "framework_and_form", [("pytorch", {}), ("pytorch", {"mpi": OFF}), ("tensorflow", TORCH)]
)
def test_section_4_3_groups_need_a_strategy(framework_and_form: Any) -> None:
    framework, form = framework_and_form
    text = "Don't set training instance groups while no distribution strategies enabled!"
    with pytest.raises(ValueError, match=text):
        distribution_hyperparameters(form | {"instance_groups": ["gpu"]}, framework, None, GROUPS)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("-x A=1-x B=2", ["'A=1-x'"]),
        ("-x A=1-x B=2-x C=3", ["'A=1-x'", "'B=2-x'"]),
        ("-x A-x B=2", ["'A-x'"]),
        ("-x A=1--NCCL_DEBUG INFO", ["'A=1--NCCL_DEBUG'"]),
        ("-x ключ=1-x B", ["'ключ=1-x'"]),
        ("-x A=1 -x B=2", []),
        ("-x A=1-xy -x B=a-x-b --NCCL_DEBUG WARN", []),
        ("-x --NCCL_DEBUG WARN", []),
        ("", []),
        ("-mca btl_tcp_if_include eth-x", []),
    ],
)
@pytest.mark.parametrize("strategy", ["dataparallel", "mpi", "pytorchddp"])
def test_section_4_2_a_missing_space_is_told(strategy: str, options: str, named: list[str]) -> None:
    settings = ON | {"custom_mpi_options": options}
    form = {strategy: settings}
    result = distribution_hyperparameters(
        {"smdistributed": form} if strategy == "dataparallel" else form, "pytorch", TYPE
    )
    assert options in result.hyperparameters.values()  # it is sent as it is
    assert len(result.notices) == len(named)
    for notice, value in zip(result.notices, named, strict=True):
        assert f"custom_mpi_options of {strategy} sets {value}" in notice
        assert "a space is missing" in notice


@pytest.mark.parametrize("options", [5, True, ["-x", "A=1"], b"-x A=1"])
def test_custom_mpi_options_are_a_string(options: Any) -> None:
    with pytest.raises(ValueError, match="custom_mpi_options of mpi is"):
        distribution_hyperparameters({"mpi": ON | {"custom_mpi_options": options}}, "pytorch")


def test_custom_mpi_options_may_be_none() -> None:
    given = {"mpi": ON | {"custom_mpi_options": None, "processes_per_host": None}}
    assert added(given) == added({"mpi": ON})


@pytest.mark.parametrize("processes", [1, 8, 1000])
def test_section_4_2_processes_per_host_are_sent(processes: int) -> None:
    sent = added({"mpi": ON | {"processes_per_host": processes}})
    assert sent["sagemaker_mpi_num_of_processes_per_host"] == processes


@pytest.mark.parametrize("processes", [0, -1, True, "8", 2.0])
def test_processes_per_host_is_an_integer_from_1(processes: Any) -> None:
    with pytest.raises(ValueError, match="processes_per_host of mpi is"):
        distribution_hyperparameters({"mpi": ON | {"processes_per_host": processes}}, "pytorch")


@pytest.mark.parametrize(
    ("distribution", "text"),
    [
        ({"torch_distribute": ON}, "'torch_distribute' in distribution .*mean torch_distributed?"),
        ({"ß": ON}, "'ß' in distribution is no known key and has no effect. Known are mpi, "),
        ({5: ON}, "5 in distribution is no known key"),
        ({"mpi": ON | {"process_per_host": 8}}, "'process_per_host' in mpi .*processes_per_host?"),
        (TORCH | {"torch_distributed": ON | {"x": 1}}, "'x' in torch_distributed"),
    ],
)
def test_keys_that_nobody_knows_are_told(distribution: Any, text: str) -> None:
    (notice,) = notices(distribution)
    assert re.search(text.replace("?", r"\?"), notice)


@pytest.mark.parametrize("distribution", [5, "mpi", ["mpi"], True])
def test_a_distribution_is_a_dict(distribution: Any) -> None:
    with pytest.raises(ValueError, match=r"distribution is .*; expected a dict"):
        distribution_hyperparameters(distribution, "pytorch")


@pytest.mark.parametrize("framework", [None, "mxnet", "PyTorch", 5])
def test_a_framework_is_one_of_two(framework: Any) -> None:
    with pytest.raises(ValueError, match="expected one of pytorch, tensorflow"):
        distribution_hyperparameters(MPI, framework)


def test_nothing_of_the_caller_is_changed_or_shared() -> None:
    given = copy.deepcopy(MODELPARALLEL | MPI | {"instance_groups": [GROUPS[1]]})
    before = copy.deepcopy(given)
    result = distribution_hyperparameters(given, "pytorch", None, GROUPS)
    result.hyperparameters["mp_parameters"]["partitions"] = 5
    result.hyperparameters["sagemaker_distribution_instance_groups"].append("x")
    assert given == before


def test_none_is_the_empty_result() -> None:
    assert distribution_hyperparameters(None, "tensorflow") == DistributionHyperparameters({}, ())
