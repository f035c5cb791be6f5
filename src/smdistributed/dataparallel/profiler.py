# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The published names of the profiler. Source: dataparallel specification, section 9."""

from __future__ import annotations

import os

from smdistributed.dataparallel.trace.session import session

__all__ = ["start_profiler", "stop_profiler"]


def start_profiler(path: str | os.PathLike[str], append_rank: bool = True) -> None:
    """Start recording a timeline of this rank: bucket fill, collectives, waiting.

    Works before and after `init_process_group`, and without it. The first 65,536 operations and as
    many spans are kept; later ones are counted in the file. For a long job start it where you want
    to look.

    Args:
        path: of the file that `stop_profiler` writes, a Chrome trace in JSON that Perfetto opens.
            Its folder is created. A file of that name is replaced.
        append_rank: put the rank before the suffix: `trace.json` becomes `trace.3.json`. If False,
            all ranks that are given one path write to one file, of which the last one stays.

    Raises:
        SMDDPError: the profiler is running already.
        SMDDPConfigInvalid: `path` cannot be that of a file, or the environment's answer to "which
            rank is this" cannot work.

    Thread rule: any thread. Does not block.
    """
    session.start(path, append_rank)


def stop_profiler() -> None:
    """Stop recording and write the file; does nothing if the profiler is not running.

    Raises:
        SMDDPError: the file cannot be written. No part of it is left behind.

    Thread rule: any thread. Blocks while it writes, up to seconds for a full recording.
    """
    session.stop()
