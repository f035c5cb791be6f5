# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ports that nobody takes between the time when a test chooses one and the time when it listens.

A port of the kernel's choice (bind to port 0) is free when the kernel says so. Until a rank listens
there, seconds later, the kernel may give it to any socket of any process; with some thousands of
tests on two processors that happens. So test processes take theirs from below the range from which
the kernel chooses, each from a slice of its own, and every port in turn.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import socket
from collections.abc import Iterator

_FIRST = 15_000
_PER_SLICE = 100
_SLICES = 170  # to 32,000; Linux chooses from 32,768 on. Each test process takes one


def free_port() -> int:
    """A port on which nothing listens, and that no other test process is given."""
    for port in itertools.islice(_slice(os.getpid()), _PER_SLICE):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(
        f"all {_PER_SLICE} ports of this test process are taken; end what holds them."
    )


@functools.cache
def _slice(pid: int) -> Iterator[int]:
    """The ports of this process, round and round; held until it ends. A forked one has its own."""
    for number in range(_SLICES):
        # Not TMPDIR, which two runs side by side may have set otherwise: ports are the machine's.
        path = f"/tmp/smdistributed-test-ports-{os.getuid()}-{number}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        first = _FIRST + number * _PER_SLICE
        return itertools.cycle(range(first, first + _PER_SLICE))
    raise RuntimeError(f"{_SLICES} test processes hold all ports that tests use; end some.")
