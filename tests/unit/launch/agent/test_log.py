# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The log of a host (launch specification, 8.1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from smdistributed.launch.agent.log import HostLog
from smdistributed.launch.metrics import Scanner
from smdistributed.launch.tensorboard import EventFile
from tests.small_disks import mounted_disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Of 64 KiB."""
    with mounted_disk(tmp_path / "small", "size=64k") as path:
        yield path


def test_a_line_that_is_cut_off_is_an_error_also_if_it_is_the_last_one(small_disk: Path) -> None:
    events = EventFile(small_disk / "events", "algo-1")
    log = HostLog(small_disk / "log", small_disk / "metrics", Scanner((), None), events)
    with pytest.raises(OSError, match=r"a line was cut off: .*/log"):
        log.write_line(b"x" * 100_000, to_stderr=False)
    log.close()
