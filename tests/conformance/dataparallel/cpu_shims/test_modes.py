# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where the shims are installed, by mode, and that installing them can be repeated and undone.

Source: dataparallel specification, sections 4.1 and 4.6; the words that a test checks stand with
it.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.conformance.dataparallel.cpu_shims.runs import (
    ALL_MODES,
    NO_CUDA,
    ONE_RANK,
    TEST_TIMEOUT_S,
    import_library,
    in_mode,
    needs_no_cuda,
    run_python,
)

pytestmark = pytest.mark.timeout(TEST_TIMEOUT_S)


# "`auto` = active only when torch.cuda.is_available() is False and the process is one of our
# launched or discovered distributed processes".

SHOW_WHAT_IS_WRAPPED = f"""
import re
import torch
import smdistributed.dataparallel.torch.torch_smddp
from torch.nn.parallel import DistributedDataParallel
model = torch.nn.Linear(1, 1)
try:
    print("cuda", model.cuda() is model)
except (AssertionError, RuntimeError) as error:
    print("no cuda" if re.search({NO_CUDA.pattern!r}, str(error)) else error)
"""


@needs_no_cuda
@pytest.mark.parametrize(
    ("mode", "environ", "expected"),
    [
        ("auto", {}, "no cuda"),
        ("auto", ONE_RANK, "cuda True"),
        (
            "auto",
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
            "cuda True",
        ),
        ("full", {}, "cuda True"),
        ("off", ONE_RANK, "no cuda"),
    ],
)
def test_auto_needs_a_distributed_process_and_full_is_asked_for(
    mode: str, environ: dict[str, str], expected: str
) -> None:
    environ = environ | {"SMDDP_CPU_SHIM": mode}
    done = run_python(["-c", SHOW_WHAT_IS_WRAPPED], environ=environ)
    assert done.stdout.strip() == expected, done.stderr


@needs_no_cuda  # with a device, `.cuda()` succeeds in every mode
def test_auto_is_the_default() -> None:
    done = run_python(["-c", SHOW_WHAT_IS_WRAPPED], environ=ONE_RANK)
    assert done.stdout.strip() == "cuda True", done.stderr


def test_a_wrong_mode_is_told_at_the_import() -> None:
    environ = {**ONE_RANK, "SMDDP_CPU_SHIM": "yes"}
    done = run_python(["-c", SHOW_WHAT_IS_WRAPPED], environ=environ)
    assert "SMDDPConfigInvalid: SMDDP_CPU_SHIM='yes' is not allowed" in done.stderr
    assert "auto, off, full" in done.stderr


def pretend_cuda(rank: int, world_size: int) -> list[str]:
    """Which functions of torch the import replaces, and whether it asks for CUDA, if CUDA is."""
    asked: list[None] = []

    def is_available() -> bool:
        asked.append(None)
        return True

    torch.cuda.is_available = is_available
    device_ids: list[Any] = []
    init = DistributedDataParallel.__init__
    DistributedDataParallel.__init__ = lambda self, module, *arguments: device_ids.append(arguments)
    import_library()
    assert not asked, "the import has asked for CUDA, which starts the driver"
    DistributedDataParallel(nn.Linear(1, 1), [0], 0)
    assert device_ids == [([0], 0)]
    DistributedDataParallel.__init__ = init
    return [name for name in ("to", "new_zeros") if name in vars(torch.Tensor)]


@pytest.mark.fresh  # it replaces functions of torch before the import
def test_auto_changes_nothing_where_cuda_is() -> None:
    assert in_mode("auto", pretend_cuda) == [[]]


def pretend_cuda_in_full(rank: int, world_size: int) -> None:
    torch.cuda.is_available = lambda: True
    count = torch.cuda.device_count
    records = import_library()
    assert "to" not in vars(torch.Tensor)
    assert torch.cuda.device_count is count
    (warning,) = [record for record in records if record.levelno == logging.WARNING]
    assert "smddprun --cpu" in warning.getMessage()


def test_full_where_cuda_is_says_that_it_has_no_effect() -> None:
    in_mode("full", pretend_cuda_in_full)


# Section 4.1: the import installs the shims, "idempotently", and prints nothing.


def snapshot() -> dict[str, Any]:
    """What the shims may replace, without the export functions: `adoption.watch` wraps those."""
    owners = (torch, torch.cuda, torch.Tensor, nn.Module, DistributedDataParallel)
    return {
        f"{owner} {name}": value
        for owner in owners
        for name, value in vars(owner).items()
        if name not in ("__dlpack__", "to_dlpack")
    }


def install_twice_and_undo(rank: int, world_size: int) -> None:
    import smdistributed.dataparallel.torch.registration  # noqa: F401 (adds no shim)
    from smdistributed.dataparallel.torch import shims

    before = snapshot()
    import_library()
    once = snapshot()
    threads = [threading.Thread(target=shims.install) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert snapshot() == once
    assert once != before
    shims.uninstall()
    after = snapshot()
    assert {name for name in before if before[name] is not after.get(name)} == set()
    assert set(after) == set(before)
    shims.uninstall()
    shims.install()
    assert set(snapshot()) == set(once)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_installing_is_idempotent_thread_safe_and_can_be_undone(mode: str) -> None:
    in_mode(mode, install_twice_and_undo)


@needs_no_cuda
@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_import_prints_nothing(mode: str) -> None:
    code = "import smdistributed.dataparallel.torch.torch_smddp"
    done = run_python(["-c", code], environ={**ONE_RANK, "SMDDP_CPU_SHIM": mode})
    assert (done.stdout, done.stderr) == ("", "")
