# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks by which gradients are found when they arrive, to be reduced; and how to tell them.

Source: our choice; see docs/horovod.md.
"""

# torch's tensor hooks have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

__all__ = ["call_on_arrival", "count_reductions"]

_MARK = "_smddp_reduces_gradients"


def call_on_arrival(parameter: Tensor, reduce: Callable[[Tensor], None]) -> Any:
    """Let a function of its own reduce a parameter's gradient; returns what removes the hook.

    Args:
        reduce: called when autograd has added to `parameter.grad`, with the parameter.
    """
    setattr(reduce, _MARK, True)
    return parameter.register_post_accumulate_grad_hook(reduce)


def count_reductions(parameter: Any) -> int:
    """How many functions wait for this parameter's gradient by `call_on_arrival`."""
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    return sum(hasattr(hook, _MARK) for hook in hooks.values())
