# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One logger for the library, named `smdistributed`.

The library never configures logging for the user. Where the root logger has handlers, records go
there; where it has none, warnings and errors go to stderr through a handler of our own, so that a
warning is seen in a plain script too. The rank is not in front of messages: our launcher puts it in
front of each line that a process prints (`[rank 3] `).
"""

import functools
import logging

__all__ = ["LOGGER_NAME", "get_logger"]

LOGGER_NAME = "smdistributed"


class _FallbackHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr, but only while nobody has given the root logger a handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


@functools.cache
def get_logger() -> logging.Logger:
    """Returns the library's logger; the first call attaches the fallback handler."""
    logger = logging.getLogger(LOGGER_NAME)
    handler = _FallbackHandler()
    handler.setFormatter(logging.Formatter("[smdistributed] %(levelname)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    logger.addHandler(handler)
    return logger
