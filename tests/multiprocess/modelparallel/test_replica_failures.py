# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A replica that fails, or refuses its batch, ends the step on the others: soon, and they say why.

Two pipelines of two ranks; ranks 2 and 3 are the replica in which things go wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import run_ranks
from machine_speed import scaled
from torch import Tensor, nn

MICROBATCHES = 2
BATCH = 4
SOON_S = scaled(20.0)
DEADLINE_S = 160.0

Told = tuple[str, str, float]


class Net(nn.Module):
    """Two layers on two partitions, and buffers on one of them, both or none."""

    def __init__(self, with_buffers: str) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 4), *[nn.BatchNorm1d(4)] * ("0" in with_buffers))
        self.second = nn.Sequential(nn.Linear(4, 2), *[nn.BatchNorm1d(2)] * ("1" in with_buffers))
        self.fault = ""

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Job:
    """Of one rank; `bad` is what the second replica's leader passes in the step that fails."""

    def __init__(self, with_buffers: str = "", **parameters: Any) -> None:
        import smdistributed.modelparallel.torch as smp

        self.smp = smp
        by_hand = {"auto_partition": False, "default_partition": 0}
        if parameters.pop("auto", False):
            by_hand = {}
        smp.init(
            {"partitions": 2, "microbatches": MICROBATCHES, "ddp": True, **by_hand, **parameters}
        )
        torch.manual_seed(0)
        net = Net(with_buffers)
        smp.set_partition(net.second, smp.pp_size() - 1)
        self.model = smp.DistributedModel(net)
        self.fails_in = ""
        net.second.register_forward_pre_hook(self._maybe_fail)
        job = self

        @smp.step
        def train(x: Any) -> Tensor:
            if job.fails_in == "body":
                raise ValueError("in the body")
            loss: Tensor = job.model(x).pow(2).mean()
            if torch.is_grad_enabled():
                job.model.backward(loss)
            return loss

        self.train = train
        self.is_bad = smp.dp_rank() == 1

    def _maybe_fail(self, *_: Any) -> None:
        if self.fails_in == "module" and self.is_bad:
            raise ValueError("in a module")

    def step(self) -> None:
        self.train(torch.ones(BATCH, 3))

    def end(self) -> None:
        del self.model
        self.smp.reset()


def _told(step: Callable[[], Any]) -> Told:
    begin = time.monotonic()
    try:
        step()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "", "", time.monotonic() - begin


def _refuses(job: Job) -> None:
    job.train(torch.ones(BATCH - 1 if job.is_bad else BATCH, 3))


def _is_given_a_loader(job: Job) -> None:
    x = torch.ones(BATCH, 3)
    job.train(torch.utils.data.DataLoader(x) if job.is_bad else x)  # type: ignore[arg-type]


def _raises_in_the_body(job: Job) -> None:
    job.fails_in = "body" if job.is_bad else ""
    job.step()


def _raises_in_a_module(job: Job) -> None:
    job.fails_in = "module"
    job.step()


FAILURES: tuple[tuple[Callable[[Job], None], str], ...] = (
    (_refuses, "ValueError: Argument x of"),
    (_is_given_a_loader, "TypeError: Argument x of"),
    (_raises_in_the_body, "ValueError: in the body"),
    (_raises_in_a_module, "ValueError: in a module"),
)


def fails(rank: int, world_size: int, partitions: int) -> dict[str, Told]:
    """Each failure, in the first step and in a later one, with buffers here and there."""
    found = {}
    for with_buffers in ("", "0", "1"):
        for failure, _ in FAILURES:
            for num_before in (0, 2):
                job = Job(with_buffers, partitions=partitions)
                for _ in range(num_before):
                    job.step()
                name = f"{failure.__name__}, buffers on {with_buffers!r}, after {num_before}"
                found[name] = _told(lambda job=job, failure=failure: failure(job))  # type: ignore[misc]
                job.end()
    job = Job(partitions=partitions)  # and the processes are as good as new
    job.step()
    job.end()
    return found


@pytest.mark.timeout(DEADLINE_S + 20)
@pytest.mark.parametrize(("partitions", "ranks"), [(2, 4), (1, 2)])
def test_a_failure_of_one_replica_ends_the_step_on_all(partitions: int, ranks: int) -> None:
    everyone = run_ranks(fails, ranks, partitions, deadline_s=DEADLINE_S)
    words_of = {failure.__name__: words for failure, words in FAILURES}
    culprits = list(range(partitions, ranks))
    shown = ", ".join(map(str, culprits))
    for rank, found in enumerate(everyone):
        for name, (kind, text, seconds) in found.items():
            words = words_of[name.partition(",")[0]]
            where = f"rank {rank}, {name}: {kind}: {text}"
            assert seconds < SOON_S, where
            if rank == culprits[0]:
                assert f"{kind}: {text}".startswith(words), where
                continue
            assert kind == "StepAborted", where
            assert words in text, where
            if rank not in culprits:
                assert f"on the replica of rank{'s' if partitions > 1 else ''} {shown};" in text
                assert any(f"rank {culprit} says" in text for culprit in culprits), where
                assert "call smp.reset()" in text, where


def rank_0_refuses_at_first(rank: int, world_size: int) -> Told:
    """Before the partition is decided; nothing has ended, so the next batch is taken."""
    job = Job(auto=True)
    job.is_bad = job.smp.dp_rank() == 0
    told = _told(lambda: _refuses(job))
    assert not job.model.partitioned
    job.step()
    job.step()
    job.end()
    return told


@pytest.mark.timeout(80)
def test_a_batch_that_is_refused_before_the_partition_is_told_to_all() -> None:
    for rank, (kind, text, seconds) in enumerate(
        run_ranks(rank_0_refuses_at_first, 4, deadline_s=60)
    ):
        assert kind == ("ValueError" if rank == 0 else "StepAborted")
        assert rank == 0 or "rank 0 could not decide how: ValueError: Argument x of" in text
        assert seconds < SOON_S


def refuses_in_a_test(rank: int, world_size: int) -> Told:
    """Without gradients nobody waits for a replica: the others, and the next steps, go on."""
    job = Job("0")
    job.step()
    with torch.no_grad():
        told = _told(lambda: _refuses(job))
    job.step()
    job.end()
    return told


@pytest.mark.timeout(80)
def test_a_batch_that_is_refused_without_gradients_is_of_one_replica_only() -> None:
    told = run_ranks(refuses_in_a_test, 4, deadline_s=60)
    assert [kind for kind, _, _ in told] == ["", "", "ValueError", "StepAborted"]
