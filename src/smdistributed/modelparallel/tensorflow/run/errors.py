# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Errors of segments, with the place where they happened in their text.

Source: our choice.
"""

from __future__ import annotations

import contextlib

import tensorflow as tf

__all__ = ["with_line"]


def with_line(error: BaseException, line: str) -> BaseException:
    """The error to raise: of the same class, and its text begins with the line.

    An exception that makes its text by itself has the line as a note only.
    """
    expected = f"{line}: {error}"
    if isinstance(error, tf.errors.OpError):
        with contextlib.suppress(Exception):
            again: BaseException = type(error)(error.node_def, error.op, f"{line}: {error.message}")
            return again.with_traceback(error.__traceback__)
    before = error.args
    if not isinstance(error, KeyboardInterrupt):
        with contextlib.suppress(Exception):
            error.args = (f"{line}: {before[0]}", *before[1:]) if before else (line,)
            if str(error).startswith(line):
                return error
    error.args = before
    error.add_note(expected)
    return error
