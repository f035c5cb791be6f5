# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How processes are started that find each other, and how their end is awaited."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_DEADLINE_S = 600.0


def figures_of_ranks(
    ranks: int, program: Path, *options: object, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a Python program on ranks of this host, by smddprun; what rank 0 prints as JSON.

    Args:
        program: prints one object, in a line.
        variables: added to the environment.

    Raises:
        RuntimeError: there was no such line; with what the ranks printed.
        subprocess.TimeoutExpired: they took longer than ten minutes.
    """
    launcher = Path(sys.executable).with_name("smddprun")
    command = [launcher, "-np", ranks, sys.executable, "-W", "ignore", program, *options]
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
        env={**os.environ, **(variables or {})},
    )
    for line in reversed(done.stdout.splitlines()):
        start = line.find('{"')
        if start >= 0:
            found: dict[str, Any] = json.loads(line[start:])
            return found
    words = " ".join(str(option) for option in options)
    raise RuntimeError(f"{ranks} ranks printed no figures ({words}):\n{done.stderr[-3000:]}")


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
