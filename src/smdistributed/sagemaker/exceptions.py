# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How waiting for a job says that the job did not end well.

Source: launch specification, sections 1 and 3.1.
"""

from collections.abc import Sequence
from typing import Any

from smdistributed._common.errors import SmdistributedError

__all__ = ["CapacityError", "ModelError", "UnexpectedStatusException"]


class UnexpectedStatusException(ValueError):
    """A job ended in a status that its caller does not allow.

    Args:
        message: the whole text.
        allowed_statuses: the statuses that would have been right.
        actual_status: the status of the job.
    """

    def __init__(self, message: str, allowed_statuses: Sequence[str], actual_status: str) -> None:
        super().__init__(message)
        self.allowed_statuses = allowed_statuses
        self.actual_status = actual_status

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is made anew from its message alone, and process pools do so.
        return type(self), (str(self), self.allowed_statuses, self.actual_status)


class CapacityError(UnexpectedStatusException):
    """The job failed because there were no machines for it."""


class ModelError(SmdistributedError, RuntimeError):
    """An endpoint has not answered a call well.

    Args:
        message: the whole text.
        status_code: of the answer; 0: there was none.
        body: of the answer.
    """

    def __init__(self, message: str, status_code: int, body: bytes) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.body = body

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.status_code, self.body)
