# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Saying each thing once: in rank 0 as it is meant, in the other ranks as a debug message."""

from __future__ import annotations

import logging
import os
import threading

from smdistributed._common.log import get_logger

__all__ = ["forget", "inform_once", "warn_once"]

_lock = threading.Lock()
_said: set[str] = set()


def inform_once(key: str, message: str) -> bool:
    """Logs `message` at INFO, unless something was said under this key before: then False."""
    return _say_once(key, logging.INFO, message)


def warn_once(key: str, message: str) -> bool:
    """Logs `message` as a warning, unless something was said under this key before: then False."""
    return _say_once(key, logging.WARNING, message)


def forget() -> None:
    """Lets everything be said again (for tests)."""
    with _lock:
        _said.clear()


def _say_once(key: str, level: int, message: str) -> bool:
    if key in _said:  # without the lock: this is on the way of every `.cuda()`
        return False
    with _lock:
        if key in _said:
            return False
        _said.add(key)
    is_first_rank = os.environ.get("RANK", "0") == "0"
    get_logger().log(level if is_first_rank else logging.DEBUG, message)
    return True
