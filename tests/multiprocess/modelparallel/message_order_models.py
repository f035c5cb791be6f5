# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The model of test_message_order.py: parts on several ranks, nested, that can be made to fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import random_programs
import torch
from failure_ranks import Broken
from torch import Tensor, nn
from torch.autograd import Function

WIDTH = 3
WIDE = 1000  # larger than what travels with the gradients
MICROBATCHES = 4
BAD = 2  # the microbatch in which things go wrong
TOLERANCE = 1e-10  # float64: sums of gradients in another order

Back = Callable[[Tensor], None]
Way = Callable[["Net", Tensor, Back], Any]

# The microbatch under way; set by what runs it.
microbatch: Callable[[], int] = int


class Recomputed(Function):
    """A checkpoint; torch's own imports for seconds."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None]:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


class Part(nn.Module):
    """Does `fault` to what it computes."""

    fault: Callable[[Tensor], Tensor] | None = None

    def __init__(self, inner: Part | None = None, width: int = WIDTH) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, width, dtype=torch.float64)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.dense(x))
        if self.inner is not None:
            y = self.through(y)
        return y if self.fault is None else self.fault(y)

    def through(self, y: Tensor) -> Tensor:
        """What the inner part makes of it, and itself."""
        assert self.inner is not None
        return self.inner(y) + y  # type: ignore[no-any-return]


class Careful(Part):
    """Goes on without its inner part where that fails."""

    def through(self, y: Tensor) -> Tensor:
        try:
            return super().through(y).clone()  # looks at it
        except Broken:
            return y


class Hasty(Part):
    """Has called for much, and looked at nothing, when its fault comes."""

    def __init__(self) -> None:
        super().__init__(Part(Part()))
        self.other = Part()

    def through(self, y: Tensor) -> Tensor:
        assert self.inner is not None
        return self.inner(self.other(self.inner(y)))  # type: ignore[no-any-return]


class Net(nn.Module):
    """`a` is on the leader. A rank's part may hold one of another rank, also of the leader."""

    def __init__(self) -> None:
        super().__init__()
        self.a = Part()
        self.b = Part(Part())
        self.c = Part()
        self.d = Part(Part())
        self.e = Part(Part())
        self.careful = Careful(Part())
        self.hasty = Hasty()
        self.far = Part(Part(Part()))
        self.wide = Part(width=WIDE)
        self.versatile = random_programs.parts()

    def owners(self, size: int) -> dict[nn.Module, int]:
        last = size - 1
        between = last if last > 1 else 0
        owners: dict[nn.Module, int] = {self: 0, **random_programs.owners(self.versatile, size)}
        # By part: its owner, that of its inner part, and so on.
        for top, ranks in (
            (self.a, [0]),
            (self.b, [1, last]),
            (self.c, [last]),
            (self.d, [1, 0]),
            (self.e, [last, 1]),
            (self.careful, [1, between]),
            (self.far, [last, 0, 1]),
            (self.hasty, [1, between, 0]),
            (self.hasty.other, [0]),
            (self.wide, [last]),
        ):
            part: Part | None = top
            for rank in ranks:
                assert part is not None
                owners[part] = owners[part.dense] = rank
                part = part.inner
        return owners
