# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Exceptions that go from rank to rank."""

from __future__ import annotations

import pickle
import traceback

from smdistributed._common.error_text import error_text
from smdistributed.modelparallel.exceptions import SMPError

__all__ = ["RemoteError", "pickled_error", "unpickled_error"]


class RemoteError(SMPError, RuntimeError):
    """A module raised on another rank, something that cannot travel; the text says what."""


def pickled_error(error: BaseException, where: str) -> bytes:
    """An exception as another rank can raise it, with the traceback of this one.

    Args:
        where: this rank, and what it did, for people.
    """
    trace = "".join(traceback.format_exception(error))
    # What an earlier rank wrote below its traceback is in this one's text already.
    text = f"\n--- raised on {where} ---\n{trace.rstrip()}"
    try:
        encoded = pickle.dumps(error)
        pickle.loads(encoded)  # many classes can be pickled, but not made again
    except Exception:
        encoded = b""
    return pickle.dumps((encoded, text, error_text(error)))


def unpickled_error(data: bytes) -> Exception:
    """The exception, to be raised here; its notes say where it comes from."""
    encoded, text, summary = pickle.loads(data)
    error: BaseException | None = None
    if encoded:
        try:
            error = pickle.loads(encoded)
        except Exception:
            error = None
    if not isinstance(error, Exception):
        error = RemoteError(summary)
    else:
        try:
            str(error)
        except Exception:  # then no text could be made of it
            error = RemoteError(summary)
    if hasattr(error, "__notes__"):
        error.__notes__.clear()
    error.add_note(text)
    return error
