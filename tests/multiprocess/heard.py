# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the package tells its user, for tests of warnings."""

from __future__ import annotations

import logging

__all__ = ["Heard", "listen"]


class Heard(logging.Handler):
    """Keeps the texts of what was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def listen() -> Heard:
    """What this process logs from now on."""
    heard = Heard()
    logging.getLogger("smdistributed").addHandler(heard)
    return heard
