# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One call to one answer, whatever a user's function raises meanwhile."""

from __future__ import annotations

import traceback
from typing import Protocol

from smdistributed._common.errors import SmdistributedError
from smdistributed.launch.serve.messages import Answer, Call

__all__ = ["Handlers", "InferenceError", "answer_of"]


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
    """The answer to a call: what handlers say, or what they have raised.

    An error with a number `status_code`, as `sagemaker_inference.errors` has them, chooses the
    status. Any other is status 500, with its message and its traceback.
    """
    try:
        return handlers.answer(call)
    except InferenceError as error:
        return Answer.problem(error.status_code, str(error))
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        status = getattr(error, "status_code", None)
        if isinstance(status, int) and 400 <= status <= 599:
            phrase = getattr(error, "phrase", None)
            message = str(getattr(error, "message", error))
            return Answer.problem(status, f"{phrase}: {message}" if phrase else message)
        return Answer.problem(500, f"{error}\n{traceback.format_exc()}")
