# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Calls whose arguments do not fit are told what the function takes, and what to call instead.

Source: our choice: scripts that were written for Horovod call functions of the same names.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

__all__ = ["teaching"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def teaching(
    advice: str,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Decorates a function: a TypeError of the call itself ends with this advice."""

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        takes = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> _Result:
            try:
                return function(*args, **kwargs)
            except TypeError:
                # Only now, since it takes time: is it the call, or something within?
                try:
                    takes.bind(*args, **kwargs)
                except TypeError as error:
                    raise TypeError(f"{function.__name__}(): {error}; {advice}.") from None
                raise

        return call

    return decorate
