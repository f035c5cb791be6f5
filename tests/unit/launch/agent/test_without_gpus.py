# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Section 4.4: hosts that have none of the GPUs that their instance type names."""

from __future__ import annotations

import pytest

from smdistributed.launch.agent.without_gpus import on_cpus
from smdistributed.launch.environment import CPU_ONLY


def found(
    environ: dict[str, str],
    instance_type: str = "ml.p3.16xlarge",
    num_gpus: int = 0,
    *,
    has_shim: bool = True,
    is_torch: bool = True,
) -> tuple[dict[str, str], str]:
    return on_cpus(environ, instance_type, num_gpus, 8, has_shim=has_shim, is_torch=is_torch)


def test_the_shims_are_on_where_the_gpus_are_missing() -> None:
    variables, said = found({"A": "1"})
    assert variables == {"A": "1", **CPU_ONLY}
    assert said == (
        "ml.p3.16xlarge names 8 GPU(s) and this host has none: 8 processes on each host, on CPUs,"
        " with the CPU shims (SMDDP_CPU_SHIM=full); cpu_shim=False leaves them out"
    )


@pytest.mark.parametrize(("instance_type", "num_gpus"), [("ml.p3.16xlarge", 8), ("local", 0)])
def test_nothing_is_special_elsewhere(instance_type: str, num_gpus: int) -> None:
    assert found({"A": "1"}, instance_type, num_gpus) == ({"A": "1"}, "")


@pytest.mark.parametrize("mode", ["auto", "off", "full"])
def test_what_the_user_has_said_of_the_shims_wins(mode: str) -> None:
    environ = {"SMDDP_CPU_SHIM": mode}
    variables, said = found(environ)
    assert variables == environ
    assert f"SMDDP_CPU_SHIM={mode} as given" in said


def test_they_can_be_left_out() -> None:
    variables, said = found({}, has_shim=False)
    assert variables == {}
    assert "without the CPU shims" in said


def test_other_frameworks_have_none() -> None:
    variables, said = found({}, is_torch=False)
    assert variables == {}
    assert said.endswith("8 processes on each host, on CPUs")
