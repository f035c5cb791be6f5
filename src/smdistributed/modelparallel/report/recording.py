# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What `smp.recording()` and `smp.report()` of both frameworks share.

Recording is asked for. `SMP_REPORT` asks for it without a change of the script: each rank then
writes what it has recorded when it ends, and `smpreport` makes the report.

Source: our choice; docs/pipeline_report.md.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from smdistributed._common.log import get_logger
from smdistributed._common.trace_path import rank_path
from smdistributed._common.version import __version__
from smdistributed.dataparallel.trace.session import clock_name
from smdistributed.modelparallel.report.records import RankRecord, write_rank_record

__all__ = [
    "MOST_STEPS",
    "VARIABLE",
    "about_process",
    "asked_path",
    "refuse_second_recording",
    "require_records",
    "require_several_partitions",
    "write_at_exit",
]

VARIABLE = "SMP_REPORT"

MOST_STEPS = 16
"""Kept of those that are recorded: the last ones."""


def about_process() -> dict[str, Any]:
    """What a record says of the process."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "clock": clock_name(),
        "wall_offset_ns": time.time_ns() - time.monotonic_ns(),
        "version": __version__,
    }


def asked_path() -> str:
    """Where `SMP_REPORT` says that ranks write; empty if it does not."""
    return os.environ.get(VARIABLE, "").strip()


def write_at_exit(path: str, pid: int, record: RankRecord | None) -> None:
    """Writes what a rank has recorded.

    Args:
        path: of all ranks; see `rank_path`.
        pid: of the process that has recorded.
        record: None where no pipeline has run.
    """
    if pid != os.getpid() or record is None:
        return  # a forked worker; or no pipeline has run here
    try:
        write_rank_record(rank_path(path, record.rank), record)
    except OSError as error:
        get_logger().error("%s=%s: what was recorded is lost: %s", VARIABLE, path, error)


def refuse_second_recording() -> None:
    """Raises RuntimeError: a recording is under way."""
    raise RuntimeError(
        "smp.recording() was entered while a recording is under way; expected one at a time."
        " Leave the other block first."
    )


def require_several_partitions(has_pipeline: bool) -> None:
    """Raises RuntimeError if there is one partition."""
    if not has_pipeline:
        raise RuntimeError(
            "smp.report() was called with one partition; expected several, as it tells of what"
            " passes between them. See smp.plan() for what several would do."
        )


def require_records(records: Sequence[RankRecord | None]) -> None:
    """Raises RuntimeError if a rank has no record."""
    if any(record is None for record in records):
        raise RuntimeError(
            "smp.report() has no step to tell of; expected some after the first one of the job,"
            " recorded on every rank. Put a few steps into `with smp.recording():`, or set"
            f" {VARIABLE}."
        )
