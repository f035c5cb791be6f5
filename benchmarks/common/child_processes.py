# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What it takes to start processes that find each other, and to see them leave."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterable
from typing import Any


def find_free_port() -> int:
    """A TCP port of this host that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def membership_variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What tells a process its rank, of ``ranks`` on this host, and where they meet."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def wait_for_all(processes: Iterable[subprocess.Popen[Any]], timeout_s: float) -> None:
    """Wait until all have ended, for ``timeout_s`` seconds at most; then some may still run."""
    end = time.monotonic() + timeout_s
    for process in processes:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            return
