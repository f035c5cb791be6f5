# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What AutoGraph is to leave as it is: functions of ours that user code calls in a `tf.function`.

AutoGraph rewrites all that such code calls. Ours has no branches on tensors to be rewritten, and
rewriting takes a second.

Source: our choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

__all__ = ["not_converted"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def not_converted(function: _Function) -> _Function:
    """Decorates a function that AutoGraph is to call and not to rewrite."""
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))
