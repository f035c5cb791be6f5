# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The rendezvous as a rank sees it. See the package's docstring for what it promises."""

import contextlib
import dataclasses
import hmac
import ipaddress
import os
import secrets
import socket
import ssl
import threading
import time
import weakref
from types import TracebackType
from typing import Self

from smdistributed._common.errors import (
    CollectiveTimeoutError,
    ConfigurationError,
    InternalError,
    MismatchError,
    PeerLostError,
    SmdistributedError,
)
from smdistributed._common.log import get_logger
from smdistributed.collectives.rendezvous import wire
from smdistributed.collectives.rendezvous.server import Server
from smdistributed.collectives.rendezvous.tls import RendezvousTls, why_refused
from smdistributed.collectives.rendezvous.wire import Kind

__all__ = ["Rendezvous"]

_ATTEMPT_S = 5.0
_FIRST_PAUSE_S = 0.02
_LAST_PAUSE_S = 0.5
# The server knows which ranks are missing, so its timeout shall reach us before our own.
_SLACK_S = 2.0
_JOIN_S = 10.0

_FAILURES: dict[str, type[SmdistributedError]] = {
    "configuration": ConfigurationError,
    "mismatch": MismatchError,
    "peer_lost": PeerLostError,
    "timeout": CollectiveTimeoutError,
}

_open: "weakref.WeakSet[Rendezvous]" = weakref.WeakSet()


class Rendezvous:
    """A place where all ranks of a job swap small values.

    Rank 0 listens (on loopback only if `addr` says so) and serves in one daemon thread; the other
    ranks connect, retrying until rank 0 is there. The constructor of rank 0 returns at once, that
    of another rank when it has been admitted.

    Args:
        rank: rank of this process.
        world_size: number of ranks.
        addr: host name or address of rank 0, as all ranks reach it.
        port: TCP port on that host; 0 on rank 0 chooses a free one, see `port`.
        timeout_s: seconds to wait for rank 0 to answer, and for the last rank in an exchange.
        token: the job's secret, the same on all ranks, or `None`. With `None`, anyone who reaches
            the port can take part.
        tls: paths of this rank's certificate, its key and the authority (PEM): all that passes is
            inside TLS 1.3, and both ends show a certificate of that authority. `None`: in the
            clear. The same on all ranks.

    Raises:
        ConfigurationError: bad arguments, a busy port, a name that does not resolve, something
            else listening at the address, a token that differs, or TLS that does not fit.
        MismatchError: ranks disagree on the world size, or two have the same rank.
        PeerLostError: rank 0 could not be reached within `timeout_s`.

    Thread rule: any thread; exchanges of one object take turns. In a forked child the object is
    closed.

    Source: our choice; design, item 1 "Bootstrap" and item 10 "Trust".
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        addr: str,
        port: int,
        timeout_s: float,
        token: bytes | None = None,
        tls: tuple[str, str, str] | None = None,
    ) -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise ConfigurationError(
                f"rank={rank} with world_size={world_size} cannot be; expected a rank from 0 to "
                f"{max(world_size, 1) - 1}. Check RANK and WORLD_SIZE."
            )
        if not 0 <= port <= 65535 or (port == 0 and rank != 0):
            raise ConfigurationError(
                f"port={port} is not a port to meet at; expected 1 to 65535. Set MASTER_PORT to a "
                "free port, the same on every rank."
            )
        if timeout_s <= 0:
            raise ConfigurationError(
                f"timeout_s={timeout_s} is not a time to wait; expected a positive number. Set "
                "SMDDP_TIMEOUT_SECONDS."
            )
        self._rank = rank
        self._world_size = world_size
        self._timeout_s = timeout_s
        self._where = f"{addr}:{port}"
        self._lock = threading.Lock()
        self._error: SmdistributedError | None = None
        self._socket: socket.socket | None = None
        self._server: Server | None = None
        self._is_closed = False
        self.port = port
        """The port that the ranks meet at."""
        if world_size > 1:
            own_tls = None if tls is None else RendezvousTls(tls)
            if rank == 0:
                self._serve(addr, port, token, own_tls)
            else:
                self._enter(_Opener(rank, world_size, addr, port, token, own_tls))
        _open.add(self)

    def exchange(self, key: str, value: bytes) -> list[bytes]:
        """Gives this rank's value and returns every rank's, indexed by rank.

        Blocks until all ranks have called it with the same key. Keys may be used again.

        Args:
            key: what is exchanged, the same on all ranks; at most 1024 bytes in UTF-8.
            value: at most 16 MiB.

        Raises:
            ConfigurationError: key or value is too long; nothing has been sent then.
            MismatchError: ranks called with different keys.
            PeerLostError: a rank died or closed its rendezvous.
            CollectiveTimeoutError: a rank did not come within `timeout_s`; the text names it.
            InternalError: the answer made no sense.
        """
        if len(key.encode()) > wire.MAX_KEY_BYTES or len(value) > wire.MAX_VALUE_BYTES:
            raise ConfigurationError(
                f"an exchange of {len(value)} bytes under a key of {len(key)} characters is too "
                f"large; expected at most {wire.MAX_VALUE_BYTES} bytes and "
                f"{wire.MAX_KEY_BYTES}. Send large data with a collective."
            )
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._is_closed:
                raise ConfigurationError(
                    f"exchange {key!r} on a closed rendezvous; expected an open one. Create a new "
                    "one in this process: it is closed by close() and in forked children."
                )
            if self._socket is None:
                return [bytes(value)]
            try:
                return self._exchange(self._socket, key, bytes(value))
            except SmdistributedError as error:
                self._error = error
                raise

    def close(self) -> None:
        """Leaves; the other ranks are told. On rank 0 the server ends as well. Never raises."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            _open.discard(self)
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.settimeout(1.0)
                    self._socket.sendall(wire.pack_frame(Kind.GOODBYE))
                self._socket.close()
            if self._server is not None:
                self._server.join(_JOIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _serve(self, addr: str, port: int, token: bytes | None, tls: RendezvousTls | None) -> None:
        listener = _listen(addr, port)
        self.port = listener.getsockname()[1]
        self._where = f"{addr}:{self.port}"
        self._socket, own_end = socket.socketpair()
        self._server = Server(listener, own_end, self._world_size, self._timeout_s, token, tls)

    def _enter(self, opener: "_Opener") -> None:
        deadline = time.monotonic() + self._timeout_s
        limit_s = self._timeout_s
        while True:
            self._socket = opener.join(limit_s)
            try:
                self._await_welcome()
                return
            except PeerLostError as error:
                # Closed without a word: what answered was the end of an earlier rendezvous here.
                is_closed = isinstance(error.__cause__, ConnectionError)
                if not is_closed or time.monotonic() + _LAST_PAUSE_S >= deadline:
                    raise
            time.sleep(_FIRST_PAUSE_S)
            limit_s = _remaining(deadline)

    def _await_welcome(self) -> None:
        assert self._socket is not None
        try:
            kind, _, _ = self._receive(self._socket, time.monotonic() + self._timeout_s)
            if kind != Kind.WELCOME:
                raise self._nonsense(f"frame kind {kind} instead of a welcome")
        except TimeoutError as error:
            self._socket.close()
            if isinstance(error, SmdistributedError):
                raise
            raise self._timed_out("join") from None
        except BaseException:
            self._socket.close()
            raise

    def _exchange(self, connection: socket.socket, key: str, value: bytes) -> list[bytes]:
        deadline = time.monotonic() + self._timeout_s + _SLACK_S
        # A server that has failed or died may have left its reason to be read.
        with contextlib.suppress(ConnectionError):
            connection.settimeout(_remaining(deadline))
            try:
                connection.sendall(wire.pack_frame(Kind.EXCHANGE, key, value))
            except TimeoutError:
                raise self._timed_out(key) from None
        try:
            kind, got_key, joined = self._receive(connection, deadline)
        except TimeoutError as error:
            if isinstance(error, SmdistributedError):
                raise
            raise self._timed_out(key) from None
        if kind != Kind.RESULT or got_key != key:
            raise self._nonsense(f"frame kind {kind} for {got_key!r} instead of {key!r}")
        try:
            return wire.split_values(joined, self._world_size)
        except ValueError as error:
            raise self._nonsense(str(error)) from error

    def _receive(self, connection: socket.socket, deadline: float) -> tuple[int, str, bytes]:
        """Returns the next frame; raises the error that a FAILURE frame carries."""
        while True:
            kind, key, value = self._receive_any(connection, deadline)
            if kind != Kind.NOTICE:
                break
            get_logger().warning(
                "rank 0 (%s) says: %s. This rank goes on waiting for the others.",
                self._where,
                value.decode(errors="replace"),
            )
        if kind == Kind.FAILURE:
            raise _FAILURES.get(key, InternalError)(value.decode(errors="replace"))
        return kind, key, value

    def _receive_any(self, connection: socket.socket, deadline: float) -> tuple[int, str, bytes]:
        try:
            header = _receive_exactly(connection, wire.FRAME_HEADER.size, deadline)
            kind, key_size, value_size = wire.FRAME_HEADER.unpack(header)
            bound = wire.result_bound_bytes(self._world_size)
            if key_size > wire.MAX_KEY_BYTES or value_size > bound:
                raise self._nonsense(f"a frame of {key_size} + {value_size} bytes")
            key = _receive_exactly(connection, key_size, deadline).decode(errors="replace")
            value = _receive_exactly(connection, value_size, deadline)
        except ConnectionError as error:
            raise PeerLostError(
                f"rank 0 ({self._where}) closed the rendezvous connection of rank {self._rank}; it "
                "was expected to stay until all ranks were done. Read the log of rank 0 first."
            ) from error
        return kind, key, value

    def _timed_out(self, key: str) -> CollectiveTimeoutError:
        return CollectiveTimeoutError(
            f"exchange {key!r}: rank 0 ({self._where}) has not answered rank {self._rank} for "
            f"{self._timeout_s:g} s; expected every rank's value. Look whether rank 0 is stopped "
            "or its host unreachable, or raise SMDDP_TIMEOUT_SECONDS."
        )

    def _nonsense(self, what: str) -> InternalError:
        return InternalError(
            f"rank 0 ({self._where}) sent {what}; expected the rendezvous protocol. Check that all "
            "ranks run the same version, and report this if they do."
        )

    def _close_in_child(self) -> None:
        self._is_closed = True
        self._lock = threading.Lock()
        if self._socket is not None:
            self._socket.close()
        if self._server is not None:
            self._server.close_in_child()


def _close_all_in_child() -> None:
    # A forked worker that kept our sockets open would hide the death of its parent from the others.
    for rendezvous in list(_open):
        rendezvous._close_in_child()
    _open.clear()


os.register_at_fork(after_in_child=_close_all_in_child)


def _remaining(deadline: float) -> float:
    """Returns a positive number of seconds: zero would mean "do not block" to a socket."""
    return max(0.001, deadline - time.monotonic())


def _receive_exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        if time.monotonic() >= deadline:
            raise TimeoutError
        connection.settimeout(_remaining(deadline))
        piece = connection.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise ConnectionResetError("end of stream")
        data += piece
    return bytes(data)


def _listen(addr: str, port: int) -> socket.socket:
    """Listens where the other ranks will look for rank 0.

    A host name gets all interfaces: many distributions map a host's own name to 127.0.1.1, where
    nobody else could reach it. So does an address that no interface has (address translation).
    """
    try:
        address = ipaddress.ip_address("127.0.0.1" if addr == "localhost" else addr)
    except ValueError:
        address = None
        try:
            socket.getaddrinfo(addr, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConfigurationError(
                f"MASTER_ADDR={addr!r} does not resolve ({error.strerror}); expected the name or "
                "address of the host of rank 0. Correct MASTER_ADDR."
            ) from error
    try:
        if address is not None:
            family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
            with contextlib.suppress(OSError):
                return _create_server(str(address), port, family)
        if address is not None and address.is_loopback:
            # Not reachable otherwise, so a second attempt can only name the error.
            return _create_server(str(address), port, family)
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=256
            )
        return _create_server("", port, socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(
            f"rank 0 cannot listen on port {port} of {addr} ({error.strerror}); expected a free "
            "port. Another job may use it, or the last one may still be ending: set MASTER_PORT to "
            "another port, the same on every rank."
        ) from error


def _create_server(host: str, port: int, family: socket.AddressFamily) -> socket.socket:
    return socket.create_server((host, port), family=family, backlog=256)


@dataclasses.dataclass(frozen=True)
class _Opener:
    """How a rank other than 0 comes in."""

    rank: int
    world_size: int
    addr: str
    port: int
    token: bytes | None
    tls: RendezvousTls | None

    @property
    def _where(self) -> str:
        return f"{self.addr}:{self.port}"

    def join(self, timeout_s: float) -> socket.socket:
        """Connects to rank 0 and proves to know the token; retries until `timeout_s` is over."""
        deadline = time.monotonic() + timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                connection = socket.create_connection(
                    (self.addr, self.port), timeout=min(_ATTEMPT_S, _remaining(deadline))
                )
            except OSError as error:
                reason = error.strerror or str(error) or type(error).__name__
            else:
                try:
                    if connection.getsockname() == connection.getpeername():
                        # While nobody listens on an ephemeral port of this host, the kernel may
                        # pick that very port for our end, and a socket then connects to itself.
                        raise ConnectionRefusedError("it was our own end")
                    wire.configure(connection)
                    limit = min(deadline, time.monotonic() + _ATTEMPT_S)
                    connection, binding = self._secure(connection, limit)
                    self._prove(connection, binding, limit)
                    return connection
                except ssl.SSLError as error:
                    connection.close()
                    if not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
                        raise self._tls_failed(error) from error
                    reason = "it accepted the connection, then closed it during TLS's handshake"
                except ConfigurationError:
                    connection.close()
                    raise
                except OSError as error:
                    connection.close()
                    outcome = str(error) or "did not answer in time"
                    reason = f"it accepted the connection, then {outcome}"
                except BaseException:
                    connection.close()
                    raise
            if time.monotonic() + pause_s >= deadline:
                raise PeerLostError(
                    f"rank {self.rank} could not reach rank 0 at {self._where} within "
                    f"{timeout_s:g} s (last reason: {reason}); expected rank 0 to listen there. "
                    "Check that rank 0 was started, that MASTER_ADDR and MASTER_PORT are the same "
                    "on all ranks, and that no firewall closes the port between the hosts."
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def _secure(self, connection: socket.socket, deadline: float) -> tuple[socket.socket, bytes]:
        """Puts the connection into TLS, if this rank has it. Closes it if that fails."""
        if self.tls is None:
            return connection, b""
        connection.settimeout(_remaining(deadline))
        secured = self.tls.connect(connection)
        try:
            secured.do_handshake()
            return secured, self.tls.binding(secured)
        except BaseException:
            secured.close()
            raise

    def _tls_failed(self, error: ssl.SSLError) -> ConfigurationError:
        return ConfigurationError(
            f"rank {self.rank} cannot speak TLS with rank 0 at {self._where}: {why_refused(error)}."
        )

    def _prove(self, connection: socket.socket, binding: bytes, deadline: float) -> None:
        has_own = self.token is not None
        nonce = secrets.token_bytes(wire.NONCE_BYTES)
        hello = wire.CLIENT_HELLO.pack(wire.MAGIC, has_own, self.rank, self.world_size, nonce)
        connection.settimeout(_remaining(deadline))
        connection.sendall(hello)
        # The magic first: a service of another kind may send less than we expect, and then wait.
        magic = _receive_exactly(connection, len(wire.MAGIC), deadline)
        if magic == wire.NEEDS_TLS:
            raise ConfigurationError(
                f"rank 0 at {self._where} uses TLS and rank {self.rank} does not; expected it on "
                "all ranks or on none. Set SMDDP_TLS_CERT, SMDDP_TLS_KEY and SMDDP_TLS_CA on all "
                "hosts, or unset them everywhere."
            )
        if magic != wire.MAGIC:
            raise ConfigurationError(
                f"what listens at {self._where} is not a rendezvous of this library (it sent "
                f"{magic!r}); expected rank 0. Set MASTER_PORT to a free port on the host of rank "
                "0, and check that all ranks run the same version of smdistributed."
            )
        rest = _receive_exactly(connection, wire.SERVER_HELLO.size - len(magic), deadline)
        answer = magic + rest
        _, server_has_token, _ = wire.SERVER_HELLO.unpack(answer)
        if server_has_token != has_own:
            with_token, without = ("rank 0", f"rank {self.rank}")[:: 1 if server_has_token else -1]
            raise ConfigurationError(
                f"{with_token} has a job token and {without} has none; expected the same "
                "SMDDP_TOKEN on all ranks. Pass it on to all hosts, or unset it everywhere."
            )
        about = (self.token or b"", hello, answer, binding)
        connection.sendall(wire.CLIENT_PROOF.pack(wire.client_proof(*about)))
        verdict = _receive_exactly(connection, wire.SERVER_VERDICT.size, deadline)
        is_accepted, proof = wire.SERVER_VERDICT.unpack(verdict)
        if not is_accepted or not hmac.compare_digest(proof, wire.server_proof(*about)):
            raise ConfigurationError(
                f"rank 0 at {self._where} has another job token than rank {self.rank}; expected "
                "the same SMDDP_TOKEN on all ranks. Check whether a second job uses this "
                "MASTER_PORT."
            )
