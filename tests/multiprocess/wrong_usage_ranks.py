# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Classic mistakes, as scripts make them: what the ranks of test_wrong_usage.py run.

Each function is called on every rank inside a group whose operations give up after `TIMEOUT_S`;
those of `STARTS` before there is one. Rank 1 is the one that differs.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from engine_ranks import meet_by_files, wait_for_files
from torch_ranks import raised, smddp

TIMEOUT_S = 3.0
ODD = 1

Told = tuple[str, str]


def uneven_batches(rank: int) -> None:
    """Rank 1 has one batch less, and goes on to what comes after the epoch."""
    for _ in range(2 if rank == ODD else 3):
        dist.all_reduce(torch.ones(8))


def early_exit(rank: int) -> None:
    dist.all_reduce(torch.ones(8))
    if rank == ODD:
        os._exit(0)
    dist.all_reduce(torch.ones(8))


def exception_on_one_rank(rank: int) -> None:
    dist.all_reduce(torch.ones(8))
    if rank == ODD:
        dist.destroy_process_group()  # what `finally:` does
        raise ValueError("a bad sample")
    dist.all_reduce(torch.ones(8))


def swapped_order(rank: int) -> None:
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(torch.ones(8)),
        lambda: dist.broadcast(torch.ones(4), src=0),
    ]
    for call in reversed(calls) if rank == ODD else calls:
        call()


def other_dtype(rank: int) -> None:
    dist.all_reduce(torch.ones(8, dtype=torch.float16 if rank == ODD else torch.float32))


def other_shape(rank: int) -> None:
    dist.all_reduce(torch.ones(7 if rank == ODD else 8))


def other_reduce_op(rank: int) -> None:
    dist.all_reduce(torch.ones(8), op=dist.ReduceOp.MAX if rank == ODD else dist.ReduceOp.SUM)


def different_roots(rank: int) -> None:
    dist.broadcast(torch.ones(8), src=rank if rank == ODD else 0)
    dist.barrier()


def validation_on_one_rank(rank: int) -> None:
    """One rank averages its validation loss; the others are in the next training step."""
    dist.all_reduce(torch.ones(8))
    if rank == ODD:
        dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(8))


def branch_into_another_group(rank: int) -> None:
    """Ranks 0 and 1 share a group; rank 1 waits in it while the others are in the world."""
    group = dist.new_group([0, ODD])
    dist.barrier()
    if rank == ODD:
        dist.all_reduce(torch.ones(2), group=group)
    dist.all_reduce(torch.ones(8))


def call_after_destroy(rank: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    dist.barrier()
    dist.destroy_process_group()
    group.allreduce([torch.ones(8)]).wait()


def message_nobody_receives(rank: int) -> None:
    """Rank 1 waits for a message with another tag than rank 0 sends."""
    if rank == 0:
        dist.send(torch.ones(3), dst=ODD, tag=1)
    if rank == ODD:
        dist.recv(torch.empty(3), src=0, tag=2)


def object_that_cannot_be_pickled(rank: int) -> None:
    objects: list[object] = [(lambda: 0) if rank == ODD else None]
    dist.broadcast_object_list(objects, src=ODD)


def init_twice(rank: int) -> None:
    dist.init_process_group("smddp")


def tensor_without_memory(rank: int) -> None:
    """Of a model that was made on the meta device, and not materialised."""
    dist.all_reduce(torch.ones(8, device="meta"))


def output_of_another_size(rank: int) -> None:
    dist.all_gather_into_tensor(torch.ones(8), torch.ones(4))


def other_world_size(rank: int) -> None:
    if rank == ODD:
        os.environ["WORLD_SIZE"] = "4"
    _init()


def rank_given_twice(rank: int) -> None:
    """So that rank 1 is missing."""
    if rank == ODD:
        os.environ["RANK"] = "2"
    _init()


def rank_out_of_range(rank: int) -> None:
    if rank == ODD:
        os.environ["RANK"] = "3"
    _init()


def other_master_port(rank: int) -> None:
    if rank == ODD:
        os.environ["MASTER_PORT"] = "1"
    _init()


def _init() -> None:
    dist.init_process_group("smddp", timeout=timedelta(seconds=TIMEOUT_S))


STARTS: dict[str, Callable[[int], None]] = {
    function.__name__: function
    for function in (other_world_size, rank_given_twice, rank_out_of_range, other_master_port)
}

MISTAKES: dict[str, Callable[[int], None]] = {
    function.__name__: function
    for function in (
        uneven_batches,
        early_exit,
        exception_on_one_rank,
        swapped_order,
        other_dtype,
        other_shape,
        other_reduce_op,
        different_roots,
        validation_on_one_rank,
        branch_into_another_group,
        call_after_destroy,
        message_nobody_receives,
        object_that_cannot_be_pickled,
        init_twice,
        tensor_without_memory,
        output_of_another_size,
    )
}


def make(
    rank: int, world_size: int, mistake: str, folder: str, readers: Sequence[int]
) -> Told | None:
    """What this rank was told; None if it was through in good order.

    All stay until the `readers` have been told: they must read of the mistake itself, and not of
    the end of another rank.
    """
    if mistake in STARTS:
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

        meet_by_files(folder, rank, world_size)  # starting them may take longer than TIMEOUT_S
        return _told(STARTS[mistake], rank, folder, readers)
    with smddp():
        meet_by_files(folder, rank, world_size)
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT_S))
        return _told(MISTAKES[mistake], rank, folder, readers)


def _told(
    function: Callable[[int], None], rank: int, folder: str, readers: Sequence[int]
) -> Told | None:
    told: Told | None = None
    try:
        name, text, _ = raised(function, rank)
        told = name, text
    except AssertionError:  # it did not raise
        pass
    Path(folder, f"through-{rank}").touch()
    wait_for_files(folder, [f"through-{reader}" for reader in readers])
    return told


def calls_in_a_group_it_is_not_in(rank: int, world_size: int) -> tuple[list[float], list[str]]:
    """What the tensor of this rank is afterwards, and which warnings it got."""
    with smddp(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        group = dist.new_group([r for r in range(world_size) if r != ODD])
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        dist.barrier()
        return tensor.tolist(), [str(warning.message) for warning in caught]
