# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The last line of a script that one of our errors ends names our class.

TensorFlow raises errors of its own, whose texts are long and end with names of its graph. What
reads the output of a job looks for the documented class in the last line of the traceback. So an
error of TensorFlow's that carries one of ours, and that nobody has caught, is shown as the cause of
ours.

Source: dataparallel specification, section 9.
"""

from __future__ import annotations

import re
import sys
from types import TracebackType
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel import exceptions

__all__ = ["documented_error", "show_documented_errors"]

_CARRIED = re.compile(r"\b(SMDDP[A-Z][A-Za-z]*): ([^\n]*)")

_is_installed = False


def show_documented_errors() -> None:
    """From now on, in this process; what has been shown otherwise is shown so still."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    before = sys.excepthook

    def show(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> Any:
        documented = documented_error(error)
        if documented is None:
            return before(kind, error, traceback)
        documented.__cause__ = error.with_traceback(traceback)
        return before(type(documented), documented, None)

    sys.excepthook = show


def documented_error(error: BaseException) -> exceptions.SMDDPError | None:
    """Ours, in one line, if an error of TensorFlow's carries one; else None."""
    if not isinstance(error, tf.errors.OpError):
        return None
    found = _CARRIED.search(str(error))
    kind = getattr(exceptions, found.group(1), None) if found else None
    if found is None or kind is None:
        return None
    documented: exceptions.SMDDPError = kind(found.group(2).strip())
    return documented
