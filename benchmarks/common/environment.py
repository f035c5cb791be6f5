# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a reader needs to know of the machine.

No host names, user names or paths: results are public.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


@functools.cache
def describe() -> dict[str, Any]:
    """Hardware, kernel and versions, for the result file."""
    memory_pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu_model": _cpu_field("model name") or platform.machine(),
        "cpu_family_model_stepping": "/".join(
            _cpu_field(name) or "?" for name in ("cpu family", "model", "stepping")
        ),
        "cpus": len(os.sched_getaffinity(0)),
        "vector_extensions": [
            flag
            for flag in ("avx2", "f16c", "avx512f", "avx512_bf16", "asimd", "sve")
            if flag in (_cpu_field("flags") or _cpu_field("Features") or "").split()
        ],
        "hypervisor": "hypervisor" in (_cpu_field("flags") or "").split(),
        "memory_gib": round(memory_pages * page_bytes / 2**30, 1),
        "transparent_huge_pages": _bracketed("/sys/kernel/mm/transparent_hugepage/enabled"),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "compiler": _first_line([os.environ.get("CC", "cc"), "--version"]),
        "packages": {
            name: found
            for name in ("smdistributed-open", "torch", "numpy")
            if (found := _package_version(name)) is not None
        },
    }


def machine_class() -> str:
    """A short name for files: ``amd-epyc-2cpu``."""
    model = re.sub(r"\(.*?\)|CPU|Processor|@.*|\d+-Core", " ", _cpu_field("model name") or "cpu")
    words = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return f"{words}-{len(os.sched_getaffinity(0))}cpu"


def available_bytes() -> int:
    """Memory that can be had without swapping, by the kernel's estimate."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cpu_field(name: str) -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _bracketed(path: str) -> str:
    try:
        found = re.search(r"\[(\w+)\]", Path(path).read_text())
    except OSError:
        return "unknown"
    return found.group(1) if found else "unknown"


def _first_line(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return "none"
    output = subprocess.run(command, capture_output=True, text=True).stdout
    return output.splitlines()[0] if output else "unknown"


def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
