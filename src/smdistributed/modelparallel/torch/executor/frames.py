# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the owning side keeps of a program that was called here.

A frame holds the two ends of a piece of autograd graph: what came in, and those results that may be
asked for. Everything between is the graph's. Frames are joined at values: what comes in is a new
tensor, also where it was made on this rank, so each piece of graph runs once.
"""

# torch's functions of autograd have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from smdistributed.modelparallel.schedules.schedule import Phase, Task
from smdistributed.modelparallel.torch.executor import autograd_engine
from smdistributed.modelparallel.torch.executor.activity import Activity
from smdistributed.modelparallel.torch.executor.wire import Letter

__all__ = ["Frame", "Key", "Push", "frame_of", "go_back", "gradients_of", "received"]

Key = tuple[int, int]  # rank of the caller, number of the program
Push = tuple[int, int, int, int]  # value, rank, number of the program there, its slot

# So that a node with no other input that requires grad is one.
_EDGE = torch.empty(0, requires_grad=True)


class Frame:
    """A program of another rank.

    Attributes:
        origins: of each slot: None if it came with the call, else owner, number and value.
        inputs: by slot; None if it has not come yet, and after the forward pass.
        called: modules and functions, by number, up to the one that runs or raised.
        is_answered_at_once: its caller waits for values, or for all that the last call returns.
        wanted: those values, by number.
        results: values that may be asked for, by number.
        gradients: that came from programs which used a value.
        has_gone_back: so it may have been asked for again, from other values.
    """

    __slots__ = (
        "activity",
        "backward",
        "called",
        "calls",
        "gradients",
        "has_gone_back",
        "has_run",
        "input_gradients",
        "inputs",
        "is_answered_at_once",
        "is_going_back",
        "is_grad",
        "is_running",
        "kept",
        "key",
        "num_missing",
        "num_returned",
        "origins",
        "pushes",
        "requests",
        "requires_grad",
        "results",
        "wanted",
    )

    def __init__(self, key: Key, activity: Activity) -> None:
        self.key = key
        self.activity = activity
        self.is_grad = False
        self.origins: list[tuple[int, int, int] | None] = []
        self.inputs: list[Tensor | None] = []
        self.requires_grad: list[bool] = []
        self.num_missing = 0
        self.calls: list[tuple[int, bool, int, Sequence[int]]] = []
        self.called: list[int] = []
        self.is_answered_at_once = False
        self.wanted: list[int] = []
        self.kept: set[int] = set()
        self.pushes: list[Push] = []
        self.requests: list[Letter] = []
        self.results: dict[int, Tensor] = {}
        self.has_run = self.is_running = self.is_going_back = self.has_gone_back = False
        self.backward: Letter | None = None
        self.gradients: list[tuple[int, Tensor | None]] = []
        self.num_returned = 0
        self.input_gradients: Sequence[Tensor | None] = ()


class ArrivalNode(Function):
    """What came in, as results of the graph's first node: so modules may change it in place."""

    apply = autograd_engine.apply

    @staticmethod
    def forward(
        ctx: Any, frame: Frame, dummy: Tensor, box: list[list[Tensor]]
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.frame = frame
        return tuple(box.pop())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        ctx.frame.input_gradients = gradients  # in a pass that makes no graph
        return (None, None, None)


def frame_of(letter: Letter) -> tuple[Frame, dict[int, tuple[int, int, int]]]:
    """Of a CALL; and of each slot that has yet to come, from where: owner, number, value."""
    take = iter(letter.ints).__next__
    key = letter.source, take()
    microbatch, is_backward = take(), take()
    task = Task(Phase.BACKWARD if is_backward else Phase.FORWARD, microbatch)
    frame = Frame(key, Activity(task, take(), letter.source))
    frame.is_grad = bool(take())
    tensors = iter(letter.tensors)
    missing: dict[int, tuple[int, int, int]] = {}
    for slot in range(take()):
        owner = take()
        if owner < 0:
            frame.origins.append(None)
            frame.inputs.append(next(tensors))
        else:
            missing[slot] = origin = owner, take(), take()
            frame.origins.append(origin)
            frame.inputs.append(None)
    frame.calls = [
        (take(), bool(take()), take(), [take() for _ in range(take())]) for _ in range(take())
    ]
    frame.wanted = [take() for _ in range(take())]
    frame.is_answered_at_once = bool(frame.wanted)
    frame.kept = {take() for _ in range(take())}
    frame.pushes = [(take(), take(), take(), take()) for _ in range(take())]
    frame.num_missing = len(missing)
    return frame, missing


def received(frame: Frame) -> list[Tensor]:
    """What came in, as the modules get it."""
    inputs = [tensor for tensor in frame.inputs if tensor is not None]
    frame.requires_grad = [frame.is_grad and tensor.requires_grad for tensor in inputs]
    frame.inputs = [None] * len(inputs)
    for tensor in inputs:
        tensor.requires_grad_(False)
    if any(frame.requires_grad):
        with torch.enable_grad():
            box = [t for t, needs in zip(inputs, frame.requires_grad, strict=True) if needs]
            new = iter(ArrivalNode.apply(frame, _EDGE, [box]))
        inputs = [
            next(new) if needs else t for t, needs in zip(inputs, frame.requires_grad, strict=True)
        ]
    return inputs


def go_back(frame: Frame, letter: Letter) -> None:
    """The backward pass, from the gradients that came with BACKWARD and with GRADIENT."""
    roots, given = [], []
    for value, gradient in gradients_of(frame, letter).items():
        root = frame.results.get(value)
        if root is None:
            raise RuntimeError(
                "backward() came a second time to what it had gone through already; expected once,"
                " as torch frees what it has used. If several losses have something in common,"
                " pass them together: model.backward([first, second])."
            )
        if root.requires_grad:
            roots.append(root)
            given.append(_as_of(root, gradient))
    frame.results = {}
    frame.gradients = []
    frame.backward = None
    frame.input_gradients = ()
    if roots:
        autograd_engine.run_backward(roots, given)


def gradients_of(frame: Frame, letter: Letter) -> dict[int, Tensor]:
    """By value, the gradients that a backward pass begins with."""
    num_values = letter.ints[4]
    found: dict[int, Tensor] = {}
    for value, gradient in (
        *zip(letter.ints[5 : 5 + num_values], letter.tensors, strict=True),
        *frame.gradients,
    ):
        if gradient is not None:
            known = found.get(value)
            found[value] = gradient if known is None else known + gradient
    return found


def _as_of(root: Tensor, gradient: Tensor) -> Tensor:
    """A gradient as its tensor needs it: the caller gives one number for a loss it has not seen."""
    if gradient.shape == root.shape and gradient.dtype is root.dtype:
        return gradient
    if root.numel() != 1 or gradient.numel() != 1:
        raise RuntimeError(
            f"the gradient has shape {tuple(gradient.shape)}, its tensor {tuple(root.shape)};"
            " expected the same. Only for a tensor of one element it can be left out."
        )
    return gradient.reshape(root.shape).to(root.dtype)
