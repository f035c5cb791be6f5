# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is made of answers of Ray's Jobs API that are none, and of one that does not come."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.ray import backend as backends
from smdistributed.launch.backends.ray.api import RayApi


@contextlib.contextmanager
def answering(content: bytes, length: int) -> Iterator[RayApi]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(content)

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
    cluster._api, cluster._id, cluster._job = Gone(), "x", None
    cluster._settings = type("", (), {"address": "http://head:8265"})
    with pytest.raises(BackendError, match="may go on there"):
        for _ in cluster.text():
            pass
