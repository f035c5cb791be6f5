# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What happens when a message comes: the method that deals with each type.

`messages.messages` says what is in them, `messages.router` calls these methods. Messages about the
step as a whole (`ForwardsDone`, `End`, `Abort`) are dealt with where steps begin and end: `runner`.
`Leave`, the last message of a rank, ends in the router itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smdistributed.modelparallel.torch.pipeline.callee.callee import Callee
from smdistributed.modelparallel.torch.pipeline.caller.caller import Caller
from smdistributed.modelparallel.torch.pipeline.messages import messages

__all__ = ["handlers"]


def handlers(
    callee: Callee, caller: Caller
) -> dict[type[messages.Message], Callable[[int, Any], None]]:
    """By type, what is called with the rank that a message comes from, and the message."""
    return {
        messages.Call: callee.called,
        messages.Return: caller.returned,
        messages.Value: callee.value_came,
        messages.Fetch: callee.fetched,
        messages.Push: callee.pushed,
        messages.Backward: callee.asked_back,
        messages.Gradient: callee.gradient_came,
        messages.Gradients: caller.went_back,
        messages.Raise: caller.raised,
        messages.Drop: callee.dropped,
    }
