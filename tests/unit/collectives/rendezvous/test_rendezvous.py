# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The rendezvous with ranks as threads of one process, over loopback."""

import concurrent.futures
import contextlib
import errno
import os
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machine_speed import scaled
from ports import free_port

from smdistributed._common.errors import (
    CollectiveTimeoutError,
    ConfigurationError,
    MismatchError,
    PeerLostError,
    SmdistributedError,
)
from smdistributed.collectives.rendezvous import Rendezvous, wire

pytestmark = pytest.mark.timeout(60)

ADDR = "127.0.0.1"
TIMEOUT_S = scaled(20.0)

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(TIMEOUT_S)  # close() does not wait for it without end
    assert set(threading.enumerate()) <= before


def value_of(rank: int, step: int) -> bytes:
    """A value that tells its rank and step, with a length that differs between ranks."""
    return struct.pack("!II", rank, step) * (rank + step)


def run_ranks(
    world_size: int,
    body: Callable[[Rendezvous], T],
    *,
    tokens: Callable[[int], bytes | None] = lambda rank: b"secret",
    timeout_s: float = TIMEOUT_S,
) -> list[T]:
    """Runs `body` once per rank and returns the results by rank."""
    with Rendezvous(0, world_size, ADDR, 0, timeout_s, tokens(0)) as first:

        def one(rank: int) -> T:
            if rank == 0:
                return body(first)
            with Rendezvous(rank, world_size, ADDR, first.port, timeout_s, tokens(rank)) as own:
                return body(own)

        with concurrent.futures.ThreadPoolExecutor(world_size) as pool:
            return list(pool.map(one, range(world_size)))


def give_up_after(seconds: float, *members: Rendezvous) -> None:
    """In exchanges from here on. Joining has had all the time that it needed."""
    for one in members:
        one._timeout_s = seconds
        if one._server is not None:
            one._server._timeout_s = seconds


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8, 64])
def test_every_rank_gets_every_value(world_size: int) -> None:
    def body(rendezvous: Rendezvous) -> list[list[bytes]]:
        rank = ranks.pop()
        own = {step: value_of(rank, step) for step in range(4)}
        return [rendezvous.exchange(f"step {step}", own[step]) for step in range(4)]

    # Ranks are handed out in any order; the values tell which rank they came from.
    ranks = list(range(world_size))
    for results in run_ranks(world_size, body):
        for step, values in enumerate(results):
            assert sorted(values) == sorted(value_of(rank, step) for rank in range(world_size))
    assert not ranks


@pytest.mark.parametrize("token", [None, b"secret"])
def test_values_stand_at_the_index_of_their_rank(token: bytes | None) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Rendezvous(0, 3, ADDR, 0, TIMEOUT_S, token))
        others = [
            stack.enter_context(Rendezvous(rank, 3, ADDR, first.port, TIMEOUT_S, token))
            for rank in (2, 1)
        ]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(others[0].exchange, "k", b"two")]
            futures.append(pool.submit(others[1].exchange, "k", b""))
            assert first.exchange("k", b"zero") == [b"zero", b"", b"two"]
            assert [future.result() for future in futures] == [[b"zero", b"", b"two"]] * 2


def test_a_value_larger_than_the_socket_buffers_arrives_whole() -> None:
    large = os.urandom(4 * 1024 * 1024 + 1)
    for values in run_ranks(3, lambda rendezvous: rendezvous.exchange("large", large)):
        assert values == [large] * 3


def test_a_value_above_the_bound_is_refused_before_anything_is_sent() -> None:
    def body(rendezvous: Rendezvous) -> list[bytes]:
        with pytest.raises(ConfigurationError, match="Send large data with a collective"):
            rendezvous.exchange("k", bytes(wire.MAX_VALUE_BYTES + 1))
        return rendezvous.exchange("k", b"small")

    assert run_ranks(2, body) == [[b"small"] * 2] * 2


def test_different_keys_are_told_to_all_ranks_and_stay_the_error() -> None:
    barrier = threading.Barrier(3)

    def body(rendezvous: Rendezvous) -> None:
        with pytest.raises(MismatchError, match="same calls in the same order") as first:
            rendezvous.exchange(f"key {barrier.wait() % 2}", b"")
        with pytest.raises(MismatchError) as second:
            rendezvous.exchange("later", b"")
        assert second.value is first.value

    run_ranks(3, body)


def test_a_rank_that_dies_in_an_exchange_is_named_to_the_others() -> None:
    def die(rendezvous: Rendezvous) -> None:
        assert rendezvous._socket is not None
        rendezvous._socket.shutdown(socket.SHUT_RDWR)

    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Rendezvous(0, 4, ADDR, 0, TIMEOUT_S))
        others = [
            stack.enter_context(Rendezvous(rank, 4, ADDR, first.port, TIMEOUT_S))
            for rank in (1, 2, 3)
        ]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(one.exchange, "k", b"") for one in (first, *others[:2])]
            die(others[2])
            for future in futures:
                with pytest.raises(PeerLostError, match="Read the log of rank 3 first"):
                    future.result()


def test_a_rank_that_left_before_is_named_at_the_next_exchange() -> None:
    with (
        Rendezvous(0, 2, ADDR, 0, TIMEOUT_S) as first,
        Rendezvous(1, 2, ADDR, first.port, TIMEOUT_S) as second,
    ):
        second.close()
        with pytest.raises(PeerLostError, match=r"rank 1 .*left before exchange 'k'"):
            first.exchange("k", b"")


def test_the_end_of_rank_0_is_told_to_the_others() -> None:
    first = Rendezvous(0, 3, ADDR, 0, TIMEOUT_S)
    with (
        Rendezvous(1, 3, ADDR, first.port, TIMEOUT_S) as second,
        Rendezvous(2, 3, ADDR, first.port, TIMEOUT_S) as third,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):
        futures = [pool.submit(one.exchange, "k", b"") for one in (second, third)]
        first.close()
        for future in futures:
            with pytest.raises(PeerLostError, match="rank 0"):
                future.result()


def test_leaving_right_after_the_last_exchange_loses_no_answer() -> None:
    # Rank 0 closes as soon as it has its own answer; those of the others are still on their way.
    large = bytes(1024 * 1024)
    for _ in range(5):
        results = run_ranks(4, lambda rendezvous: _exchange_and_close(rendezvous, large))
        assert results == [[large] * 4] * 4


def _exchange_and_close(rendezvous: Rendezvous, value: bytes) -> list[bytes]:
    values = rendezvous.exchange("last", value)
    rendezvous.close()
    return values


def test_missing_ranks_are_named_when_time_is_up() -> None:
    with (
        Rendezvous(0, 4, ADDR, 0, TIMEOUT_S) as first,
        Rendezvous(2, 4, ADDR, first.port, TIMEOUT_S),
    ):
        give_up_after(0.3, first)
        with pytest.raises(
            CollectiveTimeoutError,
            match=r"rank\(s\) 1, 3 never connected and rank\(s\) 2 connected but did not come",
        ):
            first.exchange("k", b"")


def test_two_processes_with_one_rank_are_an_error_on_all() -> None:
    with (
        Rendezvous(0, 3, ADDR, 0, TIMEOUT_S) as first,
        Rendezvous(1, 3, ADDR, first.port, TIMEOUT_S) as second,
    ):
        with pytest.raises(MismatchError, match="rank 1 joined twice"):
            Rendezvous(1, 3, ADDR, first.port, TIMEOUT_S)
        for one in (first, second):
            with pytest.raises(MismatchError, match="Check RANK on these hosts"):
                one.exchange("k", b"")


def test_another_world_size_is_an_error_on_all() -> None:
    with Rendezvous(0, 2, ADDR, 0, TIMEOUT_S) as first:
        with pytest.raises(MismatchError, match="world size 3, rank 0 with 2"):
            Rendezvous(1, 3, ADDR, first.port, TIMEOUT_S)
        with pytest.raises(MismatchError, match="Check WORLD_SIZE"):
            first.exchange("k", b"")


@pytest.mark.parametrize(
    ("ours", "theirs", "text", "reason"),
    [
        (b"a", b"b", "has another job token", "it does not know the job's token"),
        (
            b"a",
            None,
            "rank 0 has a job token and rank 1 has none",
            "rank 0 has a job token and it has none",
        ),
        (
            None,
            b"b",
            "rank 1 has a job token and rank 0 has none",
            "it has a job token and rank 0 has none",
        ),
    ],
)
def test_a_wrong_token_is_refused_logged_and_disturbs_nobody(
    ours: bytes | None,
    theirs: bytes | None,
    text: str,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, ours) as first:
        with pytest.raises(ConfigurationError, match=text):
            Rendezvous(1, 2, ADDR, first.port, TIMEOUT_S, theirs)
        _assert_still_works(first, ours)
    assert f"a connection from {ADDR}:" in caplog.text
    assert f"that claims to be rank 1 was refused: {reason}; expected the same SMDDP_TOKEN" in (
        caplog.text
    )


def test_who_waits_is_told_of_a_wrong_token_at_once_and_when_time_is_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = r"from 127\.0\.0\.1:\d+ that claims to be rank 2 was refused: it does not know"
    with (
        Rendezvous(0, 3, ADDR, 0, TIMEOUT_S, b"secret") as first,
        Rendezvous(1, 3, ADDR, first.port, TIMEOUT_S, b"secret") as second,
    ):
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="another job token than rank 2"):
                Rendezvous(2, 3, ADDR, first.port, TIMEOUT_S, b"guess")
        give_up_after(1.0, first, second)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for waiting in [pool.submit(one.exchange, "k", b"") for one in (first, second)]:
                with pytest.raises(CollectiveTimeoutError, match=refused) as told:
                    waiting.result()
                assert re.search(r"\(2 times, the last from 127\.0\.0\.1:\d+\)", str(told.value))
    # One line each on rank 0 and on the rank that waits, though it was refused twice.
    assert len(re.findall(refused, caplog.text)) == 2
    assert "says: a connection from" in caplog.text


def test_a_rank_that_comes_later_is_told_as_well(caplog: pytest.LogCaptureFixture) -> None:
    with Rendezvous(0, 3, ADDR, 0, TIMEOUT_S, b"secret") as first:
        with pytest.raises(ConfigurationError):
            Rendezvous(2, 3, ADDR, first.port, TIMEOUT_S, b"guess")
        caplog.clear()
        with (
            Rendezvous(1, 3, ADDR, first.port, TIMEOUT_S, b"secret") as second,
            concurrent.futures.ThreadPoolExecutor(1) as pool,
        ):
            give_up_after(0.2, first, second)
            other = pool.submit(first.exchange, "k", b"")
            with pytest.raises(CollectiveTimeoutError):
                second.exchange("k", b"")
            assert isinstance(other.exception(), CollectiveTimeoutError)
    assert "says: a connection from" in caplog.text


def _claim(port: int, rank: int, proof: bytes | None = None) -> bytes:
    """Plays a stranger that claims a rank; returns what it hears after its proof."""
    with socket.create_connection((ADDR, port), timeout=TIMEOUT_S) as stranger:
        nonce = bytes(wire.NONCE_BYTES)
        stranger.sendall(wire.CLIENT_HELLO.pack(wire.MAGIC, True, rank, 2, nonce))
        answer = stranger.recv(wire.SERVER_HELLO.size, socket.MSG_WAITALL)
        assert len(answer) == wire.SERVER_HELLO.size
        stranger.sendall(wire.CLIENT_PROOF.pack(proof or bytes(32)))
        return stranger.recv(wire.SERVER_VERDICT.size + 1, socket.MSG_WAITALL)


def test_who_does_not_know_the_token_is_handed_nothing_made_with_it() -> None:
    with Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, b"secret") as first:
        assert _claim(first.port, 1) == wire.SERVER_VERDICT.pack(False, bytes(32))
        _assert_still_works(first, b"secret")


def test_refusals_are_bounded_in_the_log_and_in_errors(caplog: pytest.LogCaptureFixture) -> None:
    with Rendezvous(0, 50, ADDR, 0, TIMEOUT_S, b"secret") as first:
        for rank in range(40):
            _claim(first.port, rank)
        _claim(first.port, 2**31)
        give_up_after(0.5, first)
        with pytest.raises(CollectiveTimeoutError) as told:
            first.exchange("k", b"")
    assert str(told.value).count("was refused") == 4
    assert caplog.text.count("was refused") == 8
    assert "36 other ranks were refused too" in str(told.value)


def test_a_recorded_handshake_is_worthless() -> None:
    with Rendezvous(0, 3, ADDR, 0, TIMEOUT_S, b"secret") as first:
        nonce = bytes(wire.NONCE_BYTES)
        hello = wire.CLIENT_HELLO.pack(wire.MAGIC, True, 1, 3, nonce)

        def words(recorded: bytes | None) -> tuple[bytes, bytes]:
            connection = stack.enter_context(
                socket.create_connection((ADDR, first.port), timeout=TIMEOUT_S)
            )
            connection.sendall(hello)
            answer = connection.recv(wire.SERVER_HELLO.size, socket.MSG_WAITALL)
            proof = recorded or wire.client_proof(b"secret", hello, answer)
            connection.sendall(proof)
            return proof, connection.recv(wire.SERVER_VERDICT.size, socket.MSG_WAITALL)

        with contextlib.ExitStack() as stack:
            recorded, verdict = words(None)
            assert verdict[:1] == b"\1"
            _, verdict = words(recorded)
            assert verdict == wire.SERVER_VERDICT.pack(False, bytes(32))


def test_a_busy_port_is_named() -> None:
    with socket.create_server((ADDR, 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on port {port}"):
            Rendezvous(0, 2, ADDR, port, TIMEOUT_S)


def test_an_unreachable_master_is_named_with_what_to_check() -> None:
    with socket.socket() as holder:
        holder.bind((ADDR, 0))  # nobody else gets the port, and nobody listens there
        port = holder.getsockname()[1]
        with pytest.raises(PeerLostError, match=rf"{ADDR}:{port} within 0.2 s.*MASTER_PORT"):
            Rendezvous(1, 2, ADDR, port, 0.2)


def test_a_name_that_does_not_resolve_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"no\.such\.host\.invalid"):
        Rendezvous(0, 2, "no.such.host.invalid", 0, 0.2)
    with pytest.raises(PeerLostError, match=r"no\.such\.host\.invalid"):
        Rendezvous(1, 2, "no.such.host.invalid", 1, 0.2)


def test_another_service_at_the_address_is_named() -> None:
    with socket.create_server((ADDR, 0)) as service:

        def answer() -> None:
            with service.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-somebody else\r\n")
                connection.recv(1024)

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(answer)
            with pytest.raises(ConfigurationError, match="is not a rendezvous of this library"):
                Rendezvous(1, 2, ADDR, service.getsockname()[1], TIMEOUT_S)


def test_a_rank_may_start_before_rank_0() -> None:
    port = free_port()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        early = pool.submit(Rendezvous, 1, 2, ADDR, port, TIMEOUT_S)
        with Rendezvous(0, 2, ADDR, port, TIMEOUT_S) as first, early.result() as second:
            answer = pool.submit(second.exchange, "k", b"b")
            assert first.exchange("k", b"a") == answer.result() == [b"a", b"b"]


@pytest.mark.parametrize(
    ("rank", "world_size", "port", "timeout_s", "text"),
    [
        (2, 2, 1, 1.0, "rank=2 with world_size=2"),
        (-1, 2, 1, 1.0, "rank=-1"),
        (0, 0, 1, 1.0, "world_size=0"),
        (1, 2, 0, 1.0, "port=0"),
        (0, 2, 65536, 1.0, "port=65536"),
        (0, 2, 1, 0.0, "timeout_s=0"),
    ],
)
def test_bad_arguments_are_named(
    rank: int, world_size: int, port: int, timeout_s: float, text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Rendezvous(rank, world_size, ADDR, port, timeout_s)


def test_use_after_close_is_an_error() -> None:
    rendezvous = Rendezvous(0, 1, ADDR, 0, TIMEOUT_S)
    rendezvous.close()
    rendezvous.close()
    with pytest.raises(ConfigurationError, match="Create a new one"):
        rendezvous.exchange("k", b"")


def _assert_still_works(first: Rendezvous, token: bytes | None) -> None:
    with (
        Rendezvous(1, 2, ADDR, first.port, TIMEOUT_S, token) as second,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(second.exchange, "k", b"b")
        assert first.exchange("k", b"a") == answer.result() == [b"a", b"b"]


_hello = wire.CLIENT_HELLO.pack(wire.MAGIC, True, 1, 2, bytes(wire.NONCE_BYTES))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    garbage=st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=100).map(lambda tail: wire.MAGIC + tail),
        st.binary(max_size=400).map(lambda tail: _hello + tail),
        st.just(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000),
    )
)
def test_garbage_on_the_port_disturbs_nobody(garbage: bytes) -> None:
    with (
        Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, b"secret") as first,
        socket.create_connection((ADDR, first.port), timeout=TIMEOUT_S) as stranger,
    ):
        with contextlib.suppress(ConnectionError):
            stranger.sendall(garbage)
        _assert_still_works(first, b"secret")


def test_silent_and_slow_connections_are_bounded_and_disturb_nobody() -> None:
    with Rendezvous(0, 2, ADDR, 0, TIMEOUT_S) as first, contextlib.ExitStack() as stack:
        strangers = []
        for index in range(140):
            stranger = socket.create_connection((ADDR, first.port), timeout=TIMEOUT_S)
            stack.enter_context(stranger)
            stranger.sendall(wire.MAGIC[: index % 8])
            strangers.append(stranger)
        # The oldest had to make room for the newest.
        assert strangers[0].recv(1) == b""
        _assert_still_works(first, None)


class _OutOfDescriptors:
    """A listener that has no descriptor for the next connection, once."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.has_failed = False

    def accept(self) -> tuple[socket.socket, object]:
        if not self.has_failed:
            self.has_failed = True
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._listener.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._listener, name)


def test_strangers_that_use_up_the_descriptors_make_room_and_end_no_job() -> None:
    with (
        Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, b"secret") as first,
        socket.create_connection((ADDR, first.port), timeout=TIMEOUT_S) as stranger,
    ):
        server = first._server
        assert server is not None
        stranger.sendall(_hello)
        assert stranger.recv(1)  # it has been accepted
        full = _OutOfDescriptors(server._listener)
        server._listener = full  # type: ignore[assignment]
        _assert_still_works(first, b"secret")
        assert full.has_failed
        while stranger.recv(64):
            pass


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(garbage=st.binary(min_size=1, max_size=64))
def test_garbage_from_a_member_is_an_error_and_never_a_hang(garbage: bytes) -> None:
    with (
        Rendezvous(0, 2, ADDR, 0, TIMEOUT_S) as first,
        Rendezvous(1, 2, ADDR, first.port, TIMEOUT_S) as second,
    ):
        give_up_after(0.1, first)
        assert second._socket is not None
        second._socket.sendall(garbage)
        with pytest.raises(SmdistributedError):
            first.exchange("key", b"")


def test_a_forked_child_holds_no_socket_and_the_parent_goes_on() -> None:
    with (
        Rendezvous(0, 2, ADDR, 0, TIMEOUT_S) as first,
        Rendezvous(1, 2, ADDR, first.port, TIMEOUT_S) as second,
    ):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            # Only numbers leave the child: an exception here would run the rest of the test twice.
            try:
                first.exchange("k", b"")
                verdict = b"?"
            except ConfigurationError:
                sockets = (first._socket, second._socket)
                closed = all(one is not None and one.fileno() == -1 for one in sockets)
                verdict = b"closed" if closed else b"open"
            except BaseException:
                verdict = b"!"
            os.write(write_end, verdict)
            os._exit(0)
        os.close(write_end)
        assert os.read(read_end, 16) == b"closed"
        os.close(read_end)
        os.waitpid(child, 0)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(second.exchange, "k", b"b")
            assert first.exchange("k", b"a") == answer.result() == [b"a", b"b"]


def test_sockets_are_closed_on_exec() -> None:
    with (
        Rendezvous(0, 2, ADDR, 0, TIMEOUT_S) as first,
        Rendezvous(1, 2, ADDR, first.port, TIMEOUT_S) as second,
    ):
        assert first._server is not None
        members = [member.socket for member in first._server._members.values()]
        for one in (first._socket, second._socket, first._server._listener, *members):
            assert one is not None
            assert not one.get_inheritable()
