# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Names that scripts, debuggers and training toolkits look for (specification, section 0)."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest
from machine_speed import scaled

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel import exceptions
from smdistributed.modelparallel.torch.job import communication, ranks


@pytest.mark.usefixtures("alone")
def test_rmsg_puts_the_rank_in_front() -> None:
    assert smp.utils.rmsg("loading") == "loading"
    smp.init()
    assert smp.rmsg("loading") == smp.utils.rmsg("loading") == "rank 0: loading"


@pytest.mark.usefixtures("alone")
def test_core_says_whether_init_has_run() -> None:
    assert smp.core.initialized is smp.is_initialized() is False
    smp.init()
    assert smp.core.initialized is smp.is_initialized() is True
    smp.reset()
    assert smp.core.initialized is False
    assert not hasattr(smp.core, "finalized")


@pytest.mark.parametrize(
    "module",
    [
        "smdistributed.modelparallel.torch.exceptions",
        "smdistributed.modelparallel.backend.exceptions",
    ],
)
def test_the_exceptions_are_those_of_the_library_and_no_others(module: str) -> None:
    shown = importlib.import_module(module)
    assert {
        name: value for name in dir(shown) if inspect.isclass(value := getattr(shown, name))
    } == {
        name: value
        for name in dir(exceptions)
        if inspect.isclass(value := getattr(exceptions, name))
    }


def test_a_toolkit_without_a_framework_finds_the_exceptions() -> None:
    module = "smdistributed.modelparallel.backend.exceptions"
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=scaled(60)).returncode == 0


def test_what_the_modules_offer_is_offered_by_the_package() -> None:
    for module in (communication, ranks):
        for name in module.__all__:
            assert getattr(smp, name) is getattr(module, name)
            assert name in smp.__all__
    assert len(set(smp.__all__)) == len(smp.__all__)
    assert all(hasattr(smp, name) for name in smp.__all__)


def test_members_of_the_enumerations_are_names_of_the_package() -> None:
    assert [member.name for member in smp.CommGroup] == [
        "WORLD",
        "MP_GROUP",
        "DP_GROUP",
        "PP_GROUP",
        "TP_GROUP",
        "RDP_GROUP",
    ]
    assert [member.name for member in smp.RankType] == [
        "WORLD_RANK",
        "MP_RANK",
        "DP_RANK",
        "PP_RANK",
        "TP_RANK",
        "RDP_RANK",
    ]
    for member in (*smp.CommGroup, *smp.RankType):
        assert getattr(smp, member.name) is member
