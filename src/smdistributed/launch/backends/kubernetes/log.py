# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The log of a pod, as it grows."""

from __future__ import annotations

import contextlib
import queue
import threading

from smdistributed.launch.backends.kubernetes.api import Api

__all__ = ["PodLog"]


class PodLog:
    """What comes of a pod's log, read on a thread of its own until the pod has ended."""

    def __init__(self, api: Api, space: str, name: str) -> None:
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_closed = threading.Event()
        self._api = api
        self._where = name, space
        threading.Thread(target=self._read, name="log", daemon=True).start()

    def next(self, timeout_s: float) -> bytes | None:
        """What has come; empty: nothing in that time; None: nothing comes any more."""
        try:
            return self._pieces.get(timeout=timeout_s)
        except queue.Empty:
            return b""

    def _read(self) -> None:
        with contextlib.suppress(Exception):
            answer = self._api.core.read_namespaced_pod_log(
                *self._where, follow=True, _preload_content=False
            )
            try:
                while not self._is_closed.is_set() and (content := answer.read1(1 << 16)):
                    self._pieces.put(content)
            finally:
                answer.close()
        self._pieces.put(None)

    def close(self) -> None:
        """Nothing more is read."""
        self._is_closed.set()
