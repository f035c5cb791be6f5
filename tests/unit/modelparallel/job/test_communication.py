# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Objects between ranks that are threads here, carried by queues (specification, section 4.7)."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pickle
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from smdistributed._common.errors import InternalError
from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.topology import GroupKind, Topology
from smdistributed.modelparallel.job import communication as module
from smdistributed.modelparallel.job.arguments import CommGroup, RankType
from smdistributed.modelparallel.job.communication import Bytes, Communication, Parcel, Work
from smdistributed.modelparallel.job.pickling import LARGE_BYTES, dump, unpickling
from smdistributed.modelparallel.job.state import BaseJob, BaseState

TIMEOUT_S = 20.0


class Sent:
    """A part that is on its way for so many looks, and then sent, or not."""

    def __init__(self, looks: int = 0, error: Exception | None = None) -> None:
        self.looks_left = looks
        self._error = error

    def is_completed(self) -> bool:
        self.looks_left -= 1
        return self.looks_left < 0

    def wait(self) -> None:
        if self._error is not None:
            raise self._error


class Network:
    """Of four ranks, two and two of which are a pipeline."""

    def __init__(self) -> None:
        self.topology = Topology(4, 2)
        self.waiting: dict[tuple[int, int], queue.Queue[bytes]] = {
            (source, dest): queue.Queue() for source in range(4) for dest in range(4)
        }
        self.shown: dict[int, Bytes] = {}
        self.meeting = {
            group: threading.Barrier(len(group), timeout=TIMEOUT_S)
            for kind in GroupKind
            for group in self.topology.groups(kind)
        }


class Carrier:
    """`job.communication.Carrier` of a rank."""

    foreign = "Say so."

    def __init__(self, network: Network, job: BaseJob) -> None:
        self.network = network
        self.job = job
        self.works: list[Work | None] = []  # what the next parts are
        self.num_opened = 0

    def require(self, function: str, kind: GroupKind | None) -> BaseJob:
        return self.job

    def pack(self, obj: Any) -> Parcel:
        stream, blocks = dump(obj, pickle.Pickler)
        arrays = [np.frombuffer(memory, np.uint8) for memory in (stream, *blocks)]
        return Parcel(arrays[0], tuple(arrays[1:]))

    def unpack(self, parcel: Parcel) -> Any:
        self.num_opened += 1
        with unpickling():
            return pickle.loads(parcel.stream.data, buffers=parcel.blocks)

    def start_sending(self, part: Bytes, receiver: int) -> Work | None:
        assert part.size
        self.network.waiting[self.job.rank, receiver].put(part.tobytes())
        return self.works.pop(0) if self.works else None

    def receive(self, part: Bytes, source: int) -> None:
        came = self.network.waiting[source, self.job.rank].get(timeout=TIMEOUT_S)
        part[:] = np.frombuffer(came, np.uint8)  # raises if sizes differ

    def gather(self, kind: GroupKind, mine: Bytes) -> list[Bytes]:
        self.network.shown[self.job.rank] = mine
        self.meet(kind)
        everyone = [self.network.shown[rank].copy() for rank in self.job.members(kind)]
        assert len({each.size for each in everyone}) == 1, "engines want as many bytes of each"
        self.meet(kind)
        return everyone

    def meet(self, kind: GroupKind) -> None:
        self.network.meeting[self.job.members(kind)].wait()


class Rank:
    """One of the four."""

    def __init__(self, network: Network, number: int) -> None:
        job = BaseJob(
            config=Config(), topology=network.topology, rank=number, local_rank=0, local_size=1
        )
        self.number = number
        self.carrier = Carrier(network, job)
        self.state: BaseState[BaseJob] = BaseState()
        self.state.enter(job, contextlib.ExitStack())
        self.smp = Communication(self.state, self.carrier)


@pytest.fixture
def ranks() -> list[Rank]:
    network = Network()
    return [Rank(network, number) for number in range(4)]


def on_all(ranks: list[Rank], do: Callable[[Rank], Any]) -> list[Any]:
    """What each rank makes of it: a result, or an error."""

    def run(rank: Rank) -> Any:
        try:
            return do(rank)
        except Exception as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, ranks))


@pytest.mark.parametrize("size", [0, 1, LARGE_BYTES - 1, LARGE_BYTES, 3 * LARGE_BYTES + 1])
def test_arrays_of_all_sizes_arrive_as_they_were(ranks: list[Rank], size: int) -> None:
    value = {"array": np.arange(size, dtype=np.uint8), "twice": np.ones((size, 2)), "none": None}
    ranks[0].smp.send(value, 1, RankType.MP_RANK)
    value["array"] += 1  # it has been copied
    copy = ranks[1].smp.recv_from(0, RankType.WORLD_RANK)
    assert np.array_equal(copy["array"], np.arange(size, dtype=np.uint8))
    assert np.array_equal(copy["twice"], value["twice"])
    copy["array"] += 1


def test_objects_of_one_sender_come_in_their_order(ranks: list[Rank]) -> None:
    for number in range(3):
        ranks[2].smp.send(number, 0, RankType.WORLD_RANK)
    ranks[3].smp.send("of another", 0, RankType.WORLD_RANK)
    assert ranks[0].smp.recv_from(3, RankType.WORLD_RANK) == "of another"
    assert [ranks[0].smp.recv_from(2, RankType.WORLD_RANK) for _ in range(3)] == [0, 1, 2]


def test_broadcast_reaches_the_group_and_nobody_else(ranks: list[Rank]) -> None:
    ranks[2].smp.broadcast("x", CommGroup.MP_GROUP)
    assert ranks[3].smp.recv_from(0, RankType.MP_RANK) == "x"
    assert all(each.empty() for each in ranks[0].carrier.network.waiting.values())


def test_what_does_not_pickle_is_an_error_on_both_sides(ranks: list[Rank]) -> None:
    with pytest.raises(TypeError, match=r"^rank 0 sends no object: an object of type function"):
        ranks[0].smp.send(lambda: 0, 1, RankType.WORLD_RANK)
    ranks[0].smp.send("after it", 1, RankType.WORLD_RANK)
    with pytest.raises(TypeError, match=r"rank 1 has waited for rank 0 in vain: rank 0 sends no"):
        ranks[1].smp.recv_from(0, RankType.WORLD_RANK)
    assert ranks[1].smp.recv_from(0, RankType.WORLD_RANK) == "after it"


def test_allgather_of_objects_of_all_sizes(ranks: list[Rank]) -> None:
    def gather(rank: Rank) -> Any:
        mine = np.full(rank.number * LARGE_BYTES, rank.number, np.uint8)
        return rank.smp.allgather(mine, CommGroup.WORLD), rank.smp.allgather(
            rank.number, CommGroup.MP_GROUP
        )

    for number, (everyone, pipeline) in enumerate(on_all(ranks, gather)):
        assert [each.size for each in everyone] == [i * LARGE_BYTES for i in range(4)]
        assert all((each == i).all() for i, each in enumerate(everyone))
        assert pipeline == [number // 2 * 2, number // 2 * 2 + 1]


def test_one_member_that_does_not_pickle_ends_allgather_everywhere(ranks: list[Rank]) -> None:
    def gather(rank: Rank) -> Any:
        return rank.smp.allgather((lambda: 0) if rank.number == 2 else "x", CommGroup.WORLD)

    errors = on_all(ranks, gather)
    assert all(isinstance(each, TypeError) for each in errors)
    assert all("rank 2 sends no object" in str(each) for each in errors)
    assert not any(rank.carrier.num_opened for rank in ranks)
    assert (
        on_all(ranks, lambda rank: rank.smp.allgather(rank.number, CommGroup.WORLD))
        == [[0, 1, 2, 3]] * 4
    )


def test_another_libraries_message_is_no_object(ranks: list[Rank]) -> None:
    ranks[0].carrier.network.waiting[0, 1].put(np.zeros(3, np.int64).tobytes())
    words = r"rank 1 got a message from rank 0 that begins with 0; expected one of smp\.send\(\)\."
    with pytest.raises(InternalError, match=rf"{words} Say so\."):
        ranks[1].smp.recv_from(0, RankType.WORLD_RANK)


def test_what_has_kept_a_part_from_being_sent_is_raised_later(ranks: list[Rank]) -> None:
    ranks[0].carrier.works = [Sent(), Sent(error=ConnectionError("rank 1 is gone")), Sent(looks=9)]
    ranks[0].smp.send("x", 1, RankType.WORLD_RANK)
    with pytest.raises(ConnectionError, match="rank 1 is gone"):
        ranks[0].smp.send("y", 1, RankType.WORLD_RANK)
    ranks[0].smp.send("z", 1, RankType.WORLD_RANK)  # once is enough


def test_the_end_waits_for_what_is_under_way_and_not_for_ever(
    ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Sent(looks=3)
    ranks[0].carrier.works = [slow]
    ranks[0].smp.send("x", 1, RankType.WORLD_RANK)
    ranks[0].state.reset()
    assert slow.looks_left < 0

    never = Sent(looks=10**9)
    ranks[1].carrier.works = [never]
    ranks[1].smp.send("x", 0, RankType.WORLD_RANK)
    monkeypatch.setattr(module, "_SENT_WITHIN_S", 0.01)
    ranks[1].state.reset()
    assert never.looks_left > 0


def test_barriers_meet_their_group(ranks: list[Rank]) -> None:
    def meet(rank: Rank) -> None:
        rank.smp.barrier()
        for name in ("mp", "pp", "dp", "rdp", "tp"):
            getattr(rank.smp, f"{name}_barrier")()
        if rank.number < 2:
            rank.smp.barrier(CommGroup.PP_GROUP)

    assert on_all(ranks, meet) == [None] * 4
