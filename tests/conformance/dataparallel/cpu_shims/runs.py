# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Running checks of the shims in ranks of a chosen mode, and scripts in processes of their own.

What a rank does is a function at module level of a test file, as ranks load it by name.
"""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import run_ranks
from launchers import clean_environment
from machine_speed import scaled
from preloaded import python

WAIT_S = 200
TEST_TIMEOUT_S = 240
ALL_MODES = ("off", "auto", "full")

ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}

# What torch says there: one for CPUs alone, and one that is built with CUDA.
NO_CUDA = re.compile("Torch not compiled with CUDA enabled|Found no NVIDIA driver on your system")

needs_no_cuda = pytest.mark.skipif(
    torch.cuda.is_available(), reason="shows what happens where there is no CUDA device"
)


def in_mode(mode: str, check: Callable[..., Any], *arguments: Any, ranks: int = 1) -> list[Any]:
    return run_ranks(check, ranks, *arguments, env={"SMDDP_CPU_SHIM": mode}, deadline_s=WAIT_S)


def run_python(
    arguments: list[str], *, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python(), *arguments],
        env=clean_environment(environ),
        capture_output=True,
        text=True,
        timeout=scaled(WAIT_S),
    )


def import_library() -> list[logging.LogRecord]:
    """Imports the library as a script does; returns the list that its log records go to."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger = logging.getLogger("smdistributed")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Keep())
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

    return records


def error_of(call: Callable[[], object]) -> str:
    """The type and text of what a call raises; the empty string if it raises nothing."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
