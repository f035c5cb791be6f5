# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""An S3 server for tests, and one in front of it with which things go wrong.

`object_store` is a moto server, one in each worker of pytest; its start takes seconds, so what a
test puts there is in a bucket of its own. Without the packages of `make env-clusters` tests that
want it are skipped.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import importlib.util
import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from machine_speed import scaled

_NUMBERS = itertools.count()


class ObjectStore:
    """A server.

    Attributes:
        url: of it.
        client: boto3's, for what a test prepares and looks at.
    """

    def __init__(self, url: str, client: Any) -> None:
        self.url = url
        self.client = client

    def bucket(self) -> str:
        """Makes a bucket. Returns: its name."""
        name = f"bucket-{next(_NUMBERS)}"
        self.client.create_bucket(Bucket=name)
        return name

    def put(self, bucket: str, objects: dict[str, bytes]) -> None:
        for key, body in objects.items():
            self.client.put_object(Bucket=bucket, Key=key, Body=body)

    def contents(self, bucket: str) -> dict[str, bytes]:
        listed = self.client.list_objects_v2(Bucket=bucket).get("Contents", ())
        get = self.client.get_object
        return {each["Key"]: get(Bucket=bucket, Key=each["Key"])["Body"].read() for each in listed}


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """A moto server of this worker of pytest, with credentials in the environment."""
    for package in ("moto", "boto3", "flask"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed; run `make env-clusters`")
    import boto3
    from botocore.config import Config

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        ) as process,
    ):
        patch.setenv("AWS_ACCESS_KEY_ID", "mine")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET-of-the-test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.delenv("AWS_PROFILE", raising=False)
        try:
            until = time.monotonic() + scaled(60)
            while True:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
            url = f"http://127.0.0.1:{port}"
            config = Config(s3={"addressing_style": "path"})
            client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", config=config)
            yield ObjectStore(url, client)
        finally:
            process.kill()


class Request(NamedTuple):
    """What a client asks.

    Attributes:
        method, path: as of HTTP.
        start: of the range that it wants; 0 if it wants all.
        number: of earlier requests with this method and path.
    """

    method: str
    path: str
    start: int
    number: int


class Fault(NamedTuple):
    """What goes wrong with a request.

    Attributes:
        status: answered in the place of the server; 0: the server is asked.
        code: of S3, with it.
        cut_after: bytes of the body, after which the connection is closed.
        stall_after: bytes of the body, after which nothing comes any more.
        flip: a byte of the body is another one.
        no_range: the whole object is given, whatever range was asked for.
    """

    status: int = 0
    code: str = ""
    cut_after: int = -1
    stall_after: int = -1
    flip: int = -1
    no_range: bool = False


class FaultyServer(http.server.ThreadingHTTPServer):
    """In front of another one. In its block it serves.

    Args:
        url: of the other one.
        address: at which it listens.

    Attributes:
        fault_of: says what goes wrong with a request; None: nothing.
        sent: bytes of bodies that clients were given, by path.
        requests: that were made.
        authorizations: headers that came with them.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, url: str, address: str = "127.0.0.1") -> None:
        super().__init__((address, 0), _Handler)
        self.other = url.removeprefix("http://")
        self.fault_of: Callable[[Request], Fault | None] = lambda request: None
        self.sent: dict[str, int] = {}
        self.requests: list[Request] = []
        self.authorizations: list[str] = []
        self.lock = threading.Lock()
        self.is_over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}"

    def __enter__(self) -> FaultyServer:
        threading.Thread(target=self.serve_forever, daemon=True, args=(0.02,)).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.is_over.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go as they like."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyServer

    def log_message(self, *args: Any) -> None:
        """Nothing is printed."""

    def _serve(self) -> None:
        server, path = self.server, self.path.partition("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        given = self.headers.get("Range", "")
        start = int(given.removeprefix("bytes=").partition("-")[0]) if given else 0
        with server.lock:
            earlier = [each for each in server.requests if each[:2] == (self.command, path)]
            request = Request(self.command, path, start, len(earlier))
            server.requests.append(request)
            server.authorizations.append(self.headers.get("Authorization", ""))
        fault = server.fault_of(request) or Fault()
        if fault.status:
            text = f"<Error><Code>{fault.code}</Code><Message>made up</Message></Error>".encode()
            self.send_response(fault.status)
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Content-Type", "application/xml")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)
            return
        connection = http.client.HTTPConnection(server.other, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name != "Connection"}
        if fault.no_range:
            headers.pop("Range", None)
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                self.send_header(name, value)
        if self.command != "HEAD" and not answer.getheader("Content-Length"):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if 0 <= fault.flip < len(content):
            content = bytes(
                [*content[: fault.flip], content[fault.flip] ^ 1, *content[fault.flip + 1 :]]
            )
        for most, is_cut in ((fault.cut_after, True), (fault.stall_after, False)):
            if 0 <= most < len(content):
                self._send(path, content[:most])
                if not is_cut:
                    server.is_over.wait()
                self.close_connection = True
                return
        self._send(path, content)

    def _send(self, path: str, content: bytes) -> None:
        if self.command == "HEAD":
            return
        self.wfile.write(content)
        with self.server.lock:
            self.server.sent[path] = self.server.sent.get(path, 0) + len(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815


@pytest.fixture
def faulty(object_store: ObjectStore) -> Iterator[FaultyServer]:
    """In front of the object store."""
    with FaultyServer(object_store.url) as server:
        yield server


def filled(size: int, seed: int = 0) -> bytes:
    """Bytes that tell their place."""
    words = (f"{seed:04d}{number:08d}" for number in range(size // 12 + 1))
    return "".join(words).encode()[:size]


def files_of(folder: Path) -> dict[str, bytes]:
    """Content of the files below a folder, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
