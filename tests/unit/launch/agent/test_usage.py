# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Section 8.2: what a host uses of the machine, each minute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smdistributed.launch.agent.usage import PERIOD_S, Usage, gpu_usage


def points(path: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for line in path.read_text().splitlines():
        point = json.loads(line)
        assert abs(point["time"] - time.time()) < 60
        found.setdefault(point["name"], []).append(point["value"])
    return found


def test_processors_and_memory_are_those_of_the_hosts_own_processes(tmp_path: Path) -> None:
    file = tmp_path / "system_metrics.jsonl"
    program = "x = bytearray(64 << 20); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        usage = Usage(busy.pid, file, period_s=0.4)
        usage.begin()
        until = time.monotonic() + 20
        while not (file.exists() and "MemoryUtilization" in file.read_text()):
            assert time.monotonic() < until
            time.sleep(0.02)
        usage.end()
        busy.kill()
    found = points(file)
    assert sorted(found) == ["CPUUtilization", "DiskUtilization", "MemoryUtilization"]
    assert 2 <= found["CPUUtilization"][0] <= 110, "one core at most, of a machine with other work"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found["MemoryUtilization"][0] >= 100 * (64 << 20) / memory
    assert all(0 < value <= 100 for value in found["DiskUtilization"])
    assert len(found["CPUUtilization"]) >= 2, "each period, and in the end"


def test_a_child_that_has_ended_counts(tmp_path: Path) -> None:
    file = tmp_path / "points"
    usage = Usage(os.getpid(), file)
    usage.begin()
    before = time.monotonic()
    program = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", program], check=True)
    took = time.monotonic() - before
    usage.end()
    (percent,) = points(file)["CPUUtilization"]
    assert percent >= 100 * 0.25 / (took + 1.0)


def test_nothing_is_written_of_what_has_not_begun(tmp_path: Path) -> None:
    Usage(os.getpid(), tmp_path / "points").end()
    assert not (tmp_path / "points").exists()


def test_a_disk_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    usage = Usage(os.getpid(), tmp_path / "nowhere" / "points")
    usage.begin()
    usage.end()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("37, 1024, 2048\n63, 0, 2048\n", {"GPUUtilization": 100, "GPUMemoryUtilization": 50}),
        ("[N/A], 1024, 2048\n", {"GPUMemoryUtilization": 50}),
        ("No devices were found\n", {}),
        ("", {}),
    ],
)
def test_gpus_are_added_up(answer: str, expected: dict[str, float]) -> None:
    assert gpu_usage(answer) == expected


def test_a_point_comes_each_minute() -> None:
    assert PERIOD_S == 60
