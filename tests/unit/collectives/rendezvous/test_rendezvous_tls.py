# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The rendezvous inside TLS, with ranks as threads of one process, over loopback.

Source: docs/security.md, "TLS".
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from job_certificates import TlsFiles, make_authority, make_files
from machine_speed import scaled

from smdistributed._common.errors import CollectiveTimeoutError, ConfigurationError
from smdistributed.collectives.rendezvous import Rendezvous, wire
from smdistributed.collectives.rendezvous.tls import RendezvousTls

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command"),
]

ADDR = "127.0.0.1"
TIMEOUT_S = scaled(20.0)
TOKEN = b"secret"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def ours(authority: Path) -> TlsFiles:
    return make_files(authority, "rank")


@pytest.fixture(scope="module")
def others(authority: Path) -> TlsFiles:
    """Of the same authority: another host's."""
    return make_files(authority, "other")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_files(make_authority(tmp_path_factory.mktemp("foreign"), "other authority"))


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(TIMEOUT_S)  # close() does not wait for it without end
    assert set(threading.enumerate()) <= before


def _assert_works(first: Rendezvous, files: TlsFiles | None, value: bytes = b"b") -> None:
    with (
        Rendezvous(1, 2, ADDR, first.port, TIMEOUT_S, TOKEN, files) as second,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(second.exchange, "k", value)
        assert first.exchange("k", b"a") == answer.result() == [b"a", value]


@pytest.mark.parametrize("size", [0, 1, 16_384, 4 * 1024 * 1024 + 1])
def test_values_arrive_whole_inside_tls(ours: TlsFiles, others: TlsFiles, size: int) -> None:
    with Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, TOKEN, ours) as first:
        _assert_works(first, others, os.urandom(size))


def test_tls_works_without_a_token(ours: TlsFiles) -> None:
    with (
        Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, None, ours) as first,
        Rendezvous(1, 2, ADDR, first.port, TIMEOUT_S, None, ours) as second,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(second.exchange, "k", b"b")
        assert first.exchange("k", b"a") == answer.result() == [b"a", b"b"]


class _Wire:
    """Passes bytes on between one rank and rank 0, and keeps what passed."""

    def __init__(self, port: int) -> None:
        self._target = (ADDR, port)
        self._listener = socket.create_server((ADDR, 0))
        self.port = self._listener.getsockname()[1]
        self.seen = bytearray()

    def run(self) -> None:
        near, _ = self._listener.accept()
        with near, socket.create_connection(self._target) as far, self._listener:
            back = threading.Thread(target=self._pump, args=(far, near))
            back.start()
            self._pump(near, far)
            back.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.seen += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("is_secured", [True, False])
def test_who_reads_the_wire_sees_nothing_of_the_values(ours: TlsFiles, is_secured: bool) -> None:
    files = ours if is_secured else None
    with (
        Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, TOKEN, files) as first,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):
        between = _Wire(first.port)
        passing = pool.submit(between.run)
        with Rendezvous(1, 2, ADDR, between.port, TIMEOUT_S, TOKEN, files) as second:
            answer = pool.submit(second.exchange, "the key", b"a value of rank 1")
            first.exchange("the key", b"a value of rank 0")
            answer.result()
        first.close()
        passing.result()
    for text in (wire.MAGIC, b"the key", b"a value of rank 0", b"a value of rank 1"):
        assert (text in between.seen) is not is_secured


class _Interceptor(_Wire):
    """Ends TLS on both sides with a certificate of the job's authority, and passes on the rest."""

    def __init__(self, port: int, files: TlsFiles) -> None:
        super().__init__(port)
        self._tls = RendezvousTls(files)

    def run(self) -> None:
        accepted, _ = self._listener.accept()
        self._listener.close()
        opened = socket.create_connection(self._target)
        with self._tls.accept(accepted) as near, self._tls.connect(opened) as far:
            near.do_handshake()
            far.do_handshake()
            for source, sink, size in (
                (near, far, wire.CLIENT_HELLO.size),
                (far, near, wire.SERVER_HELLO.size),
                (near, far, wire.CLIENT_PROOF.size),
                (far, near, wire.SERVER_VERDICT.size),
            ):
                data = source.recv(size)
                self.seen += data
                sink.sendall(data)


def test_a_certificate_of_the_authority_without_the_token_cannot_sit_in_between(
    authority: Path, ours: TlsFiles, others: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """The proofs cover the certificates that both ends saw."""
    with (
        Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, TOKEN, ours) as first,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        between = _Interceptor(first.port, make_files(authority, "interceptor"))
        passing = pool.submit(between.run)
        with pytest.raises(ConfigurationError, match="another job token"):
            Rendezvous(1, 2, ADDR, between.port, TIMEOUT_S, TOKEN, others)
        passing.result()
        assert between.seen.endswith(wire.SERVER_VERDICT.pack(False, bytes(32)))
        _assert_works(first, others)
    assert "it does not know the job's token" in caplog.text


def test_another_authority_is_refused_by_both_ends(
    ours: TlsFiles, foreign: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    with Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, TOKEN, ours) as first:
        with pytest.raises(ConfigurationError, match=r"certificate.*of one authority"):
            Rendezvous(1, 2, ADDR, first.port, TIMEOUT_S, TOKEN, foreign)
        _assert_works(first, ours)
    assert "was refused: it refused the certificate of this rank" in caplog.text


def test_a_rank_whose_certificate_only_rank_0_refuses_is_told(
    ours: TlsFiles, foreign: TlsFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It trusts both authorities, rank 0 its own only."""
    both = tmp_path / "both.pem"
    both.write_text(Path(ours[2]).read_text() + Path(foreign[2]).read_text())
    with Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, TOKEN, ours) as first:
        with pytest.raises(ConfigurationError, match="it refused the certificate of this rank"):
            Rendezvous(1, 2, ADDR, first.port, TIMEOUT_S, TOKEN, (*foreign[:2], str(both)))
        _assert_works(first, ours)
    assert "was refused: it showed a certificate that is not valid here" in caplog.text


def test_no_certificate_is_refused(ours: TlsFiles, caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(ours[2])
    with Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, TOKEN, ours) as first:
        with (
            socket.create_connection((ADDR, first.port), timeout=TIMEOUT_S) as connection,
            context.wrap_socket(connection) as stranger,
            contextlib.suppress(OSError),
        ):
            assert stranger.recv(1) == b""
        _assert_works(first, ours)
    assert "peer did not return a certificate" in caplog.text


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2])
def test_nothing_older_than_tls_1_3_is_spoken(ours: TlsFiles, version: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_cert_chain(ours[0], ours[1])
    context.load_verify_locations(ours[2])
    context.maximum_version = version
    with (
        Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, TOKEN, ours) as first,
        socket.create_connection((ADDR, first.port), timeout=TIMEOUT_S) as connection,
    ):
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(connection)
        _assert_works(first, ours)


def test_tls_on_one_side_only_is_told_to_both(
    ours: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    with Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, TOKEN, ours) as first:
        with pytest.raises(ConfigurationError, match="uses TLS and rank 1 does not"):
            Rendezvous(1, 2, ADDR, first.port, TIMEOUT_S, TOKEN)
        _assert_works(first, ours)
    assert "was refused: it has no TLS and rank 0 has" in caplog.text
    caplog.clear()
    with Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, TOKEN) as first:
        with pytest.raises(ConfigurationError, match=r"does not speak TLS 1\.3 as this rank"):
            Rendezvous(1, 2, ADDR, first.port, TIMEOUT_S, TOKEN, ours)
        _assert_works(first, None)
    assert "was refused: it speaks TLS and rank 0 does not" in caplog.text


def test_a_wrong_token_inside_tls_is_told_to_who_waits(ours: TlsFiles) -> None:
    with Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, TOKEN, ours) as first:
        with pytest.raises(ConfigurationError, match="another job token"):
            Rendezvous(1, 2, ADDR, first.port, TIMEOUT_S, b"guess", ours)
        assert first._server is not None
        first._timeout_s = first._server._timeout_s = 0.5  # joining has had the time it needed
        with pytest.raises(CollectiveTimeoutError, match="claims to be rank 1 was refused: it"):
            first.exchange("k", b"")


def test_files_that_cannot_work_are_told_before_anybody_is_met(
    ours: TlsFiles, foreign: TlsFiles
) -> None:
    for files, text in (
        ((ours[0], foreign[1], ours[2]), "expected the key of SMDDP_TLS_CERT"),
        ((*ours[:2], foreign[2]), "is no valid certificate of SMDDP_TLS_CA"),
        (("none.pem", *ours[1:]), "Correct the path"),
    ):
        for rank in (0, 1):
            with pytest.raises(ConfigurationError, match=text):
                Rendezvous(rank, 2, ADDR, 1, TIMEOUT_S, TOKEN, files)


_RECORD = b"\x16\x03\x01"


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    garbage=st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=200).map(lambda tail: _RECORD + tail),
        st.binary(max_size=200).map(
            lambda tail: _RECORD + len(tail).to_bytes(2, "big") + b"\x01" + tail
        ),
    )
)
def test_garbage_on_the_port_disturbs_nobody(ours: TlsFiles, garbage: bytes) -> None:
    with (
        Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, TOKEN, ours) as first,
        socket.create_connection((ADDR, first.port), timeout=TIMEOUT_S) as stranger,
    ):
        with contextlib.suppress(ConnectionError):
            stranger.sendall(garbage)
        _assert_works(first, ours)


def test_connections_that_stop_within_the_handshake_disturb_nobody(ours: TlsFiles) -> None:
    with (
        Rendezvous(0, 2, ADDR, 0, TIMEOUT_S, TOKEN, ours) as first,
        contextlib.ExitStack() as stack,
    ):
        for index in range(140):
            stranger = socket.create_connection((ADDR, first.port), timeout=TIMEOUT_S)
            stack.enter_context(stranger)
            stranger.sendall(_RECORD[: index % 4])
        _assert_works(first, ours)
