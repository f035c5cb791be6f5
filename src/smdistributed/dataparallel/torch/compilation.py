# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps `torch.compile` out of the process group.

The methods of torch's own groups are C++, and the compiler cannot see into them. Ours are Python.
While a compiled model runs, the compiler examines every Python function that starts: also one that
C++ calls, as DDP calls `broadcast` when it rebuilds its buckets, and `allreduce` in backward. There
it finds a group as `self`, which it takes for an opaque object, and raises an error at the first
attribute that it does not know.

So the methods are marked as the compiler's own means marks functions (`torch.compiler.disable`):
code that calls one is cut there, and the method runs as it is, with all that it calls. Two things
differ from that means. It would put a wrapper around each method, which costs a microsecond a call;
and it would import the compiler, which takes seconds, in programs that compile nothing.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch

__all__ = ["keep_from_compiler"]

_REASON = "smddp moves data here; nothing to compile"

_Kept = TypeVar("_Kept", bound=Callable[..., Any])


def keep_from_compiler(kept: _Kept) -> _Kept:
    """Decorator: `torch.compile` runs this function, or the methods of this class, as they are.

    Methods that a base class defines are the base class's to mark.
    """
    members = vars(kept).values() if isinstance(kept, type) else [kept]
    for member in members:
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, types.FunctionType):
            _mark(function)
    return kept


def _mark(function: Any) -> None:
    # Where the compiler meets a call, in code that it traces ...
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = _REASON
    # ... and where the function has been called: neither this frame nor what it calls.
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
