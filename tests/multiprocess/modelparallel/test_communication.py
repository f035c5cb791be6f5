# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Objects between ranks (specification, section 4.7). One start serves many checks."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import free_port, run_ranks
from machine_speed import scaled
from torch_ranks import give_up, raised, tagged, wait_until_given_up

DEADLINE_S = 120.0
TIMEOUT_S = scaled(30.0)
LARGE = 3_000_000  # elements: far beyond what the wires buffer


def objects(rank: int) -> list[Any]:
    """Each tells its sender."""
    return [
        rank,
        {"from": rank, "nested": [(None, {"deep": tagged(rank, 3)})]},
        "x" * 200_000 + str(rank),
    ]


def tensors(rank: int) -> dict[str, torch.Tensor]:
    """Each tells its sender and its index."""
    grid = tagged(rank, 600 * 400).reshape(600, 400)
    return {
        "float": tagged(rank, 5),
        "large": tagged(rank, LARGE),
        "bfloat16": tagged(rank, 40_000, torch.bfloat16),
        "bool": tagged(rank, 129) % 2 == 0,
        "complex": torch.complex(tagged(rank, 40_000), tagged(rank, 40_000)).conj(),
        "no dimensions": torch.tensor(float(rank)),
        "empty": torch.empty(0, 3, dtype=torch.int16),
        "with holes": grid[::2, ::3],
        "transposed": grid.t(),
        "leaf": tagged(rank, 4).requires_grad_(),
    }


def same(received: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        assert received.dtype == expected.dtype
        assert received.requires_grad == expected.requires_grad
        return torch.equal(received, expected)
    if isinstance(expected, dict):
        return received.keys() == expected.keys() and all(
            same(received[key], value) for key, value in expected.items()
        )
    if isinstance(expected, (list, tuple)):
        return type(received) is type(expected) and all(
            same(one, other) for one, other in zip(received, expected, strict=True)
        )
    return bool(received == expected)


def check_messages(smp: Any) -> None:
    """Around the ring, everyone sending before anyone receives; tensors, then other objects."""
    n, rank = smp.size(), smp.rank()
    left = (rank - 1) % n
    for make in (tensors, objects):
        sending = threading.Thread(
            target=smp.send, args=(make(rank), (rank + 1) % n, smp.WORLD_RANK)
        )
        sending.start()
        assert same(smp.recv_from(left, smp.RankType.WORLD_RANK), make(left))
        sending.join()
    for number in range(20):
        if rank == 0:
            smp.send(number, 1, smp.WORLD_RANK)
        elif rank == 1:
            assert smp.recv_from(0, smp.WORLD_RANK) == number, "in order"


def check_kinds_of_ranks(smp: Any) -> None:
    """Ranks in groups, and broadcast in each; sender and receiver may count differently."""
    for group, rank_type, members in (
        (smp.MP_GROUP, smp.MP_RANK, smp.get_mp_group()),
        (smp.PP_GROUP, smp.PP_RANK, smp.get_pp_group()),
        (smp.DP_GROUP, smp.DP_RANK, smp.get_dp_group()),
        (smp.RDP_GROUP, smp.RDP_RANK, smp.get_rdp_group()),
        (smp.TP_GROUP, smp.TP_RANK, smp.get_tp_group()),
        (smp.WORLD, smp.WORLD_RANK, list(range(smp.size()))),
    ):
        for sender, world_rank in enumerate(members):
            expected = (group.name, world_rank)
            if world_rank == smp.rank():
                smp.broadcast(expected, group)
            elif sender % 2:
                assert smp.recv_from(world_rank, smp.WORLD_RANK) == expected
            else:
                assert smp.recv_from(sender, rank_type) == expected
        others = [peer for peer, member in enumerate(members) if member != smp.rank()]
        for peer in others:
            smp.send((smp.rank(), members[peer]), peer, rank_type)
        for peer in others:
            assert smp.recv_from(peer, rank_type) == (members[peer], smp.rank())


def check_allgather(smp: Any) -> None:
    """Objects of different sizes, in every group, with messages and collectives between."""
    rank = smp.rank()
    for group, members in (
        (smp.WORLD, list(range(smp.size()))),
        (smp.DP_GROUP, smp.get_dp_group()),
        (smp.PP_GROUP, smp.get_pp_group()),
        (smp.TP_GROUP, smp.get_tp_group()),
    ):
        if rank == 0:
            smp.send("before", 1, smp.WORLD_RANK)  # taken after the collectives
        work = dist.all_reduce(torch.ones(100), async_op=True)
        gathered = smp.allgather([rank] * (rank + 1), group)
        assert gathered == [[member] * (member + 1) for member in members]
        large = smp.allgather({"t": tagged(rank, 20_000 * (rank + 1))}, group)
        for member, received in zip(members, large, strict=True):
            assert torch.equal(received["t"], tagged(member, 20_000 * (member + 1)))
        work.wait()
        if rank == 1:
            assert smp.recv_from(0, smp.WORLD_RANK) == "before"
    for meet in (smp.mp_barrier, smp.dp_barrier, smp.pp_barrier, smp.tp_barrier, smp.rdp_barrier):
        meet()
    for group in smp.CommGroup:
        smp.barrier(group)
    smp.barrier()


def check_beside_torch(smp: Any) -> None:
    """Messages of torch.distributed on the same group are not mistaken for ours."""
    if smp.rank() == 0:
        works = [dist.isend(tagged(7, 129), 1), dist.isend(tagged(8, 129), 1, tag=5)]
        smp.send("ours", 1, smp.WORLD_RANK)
        for work in works:
            work.wait()
    elif smp.rank() == 1:
        assert smp.recv_from(0, smp.WORLD_RANK) == "ours"
        received = torch.empty(129)
        dist.recv(received, 0, tag=5)
        assert torch.equal(received, tagged(8, 129))
        dist.recv(received, 0)
        assert torch.equal(received, tagged(7, 129))


def check_threads(smp: Any) -> None:
    """Messages of several threads do not get into each other."""
    n, rank = smp.size(), smp.rank()
    peers = [peer for peer in range(n) if peer != rank]
    received: dict[int, list[Any]] = {peer: [] for peer in peers}

    def sends(peer: int, number: int) -> None:
        parts = [tagged(number, 10_000 + number) for _ in range(20)]  # a message each
        smp.send((rank, number, parts), peer, smp.WORLD_RANK)

    def takes(peer: int) -> None:
        received[peer].append(smp.recv_from(peer, smp.WORLD_RANK))

    threads = [threading.Thread(target=sends, args=(p, k)) for p in peers for k in range(3)]
    threads += [threading.Thread(target=takes, args=(peer,)) for peer in peers for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns as often as they can
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    for peer in peers:
        assert sorted(number for _, number, _ in received[peer]) == [0, 1, 2]
        for whose, number, parts in received[peer]:
            assert whose == peer
            assert all(torch.equal(part, tagged(number, 10_000 + number)) for part in parts)


def check_wrong_arguments(smp: Any) -> None:
    rank, n = smp.rank(), smp.size()
    for call, helps in (
        (lambda: smp.send(1, n, smp.WORLD_RANK), f"got dest_rank={n}; expected an integer from 0"),
        (lambda: smp.send(1, -1, smp.WORLD_RANK), "Correct dest_rank or rank_type"),
        (lambda: smp.send(1, "0", smp.WORLD_RANK), "got dest_rank='0'"),
        (lambda: smp.recv_from(n, smp.DP_RANK), f"got src_rank={n}"),
        (lambda: smp.send(1, rank, smp.WORLD_RANK), f"which is rank {rank} itself"),
        (lambda: smp.recv_from(smp.dp_rank(), smp.DP_RANK), "Use the object as it is"),
        (lambda: smp.send(1, 0, smp.WORLD), "expected a member of smp.RankType: smp.WORLD_RANK"),
        (lambda: smp.broadcast(1, smp.get_world_process_group()), "member of smp.CommGroup"),
        (lambda: smp.allgather(1, smp.MP_RANK), "got group=<RankType.MP_RANK"),
        (lambda: smp.barrier("world"), "got group='world'"),
    ):
        name, text, bases = raised(call)
        assert name == "ConfigError", text
        assert "ValueError" in bases
        assert helps in text, text


class UnpicklesNowhere:
    """Pickles, and raises when it is unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def check_what_does_not_pickle(smp: Any) -> None:
    """An error on both sides, which names the rank and the type; then all goes on as before."""
    rank, n = smp.rank(), smp.size()
    bad = {"lock": threading.Lock(), "tensor": tagged(rank, 100_000)}
    reason = "rank 0 sends no object: an object of type dict does not pickle"

    def told(function: Callable[..., Any], *args: Any) -> str:
        name, text, _ = raised(function, *args)
        assert name == "TypeError", text
        return text

    if rank == 0:
        assert told(smp.send, bad, 1, smp.WORLD_RANK).startswith(reason)
        smp.send("after", 1, smp.WORLD_RANK)
        assert told(smp.broadcast, bad, smp.WORLD).startswith(reason)
    else:
        if rank == 1:
            text = told(smp.recv_from, 0, smp.WORLD_RANK)
            assert text.startswith(f"rank 1 has waited for rank 0 in vain: {reason}"), text
            assert smp.recv_from(0, smp.WORLD_RANK) == "after"
        assert f"rank {rank} has waited for rank 0 in vain" in told(
            smp.recv_from, 0, smp.WORLD_RANK
        )
    text = told(smp.allgather, bad if rank == 0 else tagged(rank, 50_000), smp.WORLD)
    assert reason in text
    if rank == 0:
        smp.broadcast([UnpicklesNowhere(), tagged(0, 100_000)], smp.WORLD)
    else:
        text = told(smp.recv_from, 0, smp.WORLD_RANK)
        assert text.startswith(f"rank {rank}, from rank 0: an object does not unpickle here")
    assert smp.allgather(rank, smp.WORLD) == list(range(n)), "nothing is left over"


CHECKS = (
    check_messages,
    check_kinds_of_ranks,
    check_allgather,
    check_beside_torch,
    check_threads,
    check_wrong_arguments,
    check_what_does_not_pickle,
)


def everything(rank: int, world_size: int, backend: str) -> None:
    import smdistributed.modelparallel.torch as smp

    smp.init({"pipeline_parallel_degree": 2, "ddp": True, "ddp_dist_backend": backend})
    for check in CHECKS:
        check(smp)
    smp.reset()


def test_four_ranks() -> None:
    run_ranks(everything, 4, "auto", deadline_s=DEADLINE_S)


@pytest.mark.parametrize(
    ("backend", "transport"), [("smddp", "tcp"), ("gloo", "auto")], ids=["tcp", "gloo"]
)
def test_two_ranks(backend: str, transport: str) -> None:
    env = {"SMDDP_TRANSPORT": transport, "SMDDP_TOKEN": "secret"}
    run_ranks(everything, 2, backend, env=env, deadline_s=DEADLINE_S)


def crossing(rank: int, world_size: int, port: int) -> None:
    """Each sends more than the wires hold before it receives, and beside a CUDA-only group."""
    import smdistributed.modelparallel.torch as smp

    smp.init({"pipeline_parallel_degree": 2})
    smp.send(tagged(rank, LARGE), 1 - rank, smp.PP_RANK)
    assert torch.equal(smp.recv_from(1 - rank, smp.PP_RANK), tagged(1 - rank, LARGE))
    smp.reset()

    dist.init_process_group(
        "cuda:gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    smp.init({"ddp": True})
    assert dist.get_backend(smp.get_tp_process_group()) == "cpu:smddp,cuda:gloo"
    for check in (check_messages, check_kinds_of_ranks):
        check(smp)
    assert smp.allgather(rank, smp.WORLD) == smp.allgather(rank, smp.DP_GROUP) == [0, 1]
    assert smp.allgather(rank, smp.PP_GROUP) == [rank]
    smp.barrier()
    smp.reset()
    dist.destroy_process_group()


def test_crossing_messages_and_a_default_group_for_cuda_tensors() -> None:
    run_ranks(crossing, 2, free_port(), deadline_s=DEADLINE_S)


def a_rank_dies(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    import smdistributed.modelparallel.torch as smp

    smp.init({"ddp": True})
    if rank == 2:
        smp.recv_from(0, smp.WORLD_RANK)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        smp.send("now", 2, smp.WORLD_RANK)
        return raised(smp.recv_from, 2, smp.WORLD_RANK)
    return raised(smp.allgather, 1, smp.WORLD)


def test_a_rank_that_dies_ends_the_waiting_of_the_others() -> None:
    first, second, dead = run_ranks(a_rank_dies, 3, check=False, deadline_s=DEADLINE_S)
    assert dead.exit_code == -signal.SIGKILL
    for outcome in (first, second):
        assert outcome.ok, outcome.output
        name, text, bases = outcome.value
        assert name == "SMDDPPeerLost", text
        assert "ConnectionError" in bases
        assert "rank 2" in text
        assert outcome.duration_s < TIMEOUT_S


def nobody_sends(rank: int, world_size: int) -> tuple[str, str, list[str]] | None:
    import smdistributed.modelparallel.torch as smp

    smp.init({"ddp": True})
    if rank == 1:
        wait_until_given_up()  # who leaves earlier looks lost
        return None
    told = raised(smp.recv_from, 1, smp.WORLD_RANK)
    give_up()
    return told


def test_a_message_that_never_comes_ends_with_the_timeout() -> None:
    told, _ = run_ranks(
        nobody_sends, 2, env={"SMDDP_TIMEOUT_SECONDS": str(scaled(2.0))}, deadline_s=DEADLINE_S
    )
    assert told[0] == "SMDDPTimeoutError", told
