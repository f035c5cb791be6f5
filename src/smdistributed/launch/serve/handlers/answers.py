# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One call to one answer, whatever a user's function raises meanwhile."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import Any, Protocol

from smdistributed._common.errors import SmdistributedError
from smdistributed.launch.serve.messages import Answer, Call

__all__ = [
    "Handlers",
    "InferenceError",
    "answer_of",
    "end_if_forked",
    "made_answer",
    "print_trace",
]


class InferenceError(SmdistributedError):
    """A call that cannot be answered, by its caller's fault.

    Attributes:
        status_code: of the answer.
    """

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(message)
        self.status_code = status_code


class Handlers(Protocol):
    """Answers calls with one model."""

    def load(self) -> None:
        """Loads the model. Called once, first; may raise anything."""

    def answer(self, call: Call) -> Answer:
        """Answers. May raise anything."""


def answer_of(handlers: Handlers, call: Call) -> Answer:
    """The answer to a call: what handlers say, or what they have raised, whatever it is.

    An error with a number `status_code`, as `sagemaker_inference.errors` has them, chooses the
    status. Any other is status 500, with its message and its traceback.
    """
    process = os.getpid()
    try:
        answer = handlers.answer(call)
    except InferenceError as error:
        end_if_forked(process, error)
        return Answer.problem(error.status_code, str(error))
    except BaseException as error:  # nothing that a function raises ends the worker
        end_if_forked(process, error)
        print_trace()
        return _problem(error)
    end_if_forked(process)
    return answer


def _problem(error: BaseException) -> Answer:
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and 400 <= status <= 599:
        phrase = getattr(error, "phrase", None)
        message = _text_of(getattr(error, "message", error))
        return Answer.problem(status, f"{phrase}: {message}" if phrase else message)
    return Answer.problem(500, f"{_text_of(error)}\n{traceback.format_exc()}")


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"{type(value).__name__}, whose text cannot be made: {type(error).__name__}"


def print_trace() -> None:
    """Tells the log what was raised; it may be full, and a function may have closed its file."""
    with contextlib.suppress(Exception):
        traceback.print_exc()
        sys.stderr.flush()


def made_answer(name: str, data: Any, kind: Any) -> Answer:
    """The answer that a function has returned.

    Args:
        name: of the function.
        data: bytes or str.
        kind: the content type; None: none is named.

    Raises:
        TypeError: they are something else.
        ValueError: the type cannot stand in a line of a header.
    """
    if isinstance(data, str):
        content = data.encode("utf-8")
    elif isinstance(data, (bytes, bytearray, memoryview)):
        content = bytes(data)
    else:
        raise TypeError(
            f"{name} has returned {type(data).__name__} for {kind}; expected bytes or str, or a"
            " tuple of one and its content type."
        )
    if not isinstance(kind, (str, type(None))):
        raise TypeError(f"{name} has returned the content type {kind!r:.100}; expected str.")
    text = (kind or "").strip()
    if not all(" " <= each <= "\xff" and each != "\x7f" for each in text):
        raise ValueError(
            f"{name} has returned the content type {kind!r:.100}; expected one such as text/plain:"
            " a line of a header has no line feeds, and Latin letters alone."
        )
    return Answer(200, text, content)


def end_if_forked(process: int, error: BaseException | None = None) -> None:
    """Ends this process if it is a child of that one, which a user's function has forked.

    Such a child has come back from the function as its parent does. It may not go on: there is one
    call, and the answer is the parent's. Two answers would give the second to the next caller.

    Args:
        process: the number of the one that has called the function.
        error: that the function has raised here.
    """
    if os.getpid() == process:
        return
    status = 0 if error is None else 1
    with contextlib.suppress(Exception):
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            print_trace()
        sys.stdout.flush()
    os._exit(status & 0xFF)
