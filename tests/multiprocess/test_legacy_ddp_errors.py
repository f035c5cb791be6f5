# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a backward of the legacy DistributedDataParallel is told on every rank."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_models import WIDTH
from ddp_training import assert_same_bits, loss_of
from harness import RankOutcome, run_ranks
from torch import Tensor, nn
from torch_ranks import raised, smddp


def dies_in_backward(rank: int, world_size: int) -> tuple[str, str]:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    class Fatal(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            os.kill(os.getpid(), signal.SIGKILL)
            return grad

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)
            self.last = nn.Linear(WIDTH, 2)
            self.is_fatal = False

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            result: Tensor = self.last(Fatal.apply(h) if self.is_fatal else h)
            return result

    with _ended_by_error():
        ddp = DistributedDataParallel(Model(), bucket_cap_mb=1 / 8192)
        loss_of(ddp, 0).backward()
        ddp.module.is_fatal = rank == 1
        name, text, _ = raised(loss_of(ddp, 1).backward)
        later, _, _ = raised(lambda: loss_of(ddp, 2).backward())
        assert later == name
    return name, text


@contextlib.contextmanager
def _ended_by_error() -> Iterator[None]:
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

    dist.init_process_group("smddp")
    yield
    dist.destroy_process_group()


def test_a_rank_that_dies_during_backward_ends_it_everywhere() -> None:
    outcomes: list[RankOutcome] = run_ranks(dies_in_backward, 3, check=False, deadline_s=60)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for rank in (0, 2):
        assert outcomes[rank].ok, outcomes[rank]
        name, text = outcomes[rank].value
        assert name == "SMDDPPeerLost"
        assert "rank 1" in text


def unused_on_one_rank(rank: int, world_size: int, does_evaluate: bool) -> tuple[str, str]:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always = nn.Linear(WIDTH, WIDTH)
            self.sometimes = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            h: Tensor = self.always(x)
            return h if rank == 1 else self.sometimes(h)

    with _ended_by_error():
        ddp = DistributedDataParallel(Model(), bucket_cap_mb=1 / 8192)

        def two_steps() -> None:
            ddp(torch.ones(1, WIDTH)).sum().backward()
            with torch.set_grad_enabled(not does_evaluate):
                ddp(torch.ones(1, WIDTH)).sum()

        name, text, _ = raised(two_steps)
    return name, text


@pytest.mark.parametrize("does_evaluate", [False, True])
def test_a_parameter_unused_on_one_rank_fails_on_all_with_its_name(does_evaluate: bool) -> None:
    told = run_ranks(unused_on_one_rank, 2, does_evaluate)
    assert told[1][0] == "SMDDPMismatch"
    assert told[0][0] == "SMDDPPeerLost"
    for _, text in told:
        assert "sometimes.weight" in text
        assert "find_unused_parameters=True" in text


def recovers(rank: int, world_size: int) -> None:
    """An error of the user's in backward, on all ranks, before anything was sent."""
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            raise ArithmeticError("on purpose")

    with smddp():
        ddp = DistributedDataParallel(nn.Linear(WIDTH, 2), find_unused_parameters=True)
        name, _, _ = raised(Failing.apply(ddp(torch.ones(1, WIDTH))).sum().backward)
        assert name == "ArithmeticError"
        loss_of(ddp, 0).backward()
        assert_same_bits({"grad": ddp.module.weight.grad})


def test_an_error_of_the_users_in_backward_can_be_survived() -> None:
    run_ranks(recovers, 2)


def gradient_too_late(rank: int, world_size: int) -> tuple[str, str]:
    """Two backwards of one forward share a trunk, whose bucket went with the first."""
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    class Trunk(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(WIDTH, 2)
            self.other = nn.Linear(WIDTH, 2)
            self.trunk = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.trunk(x)
            return self.head(h), self.other(h)

    with smddp():
        ddp = DistributedDataParallel(Trunk(), bucket_cap_mb=1 / 8192)
        one, two = ddp(torch.ones(1, WIDTH))
        one.sum().backward(retain_graph=True)
        name, text, _ = raised(two.sum().backward)
    return name, text


def test_a_second_gradient_for_a_bucket_that_has_gone_is_an_error() -> None:
    for name, text in run_ranks(gradient_too_late, 2):
        assert name == "SMDDPUnsupported"
        assert "parameter trunk." in text
        assert "find_unused_parameters=True" in text
