# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""With the default settings: who may hold what address, and when. The table of docs/zero_copy.md.

The rows are the functions of address_holders.py.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
from address_holders import CALLS, COUNT, ROWS, Holders, is_all, meanwhile
from harness import run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import algorithms_of, smddp

DEADLINE_S = 120.0


def holds(rank: int, world_size: int, row: str) -> int:
    from smdistributed.dataparallel.torch import empty_shared, zero_copy_statistics

    with smddp():
        gloo = dist.new_group(backend="gloo")
        for make in (torch.empty, empty_shared):
            ROWS[row](Holders(make, dist.group.WORLD, gloo))
        return zero_copy_statistics().adopted


@pytest.mark.parametrize("row", ROWS)
def test_who_holds_an_address_sees_exact_values(row: str) -> None:
    assert run_ranks(holds, 2, row, deadline_s=DEADLINE_S) == [0, 0]


# --- gradients that are views of buckets ----------------------------------------------------------


def _train(read: bool) -> tuple[list[Tensor], set[str]]:
    """Some steps; with a thread that reads and saves gradients, and views held across steps."""
    torch.manual_seed(5)
    model = DistributedDataParallel(
        nn.Sequential(*[nn.Linear(192, 192) for _ in range(3)]),
        bucket_cap_mb=0.2,
        gradient_as_bucket_view=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    held: list[tuple[Tensor, Tensor]] = []

    def look() -> None:
        for parameter in model.parameters():
            grad = parameter.grad
            if grad is not None:
                float(grad.sum())
                torch.save(grad, io.BytesIO())

    def steps() -> None:
        for step in range(4):
            torch.manual_seed(10 * step + dist.get_rank())
            model(torch.randn(4, 192)).pow(2).mean().backward()
            optimizer.step()
            held.extend((p.grad, p.grad.clone()) for p in model.parameters() if p.grad is not None)
            optimizer.zero_grad(set_to_none=True)
            if step == 0:  # torch makes other buckets now; these views are of the first ones
                first = list(held)
            held.clear()
        for view, value in first:
            assert torch.equal(view, value)

    with meanwhile(look) if read else contextlib.nullcontext():
        algorithms = algorithms_of(steps)
    return [p.detach().clone() for p in model.parameters()], set(algorithms)


def reads_gradients(rank: int, world_size: int) -> list[Tensor]:
    with smddp():
        alone, _ = _train(read=False)
        watched, algorithms = _train(read=True)
        assert "shared" in algorithms
        for one, other in zip(alone, watched, strict=True):
            assert torch.equal(one, other)
        return alone


def test_gradients_that_are_views_of_buckets() -> None:
    first, second = run_ranks(reads_gradients, 2, deadline_s=DEADLINE_S)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


# --- ordinary tensors, and the line about them ----------------------------------------------------


def recurs(rank: int, world_size: int) -> tuple[list[str], bool, list[str]]:
    import logging

    from smdistributed.dataparallel.torch import notices

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    logging.getLogger("smdistributed").setLevel(logging.INFO)
    notices.forget()
    with smddp():
        tensor = torch.empty(COUNT)
        address = tensor.data_ptr()
        algorithms = algorithms_of(
            lambda: Holders(torch.empty, dist.group.WORLD, None).reduce(tensor)
        )
        return algorithms, tensor.data_ptr() == address, [s for s in lines if "empty_shared" in s]


def test_a_tensor_that_merely_recurs_is_staged_and_one_line_says_what_is_faster() -> None:
    first, second = run_ranks(recurs, 2, deadline_s=DEADLINE_S)
    assert first[:2] == second[:2] == (["staged"] * CALLS, True)
    assert len(first[2]) == 1
    assert "docs/zero_copy.md" in first[2][0]
    for env in ({"SMDDP_ZERO_COPY": "0"}, {"SMDDP_TRANSPORT": "tcp"}):
        outcomes: list[Any] = run_ranks(recurs, 2, env=env, deadline_s=DEADLINE_S)
        assert [lines for _, _, lines in outcomes] == [[], []]


# --- empty_shared ---------------------------------------------------------------------------------


def allocates(rank: int, world_size: int) -> tuple[list[str], int]:
    import gc
    import os

    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPNotInitialized
    from smdistributed.dataparallel.torch import empty_shared, zero_copy_statistics

    with pytest.raises(SMDDPNotInitialized, match="init_process_group"):
        empty_shared(3)
    with smddp():
        tensor = empty_shared(3, 100_003, dtype=torch.float64)
        assert (tensor.shape, tensor.dtype) == ((3, 100_003), torch.float64)
        assert tensor.is_contiguous()
        assert empty_shared((2, 3)).shape == (2, 3)
        assert empty_shared(()).dtype == torch.get_default_dtype()
        assert empty_shared(0, 5).shape == (0, 5)
        with pytest.raises(RuntimeError, match="negative"):
            empty_shared(-1)
        with pytest.raises(SMDDPConfigInvalid, match="must be torch process groups"):
            empty_shared(1, group="world")
        outside = dist.new_group([0])
        if rank != 0:
            with pytest.raises(SMDDPConfigInvalid, match="not in"):
                empty_shared(1, group=outside)
        gloo = dist.new_group(backend="gloo")
        assert empty_shared(4, group=gloo).untyped_storage().resizable()
        with torch.device("meta"):  # ordinary memory once went to the default device
            assert empty_shared(3).is_cpu
            assert empty_shared(3, group=gloo).is_cpu
        with FakeTensorMode():  # which once said that a real tensor was among its own
            assert isinstance(empty_shared(2, 3), FakeTensor)
        dist.destroy_process_group(gloo)

        def reduces() -> None:
            for part in (tensor, tensor[1], tensor.view(-1)[7:]):
                part.fill_(rank + 1)
                dist.all_reduce(part)
                assert is_all(part, sum(range(1, world_size + 1)))

        algorithms = algorithms_of(reduces)
        tensor.fill_(rank)
        child = os.fork()
        if child == 0:
            was = is_all(tensor, rank)
            tensor.fill_(77)
            os._exit(0 if was else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert is_all(tensor, rank), "a child wrote into its parent's memory"
    gc.collect()
    assert is_all(tensor, rank), "it did not outlive its group"
    return algorithms, zero_copy_statistics().allocated


@pytest.mark.parametrize(
    ("env", "algorithm"),
    [({}, "shared"), ({"SMDDP_ZERO_COPY": "0"}, "staged"), ({"SMDDP_TRANSPORT": "tcp"}, None)],
    ids=["default", "off", "tcp"],
)
def test_empty_shared(env: dict[str, str], algorithm: str | None) -> None:
    for algorithms, allocated in run_ranks(allocates, 2, env=env, deadline_s=DEADLINE_S):
        if algorithm is not None:
            assert algorithms == [algorithm] * 3
        assert (allocated > 0) == (algorithm == "shared")


def fails(rank: int, world_size: int) -> bool:
    """After an abort the tensor stays valid, and new ones are ordinary memory."""
    from smdistributed.dataparallel.exceptions import SMDDPPeerLost
    from smdistributed.dataparallel.torch import empty_shared

    with smddp():
        tensor = empty_shared(COUNT).fill_(rank)
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
        group: Any = dist.distributed_c10d._get_default_group()
        store = dist.distributed_c10d._get_default_store()
        store.set(f"summed {rank}", b"")
        store.wait(["summed 0", "summed 1"])  # an abort could overtake the sum of a slow rank
        group.abort("enough")
        with pytest.raises(SMDDPPeerLost):
            dist.all_reduce(torch.ones(1))
        after = empty_shared(COUNT)
        assert after.untyped_storage().resizable()
        return is_all(tensor, 0)


def test_empty_shared_after_a_failure() -> None:
    assert run_ranks(fails, 2, deadline_s=DEADLINE_S) == [True, True]
