# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The legacy DistributedDataParallel as an object: copies, moves, memory, hooks, recording."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from ddp_models import WIDTH, Plain, TwoHeads
from ddp_training import SMALL, assert_same_bits, loss_of, made
from harness import run_ranks
from torch_ranks import smddp


def copied_and_moved(rank: int, world_size: int) -> None:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        ddp = DistributedDataParallel(made(Plain), static_graph=True)
        loss_of(ddp, 0).backward()
        if rank == 0:  # copies are made without communication, for example of one rank's average
            copy.deepcopy(ddp)
        clone = copy.deepcopy(ddp)
        assert clone.static_graph
        for wrapped in (ddp, clone):
            wrapped.zero_grad()
            loss_of(wrapped, 1).backward()
        for ours, theirs in zip(ddp.parameters(), clone.parameters(), strict=True):
            if ours.requires_grad:
                assert ours.grad is not None
                assert theirs.grad is not None
                assert torch.equal(ours.grad, theirs.grad)

        file = io.BytesIO()
        torch.save(ddp, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        assert loaded.state_dict().keys() == ddp.state_dict().keys()
        assert all(name.startswith("module.") for name in ddp.state_dict())
        loss_of(loaded, 1).backward()

        ddp.to(torch.float64)  # changes dtype after wrapping: buckets follow
        ddp(torch.ones(2, WIDTH, dtype=torch.float64) * rank).sum().backward()
        (weight,) = ddp.module.last.weight.grad[:1]
        assert weight.dtype == torch.float64
        assert_same_bits({"grad": ddp.module.last.weight.grad})

        ddp.module.to(torch.float32)  # which the wrapper is not told of
        for step in range(2):
            loss_of(ddp, step).backward()
            assert ddp.module.last.weight.grad.dtype == torch.float32
            assert_same_bits({"grad": ddp.module.last.weight.grad})


def test_copies_pickles_and_casts() -> None:
    run_ranks(copied_and_moved, 2)


def gradients_stay_in_place(rank: int, world_size: int) -> None:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        ddp = DistributedDataParallel(made(Plain), bucket_cap_mb=SMALL)
        addresses = []
        for step in range(3):
            loss_of(ddp, step).backward()
            grads = [p.grad for p in ddp.parameters() if p.grad is not None]
            addresses.append([g.data_ptr() for g in grads])
            for bucket in ddp.reducer._buckets:
                start, size = bucket.buffer.data_ptr(), bucket.plan.capacity_bytes
                inside = [g for g in grads if start <= g.data_ptr() < start + size]
                held = sum(float(g.double().abs().sum()) for g in inside)
                total = float(bucket.buffer.double().abs().sum())
                assert total == pytest.approx(held, rel=1e-12)  # nothing between the gradients
            ddp.zero_grad(set_to_none=step != 1)
        assert addresses[0] == addresses[1] == addresses[2]


def test_gradients_keep_their_address_and_padding_stays_zero() -> None:
    run_ranks(gradients_stay_in_place, 2)


def second_wrapper(rank: int, world_size: int) -> None:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        model = made(Plain)
        for _ in range(2):
            ddp = DistributedDataParallel(model)
            loss_of(ddp, 0).backward()
            assert len(model.last.weight._post_accumulate_grad_hooks) == 1
            del ddp
        assert not model.last.weight._post_accumulate_grad_hooks
        loss_of(model, 0).backward()


def test_a_wrapper_that_goes_takes_its_hooks_along() -> None:
    run_ranks(second_wrapper, 2)


def alone(rank: int, world_size: int) -> None:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        ddp = DistributedDataParallel(made(Plain))
        assert ddp.reducer is None
        assert not ddp.module.last.weight._post_accumulate_grad_hooks
        loss_of(ddp, 0).backward()
        with ddp.join():
            loss_of(ddp, 1).backward()


def test_one_rank_has_nothing_to_do() -> None:
    run_ranks(alone, 1)


def compiled(rank: int, world_size: int) -> None:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        model = made(Plain)
        outside = torch.compile(DistributedDataParallel(model), backend="aot_eager")
        for step in range(2):
            loss_of(outside, step).backward()
            assert model.last.weight.grad is not None
            assert_same_bits({"grad": model.last.weight.grad})
            outside.zero_grad()


def test_torch_compile_leaves_the_reduction_alone() -> None:
    run_ranks(compiled, 2, deadline_s=110)


def traced(rank: int, world_size: int) -> list[tuple[str, str]]:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel
    from smdistributed.dataparallel.trace import recorder

    with smddp():
        ddp = DistributedDataParallel(TwoHeads(), bucket_cap_mb=1 / 8192)
        recorder.start()
        for head in ddp(torch.ones(1, WIDTH)):
            head.sum().backward()
        events, _ = recorder.stop()
    return [(event.track, event.name) for event in events]


def test_a_recording_shows_filling_and_waiting() -> None:
    fills = [("fill", f"bucket {index}") for index in range(2)]
    for events in run_ranks(traced, 2):
        assert [e for e in events if e[0] == "fill"] == fills
        assert events[-1] == ("wait", "wait")
