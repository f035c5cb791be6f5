# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a process holds, and whether that grows."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
_WARM_UP_SAMPLES = 4  # in the first rounds pools fill and threads begin
_LEAST_SAMPLES = 12


@dataclass(frozen=True)
class Usage:
    """What one process holds between two rounds, when it has dropped all its buffers.

    Attributes:
        private_bytes: resident memory of its own.
        shared_bytes: resident memory shared with other ranks; each of them counts it.
        descriptors: open files, sockets, pipes.
        threads: of the kernel, Python's and ours.
    """

    private_bytes: int
    shared_bytes: int
    descriptors: int
    threads: int


# What may come and go without being a leak: what the allocator cannot give back because something
# lies behind it, and freed pages of shared memory, of which a group keeps up to 64 MiB for its next
# buffers.
ALLOWED = Usage(private_bytes=48 * MIB, shared_bytes=64 * MIB, descriptors=0, threads=0)


def measure() -> Usage:
    """What this process holds now, after everything that is free was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())

    def kibibytes(name: str) -> int:
        return int(status[name].split()[0]) * 1024

    return Usage(
        private_bytes=kibibytes("RssAnon"),
        shared_bytes=kibibytes("RssShmem"),
        descriptors=len(os.listdir("/proc/self/fd")) - 1,  # the listing itself has one
        threads=int(status["Threads"]),
    )


def growth(history: Sequence[Usage]) -> str | None:
    """What grows, in words; None as long as nothing does.

    After some rounds to warm up, the least of the last third of the samples is compared with the
    most of the first third. What is held for a while and given back does not count; what leaks
    shows sooner or later, however slowly.
    """
    history = history[_WARM_UP_SAMPLES:]
    third = len(history) // 3
    if len(history) < _LEAST_SAMPLES:
        return None
    for name in Usage.__dataclass_fields__:
        first = max(getattr(usage, name) for usage in history[:third])
        last = min(getattr(usage, name) for usage in history[-third:])
        allowed = getattr(ALLOWED, name)
        if last > first + allowed:
            return (
                f"{name} has grown from {first} to {last}; expected at most {allowed} more."
                " Look for what is not given back: buffers, groups, threads or sockets."
            )
    return None
