# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who may take part in a job over TCP, and what people are told about it.

The handshake itself is tested in tests/native; here are jobs of several processes, with strangers
at their ports and with tokens that differ. Source: docs/security.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import re
import socket
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from engine_ranks import TIMEOUT_S, Heard, heard, must_hear
from harness import run_ranks
from held_resources import resources_of_this_process
from machine_speed import scaled
from torch_ranks import smddp

WORLD_SIZE = 3
OVER_TCP = {"SMDDP_TRANSPORT": "tcp"}
TOKEN = "f" * 64


def _hello(rank: int, target: int) -> bytes:
    """A hello that is right in all it says, see native/transport/tcp/protocol.h."""
    return struct.pack(
        "<8sIHHiii4x", b"SMDHELLO", 0x01020304, 4, 64, rank, WORLD_SIZE, target
    ) + os.urandom(32)


def _introduce(port: int, target: int, token: bytes) -> bytes | None:
    """Plays a rank that has another token; returns what it hears after its proof.

    None: the port is not the engine's, as nothing came back for the hello.
    """
    hello = _hello((target + 1) % WORLD_SIZE, target)
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(hello)
        challenge = connection.recv(32, socket.MSG_WAITALL)
        if len(challenge) < 32:
            return None
        frame = bytes(56)  # a whole frame, which must not be taken
        connection.sendall(hmac.digest(token, b"smddp proof" + hello + challenge, hashlib.sha256))
        with contextlib.suppress(OSError):
            connection.sendall(frame)
            return connection.recv(32)
    return b""


def _strangers_introduce_themselves(rank: int, world_size: int) -> None:
    from smdistributed import collectives

    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        for _ in range(3):
            heard = [
                # Even the token is no key: the group's session is part of it.
                _introduce(port, rank, token)
                for port in resources_of_this_process().ports
                for token in (b"", b"guess", TOKEN.encode())
            ]
            assert heard.count(b"") == 3
            assert heard.count(None) == len(heard) - 3
            array = np.full(1000, float(rank))
            comm.all_reduce(array)
            assert array[0] == sum(range(world_size))


def test_strangers_without_the_key_are_refused_and_the_job_goes_on() -> None:
    run_ranks(
        _strangers_introduce_themselves,
        WORLD_SIZE,
        env={**OVER_TCP, "SMDDP_TOKEN": TOKEN},
        deadline_s=120,
    )


def _misses_rank_1(rank: int, world_size: int) -> Heard:
    from smdistributed import collectives

    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        array = np.ones(10)
        comm.all_reduce(array)
        if rank == 0:
            for port in resources_of_this_process().ports:
                _introduce(port, rank, b"guess")  # as rank 1
            # Long enough for rank 2 to come: it would be missed as well.
            return must_hear(lambda: comm.all_reduce(array, timeout_s=scaled(1.0)))
        if rank == 1:
            return must_hear(lambda: comm.recv(array, 0))
        return must_hear(lambda: comm.all_reduce(array))


def test_a_timeout_names_who_was_refused_as_the_rank_that_is_missed() -> None:
    env = {**OVER_TCP, "SMDDP_TOKEN": TOKEN}
    first, *_ = run_ranks(_misses_rank_1, WORLD_SIZE, env=env, deadline_s=120)
    assert first.type_name == "CollectiveTimeoutError", first
    assert "for rank 1 (host" in first.text
    assert re.search(
        r"Refused meanwhile: a connection from 127\.0\.0\.1:\d+ that claimed to be rank 1 was "
        r"refused: it does not know the job's token",
        first.text,
    ), first.text


def _joins_with(rank: int, world_size: int, tokens: Sequence[str | None]) -> Heard | None:
    token = tokens[rank]
    if token is not None:
        os.environ["SMDDP_TOKEN"] = token

    def join() -> None:
        with smddp():
            pass

    return heard(join)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (("a", "a", "b"), "rank 2 (host {host}, pid {pid}) does not know the job's token"),
        (("b", "a", "a"), "rank 0 (host {host}, pid {pid}) does not know the job's token"),
        (
            ("a", None, "a"),
            "rank 1 (host {host}, pid {pid}) does not know the job's token: has none",
        ),
    ],
)
def test_a_rank_with_another_token_is_named_to_every_rank(
    tokens: Sequence[str | None], text: str, transport: str
) -> None:
    told = run_ranks(
        _joins_with, len(tokens), tokens, env={"SMDDP_TRANSPORT": transport}, deadline_s=120
    )
    before_host = text.partition("{host}")[0]
    after_pid = text.partition("{pid}")[2]
    for each in told:
        assert each is not None
        assert each.type_name == "SMDDPConfigInvalid", each
        assert "ValueError" in each.bases
        assert each.text.startswith(before_host), each.text
        assert after_pid in each.text
        assert "same SMDDP_TOKEN" in each.text
        assert each.text == told[0].text


def _warnings_of_two_groups(rank: int, world_size: int) -> list[str]:
    from smdistributed import collectives

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    texts: list[str] = []
    logging.getLogger("smdistributed").addHandler(Keep(logging.WARNING))
    for _ in range(2):
        with collectives.init(timeout_s=TIMEOUT_S) as comm:
            comm.barrier()
    return [text for text in texts if "token" in text]


@pytest.mark.parametrize(
    ("env", "lines"),
    [
        (OVER_TCP, 1),
        ({**OVER_TCP, "SMDDP_TOKEN": TOKEN}, 0),
        ({"SMDDP_TRANSPORT": "shm"}, 0),  # nobody outside this host can reach it
    ],
)
def test_tcp_without_a_token_is_told_once_on_rank_0(env: dict[str, str], lines: int) -> None:
    first, second = run_ranks(_warnings_of_two_groups, 2, env=env, deadline_s=120)
    assert len(first) == lines
    assert second == []
    for text in first:
        assert "Set SMDDP_TOKEN" in text
