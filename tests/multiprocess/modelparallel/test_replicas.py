# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Replicas: accumulation, hooks, buffers, uneven numbers of steps, late changes, on 4 ranks.

Checks are of 2 pipelines of 2 ranks; those called `undivided_` of 4 replicas of one partition.

Source: modelparallel specification, sections 3.9, 3.10, 4.4 and 8.
"""

from __future__ import annotations

import copy
import functools
import gc
import weakref
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


def check_a_replica_goes_back_in_fewer_steps() -> None:
    """Its second step would be averaged with the other's first one."""
    from smdistributed.modelparallel.exceptions import SMPError

    job = Job(broadcast_buffers=False)
    model = job.model
    optimizer = job.smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    job.step(0)
    optimizer.step()

    @job.smp.step
    def goes_back_here(x: Tensor, y: Tensor, is_training: bool) -> None:
        loss = nn.functional.mse_loss(model(x), y)
        if is_training:
            model.backward(loss)

    replica = job.smp.dp_rank()
    if replica == 0:
        goes_back_here(job.x[1, replica], job.y[1, replica], False)
        optimizer.step()
    with pytest.raises(SMPError, match=r"gradients of different steps were averaged over replicas"):
        goes_back_here(job.x[2, replica], job.y[2, replica], True)


def check_updates_after_a_join() -> None:
    """Replica 0 has updated more often, and that is no mistake."""
    job = Job(broadcast_buffers=False)
    optimizer = job.smp.DistributedOptimizer(torch.optim.SGD(job.model.parameters(), lr=0.0))
    job.step(0)
    with job.model.join():
        for number in range(3 if job.smp.dp_rank() == 0 else 1):
            optimizer.zero_grad()
            job.step(number)
            optimizer.step()
    optimizer.zero_grad()
    job.step(3)
    job.compare(job.expected([3], [0, 1], 1 / (2 * MICROBATCHES)))


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


class Undivided:
    """A model in one partition, its twin, and the twin's update by means over replicas."""

    def __init__(self, net: nn.Module, **options: Any) -> None:
        import smdistributed.modelparallel.torch as smp

        self.smp = smp
        self.plain = copy.deepcopy(net)
        self.model = smp.DistributedModel(net, **options)
        make = functools.partial(torch.optim.SGD, lr=0.1)
        self.optimizer = smp.DistributedOptimizer(make(self.model.parameters()))
        self.reference = make(self.plain.parameters())
        model = self.model

        @smp.step
        def train(x: Tensor) -> None:
            model.backward(model(x).float().pow(2).mean())

        self.train = train

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)  # zeros are no gradients either
        self.reference.zero_grad()

    def update_and_compare(self, inputs: list[Tensor], what: str) -> None:
        """After backward passes of these, by replica; those that are None had none."""
        self.optimizer.step()
        for x in inputs:
            (self.plain(x).float().pow(2).mean() / self.smp.dp_size()).backward()
        self.reference.step()
        expected = dict(self.plain.named_parameters())
        for name, parameter in self.model.named_parameters():
            atol = 2e-2 if parameter.dtype is torch.bfloat16 else TOLERANCE
            wanted = expected[name].to(parameter.dtype)
            assert torch.allclose(parameter, wanted, rtol=0, atol=atol), (what, name)

    def own(self, inputs: list[Tensor]) -> Tensor:
        return inputs[self.smp.dp_rank()]


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def inputs_of(number: int) -> list[Tensor]:
    """By replica."""
    generator = torch.Generator().manual_seed(number)
    return list(torch.randn(4, BATCH, 3, generator=generator))


def undivided_backward_passes_of_torchs() -> None:
    """`loss.backward()`, in steps and outside: the update is that of all replicas' gradients."""
    job = Undivided(layers())
    model = job.model

    @job.smp.step
    def plainly(x: Tensor) -> None:
        (model(x).pow(2).mean() / MICROBATCHES).backward()

    ways: dict[str, Callable[[Tensor], None]] = {
        "direct": lambda x: model(x).pow(2).mean().backward(),
        "the model's": lambda x: model.backward(model(x).pow(2).mean()),
        "in a step": plainly,
        "step": job.train,
        "direct again": lambda x: model(x).pow(2).mean().backward(),
    }
    for number, (way, run) in enumerate(ways.items()):
        job.zero_grad()
        inputs = inputs_of(number)
        run(job.own(inputs))
        if way == "the model's":  # what clips needs them first
            nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        job.update_and_compare(inputs, way)
    # One replica has nothing to give, and waits for nobody who does not come.
    job.zero_grad()
    inputs = inputs_of(7)
    if job.smp.dp_rank() != 2:
        ways["direct"](job.own(inputs))
    job.update_and_compare(inputs[:2] + inputs[3:], "three of four")
    # Nobody asks for a reduction.
    job.zero_grad()
    with model.no_sync():
        ways["direct"](job.own(inputs))
    before = [parameter.grad.clone() for parameter in model.parameters()]
    job.optimizer.step()
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.grad, gradient)


def undivided_changes_after_wrapping() -> None:
    """What is frozen, trained, cast or replaced later; the user's hook stays."""
    seen = []

    def hook(state, bucket):  # type: ignore[no-untyped-def] # torch reads annotations
        seen.append(bucket.index())
        work = dist.all_reduce(bucket.buffer(), group=state.get_dp_process_group(), async_op=True)
        return work.get_future().then(
            lambda future: future.value()[0] / (MICROBATCHES * state.dp_size())
        )

    net = layers()
    net[0].weight.requires_grad_(False)
    job = Undivided(net)
    job.model.register_comm_hook(job.smp, hook)

    def set_trained(number: int, is_trained: bool) -> None:
        for each in (job.plain, job.model.get_module()):
            each[number].weight.requires_grad_(is_trained)

    def replace() -> None:
        bias = torch.full((4,), float(job.smp.dp_rank()))  # those of the first replica count
        job.model.get_module()[0].bias = nn.Parameter(bias)
        job.plain[0].bias.data.zero_()
        job.optimizer.param_groups[0]["params"] = list(job.model.parameters())

    def cast() -> None:
        job.model.bfloat16()
        job.plain.bfloat16()

    changes: dict[str, Callable[[], None]] = {
        "as it was": lambda: None,
        "unfrozen": lambda: set_trained(0, True),
        "frozen": lambda: set_trained(2, False),
        "replaced": replace,
        "cast": cast,
    }
    for number, (what, change) in enumerate(changes.items()):
        change()
        for more in range(2):
            seen.clear()
            job.zero_grad()
            inputs = inputs_of(10 + 2 * number + more)
            if what == "cast":
                inputs = [x.bfloat16() for x in inputs]
            if more and what == "unfrozen":
                with job.model.no_sync():
                    job.train(job.own(inputs))
                job.model.zero_grad()
            job.train(job.own(inputs))
            job.update_and_compare(inputs, what)
            assert seen, what


def undivided_powersgd() -> None:
    """A hook of torch's that looks at dimensions."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    job = Undivided(layers())
    options = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
    job.model.register_comm_hook(options, powerSGD_hook.powerSGD_hook)
    for number in range(4):
        job.zero_grad()
        job.train(job.own(inputs_of(number)))
        job.optimizer.step()
    values = torch.cat([parameter.detach().flatten() for parameter in job.model.parameters()])
    assert all(torch.equal(values, each) for each in job.smp.allgather(values, job.smp.DP_GROUP))


class Words(nn.Module):
    """Looks up some inputs in a table, and not others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(6, 3, sparse=True)
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x if x.is_floating_point() else self.table(x))


def undivided_sparse_gradients() -> None:
    """Of a table that one replica, or none, has used."""
    job = Undivided(Words())
    words = [torch.tensor([replica, replica, 2, 5]) for replica in range(4)]
    for number, tables in enumerate((4, 3, 0, 2)):
        job.zero_grad()
        inputs = words[:tables] + inputs_of(number)[tables:]
        job.train(job.own(inputs))
        job.update_and_compare(inputs, f"{tables} tables")
    assert job.model.table.weight.grad.is_sparse


def undivided_a_deleted_model_is_freed() -> None:
    job = Undivided(layers())
    job.train(job.own(inputs_of(0)))
    reference = weakref.ref(next(job.model.parameters()))
    del job
    gc.collect()
    assert reference() is None


def undivided_gradients_without_the_loss_scale() -> None:
    """One replica has none: it is told as well."""
    import smdistributed.modelparallel.torch as smp

    smp.reset()
    smp.init({"ddp": True, "fp16": True})
    model = smp.DistributedModel(layers())
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = smp.DistributedOptimizer(inner, static_loss_scale=64.0)
    for is_plain in (True, False):
        optimizer.zero_grad()
        loss = model(inputs_of(0)[smp.dp_rank()]).pow(2).mean()
        if not is_plain:
            model.backward(loss)
            optimizer.step()
            continue
        if smp.dp_rank() != 1:
            loss.backward()
        with pytest.raises(RuntimeError, match=r"expected model\.backward\(loss\)"):
            optimizer.step()


def runs(rank: int, world_size: int) -> list[str]:
    """All checks, one after the other; returns what failed."""
    import traceback

    import smdistributed.modelparallel.torch as smp

    failed = []
    for name, check in list(globals().items()):
        if not name.startswith(("check_", "undivided_")):
            continue
        smp.init(
            {
                "partitions": 2 if name.startswith("check_") else 1,
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
