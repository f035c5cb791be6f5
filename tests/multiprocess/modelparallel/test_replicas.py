# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Replicas of a pipeline: accumulation, hooks, buffers and uneven numbers of steps, on 2 x 2 ranks.

Source: modelparallel specification, sections 3.9, 3.10 and 4.4.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from torch import Tensor, nn

MICROBATCHES = 2
BATCH = 4
TOLERANCE = 1e-6

Check = Callable[[], None]


class Net(nn.Module):
    """Two layers on two partitions, the second with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Job:
    """A model, its twin in one piece, and batches: row r of step s is replica r's."""

    def __init__(self, **options: Any) -> None:
        import smdistributed.modelparallel.torch as smp

        self.smp = smp
        torch.manual_seed(0)
        self.plain = Net()
        net = copy.deepcopy(self.plain)
        smp.set_partition(net.second, 1)
        self.model = smp.DistributedModel(net, **options)
        self.x = torch.randn(6, 2, BATCH, 3)
        self.y = torch.randn(6, 2, BATCH, 2)
        model = self.model

        @smp.step
        def train(x: Tensor, y: Tensor) -> Tensor:
            loss = nn.functional.mse_loss(model(x), y)
            model.backward(loss)
            return loss

        self.train = train

    def step(self, number: int) -> None:
        replica = self.smp.dp_rank()
        self.train(self.x[number, replica], self.y[number, replica])

    def expected(self, steps: list[int], replicas: list[int], scale: float) -> dict[str, Tensor]:
        """Gradients of the twin: sums over these steps, replicas and microbatches, scaled."""
        plain = copy.deepcopy(self.plain)
        for number in steps:
            for replica in replicas:
                batches = zip(
                    self.x[number, replica].chunk(MICROBATCHES),
                    self.y[number, replica].chunk(MICROBATCHES),
                    strict=True,
                )
                for x, y in batches:
                    (nn.functional.mse_loss(plain(x), y) * scale).backward()
        return {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}

    def compare(self, expected: dict[str, Tensor]) -> None:
        names = []
        for name, parameter in self.model.local_named_parameters():
            assert parameter.grad is not None, name
            torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=TOLERANCE)
            names.append(name)
        assert names


def check_means_over_replicas_and_microbatches() -> None:
    """Two steps add up."""
    job = Job()
    job.step(0)
    job.step(1)
    job.compare(job.expected([0, 1], [0, 1], 1 / (2 * MICROBATCHES)))


def check_without_overlap() -> None:
    """All buckets at the step's end."""
    job = Job(overlapping_allreduce=False)
    for number in range(3):
        job.model.zero_grad()
        job.step(number)
        job.compare(job.expected([number], [0, 1], 1 / (2 * MICROBATCHES)))


def check_no_sync() -> None:
    """Gradients stay the replica's own in the block; the next step reduces the sums."""
    job = Job()
    with job.model.no_sync():
        job.step(0)
    job.compare(job.expected([0], [job.smp.dp_rank()], 1 / MICROBATCHES))
    job.step(1)
    job.compare(job.expected([0, 1], [0, 1], 1 / (2 * MICROBATCHES)))


def check_every_second_step() -> None:
    """`backward_passes_per_step`."""
    job = Job(backward_passes_per_step=2)
    job.step(0)
    job.compare(job.expected([0], [job.smp.dp_rank()], 1 / MICROBATCHES))
    job.step(1)
    job.compare(job.expected([0, 1], [0, 1], 1 / (2 * MICROBATCHES)))


def check_a_hook_averages_over_both() -> None:
    """It gets sums over microbatches of one replica, and what it returns is the gradient."""
    job = Job()

    def hook(state, bucket):  # type: ignore[no-untyped-def] # torch reads annotations
        state.append(bucket.index())
        buffer = bucket.buffer()
        work = dist.all_reduce(buffer, group=job.smp.get_dp_process_group(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / (2 * MICROBATCHES))

    seen: list[int] = []
    job.model.register_comm_hook(seen, hook)
    for number in range(2):
        job.model.zero_grad()
        job.step(number)
        job.compare(job.expected([number], [0, 1], 1 / (2 * MICROBATCHES)))
    assert seen
    with pytest.raises(RuntimeError, match="called twice"):
        job.model.register_comm_hook(seen, hook)


def check_buffers_are_those_of_the_first_replica() -> None:
    """Running statistics differ after a step, as batches do, until the next one begins."""
    job = Job()
    job.step(0)
    job.step(1)
    gathered = job.smp.allgather(
        {name: buffer.clone() for name, buffer in job.model.local_named_buffers()},
        job.smp.DP_GROUP,
    )
    plain = copy.deepcopy(job.plain)
    expected = []
    for replica in range(2):
        twin = copy.deepcopy(plain)
        for number, of in ((0, 0), (1, replica)):  # the first step's are replica 0's
            for x in job.x[number, of].chunk(MICROBATCHES):
                twin(x)
        expected.append(dict(twin.named_buffers()))
    for found, wanted in zip(gathered, expected, strict=True):
        for name, buffer in found.items():
            torch.testing.assert_close(buffer, wanted[name])


def check_functions_of_different_habits() -> None:
    """One goes back once in each microbatch, the other twice: neither foresees for the other."""
    job = Job(broadcast_buffers=False)
    job.model.eval()
    job.plain.eval()
    model = job.model

    @job.smp.step
    def twice(x: Tensor, y: Tensor) -> None:
        for _ in range(2):
            model.backward(nn.functional.mse_loss(model(x), y))

    for number, is_twice in enumerate((False, False, True, False, True, True)):
        model.zero_grad()
        if is_twice:
            twice(job.x[number, job.smp.dp_rank()], job.y[number, job.smp.dp_rank()])
        else:
            job.step(number)
        scale = (2 if is_twice else 1) / (2 * MICROBATCHES)
        job.compare(job.expected([number], [0, 1], scale))


def check_replicas_with_fewer_batches_join() -> None:
    """Replica 0 takes three steps, the other one."""
    job = Job()
    job.step(0)
    with job.model.join():
        for number in range(1, 3 if job.smp.dp_rank() == 0 else 1):
            job.model.zero_grad()
            job.step(number)
    if job.smp.dp_rank() == 0:  # torch divides by the number of replicas at the beginning
        job.compare(job.expected([2], [0], 1 / (2 * MICROBATCHES)))


def runs(rank: int, world_size: int) -> list[str]:
    """All checks, one after the other; returns what failed."""
    import traceback

    import smdistributed.modelparallel.torch as smp

    failed = []
    for name, check in list(globals().items()):
        if not name.startswith("check_"):
            continue
        smp.init(
            {
                "partitions": 2,
                "microbatches": MICROBATCHES,
                "ddp": True,
                "auto_partition": False,
                "default_partition": 0,
            }
        )
        try:
            check()
        except AssertionError:
            failed.append(f"{name}: {traceback.format_exc()}")
        smp.barrier()
        smp.reset()
    return failed


@pytest.mark.timeout(240)
def test_replicas() -> None:
    for failed in run_ranks(runs, 4, deadline_s=200):
        assert not failed, "\n".join(failed)
