# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Errors of segments, with the place where they happened in their text.

Source: our choice.
"""

from __future__ import annotations

import contextlib
import re

import tensorflow as tf

from smdistributed._common.error_text import error_text

__all__ = ["text_of", "with_line"]

# What TensorFlow puts around the text of an operation's error. It takes the names of nodes for
# those of the graph that fails, and puts more around a text with such names in it.
_PREAMBLE = re.compile(
    r"Graph execution error:\s*(Detected at node .*?\(most recent call last\):\n"
    r"(<stack traces unavailable>\n|(  .*\n)*(Node: .*\n)?))*"
)
_NODE = re.compile(r"\[\[\{\{node (.*?)\}\}\]\]")
_FUNCTION = re.compile(r"\{\{function_node [^}]*\}\}\s*|\s*\[Op:__inference_\w+\]")


def text_of(error: BaseException) -> str:
    """Class and text of an error; of TensorFlow's what the operation says, and its name."""
    return _plain(error_text(error)) if isinstance(error, tf.errors.OpError) else error_text(error)


def _plain(text: str) -> str:
    text = _FUNCTION.sub("", _PREAMBLE.sub("", text))
    return re.sub(r"\s*\n\s*\[node ", " [node ", _NODE.sub(r"[node \1]", text)).strip()


def with_line(error: BaseException, line: str) -> BaseException:
    """The error to raise: of the same class, and its text begins with the line.

    An exception that makes its text by itself has the line as a note only.
    """
    expected = f"{line}: {error}"
    if isinstance(error, tf.errors.OpError):
        with contextlib.suppress(Exception):
            again: BaseException = type(error)(
                error.node_def, error.op, f"{line}: {_plain(error.message)}"
            )
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
