# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The meeting point: one daemon thread on rank 0 that collects each rank's value, hands out all.

One thread serves all connections with non-blocking sockets, so a slow or hostile peer holds up
nobody. A connection is a *stranger* until its handshake is complete, then a *member*:

- Strangers are bounded in number, bytes and time. What they do wrong costs them their connection
  and nobody else anything; but it is told, to members and in timeouts (refusals.py).
- Members are ranks of the job. What a member does wrong, or its death, is the job's first error;
  it is sent to every member, also to those that come later, and stays.

The thread ends when rank 0 leaves, after the last answers are out.

Cost of one exchange of v bytes per rank among n ranks: n frames in, n frames of n*v bytes out.
"""

import collections
import dataclasses
import errno
import hmac
import secrets
import selectors
import socket
import ssl
import threading
import time

from smdistributed._common.log import get_logger
from smdistributed.collectives.rendezvous import wire
from smdistributed.collectives.rendezvous.refusals import Refusals
from smdistributed.collectives.rendezvous.tls import RECORD_MARK, RendezvousTls, why_refused
from smdistributed.collectives.rendezvous.wire import Kind

__all__ = ["Server"]

_HANDSHAKE_S = 10.0
_FLUSH_S = 5.0
_MAX_STRANGERS = 128
# More than a TLS record: so a read leaves nothing inside OpenSSL that no poll would report.
_READ_BYTES = 256 * 1024
_SAME_TOKEN = "expected the same SMDDP_TOKEN, or content of SMDDP_TOKEN_FILE, on all ranks"


class _Dropped(Exception):
    """This connection is to be closed; the text says why."""


class _Refused(_Dropped):
    """So is this one: whoever is there is no rank of this job, which people may want to know.

    The text goes on "...; expected ...".
    """


@dataclasses.dataclass(eq=False)
class _Connection:
    socket: socket.socket
    peer: str
    deadline: float
    rank: int | None = None
    claimed_rank: int | None = None
    claimed_world_size: int = 0
    is_secured: bool = True
    has_begun: bool = False  # to speak TLS
    binding: bytes = b""
    hello: bytes | None = None
    answer: bytes = b""
    received: bytearray = dataclasses.field(default_factory=bytearray)
    to_send: collections.deque[memoryview] = dataclasses.field(default_factory=collections.deque)
    has_left: bool = False


@dataclasses.dataclass
class _Round:
    key: str
    deadline: float
    values: dict[int, bytes] = dataclasses.field(default_factory=dict)


class Server:
    """Serves one job.

    Args:
        listener: a listening socket, owned by the server from now on.
        own_end: rank 0's own connection, already trusted, owned by the server from now on.
        world_size: number of ranks.
        timeout_s: seconds an exchange may wait for its last rank.
        token: the job's secret, or `None`.
        tls: to speak TLS with the other ranks, or `None`.
    """

    def __init__(
        self,
        listener: socket.socket,
        own_end: socket.socket,
        world_size: int,
        timeout_s: float,
        token: bytes | None,
        tls: RendezvousTls | None = None,
    ) -> None:
        self._listener = listener
        self._world_size = world_size
        self._timeout_s = timeout_s
        self._token = token
        self._tls = tls
        self._strangers: list[_Connection] = []
        self._members: dict[int, _Connection] = {}
        self._seen: set[int] = {0}
        self._round: _Round | None = None
        self._failure: bytes | None = None
        self._closing_deadline: float | None = None
        self._refusals = Refusals(world_size)
        # poll, not epoll: an epoll set is shared with a forked child, a poll set is not.
        self._selector = selectors.PollSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        own_end.setblocking(False)
        own = _Connection(own_end, "this process", deadline=float("inf"), rank=0)
        self._members[0] = own
        self._selector.register(own_end, selectors.EVENT_READ, own)
        self._thread = threading.Thread(target=self._run, name="smd-rendezvous", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Waits for the thread, which ends after rank 0's own connection has closed."""
        self._thread.join(timeout_s)

    def close_in_child(self) -> None:
        """Closes the descriptors that a forked child has inherited; the parent keeps its own."""
        for connection in (*self._strangers, *self._members.values()):
            connection.socket.close()
        self._listener.close()

    # Everything below runs on the server's thread.

    def _run(self) -> None:
        try:
            while not self._is_done():
                for key, events in self._selector.select(self._seconds_to_next_deadline()):
                    if key.data is None:
                        self._accept()
                    elif key.fileobj.fileno() >= 0:  # type: ignore[union-attr]
                        self._serve(key.data, events)
                self._check_deadlines()
        except Exception:
            # A bug of ours: the members see their connections close, the log shows the reason.
            get_logger().exception("the rendezvous server failed; please report this")
        finally:
            for connection in (*self._strangers, *self._members.values()):
                connection.socket.close()
            self._listener.close()
            self._selector.close()

    def _is_done(self) -> bool:
        if self._closing_deadline is None:
            return False
        pending = any(member.to_send for member in self._members.values())
        return not pending or time.monotonic() >= self._closing_deadline

    def _seconds_to_next_deadline(self) -> float | None:
        deadlines = [stranger.deadline for stranger in self._strangers]
        if self._round is not None:
            deadlines.append(self._round.deadline)
        if self._closing_deadline is not None:
            deadlines.append(self._closing_deadline)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for stranger in [one for one in self._strangers if one.deadline <= now]:
            self._drop(stranger, "it did not finish the handshake in time")
        if self._round is not None and self._round.deadline <= now:
            self._fail("timeout", self._describe_timeout(self._round))

    def _accept(self) -> None:
        try:
            accepted, address = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                if self._strangers:
                    # Those who fill the table without a proof must not end the job for its ranks.
                    self._drop(self._strangers[0], "no descriptor is left for others")
                    return
                # The listener stays ready and nobody can be let in: without an end we would spin.
                self._selector.unregister(self._listener)
                self._fail(
                    "configuration",
                    f"rank 0 cannot accept the other ranks ({error.strerror}); expected a free "
                    "descriptor for each. Raise the limit (ulimit -n) on the host of rank 0.",
                )
            # Else the peer has gone already.
            return
        accepted.setblocking(False)
        wire.configure(accepted)
        if self._tls is not None:
            try:
                accepted = self._tls.accept(accepted)
            except OSError:
                accepted.close()
                return  # the peer has gone already
        if len(self._strangers) >= _MAX_STRANGERS:
            self._drop(self._strangers[0], "too many unfinished handshakes")
        peer = f"{address[0]}:{address[1]}"
        stranger = _Connection(accepted, peer, deadline=time.monotonic() + _HANDSHAKE_S)
        stranger.is_secured = self._tls is None
        self._strangers.append(stranger)
        self._selector.register(accepted, selectors.EVENT_READ, stranger)

    def _serve(self, connection: _Connection, events: int) -> None:
        try:
            if not connection.is_secured:
                self._secure(connection)
                return
            if events & selectors.EVENT_READ:
                self._read(connection)
            if events & selectors.EVENT_WRITE:
                self._write(connection)
        except (_Dropped, OSError) as reason:
            if isinstance(reason, _Refused):
                self._note_refusal(connection, str(reason))
            self._drop(connection, str(reason))

    def _secure(self, stranger: _Connection) -> None:
        """Goes on with the handshake of TLS, which comes before anything else."""
        connection = stranger.socket
        assert self._tls is not None
        assert isinstance(connection, ssl.SSLSocket)
        try:
            if not stranger.has_begun:
                # Before OpenSSL sees it. A socket that TLS wraps offers no peeking of its own.
                begin = socket.socket.recv(connection, 1, socket.MSG_PEEK)
                if begin not in (b"", RECORD_MARK):
                    self._refuse_clear(connection)
                stranger.has_begun = True
            connection.do_handshake()
        except (BlockingIOError, ssl.SSLWantReadError):
            self._selector.modify(connection, selectors.EVENT_READ, stranger)
        except ssl.SSLWantWriteError:
            self._selector.modify(connection, selectors.EVENT_WRITE, stranger)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise _Dropped("it closed the connection") from None
        except ssl.SSLError as error:
            raise _Refused(why_refused(error)) from error
        else:
            stranger.is_secured = True
            stranger.binding = self._tls.binding(connection)
            self._selector.modify(connection, selectors.EVENT_READ, stranger)

    def _refuse_clear(self, connection: ssl.SSLSocket) -> None:
        """Ends a connection that does not begin as TLS does, and tells it if it may be a rank."""
        begin = socket.socket.recv(connection, _READ_BYTES)
        if not begin.startswith(wire.MAGIC):
            raise _Refused("it does not speak TLS; expected TLS 1.3, and a rank of this job")
        socket.socket.send(connection, wire.NEEDS_TLS)
        raise _Refused(
            "it has no TLS and rank 0 has; expected it on all ranks or on none. Set "
            "SMDDP_TLS_CERT, SMDDP_TLS_KEY and SMDDP_TLS_CA on all hosts, or unset them everywhere"
        )

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except ssl.SSLError as error:
            if connection.rank is None:  # an authority that is refused shows only here
                raise _Refused(why_refused(error)) from error
            raise
        if not data:
            raise _Dropped("it closed the connection")
        if connection.has_left:
            return
        connection.received += data
        if connection.rank is None:
            self._handshake(connection)
        # The handshake may have made it a member, and frames may already be waiting.
        while connection.rank is not None and not connection.has_left:
            frame = _take_frame(connection)
            if frame is None:
                break
            self._handle(connection, *frame)

    def _handshake(self, stranger: _Connection) -> None:
        received = stranger.received
        if stranger.hello is None:
            start = bytes(received[: len(wire.MAGIC)])
            if start.startswith(RECORD_MARK):
                # Whatever is not TLS tells the other side as much.
                self._send(stranger, wire.MAGIC)
                raise _Refused(
                    "it speaks TLS and rank 0 does not; expected it on all ranks or on none. Set "
                    "SMDDP_TLS_CERT, SMDDP_TLS_KEY and SMDDP_TLS_CA on all hosts, or unset them "
                    "everywhere"
                )
            if start != wire.MAGIC[: len(start)]:
                raise _Refused(
                    "it does not speak the rendezvous protocol; expected a rank of this job, with "
                    "the same version of smdistributed"
                )
            stranger.hello = _take(received, wire.CLIENT_HELLO.size)
            if stranger.hello is None:
                return
            self._challenge(stranger)
        message = _take(received, wire.CLIENT_PROOF.size)
        if message is None:
            return
        token = self._token or b""
        about = (token, stranger.hello, stranger.answer, stranger.binding)
        (proof,) = wire.CLIENT_PROOF.unpack(message)
        if not hmac.compare_digest(proof, wire.client_proof(*about)):
            self._send(stranger, wire.SERVER_VERDICT.pack(False, b""))
            raise _Refused(f"it does not know the job's token; {_SAME_TOKEN}")
        self._send(stranger, wire.SERVER_VERDICT.pack(True, wire.server_proof(*about)))
        assert stranger.claimed_rank is not None
        self._admit(stranger, stranger.claimed_rank, stranger.claimed_world_size)

    def _challenge(self, stranger: _Connection) -> None:
        """Answers a hello, none of which is proved."""
        assert stranger.hello is not None
        _, has_token, rank, world_size, _ = wire.CLIENT_HELLO.unpack(stranger.hello)
        stranger.claimed_rank, stranger.claimed_world_size = rank, world_size
        has_own = self._token is not None
        nonce = secrets.token_bytes(wire.NONCE_BYTES)
        stranger.answer = wire.SERVER_HELLO.pack(wire.MAGIC, has_own, nonce)
        self._send(stranger, stranger.answer)
        if has_token != has_own:
            with_token, without = ("rank 0", "it")[:: 1 if has_own else -1]
            raise _Refused(f"{with_token} has a job token and {without} has none; {_SAME_TOKEN}")

    def _admit(self, newcomer: _Connection, rank: int, world_size: int) -> None:
        error = None
        if world_size != self._world_size:
            error = (
                f"rank {rank} ({newcomer.peer}) was started with world size {world_size}, rank 0 "
                f"with {self._world_size}; all ranks must agree. Check WORLD_SIZE, or the number "
                "of processes given to the launcher on each host."
            )
        elif rank >= self._world_size:
            error = (
                f"rank {rank} ({newcomer.peer}) is out of range for world size {self._world_size};"
                f" expected 0 to {self._world_size - 1}. Check RANK on that host."
            )
        elif rank in self._seen:
            first = self._members.get(rank)
            if self._failure is None and (first is None or first.has_left):
                # It was here, left in good order and has come for the next rendezvous at this
                # address, which opens once this one has closed: it will try again.
                raise _Dropped(f"rank {rank} has left this rendezvous")
            where = "before" if first is None else f"from {first.peer}"
            error = (
                f"rank {rank} joined twice: {where} and from {newcomer.peer}; every process needs "
                "a rank of its own. Check RANK on these hosts, or whether a second job uses this "
                "MASTER_PORT."
            )
        if error is not None:
            self._fail("mismatch", error)
            # Only to be told the error: it must not take the place of the rank that it claims.
            newcomer.deadline = time.monotonic() + _FLUSH_S
            if self._failure is not None:
                self._send(newcomer, self._failure)
            newcomer.has_left = True
            newcomer.rank = -1
            return
        self._strangers.remove(newcomer)
        newcomer.deadline = float("inf")
        newcomer.rank = rank
        self._seen.add(rank)
        self._members[rank] = newcomer
        self._send(newcomer, self._failure or wire.pack_frame(Kind.WELCOME))
        for text in self._refusals.told:
            self._send(newcomer, wire.pack_frame(Kind.NOTICE, value=text.encode()))

    def _handle(self, member: _Connection, kind: int, key: str, value: bytes) -> None:
        assert member.rank is not None
        if kind == Kind.GOODBYE:
            member.has_left = True
            if self._round is not None and member.rank not in self._round.values:
                self._fail_for_absence(member.rank, "left")
            return
        if kind != Kind.EXCHANGE:
            raise _Dropped(f"it sent a frame of unknown kind {kind}")
        if self._failure is not None:
            return
        if self._round is None:
            self._round = _Round(key, deadline=time.monotonic() + self._timeout_s)
        if self._round.key != key:
            others = ", ".join(str(rank) for rank in sorted(self._round.values))
            self._fail(
                "mismatch",
                f"rank {member.rank} exchanges {key!r} while rank(s) {others} exchange "
                f"{self._round.key!r}; all ranks must make the same calls in the same order. Look "
                "for a branch that depends on the rank before this call.",
            )
            return
        self._round.values[member.rank] = value
        for rank in sorted(self._seen - self._round.values.keys()):
            other = self._members.get(rank)
            if other is None or other.has_left:
                self._fail_for_absence(rank, "left")
                return
        if len(self._round.values) == self._world_size:
            values = [self._round.values[rank] for rank in range(self._world_size)]
            self._round = None
            # One copy of the result serves all members; each keeps its own position in it.
            result = wire.pack_frame(Kind.RESULT, key, wire.join_values(values))
            for other in list(self._members.values()):
                self._send(other, result)

    def _fail_for_absence(self, rank: int, verb: str) -> None:
        member = self._members.get(rank)
        where = "" if member is None else f" ({member.peer})"
        key = "the next exchange" if self._round is None else f"exchange {self._round.key!r}"
        self._fail(
            "peer_lost",
            f"rank {rank}{where} {verb} before {key} was complete; all {self._world_size} ranks "
            f"are needed. Read the log of rank {rank} first. This group cannot be used again.",
        )

    def _describe_timeout(self, waiting: _Round) -> str:
        absent = [rank for rank in range(self._world_size) if rank not in waiting.values]
        never = [rank for rank in absent if rank not in self._seen]
        quiet = [rank for rank in absent if rank in self._seen]
        parts = []
        if never:
            parts.append(f"rank(s) {_list(never)} never connected")
        if quiet:
            parts.append(f"rank(s) {_list(quiet)} connected but did not come to this exchange")
        return (
            f"exchange {waiting.key!r} has waited {self._timeout_s:g} s: {' and '.join(parts)}; "
            f"the other {len(waiting.values)} arrived. Expected all {self._world_size} ranks. "
            "Check that every process was started and reaches MASTER_ADDR and MASTER_PORT, or "
            f"raise SMDDP_TIMEOUT_SECONDS.{self._refusals.describe(never)}"
        )

    def _fail(self, kind: str, text: str) -> None:
        """Tells every member; the first failure wins and stays."""
        if self._failure is not None:
            return
        self._round = None
        self._failure = wire.pack_frame(Kind.FAILURE, kind, text.encode()[:8192])
        for member in list(self._members.values()):
            self._send(member, self._failure)

    def _send(self, connection: _Connection, data: bytes) -> None:
        connection.to_send.append(memoryview(data))
        try:
            self._write(connection)
        except OSError as error:
            # Its read event, which is about to come, drops it; to drop it here would change the
            # tables under the caller's feet.
            get_logger().debug("rendezvous: cannot send to %s: %s", connection.peer, error)
            connection.to_send.clear()

    def _write(self, connection: _Connection) -> None:
        while connection.to_send:
            try:
                sent = connection.socket.send(connection.to_send[0])
            except (BlockingIOError, ssl.SSLWantWriteError):
                break
            if sent == len(connection.to_send[0]):
                connection.to_send.popleft()
            else:
                connection.to_send[0] = connection.to_send[0][sent:]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.to_send else 0)
        self._selector.modify(connection.socket, events, connection)

    def _drop(self, connection: _Connection, reason: str) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection in self._strangers:
            self._strangers.remove(connection)
            if connection.rank is None:
                get_logger().debug("rendezvous: refused %s: %s", connection.peer, reason)
            return
        rank = connection.rank
        assert rank is not None
        connection.to_send.clear()
        if not connection.has_left:
            self._fail_for_absence(rank, f"was lost ({reason})")
        elif self._round is not None and rank not in self._round.values:
            self._fail_for_absence(rank, "left")
        del self._members[rank]
        if rank == 0:
            self._closing_deadline = time.monotonic() + _FLUSH_S

    def _note_refusal(self, stranger: _Connection, reason: str) -> None:
        text = self._refusals.note(stranger.peer, stranger.claimed_rank, reason)
        if text is None:
            return
        get_logger().warning(
            "the rendezvous: %s. The job goes on waiting for its ranks. If that is a rank of yours,"
            " correct it and start the job again; else find out who connects to this port.",
            text,
        )
        notice = wire.pack_frame(Kind.NOTICE, value=text.encode())
        for rank, member in list(self._members.items()):
            if rank != 0:  # it has just been told
                self._send(member, notice)


def _take(received: bytearray, size: int) -> bytes | None:
    if len(received) < size:
        return None
    data = bytes(received[:size])
    del received[:size]
    return data


def _take_frame(member: _Connection) -> tuple[int, str, bytes] | None:
    received = member.received
    header_size = wire.FRAME_HEADER.size
    if len(received) < header_size:
        return None
    kind, key_size, value_size = wire.FRAME_HEADER.unpack_from(received)
    if key_size > wire.MAX_KEY_BYTES or value_size > wire.MAX_VALUE_BYTES:
        raise _Dropped(f"it announced a frame of {key_size} + {value_size} bytes, above the bound")
    frame = _take(received, header_size + key_size + value_size)
    if frame is None:
        return None
    try:
        key = frame[header_size : header_size + key_size].decode()
    except UnicodeDecodeError as error:
        raise _Dropped("it sent a key that is not UTF-8") from error
    return kind, key, frame[header_size + key_size :]


def _list(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:16])
    return shown if len(ranks) <= 16 else f"{shown} and {len(ranks) - 16} more"
