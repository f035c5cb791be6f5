# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How much memory a step needs at its peak, beyond what is there when it begins."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import torch

__all__ = ["PeakMemory"]

# Between two looks at what malloc has given out. An operation of a step worth a look takes longer.
_INTERVAL_S = 5e-4


class PeakMemory:
    """Of tensors: on a GPU as its allocator counts, on CPUs all that malloc has given out.

    What the process has from the kernel is more: malloc keeps what is freed, and has holes. How
    much more depends on all that came before, so nobody could compare two steps by it.

    malloc does not remember its peak. A thread looks at it again and again, which costs the step
    little, and may miss what lives shorter than a millisecond.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._in_use = _malloc_in_use()
        self._before = self._peak = 0
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_process(self) -> bool:
        """Whether it is the process's memory."""
        return self._device.type != "cuda"

    def begin(self) -> None:
        """From now on the peak counts."""
        if not self.is_process:
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        elif self._in_use is not None:
            self._before = self._peak = self._in_use()
            self._is_over.clear()
            self._thread = threading.Thread(target=self._watch, name="smp-memory", daemon=True)
            self._thread.start()

    def end(self) -> int | None:
        """Bytes at most since `begin`, beyond those of then; None where nobody can tell."""
        if not self.is_process:
            return torch.cuda.max_memory_allocated(self._device) - self._before
        if self._thread is None:
            return None
        self._is_over.set()
        self._thread.join()
        self._thread = None
        return self._peak - self._before

    def _watch(self) -> None:
        assert self._in_use is not None
        while not self._is_over.is_set():
            self._peak = max(self._peak, self._in_use())
            self._is_over.wait(_INTERVAL_S)


class _Mallinfo2(ctypes.Structure):
    """Of mallinfo(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def _malloc_in_use() -> Callable[[], int] | None:
    """What tells the bytes that malloc has given out, of all arenas; None without glibc 2.33."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return None
    mallinfo2.restype = _Mallinfo2

    def in_use() -> int:
        found = mallinfo2()
        return int(found.uordblks + found.hblkhd)

    return in_use
