# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Strangers at every port of a job, while it starts and while it works: the job goes on.

They send random bytes and recorded genuine handshakes, stop in the middle of one, and come by the
hundreds and say nothing. Results stay right, nobody gets an error, and what they may hold of a
rank is bounded. Source: docs/security.md, "Hosts: the token".
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_ranks import Heard, heard, meet_by_files
from harness import run_ranks
from job_certificates import make_authority, make_files, settings_of
from machine_speed import scaled
from strangers import Wiretap, fall_silent, say, throw_garbage

WORLD_SIZE = 3
TIMEOUT_S = scaled(60.0)
FLOOD = 200
COUNT = 50_000
TOKEN = "f" * 64
# transport/tcp/handshakes.h: kStrangers, and one for each rank.
MOST_STRANGERS = 64 + WORLD_SIZE
# Of the rendezvous: hello and proof of collectives/rendezvous/wire.py, which follow one another.
REFUSAL = bytes(33)


def _is_sum(comm: Any, step: int) -> None:
    array = np.arange(COUNT, dtype=np.float64) + comm.rank + step
    comm.all_reduce(array)
    expected = np.arange(COUNT) * WORLD_SIZE + sum(range(WORLD_SIZE)) + WORLD_SIZE * step
    assert np.array_equal(array, expected), step


def _pestered_rendezvous(rank: int, world_size: int, folder: str) -> None:
    """Rank 1 is overheard while it joins; rank 2 keeps strange company, and joins last."""
    from smdistributed.collectives import environment
    from smdistributed.collectives.rendezvous import Rendezvous

    port = int(os.environ["MASTER_PORT"])
    recording = Path(folder, "recording")
    silent: list[socket.socket] = []
    if rank == 0:
        time.sleep(0.3)  # The tap is up first, and must bear with a port nobody listens at.
    if rank == 1:
        tap = Wiretap(port)
        os.environ["MASTER_PORT"] = str(tap.port)

        class Overheard(Rendezvous):
            def exchange(self, key: str, value: bytes) -> list[bytes]:
                if not recording.exists():  # it has been admitted: the handshake is complete
                    part = recording.with_suffix(".part")
                    part.write_bytes(tap.recorded()[-1])
                    part.rename(recording)
                return super().exchange(key, value)

        environment.Rendezvous = Overheard  # type: ignore[misc]
    if rank == 2:
        deadline = time.monotonic() + TIMEOUT_S
        while not recording.exists():
            assert time.monotonic() < deadline, "rank 1 was never admitted"
            time.sleep(0.01)
        genuine = recording.read_bytes()
        answer = say(port, genuine)
        is_secured = "SMDDP_TLS_CERT" in os.environ
        assert is_secured or answer.endswith(REFUSAL), "a replayed handshake must be refused"
        throw_garbage(port, seed=rank)
        beginnings = [genuine[:size] for size in range(0, min(len(genuine), 1000), 7)]
        silent += fall_silent(port, beginnings)
        silent += fall_silent(port, [b""] * FLOOD)
    with environment.init(timeout_s=TIMEOUT_S) as comm:
        for step in range(3):
            _is_sum(comm, step)
    for connection in silent:
        connection.close()


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _pestered_collectives(rank: int, world_size: int) -> None:
    """Rank 1 is overheard by the others' connections; each rank pesters the next one's port."""
    from smdistributed import collectives
    from smdistributed._common.engine_options import EngineOptions
    from smdistributed._common.settings import process_settings

    own_port = 0
    taps: list[Wiretap] = []

    with collectives.init(timeout_s=TIMEOUT_S) as outer:

        def exchange(key: str, value: bytes) -> list[bytes]:
            nonlocal own_port
            found = re.search(rb"127\.0\.0\.1:(\d{5})", value)
            if found is not None:
                own_port = int(found[1])
                if rank == 1:
                    taps.append(Wiretap(own_port))
                    assert len(str(taps[0].port)) == 5
                    value = value.replace(found[1], str(taps[0].port).encode())
            return outer._exchange_bytes(value)

        comm = collectives.Communicator(
            rank,
            world_size,
            exchange,
            dataclasses.replace(
                EngineOptions.from_settings(process_settings()),
                timeout_s=TIMEOUT_S,
                transport="tcp",
                rendezvous_address="127.0.0.1",
            ),
        )
        assert own_port, "the endpoint is not where this test looks for it"
        with comm:
            _is_sum(comm, 0)
            _pester_and_reduce(outer, comm, own_port, taps)
        for tap in taps:
            tap.close()


def _pester_and_reduce(outer: Any, comm: Any, own_port: int, taps: list[Wiretap]) -> None:
    rank = comm.rank
    ports = np.zeros(WORLD_SIZE, dtype=np.int64)
    outer.all_gather(ports, np.array([own_port]))
    target = int(ports[(rank + 1) % WORLD_SIZE])
    silent: list[socket.socket] = []
    replayed: list[bytes] = []

    def pester() -> None:
        throw_garbage(target, seed=rank)
        for genuine in [each for tap in taps for each in tap.recorded()]:
            replayed.append(say(own_port, genuine))
            silent.extend(fall_silent(own_port, [genuine[:size] for size in (1, 64, 80)]))
        silent.extend(fall_silent(target, [b""] * FLOOD))

    before = _open_descriptors()
    failures: list[BaseException] = []
    stranger = threading.Thread(target=_keeping(failures, pester))
    stranger.start()
    steps = 1
    # As long as the slowest stranger needs: all ranks must make the same calls.
    while True:
        _is_sum(comm, steps)
        steps += 1
        running = np.array([float(stranger.is_alive())])
        outer.all_reduce(running)
        if running[0] == 0:
            break
    stranger.join()
    assert not failures, failures
    # Everybody's strangers are in place, and hold no more than they may.
    held = _open_descriptors() - before - len(silent)
    assert held <= MOST_STRANGERS, f"strangers hold {held} descriptors"
    outer.barrier()
    for step in range(steps, steps + 3):
        _is_sum(comm, step)
    if rank == 1:
        assert replayed, "nobody was overheard"
        if "SMDDP_TLS_CERT" not in os.environ:
            # A challenge each, and then an end: no welcome.
            assert {len(heard_back) for heard_back in replayed} <= {0, 32}
    for connection in silent:
        connection.close()


def _keeping(failures: list[BaseException], function: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)

    return run


def _settings(folder: Path, is_secured: bool) -> dict[str, str]:
    env = {"SMDDP_TRANSPORT": "tcp", "SMDDP_TOKEN": TOKEN}
    if not is_secured:
        return env
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make certificates with")
    return env | settings_of(make_files(make_authority(folder / "job")))


@pytest.mark.parametrize("is_secured", [False, True], ids=["clear", "tls"])
def test_strangers_at_the_rendezvous_do_not_disturb_the_start(
    tmp_path: Path, is_secured: bool
) -> None:
    env = _settings(tmp_path, is_secured)
    run_ranks(_pestered_rendezvous, WORLD_SIZE, str(tmp_path), env=env, deadline_s=110)


@pytest.mark.parametrize("is_secured", [False, True], ids=["clear", "tls"])
def test_strangers_at_the_ports_of_ranks_do_not_disturb_collectives(
    tmp_path: Path, is_secured: bool
) -> None:
    env = _settings(tmp_path, is_secured)
    run_ranks(_pestered_collectives, WORLD_SIZE, env=env, deadline_s=110)


def _joins_with(rank: int, world_size: int, tokens: tuple[str, ...], folder: str) -> Heard | None:
    os.environ["SMDDP_TOKEN"] = tokens[rank]
    from smdistributed import collectives

    meet_by_files(folder, rank, world_size)

    def join() -> None:
        with collectives.init(timeout_s=3.0):
            pass

    return heard(join)


def test_ranks_that_wait_for_one_with_another_token_are_told_so(tmp_path: Path) -> None:
    """The rank that differs knows at once; the others say whom they refused when time is up."""
    told = run_ranks(_joins_with, 3, ("a", "a", "b"), str(tmp_path), deadline_s=60)
    assert told[2].type_name == "ConfigurationError", told[2]
    assert "has another job token than rank 2" in told[2].text
    for each in told[:2]:
        assert each.type_name == "CollectiveTimeoutError", each
        assert "rank(s) 2 never connected" in each.text
        assert re.search(
            r"A connection from 127\.0\.0\.1:\d+ that claims to be rank 2 was refused: it does not "
            r"know the job's token; expected the same SMDDP_TOKEN",
            each.text,
        ), each.text
        assert told[2].at_s < each.at_s
