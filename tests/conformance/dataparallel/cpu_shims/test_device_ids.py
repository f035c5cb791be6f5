# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Without a GPU: `device_ids` of both wrapper classes, and wrapping before moving.

Source: dataparallel specification, section 4.6, row 4 of its table, and section 5.2.
"""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.conformance.dataparallel.cpu_shims.runs import (
    TEST_TIMEOUT_S,
    import_library,
    in_mode,
    needs_no_cuda,
)

pytestmark = pytest.mark.timeout(TEST_TIMEOUT_S)


def train_with_device_ids(rank: int, world_size: int) -> list[float]:
    records = import_library()
    torch.distributed.init_process_group("smddp")
    torch.manual_seed(0)
    for arguments in (
        {"device_ids": [rank]},
        {"device_ids": [rank], "output_device": rank},
        {"device_ids": [0, 1]},
        {"output_device": rank},
    ):
        model = DistributedDataParallel(nn.Linear(3, 1), **arguments)
        assert model.device_ids is None
        assert model.output_device is None
    # By position, and with the arguments that follow in their places.
    model = DistributedDataParallel(nn.Linear(3, 1), [rank], rank, 0, bucket_cap_mb=1)
    model(torch.full((1, 3), float(rank))).sum().backward()
    warned = [record for record in records if record.levelno == logging.WARNING]
    if rank == 0:
        (warning,) = warned
        assert "device_ids=[0] left out" in warning.getMessage()
    else:
        assert not warned
    return [float(value) for value in model.module.weight.grad.flatten()]


@needs_no_cuda
@pytest.mark.parametrize("mode", ["auto", "full"])
def test_device_ids_of_a_cpu_module_are_dropped_with_one_warning(mode: str) -> None:
    # The gradient of the weights is the input: the mean of 0 and 1.
    assert in_mode(mode, train_with_device_ids, ranks=2) == [[0.5] * 3] * 2


def wrap_by_legacy_class(rank: int, world_size: int) -> list[str]:
    """The warnings that wrapping three times gives."""
    records = import_library()
    import smdistributed.dataparallel.torch.distributed as legacy
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Legacy

    legacy.init_process_group()
    for arguments in (
        {"device_ids": [rank]},
        {"device_ids": [rank], "output_device": rank},
        {"output_device": rank},
    ):
        model = Legacy(nn.Linear(3, 1), **arguments)
        assert model.device_ids is None
        assert model.output_device is None
    model(torch.ones(1, 3)).sum().backward()
    assert model.module.weight.grad.tolist() == [[1.0] * 3]
    legacy.destroy_process_group()
    return [record.getMessage() for record in records if record.levelno == logging.WARNING]


@needs_no_cuda
@pytest.mark.parametrize("mode", ["auto", "full"])
def test_the_legacy_class_drops_device_ids_too_and_warns_once(mode: str) -> None:
    """Sections 4.6 and 5.2, row `device_ids`: "on CPU see 4.6"."""
    ((warning,),) = in_mode(mode, wrap_by_legacy_class)
    assert "device_ids=[0] left out" in warning


def move_after_wrapping(rank: int, world_size: int, is_full: bool) -> list[float]:
    """The gradient after the published sample's order: wrap, set the device, move."""
    import_library()
    import smdistributed.dataparallel.torch.distributed as legacy
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Legacy

    legacy.init_process_group()
    model = Legacy(nn.Linear(3, 1))
    local_rank = legacy.get_local_rank()
    torch.cuda.set_device(local_rank)
    assert model.cuda(local_rank) is model
    if is_full:
        assert model.to(torch.device("cuda", local_rank)) is model
    model(torch.full((1, 3), float(rank))).sum().backward()
    gradient = [float(value) for value in model.module.weight.grad.flatten()]
    legacy.destroy_process_group()
    return gradient


@needs_no_cuda
@pytest.mark.parametrize("mode", ["auto", "full"])
def test_wrap_then_move_keeps_the_hooks(mode: str) -> None:
    """Section 5.2, wrap-then-move: "MUST NOT lose hooks when the move is a no-op"."""
    # The gradient of the weights is the input: the mean of 0 and 1.
    assert in_mode(mode, move_after_wrapping, mode == "full", ranks=2) == [[0.5] * 3] * 2


def wrap_without_device_ids(rank: int, world_size: int) -> None:
    records = import_library()
    torch.distributed.init_process_group("smddp")
    DistributedDataParallel(nn.Linear(1, 1))
    DistributedDataParallel(nn.Linear(1, 1), device_ids=[])
    DistributedDataParallel(nn.Linear(1, 1), device_ids=None, output_device=None)
    assert not [record for record in records if record.levelno == logging.WARNING]


def test_nothing_is_said_where_no_device_ids_are_given() -> None:
    in_mode("auto", wrap_without_device_ids)
