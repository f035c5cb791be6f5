# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What steps promise beside equality: no dependence on timing, bounded and constant memory.

Source: modelparallel specification, sections 3.5 and 3.6.
"""

from __future__ import annotations

import gc
import time
from typing import Any

import torch
from harness import run_ranks
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 16
DEADLINE_S = 110.0


class Noisy(nn.Module):
    """Drops out, and takes a time of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.3)
        self.slow: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.slow is not None:
            time.sleep(float(torch.rand((), generator=self.slow)) * 0.01)
        result: Tensor = self.drop(torch.tanh(self.dense(x)))
        return result


class Net(nn.Module):
    def __init__(self, recomputes: bool = False) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Noisy() for _ in range(5))
        self.recomputes = recomputes

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = (
                checkpoint(self._twice, part, x, use_reentrant=False)
                if self.recomputes
                else part(x)
            )
            x = nn.functional.dropout(x, 0.2)
        return x

    @staticmethod
    def _twice(part: nn.Module, x: Tensor) -> Tensor:
        y = part(x)
        result: Tensor = part(y * torch.sigmoid(y.clone()))
        return result


def make(smp: Any, pipeline: str, recomputes: bool = False, **config: Any) -> tuple[Any, Any]:
    smp.init(
        {
            "partitions": smp_size(),
            "microbatches": 6,
            "pipeline": pipeline,
            "auto_partition": False,
            "default_partition": 0,
            **config,
        }
    )
    torch.manual_seed(3)
    net = Net(recomputes)
    for number, part in enumerate(net.parts):
        smp.set_partition(part, (number + 1) % smp.pp_size())

    @smp.step
    def step(model: Any, x: Tensor) -> Tensor:
        loss: Tensor = model(x).pow(2).mean()
        model.backward(loss)
        return loss

    return smp.DistributedModel(net), step


def smp_size() -> int:
    import torch.distributed as dist

    return dist.get_world_size()


def run(model: Any, step: Any, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    for parameter in model.parameters():
        parameter.grad = None
    torch.manual_seed(seed)
    x = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(1))
    loss = step(model, x).stack()
    return loss, {n: p.grad.clone() for n, p in model.local_named_parameters()}


def does_not_depend_on_timing(rank: int, world_size: int) -> list[list[float]]:
    """Returns the losses by schedule; compares those and gradients over runs with random pauses."""
    import torch.distributed as dist

    import smdistributed.modelparallel.torch as smp

    dist.init_process_group("gloo")
    losses = []
    for pipeline in ("interleaved", "simple"):
        model, step = make(smp, pipeline)
        expected = run(model, step, 11)
        for number in range(5):
            for part in model.get_module().parts:
                part.slow = torch.Generator().manual_seed(100 * number + rank)
            loss, gradients = run(model, step, 11)
            assert torch.equal(loss, expected[0]), (pipeline, number)
            for name, gradient in gradients.items():
                assert torch.allclose(gradient, expected[1][name], rtol=1e-5, atol=1e-7), name
        other, _ = run(model, step, 12)
        assert not torch.equal(other, expected[0]), "nothing is dropped"
        losses.append(expected[0].tolist())
        del model, step
        smp.reset()
        dist.barrier()
    return losses


def recomputes_what_it_was(rank: int, world_size: int) -> None:
    """With a checkpoint around remote modules that drop out, gradients are those without."""
    import torch.distributed as dist

    import smdistributed.modelparallel.torch as smp

    dist.init_process_group("gloo")
    model, step = make(smp, "interleaved", recomputes=True)
    net = model.get_module()
    for _ in range(2):  # waiting for results at first, not any more then
        loss, gradients = run(model, step, 5)
        recompute = globals()["checkpoint"]
        globals()["checkpoint"] = lambda function, *args, use_reentrant: function(*args)
        try:
            plain_loss, plain = run(model, step, 5)
        finally:
            globals()["checkpoint"] = recompute
        assert net.recomputes
        assert torch.equal(loss, plain_loss)
        for name, gradient in gradients.items():
            assert torch.allclose(gradient, plain[name], rtol=1e-5, atol=1e-7), name
    smp.reset()


def memory(rank: int, world_size: int) -> dict[int, int]:
    """For each bound the most programs kept here at a time; and nothing grows over 50 steps."""
    import torch.distributed as dist

    import smdistributed.modelparallel.torch as smp
    from smdistributed.modelparallel.torch.pipeline.pipeline import current_pipeline

    dist.init_process_group("gloo")
    peaks = {}
    for bound in (1, 2, 4):
        model, step = make(smp, "interleaved", active_microbatches=bound)
        run(model, step, 1)
        pipeline = current_pipeline("a test")
        owner = pipeline.runner()._callee
        seen = {0}
        original = owner._run

        def watched(
            frame: Any, original: Any = original, owner: Any = owner, seen: Any = seen
        ) -> None:
            kept = [f for f in owner._frames.values() if f.keeps_something]
            seen.add(len({frame.activity.task.microbatch for frame in kept}))
            original(frame)

        owner._run = watched
        run(model, step, 1)
        peaks[bound] = max(seen)
        assert rank > 0 or pipeline.peak_microbatches <= bound
        owner._run = original
        if bound == 4:
            counts = []
            for number in range(50):
                run(model, step, number)
                if number in (9, 49):
                    gc.collect()
                    alive = [type(each).__name__ for each in gc.get_objects()]
                    kinds = ("Tensor", "Deferred", "Program", "Frame", "Activity", "Fiber")
                    counts.append({kind: alive.count(kind) for kind in kinds})
            assert counts[0] == counts[1], counts
        del model, step
        smp.reset()
        dist.barrier()
    return peaks


def test_results_do_not_depend_on_timing_or_schedule() -> None:
    results = run_ranks(does_not_depend_on_timing, 3, deadline_s=DEADLINE_S)
    assert all(result == results[0] for result in results)
    assert results[0][0] == results[0][1], "the same with both schedules"


def test_a_checkpoint_around_remote_modules_draws_the_same_numbers_again() -> None:
    run_ranks(recomputes_what_it_was, 2, deadline_s=DEADLINE_S)


def test_memory_is_bounded_and_constant() -> None:
    for peaks in run_ranks(memory, 3, deadline_s=DEADLINE_S):
        for bound, peak in peaks.items():
            assert peak <= bound
