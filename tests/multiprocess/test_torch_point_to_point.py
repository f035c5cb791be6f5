# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""send and recv through `smddp`: tags, any source, batches, order."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from torch_ranks import raised, smddp, tagged


def ring(rank: int, world_size: int) -> None:
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    with smddp():
        for count in (0, 1, 129, 300_000):
            received = torch.empty(count)
            work = dist.isend(tagged(rank, count), right)
            assert dist.recv(received, src=left) == left
            assert work is not None
            work.wait()
            assert torch.equal(received, tagged(left, count))


@pytest.mark.parametrize("world_size", [2, 3])
def test_ring(world_size: int) -> None:
    run_ranks(ring, world_size)


def tags(rank: int, world_size: int) -> None:
    with smddp():
        if rank == 0:
            works = [dist.isend(tagged(tag, 129), 1, tag=tag) for tag in (1, 2, 3)]
            for work in works:
                assert work is not None
                work.wait()
        else:
            for tag in (3, 1, 2):  # not in the order of sending: the tag decides
                received = torch.empty(129)
                dist.recv(received, src=0, tag=tag)
                assert torch.equal(received, tagged(tag, 129))


def test_tags_decide_not_arrival() -> None:
    run_ranks(tags, 2)


def same_tag_in_order(rank: int, world_size: int) -> None:
    with smddp():
        numbers = list(range(20))
        if rank == 0:
            for work in [dist.isend(torch.tensor([n]), 1) for n in numbers]:
                assert work is not None
                work.wait()
        else:
            received = [torch.empty(1, dtype=torch.int64) for _ in numbers]
            for work in [dist.irecv(tensor, 0) for tensor in received]:
                assert work is not None
                work.wait()
            assert [int(tensor) for tensor in received] == numbers


def test_messages_of_one_tag_keep_their_order() -> None:
    run_ranks(same_tag_in_order, 2)


def any_source(rank: int, world_size: int) -> None:
    with smddp():
        if rank == 0:
            sources = set()
            for _ in range(world_size - 1):
                received = torch.empty(129)
                source = dist.recv(received)
                assert torch.equal(received, tagged(source, 129))
                sources.add(source)
            assert sources == set(range(1, world_size))
        else:
            dist.send(tagged(rank, 129), 0)
        dist.barrier()
        if rank == 0:
            received = torch.empty(3)
            work = dist.irecv(received)
            assert work is not None
            work.wait()
            assert work.source_rank() == 1
            assert torch.equal(received, tagged(1, 3))
        elif rank == 1:
            dist.send(tagged(1, 3), 0)
        dist.barrier()


@pytest.mark.parametrize("world_size", [2, 4])
def test_receive_from_any_source(world_size: int) -> None:
    run_ranks(any_source, world_size)


def batches(rank: int, world_size: int) -> None:
    peers = [peer for peer in range(world_size) if peer != rank]
    with smddp():
        received = {peer: torch.empty(129) for peer in peers}
        operations = []
        for peer in peers:  # receives first on every rank: order must not matter
            operations.append(dist.P2POp(dist.irecv, received[peer], peer))
            operations.append(dist.P2POp(dist.isend, tagged(rank, 129), peer))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for peer in peers:
            assert torch.equal(received[peer], tagged(peer, 129))


@pytest.mark.parametrize("world_size", [2, 3])
def test_batch_isend_irecv(world_size: int) -> None:
    run_ranks(batches, world_size)


def beside_collectives(rank: int, world_size: int) -> None:
    """A receive that waits must not hold up the collectives of the same group."""
    with smddp():
        received = torch.empty(129)
        work = dist.irecv(received, 0) if rank == 1 else None
        for _ in range(3):
            tensor = tagged(rank, 129)
            dist.all_reduce(tensor)
        if rank == 0:
            dist.send(tagged(7, 129), 1)
        if work is not None:
            work.wait()
            assert torch.equal(received, tagged(7, 129))


def test_a_waiting_receive_does_not_hold_up_collectives() -> None:
    run_ranks(beside_collectives, 2)


def _wrong_numbers(rank: int, world_size: int) -> list[tuple[str, str, list[str]]]:
    with smddp():
        told = [
            raised(dist.recv, torch.zeros(3), -1),  # rank - 1 on rank 0; not: from anyone
            raised(dist.send, torch.zeros(3), -1),
        ]
        peer = 1 - rank
        for tag in (-1, 2**70, 1.0, "1", None):
            told.append(raised(dist.send, torch.zeros(3), peer, None, tag))
            told.append(raised(dist.recv, torch.zeros(3), peer, None, tag))
        # Nothing of it has come through, or is waited for.
        if rank == 0:
            dist.send(torch.ones(3), 1, tag=2**63 - 1)
        else:
            received = torch.zeros(3)
            assert dist.recv(received, tag=2**63 - 1) == 0
            assert torch.equal(received, torch.ones(3))
        return told


def test_a_rank_or_tag_that_is_none_is_refused() -> None:
    for told in run_ranks(_wrong_numbers, 2):
        for name, text, _ in told[:2]:
            assert name == "SMDDPConfigInvalid", text
            assert "rank -1 is out of range; expected 0 to 1" in text
        for name, text, _ in told[2:]:
            assert name == "SMDDPConfigInvalid", text
            assert "is no tag; expected a whole number from 0 to 2**63 - 1" in text
