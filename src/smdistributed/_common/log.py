# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One logger for the library, named `smdistributed`, whose messages start with the rank.

The library never configures logging for the user. Where the root logger has handlers, records go
there; where it has none, warnings and errors go to stderr through a handler of our own, so that a
warning is seen in a plain script too.
"""

import logging

__all__ = ["LOGGER_NAME", "get_logger", "set_rank"]

LOGGER_NAME = "smdistributed"


class _RankPrefix(logging.Filter):
    """Puts `rank 3/8: ` in front of a message, once the rank is known."""

    def __init__(self) -> None:
        super().__init__()
        self.prefix = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if self.prefix and not getattr(record, "smd_prefixed", False):
            record.msg = self.prefix + str(record.msg)
            record.smd_prefixed = True
        return True


class _FallbackHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr, but only while nobody has given the root logger a handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


_prefix = _RankPrefix()


def get_logger() -> logging.Logger:
    """Returns the library's logger; the first call attaches prefix and fallback handler."""
    logger = logging.getLogger(LOGGER_NAME)
    if _prefix not in logger.filters:
        logger.addFilter(_prefix)
        handler = _FallbackHandler()
        handler.setFormatter(logging.Formatter("[smdistributed] %(levelname)s: %(message)s"))
        handler.setLevel(logging.WARNING)
        logger.addHandler(handler)
    return logger


def set_rank(rank: int | None, world_size: int | None = None) -> None:
    """Sets the rank that messages are prefixed with; `None` takes the prefix away."""
    if rank is None:
        _prefix.prefix = ""
    elif world_size is None:
        _prefix.prefix = f"rank {rank}: "
    else:
        _prefix.prefix = f"rank {rank}/{world_size}: "
