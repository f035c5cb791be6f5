# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""With SMDDP_ZERO_COPY=recurring tensors that recur move into shared memory; nothing else changes.

The rules, one by one, are in tests/unit/dataparallel/torch/adoption; here they meet real ranks, a
real arena and real operations. Source: docs/zero_copy.md.
"""

from __future__ import annotations

import copy
import gc
import pickle
import resource
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch_ranks import algorithms_of, smddp

# Ranks that truly run at the same time, with all processors to themselves.
pytestmark = pytest.mark.quiet

DEADLINE_S = 120.0
_COUNT = 100_003  # float32 elements: well above the smallest size, and not a whole page
_MEBIBYTE = 1 << 20


def run_moving(
    function: Any, world_size: int, *arguments: Any, env: dict[str, str] | None = None
) -> list[Any]:
    env = {"SMDDP_ZERO_COPY": "recurring"} | (env or {})
    return run_ranks(function, world_size, *arguments, env=env, deadline_s=DEADLINE_S)


def adopted() -> int:
    from smdistributed.dataparallel.torch import zero_copy_statistics

    return zero_copy_statistics().adopted


def refused() -> dict[str, int]:
    from smdistributed.dataparallel.torch import zero_copy_statistics

    return dict(zero_copy_statistics().refused)


def _values(rank: int, count: int = _COUNT) -> Tensor:
    return (torch.arange(count) % 1000 + rank).float()


def _sum(world_size: int, count: int = _COUNT) -> Tensor:
    return world_size * (torch.arange(count) % 1000).float() + sum(range(world_size))


def _adopt(tensor: Tensor) -> Tensor:
    """Let it recur; its values are lost."""
    before = adopted()
    for _ in range(2):
        dist.all_reduce(tensor)
    assert adopted() == before + 1
    return tensor


# --- tensors that recur --------------------------------------------------------------------------


def recurs(rank: int, world_size: int) -> tuple[list[str], int, int]:
    with smddp():
        tensor = torch.empty(_COUNT)
        addresses = set()

        def all_reduces() -> None:
            for step in range(5):
                tensor.copy_(_values(rank))
                if step % 2:
                    dist.all_reduce(tensor)
                else:
                    work = dist.all_reduce(tensor, async_op=True)
                    assert work is not None
                    work.wait()
                assert torch.equal(tensor, _sum(world_size)), step
                assert torch.equal(tensor.view(-1)[7:], _sum(world_size)[7:]), step
                addresses.add(tensor.data_ptr())
            # Rank 0 alone brings another tensor.
            other = _values(rank) if rank == 0 else tensor.copy_(_values(rank))
            dist.all_reduce(other)
            assert torch.equal(other, _sum(world_size))

        return algorithms_of(all_reduces), adopted(), len(addresses)


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_tensor_that_recurs_is_reduced_in_place_from_the_second_time_on(world_size: int) -> None:
    outcomes = run_moving(recurs, world_size)
    assert outcomes == [(["staged"] + ["shared"] * 4 + ["staged"], 1, 2)] * world_size


def test_the_switch_leaves_everything_where_it_is() -> None:
    env = {"SMDDP_ZERO_COPY": "0"}
    assert run_moving(recurs, 2, env=env) == [(["staged"] * 6, 0, 1)] * 2


@pytest.mark.parametrize(
    "env", [{"SMDDP_TRANSPORT": "tcp"}, {"SMDDP_TRANSPORT": "shm"}], ids=["tcp", "shm"]
)
def test_it_is_a_matter_of_shared_memory(env: dict[str, str]) -> None:
    expected = 0 if env["SMDDP_TRANSPORT"] == "tcp" else 1
    outcomes = run_moving(recurs, 2, env=env)
    assert [count for _, count, _ in outcomes] == [expected] * 2


def fresh_gradients(rank: int, world_size: int) -> tuple[int, dict[str, int]]:
    with smddp():
        for step in range(30):
            gradients = [_values(rank, _COUNT + i) for i in range(3)]
            for i, gradient in enumerate(gradients):
                dist.all_reduce(gradient)
                assert torch.equal(gradient, _sum(world_size, _COUNT + i)), step
            del gradient, gradients
        return adopted(), refused()


def test_gradients_made_anew_in_each_step_never_move() -> None:
    assert run_moving(fresh_gradients, 2) == [(0, {})] * 2


def pending(rank: int, world_size: int) -> tuple[int, int, int]:
    """Two operations on one tensor at a time; the other rank comes late, so both are pending."""
    with smddp():
        tensor = torch.ones(_COUNT)
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["both started"])
        works = [dist.all_reduce(tensor, async_op=True) for _ in range(2)]
        while_pending = adopted()
        if rank == 0:
            store.set("both started", "")
        for work in works:
            assert work is not None
            work.wait()
        assert bool((tensor == world_size**2).all())
        dist.all_reduce(tensor)
        assert bool((tensor == world_size**3).all())
        return while_pending, adopted(), refused().get("an operation on it is under way", 0)


def test_nothing_moves_under_an_operation() -> None:
    assert run_moving(pending, 2)[0] == (0, 1, 1)


def sends(rank: int, world_size: int) -> tuple[int, int]:
    """A send that nobody has received yet has the address as well."""
    with smddp():
        tensor = torch.full((_COUNT,), float(rank + 1))
        dist.all_reduce(tensor)
        sent = dist.isend(tensor, 1) if rank == 0 else None
        before = adopted()
        with_it = dist.all_reduce(tensor, async_op=True, op=dist.ReduceOp.MAX)
        during = adopted()
        received = torch.empty(_COUNT)
        assert with_it is not None
        with_it.wait()  # only then: rank 0 has made its call, with the message on its way
        if rank == 1:
            dist.recv(received, 0)
            assert bool((received == 3).all())
        if sent is not None:
            sent.wait()
        assert bool((tensor == 3).all())
        return before, during


def test_nothing_moves_under_a_message() -> None:
    assert run_moving(sends, 2)[0] == (0, 0)


# --- other collectives ---------------------------------------------------------------------------


def recurs_as_input(rank: int, world_size: int) -> dict[str, tuple[list[str], int]]:
    """Each collective three times with one input, whose bytes differ by rank and call."""
    from smdistributed.collectives import _native

    count = _COUNT // 60 * 60  # into 2 and 3 equal parts
    found: dict[str, tuple[list[str], int]] = {}
    with smddp():

        def check(name: str, call: Any, size: int = count) -> None:
            mine = torch.empty(size)
            before = adopted()
            _native.start_trace()
            for step in range(3):
                inputs = [_values(r, size) + 10 * step for r in range(world_size)]
                mine.copy_(inputs[rank])
                call(mine, inputs)
            events, _ = _native.stop_trace()
            found[name] = ([event[6] for event in events], adopted() - before)

        def broadcast(mine: Tensor, inputs: list[Tensor]) -> None:
            dist.broadcast(mine, 1)
            assert torch.equal(mine, inputs[1])

        def reduce(mine: Tensor, inputs: list[Tensor]) -> None:
            dist.reduce(mine, 1)
            assert torch.equal(mine, sum(inputs) if rank == 1 else inputs[rank])

        def all_gather(mine: Tensor, inputs: list[Tensor]) -> None:
            output = torch.empty(world_size * mine.numel())
            dist.all_gather_into_tensor(output, mine)
            assert torch.equal(output, torch.cat(inputs))

        def reduce_scatter(mine: Tensor, inputs: list[Tensor]) -> None:
            output = torch.empty(mine.numel() // world_size)
            dist.reduce_scatter_tensor(output, mine)
            assert torch.equal(output, torch.stack(inputs).sum(0).chunk(world_size)[rank])

        def all_to_all(mine: Tensor, inputs: list[Tensor]) -> None:
            output = torch.empty_like(mine)
            dist.all_to_all_single(output, mine)
            expected = torch.cat([one.chunk(world_size)[rank] for one in inputs])
            assert torch.equal(output, expected)

        for call in (broadcast, reduce, all_gather, reduce_scatter, all_to_all):
            check(call.__name__, call)
    return found


@pytest.mark.parametrize("world_size", [2, 3])
def test_inputs_of_other_collectives_that_recur_are_read_where_they_lie(world_size: int) -> None:
    outcomes = run_moving(recurs_as_input, world_size)
    for found in outcomes:
        for name, (algorithms, count) in found.items():
            assert algorithms == ["staged", "shared", "shared"], name
            assert count == 1, name


# --- what users do with tensors ------------------------------------------------------------------


class _Holding(Dataset[Tensor]):
    """A data set whose workers read and write a tensor that has moved."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        self.tensor[index] += 10
        return self.tensor[: index + 1].clone()


def forks(rank: int, world_size: int) -> None:
    with smddp():
        tensor = _adopt(torch.zeros(_COUNT))
        tensor.fill_(1)
        loader = DataLoader(
            _Holding(tensor), batch_size=None, num_workers=2, multiprocessing_context="fork"
        )
        for _ in range(2):
            for index, item in enumerate(loader):
                assert item[index] == 11, item
            assert bool((tensor == 1).all()), "a worker wrote into its parent's memory"
            dist.all_reduce(tensor)
            assert bool((tensor == world_size).all())
            tensor.fill_(1)


def test_loader_workers_read_such_tensors_and_write_copies_of_their_own() -> None:
    """Before it was mapped copy-on-write in children, a worker that touched it got SIGSEGV."""
    run_moving(forks, 2)


def copies(rank: int, world_size: int) -> None:
    with smddp():
        tensor = _adopt(torch.ones(_COUNT)).fill_(rank)
        made = [copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor)), tensor.clone()]
        array = tensor.numpy()
        tensor += 1
        assert array[-1] == rank + 1
        dist.all_reduce(tensor)
        for other in made:
            assert bool((other == rank).all())
        assert array[0] == sum(range(1, world_size + 1))
        tensor.share_memory_()
        dist.all_reduce(tensor)
        assert tensor[0] == world_size * array[0]


def test_copies_and_what_numpy_sees() -> None:
    run_moving(copies, 2)


def memory_comes_back(rank: int, world_size: int) -> tuple[int, bool]:
    with smddp():
        addresses = set()
        for _ in range(50):
            tensor = _adopt(torch.zeros(_MEBIBYTE))
            addresses.add(tensor.data_ptr())
            del tensor
        group: Any = dist.distributed_c10d._get_default_group()
        return len(addresses), group.allocate_shared(1) is not None


def test_the_memory_of_dropped_tensors_is_used_again() -> None:
    for places, has_room in run_moving(memory_comes_back, 2):
        assert places == 1
        assert has_room


def has_little_room(rank: int, world_size: int) -> tuple[int, dict[str, int], list[str]]:
    """A file may have 96 MiB: that is, less the staging buffers, some 40 MiB for each rank."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (96 * _MEBIBYTE, resource.RLIM_INFINITY))
    with smddp():
        tensors = [torch.ones(4 * _MEBIBYTE) for _ in range(4)]  # 16 MiB each

        def all_reduces() -> None:
            for _ in range(3):
                for tensor in tensors:
                    dist.all_reduce(tensor.fill_(1))
                    assert bool((tensor == world_size).all())

        return adopted(), refused(), algorithms_of(all_reduces)[-4:]


def test_what_finds_no_room_is_staged() -> None:
    for _, _, algorithms in run_moving(has_little_room, 2):
        assert algorithms[0] == "shared"
        assert algorithms[-1] == "staged"


# --- groups --------------------------------------------------------------------------------------


def outlives_its_group(rank: int, world_size: int, folder: str) -> list[str]:
    place: dict[str, Any] = {"rank": rank, "world_size": world_size}
    with smddp(init_method=f"file://{folder}/one", **place):
        tensor = _adopt(torch.ones(_COUNT)).fill_(rank + 1)
    gc.collect()
    assert bool((tensor == rank + 1).all())
    with smddp(init_method=f"file://{folder}/other", **place):

        def all_reduces() -> None:
            for _ in range(2):
                dist.all_reduce(tensor.fill_(1))
                assert bool((tensor == world_size).all())

        return algorithms_of(all_reduces)


def test_a_tensor_outlives_its_group_and_serves_another(tmp_path: Any) -> None:
    assert run_moving(outlives_its_group, 2, str(tmp_path)) == [["staged"] * 2] * 2


def in_two_groups(rank: int, world_size: int) -> list[str]:
    with smddp():
        other = dist.new_group()
        tensor = _adopt(torch.ones(_COUNT))

        def all_reduces() -> None:
            for group in (other, None, other):
                dist.all_reduce(tensor.fill_(rank), group=group)
                assert bool((tensor == 1).all())

        return algorithms_of(all_reduces)


def test_a_tensor_of_two_groups_lies_in_the_first_ones_memory() -> None:
    assert run_moving(in_two_groups, 2) == [["staged", "shared", "staged"]] * 2


def _reduce_forever(tensor: Tensor) -> None:
    while True:
        dist.all_reduce(tensor)


def aborts(rank: int, world_size: int) -> tuple[str, bool]:
    """What a late peer may still write to is never given out again."""
    from smdistributed.dataparallel.exceptions import SMDDPPeerLost

    with smddp():
        tensor = _adopt(torch.ones(_COUNT))
        other = torch.ones(_COUNT)
        dist.all_reduce(other)
        group: Any = dist.distributed_c10d._get_default_group()
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            store.wait(["summed"])  # the abort could overtake the sum of whoever is slow
            group.abort("no more steps")
        else:
            store.set("summed", b"")
        with pytest.raises(SMDDPPeerLost) as raised:
            _reduce_forever(tensor)
        before = adopted()
        del tensor
        gc.collect()
        with pytest.raises(SMDDPPeerLost):
            dist.all_reduce(other)
        assert adopted() == before
        return str(raised.value), group.allocate_shared(1) is None


def test_after_an_abort_nothing_moves_any_more() -> None:
    for text, is_retired in run_moving(aborts, 2):
        assert "no more steps" in text
        assert is_retired
