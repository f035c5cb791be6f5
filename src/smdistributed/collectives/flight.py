# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The flight record: what every group of this process did last.

`kill -USR1 <pid>` prints it as well, also while the process is stuck inside C++ code, if
nobody else handles that signal and `SMDDP_SIGNAL_REPORT` is not 0.

Source: our choice; see docs/troubleshooting.md.
"""

from typing import Any

from smdistributed.collectives import _native

__all__ = ["flight_record", "flight_record_text"]


def flight_record() -> list[dict[str, Any]]:
    """Return the last operations of every group of this process, as plain data.

    Any thread, at any time; does not wait for an operation. In a forked child the groups of the
    parent are not listed.

    Returns:
        One dict for each group, in the order in which they were made: `group` (its name), `rank`,
        `world_size`, `state` ("open", "closed" or "failed (...)"), `num_called` (collectives so
        far), `collectives` and `messages`. These two are lists of dicts, oldest first: at most 32
        of each, and the collectives that are queued. Keys: `sequence` (number of the collective in
        its group, from 1; 0 for messages), `kind`, `dtype`, `count` (elements), `op`, `root` (of
        messages the other rank; -1: none, or any), `text` (all of that for people), `state`
        ("queued", "under way", "done", "failed"); unless queued also `age_s` (seconds since the
        call), `queued_s` (seconds it waited for earlier ones), `duration_s` (seconds from its start
        to its end, None before that), `num_missing` and `waits_for` (how many ranks it waits for,
        and the first of them or -1; known after a second of waiting). Times are good to 10 ms.
    """
    return _native.flight_record()


def flight_record_text() -> str:
    """Return the same for people: a line for each operation, the newest last in its group."""
    return _native.flight_record_text()
