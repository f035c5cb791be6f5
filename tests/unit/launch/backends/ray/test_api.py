# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is made of answers of Ray's Jobs API that are none, and of one that does not come."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import SmdistributedError
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.ray import backend as backends
from smdistributed.launch.backends.ray.api import RayApi


@contextlib.contextmanager
def answering(content: bytes, length: int, status: int = 200) -> Iterator[RayApi]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - the name is the server's

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield RayApi(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("content", [b"[]", b"null", b"{}", b"<html>", b'{"status": null}'])
def test_nonsense_does_not_say_that_a_job_is_gone(content: bytes) -> None:
    with (
        answering(content, len(content)) as api,
        pytest.raises(BackendError, match=r"of a job|no JSON"),
    ):
        api.job("x")


def test_an_answer_that_breaks_off_is_told_in_words() -> None:
    with answering(b'{"sta', 100) as api, pytest.raises(BackendError, match="breaks off"):
        api.job("x")


def test_a_log_that_hangs_does_not_hide_a_cluster_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent:
        def __init__(self, *_: object) -> None: ...

        def next(self, _: float) -> bytes:
            return b""

        def close(self) -> None: ...

    class Gone:
        def job(self, _: str) -> Any:
            raise BackendError("it does not answer")

    monkeypatch.setattr(backends, "_Log", Silent)
    monkeypatch.setattr(backends, "patience_s", lambda _: 0.1)
    cluster: Any = object.__new__(backends.RayCluster)
    cluster._api, cluster._id, cluster._job, cluster._dead_node = Gone(), "x", None, ""
    cluster._settings = type("", (), {"address": "http://head:8265"})
    with pytest.raises(BackendError, match="may go on there"):
        for _ in cluster.text():
            pass


class Answers:
    """Of a cluster whose job has ended, and whose stream is slow.

    Args:
        logs: what each look at the whole log gives.
    """

    def __init__(self, *logs: bytes | Exception, node: str = "n") -> None:
        self._logs = list(logs)
        self._node = node

    def job(self, _: str) -> Any:
        return {"status": "SUCCEEDED", "message": "well", "driver_node_id": self._node}

    def dead_node(self, _: str) -> str:
        return ""

    def log(self, *_: str, is_whole: bool) -> Any:
        assert is_whole
        found = self._logs.pop(0) if len(self._logs) > 1 else self._logs[0]
        if isinstance(found, Exception):
            raise found
        return io.BytesIO(found)


def slow(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> Iterator[str | None]:
    class Slow:
        def __init__(self, *_: object) -> None:
            self._pieces = [b"fir"]

        def next(self, _: float) -> bytes:
            return self._pieces.pop() if self._pieces else b""

        def close(self) -> None: ...

    monkeypatch.setattr(backends, "_Log", Slow)
    monkeypatch.setattr(backends, "_ASK_S", 0.0)
    monkeypatch.setattr(backends, "_TICK_S", 0.01)
    monkeypatch.setattr(backends, "_LAST_S", 0.1)
    monkeypatch.setattr(backends, "patience_s", lambda _: 10.0)
    cluster: Any = object.__new__(backends.RayCluster)
    cluster._api, cluster._id, cluster._job, cluster._dead_node = answers, "x", None, ""
    cluster._settings = type("", (), {"python": "python"})
    return cluster.text()


def test_a_slow_log_is_read_to_its_end_once_the_job_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = http.client.IncompleteRead(b"")
    texts = list(slow(monkeypatch, Answers(half, b"first and last")))
    assert texts[0] == "fir"
    assert texts[-3:] == [None, None, "first and last"]


def test_a_log_that_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(BackendError("no such node"))
    with pytest.raises(BackendError, match=r"cannot be read: no such node\. Ray says SUCCEEDED"):
        list(slow(monkeypatch, answers))


def test_a_job_that_never_had_a_node_has_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(slow(monkeypatch, Answers(b"", node=""))) == {"fir", ""}


@pytest.mark.parametrize("content", [b"404 page not found", b"Cannot GET /api/jobs/x-1"])
def test_a_proxy_does_not_say_that_a_job_is_gone(content: bytes) -> None:
    with answering(content, len(content), status=404) as api:
        for ask in (api.job, api.stop):
            with pytest.raises(BackendError, match="no answer of Ray's"):
                ask("x-1")


def test_ray_says_that_a_job_is_gone() -> None:
    content = b"Job x-1 does not exist"
    with answering(content, len(content), status=404) as api:
        assert api.job("x-1") is None
        api.stop("x-1")


@pytest.mark.parametrize("token", ["secret-one\nsecret-two\n", "secret \x7f", "secret-\xfc"])
def test_what_is_no_token_is_not_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, token: str
) -> None:
    file = tmp_path / "token"
    file.write_bytes(token.encode("latin-1"))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    for where in (str(file), "the variable RAY_AUTH_TOKEN"):
        with answering(b"", 0) as api, pytest.raises(SmdistributedError) as raised:
            api.job("x")
        assert where in str(raised.value)
        assert "expected one line" in str(raised.value)
        assert "secret" not in str(raised.value)
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
