# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What becomes of a job's process, as the scheduler knows that it is under."""

from __future__ import annotations

import enum

from smdistributed.launch.jobs.states import Secondary

__all__ = ["Fate"]


class Fate(enum.Enum):
    """The value says it to people."""

    STAYS = "the scheduler leaves it alone"
    STOPPED = "the scheduler was told to end it"
    OUT_OF_TIME = "the scheduler's limit of time is over"
    TAKEN_AWAY = "the scheduler takes its machines away, and starts it again"

    @property
    def called(self) -> Secondary:
        """What a job is called that has stopped because of it."""
        is_late = self is Fate.OUT_OF_TIME
        return Secondary.MAX_RUNTIME_EXCEEDED if is_late else Secondary.STOPPED
