# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Errors of steps in graphs begin with what is wrong.

TensorFlow writes where in the script the operation was made that failed before the text of its
error. For a step that is the operation which passes the error on, and says nothing.

Source: our choice.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from smdistributed.dataparallel.tensorflow.operations import raising
from smdistributed.dataparallel.tensorflow.patching import RULES

__all__ = ["apply_to_tensorflow"]


def apply_to_tensorflow() -> None:
    """TensorFlow leaves the text of a failed step as it is. Repeatable."""
    from tensorflow.python.eager.polymorphic_function import atomic_function  # if it has it at all

    RULES.replace(atomic_function.InterpolateRuntimeError, "interpolate", _ours_as_it_is)


def _ours_as_it_is(original: Any) -> Any:
    @functools.wraps(original)
    def interpolate(self: Any, message: str, node_names: Sequence[str], *args: Any) -> Any:
        if any(raising.SCOPE in each for each in node_names):
            return message.strip()
        return original(self, message, node_names, *args)

    return interpolate
