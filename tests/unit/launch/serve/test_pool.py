# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Workers of an endpoint, without a framework."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from smdistributed.launch.orphans import Guardian
from smdistributed.launch.serve.pool import Command, Pool

# Says that it has loaded its model, and dies.
BRIEF = """
import socket, sys
from smdistributed.launch.serve.messages import Loaded, frame
socket.socket(fileno=int(sys.argv[1])).sendall(frame(Loaded("")))
"""


def test_one_that_dies_at_once_is_not_started_all_the_time(tmp_path: Path) -> None:
    said: list[str] = []
    guardian = Guardian()
    command = Command([sys.executable, "-c", BRIEF], dict(os.environ))

    async def live(for_s: float) -> None:
        pool = Pool([command], tmp_path / "log", 60.0, 60.0, said.append, guardian)
        await pool.start()
        await asyncio.sleep(for_s)
        await pool.close()

    try:
        asyncio.run(live(2.5))
    finally:
        guardian.dismiss()
    assert 1 <= len(said) <= 2, said  # at once, and after 1 s
