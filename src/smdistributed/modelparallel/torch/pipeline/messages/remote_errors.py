# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Exceptions that go from rank to rank."""

from __future__ import annotations

import pickle
import traceback

from smdistributed._common.error_text import error_text, shortened
from smdistributed.modelparallel.exceptions import SMPError

__all__ = ["RemoteError", "pickled_error", "unpickled_error"]


# Of an exception; a longer one goes by its text.
_MOST_BYTES = 1 << 20


class RemoteError(SMPError, RuntimeError):
    """A module raised on another rank, something that cannot travel; the text says what."""


def pickled_error(error: BaseException, where: str) -> bytes:
    """An exception as another rank can raise it, with the traceback of this one.

    Args:
        where: this rank, and what it did, for people.
    """
    trace = "".join(traceback.format_exception(error))
    # What an earlier rank wrote below its traceback is in this one's text already.
    text = f"\n--- raised on {where} ---\n{shortened(trace.rstrip())}"
    try:
        encoded = pickle.dumps(error)
        again = pickle.loads(encoded)  # many classes can be pickled, but not made again
        if type(again) is not type(error) or str(again) != str(error):
            encoded = b""  # as its __init__ has made the text
        if len(encoded) > _MOST_BYTES:
            encoded = b""
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
    try:
        if hasattr(error, "__notes__"):
            error.__notes__.clear()
        error.add_note(text)
    except Exception:  # it lets nobody change it
        error = RemoteError(summary)
        error.add_note(text)
    return error
