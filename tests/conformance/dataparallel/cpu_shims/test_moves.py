# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Without a GPU: text as a device index, `set_device` and `.cuda()`.

Source: dataparallel specification, section 4.6, rows 1 to 3 of its table; the words that a test
checks stand with it.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.conformance.dataparallel.cpu_shims.runs import (
    ALL_MODES,
    NO_CUDA,
    TEST_TIMEOUT_S,
    error_of,
    import_library,
    in_mode,
    needs_no_cuda,
)

pytestmark = pytest.mark.timeout(TEST_TIMEOUT_S)


# Row 1: "decimal strings become ints. Installed always".


def take_text_indexes(rank: int, world_size: int, is_cuda_there: bool) -> list[Any]:
    """With torch's functions replaced by ones that note what reaches them."""
    seen: list[Any] = []
    torch.cuda.is_available = lambda: is_cuda_there
    torch.cuda.set_device = seen.append
    nn.Module.cuda = lambda self, device=None: seen.append(device)
    torch.Tensor.cuda = lambda self, device=None, **kwargs: seen.append(device)
    import_library()
    for device in ("0", "12", 3, "cuda:1", None):
        torch.cuda.set_device(device)
        nn.Linear(1, 1).cuda(device)
        torch.ones(1).cuda(device, non_blocking=True)
    return seen


NUMBERS = [0, 0, 0, 12, 12, 12, 3, 3, 3, "cuda:1", "cuda:1", "cuda:1", None, None, None]


@pytest.mark.fresh  # it replaces functions of torch before the import
@pytest.mark.parametrize("mode", ALL_MODES)
def test_decimal_strings_become_ints_in_every_mode_where_cuda_is(mode: str) -> None:
    assert in_mode(mode, take_text_indexes, True) == [NUMBERS]


def test_off_disables_all_but_the_string_case() -> None:
    assert in_mode("off", take_text_indexes, False) == [NUMBERS]


def raise_torchs_own_errors(rank: int, world_size: int) -> None:
    import_library()
    model = nn.Linear(1, 1)
    device = torch.device("cuda", 0)
    torch.distributed.init_process_group("smddp")
    assert "Invalid device string" not in error_of(lambda: torch.cuda.set_device("0"))
    assert error_of(lambda: torch.cuda.set_device(0)) != ""
    assert error_of(lambda: torch.cuda.set_device(0)) == error_of(
        lambda: torch.cuda.set_device("0")
    )
    assert NO_CUDA.search(error_of(model.cuda))
    assert NO_CUDA.search(error_of(torch.ones(1).cuda))
    assert "ValueError" in error_of(lambda: DistributedDataParallel(model, device_ids=[0]))
    assert error_of(lambda: model.to(device)) != ""
    assert not torch.cuda.is_available()


@needs_no_cuda
def test_off_leaves_torchs_own_errors() -> None:
    in_mode("off", raise_torchs_own_errors)


# Rows 2 and 3, in `auto` and `full`.


def set_device_and_move(rank: int, world_size: int) -> None:
    records = import_library()
    for device in (rank, str(rank), f"cuda:{rank}", torch.device("cuda", rank)):
        assert torch.cuda.set_device(device) is None
    model, tensor = nn.Linear(2, 2), torch.ones(2, requires_grad=True)
    before = list(model.parameters())
    for arguments in ((), (rank,), (str(rank),), (f"cuda:{rank}",), (torch.device("cuda"),)):
        assert model.cuda(*arguments) is model
        assert tensor.cuda(*arguments) is tensor
    assert tensor.cuda(rank, non_blocking=True) is tensor
    assert all(one is other for one, other in zip(before, model.parameters(), strict=True))
    texts = [record.getMessage() for record in records if record.levelno == logging.INFO]
    for name in ("set_device()", "Module.cuda()", "Tensor.cuda()"):
        assert len([text for text in texts if name in text]) == (1 if rank == 0 else 0), texts


@needs_no_cuda
@pytest.mark.parametrize("mode", ["auto", "full"])
def test_without_cuda_set_device_is_a_no_op_and_cuda_returns_self_and_each_logs_once(
    mode: str,
) -> None:
    in_mode(mode, set_device_and_move, ranks=2)
