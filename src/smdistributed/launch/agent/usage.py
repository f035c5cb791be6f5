# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a host uses of the machine, each minute: the metrics of the system.

Several hosts of a job share a machine. So processors and memory are those that the host's own
processes use: the agent and all that it has started, also what has ended since. The disk is the one
that the job's directory lies on, and GPUs are those that the host sees, whoever uses them.

    CPUUtilization         up to 100 for each core
    MemoryUtilization      percent of the machine's memory
    DiskUtilization        percent of the disk, as `df` counts it
    GPUUtilization         up to 100 for each GPU; where there is nvidia-smi, as the next one
    GPUMemoryUtilization   up to 100 for each GPU

Source: launch specification, section 8.2.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from smdistributed.launch.jobs.files import append_line

__all__ = ["PERIOD_S", "Usage", "gpu_usage"]

PERIOD_S = 60.0

_GPU_QUERY_S = 5.0
_PROC = Path("/proc")


class Usage:
    """Of one host.

    Args:
        root: number of the process that, with its descendants, is the host.
        file: for the points, a line each; its disk is the one that counts.
        gpus: what nvidia-smi knows the host's GPUs by, such as `0,1`; empty: it has none.
        period_s: seconds between two points.
    """

    def __init__(
        self, root: int, file: Path, gpus: str = "", *, period_s: float = PERIOD_S
    ) -> None:
        self._root = root
        self._file = file
        self._gpus = gpus
        self._period_s = period_s
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._last = (time.monotonic(), 0.0)

    def begin(self) -> None:
        """Measures from now on, on a thread of its own."""
        self._last = (time.monotonic(), _cpu_seconds(_tree(self._root)))
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Writes the last points, of less than a period: processors and disk.

        Nothing, if it has not begun.
        """
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
            self._write(self._measured_always)

    def _run(self) -> None:
        while not self._is_over.wait(self._period_s):
            self._write(self._measured)

    def _write(self, measured: Callable[[], dict[str, float]]) -> None:
        with contextlib.suppress(Exception):  # it is worth less than the training
            for name, value in measured().items():
                point = {"time": time.time(), "name": name, "value": round(value, 3)}
                append_line(self._file, json.dumps(point).encode())

    def _measured(self) -> dict[str, float]:
        memory = sum(map(_memory_bytes, _tree(self._root)))
        return {
            **self._measured_always(),
            "MemoryUtilization": 100 * memory / _all_memory_bytes(),
            **(gpu_usage(_asked_gpus(self._gpus)) if self._gpus else {}),
        }

    def _measured_always(self) -> dict[str, float]:
        """Also when the processes have ended."""
        now, cpu_s = time.monotonic(), _cpu_seconds(_tree(self._root))
        (before, cpu_before_s), self._last = self._last, (now, cpu_s)
        return {
            "CPUUtilization": max(0.0, 100 * (cpu_s - cpu_before_s) / max(now - before, 1e-3)),
            "DiskUtilization": _disk_percent(self._file.parent),
        }


def _tree(root: int) -> dict[int, list[str]]:
    """A process and its descendants: what stands in `stat` after the name, by number."""
    stats: dict[int, list[str]] = {}
    children: dict[int, list[int]] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, LookupError):  # it has ended
            # The name, which is in parentheses, may have anything in it.
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            pid = int(path.parent.name)
            stats[pid] = fields
            children.setdefault(int(fields[1]), []).append(pid)

    def below(pid: int) -> Iterator[int]:
        yield pid
        for child in children.get(pid, ()):
            yield from below(child)

    return {pid: stats[pid] for pid in below(root) if pid in stats}


def _cpu_seconds(processes: dict[int, list[str]]) -> float:
    """Of the processes, and of those children of theirs that have ended."""
    ticks = sum(int(field) for fields in processes.values() for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory_bytes(pid: int) -> int:
    """That a process has; what several share is divided among them."""
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0  # it has ended


def _all_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _disk_percent(path: Path) -> float:
    found = os.statvfs(path)
    used = found.f_blocks - found.f_bfree
    return 100 * used / max(used + found.f_bavail, 1)


def _asked_gpus(gpus: str) -> str:
    """What nvidia-smi says of these GPUs; empty: it is not there, or does not answer."""
    query = "--query-gpu=utilization.gpu,memory.used,memory.total"
    try:
        return subprocess.run(
            ["nvidia-smi", f"--id={gpus}", query, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GPU_QUERY_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def gpu_usage(answer: str) -> dict[str, float]:
    """The metrics in what nvidia-smi answers: a line for each GPU, its use, its memory in use, all.

    Args:
        answer: such as `37, 1024, 81559`. A number that it does not know, `[N/A]`, is left out.
    """
    use: list[float] = []
    memory: list[float] = []
    for line in answer.splitlines():
        with contextlib.suppress(ValueError):
            percent, used, total = line.split(",")
            with contextlib.suppress(ValueError):
                use.append(float(percent))
            memory.append(100 * float(used) / float(total))
    return {
        **({"GPUUtilization": sum(use)} if use else {}),
        **({"GPUMemoryUtilization": sum(memory)} if memory else {}),
    }
