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

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from smdistributed.modelparallel.torch.pipeline.caller.programs import CallingActivity
from smdistributed.modelparallel.torch.pipeline.loop import autograd_engine
from smdistributed.modelparallel.torch.pipeline.messages import messages
from smdistributed.modelparallel.torch.pipeline.messages.states import LEGAL, FrameState, not_legal

__all__ = ["Frame", "Key", "go_back", "gradients_of", "received"]

Key = tuple[int, int]  # rank of the caller, number of the program

# So that a node with no other input that requires grad is one.
_EDGE = torch.empty(0, requires_grad=True, device="cpu")


class Frame:
    """A program of another rank.

    Attributes:
        key: rank of the caller, number of the program.
        call: as it came.
        inputs: by slot; None if it has not come yet, and after the forward pass.
        num_missing: inputs that have not come yet.
        requires_grad: by slot, whether an input does; known when the program runs.
        called: modules and functions, by number, up to the one that runs or raised.
        pushes: values that other programs need, as soon as they are made.
        fetches: values that the caller has asked for before they were made.
        results: values that may be asked for, by number.
        backward: what the backward pass to come begins with.
        gradients: that came from programs which used a value.
        input_gradients: that the backward pass has made.
    """

    __slots__ = (
        "activity",
        "backward",
        "call",
        "called",
        "fetches",
        "gradients",
        "input_gradients",
        "inputs",
        "key",
        "num_missing",
        "pushes",
        "requires_grad",
        "results",
        "state",
    )

    def __init__(self, source: int, call: messages.Call) -> None:
        self.key = source, call.program
        self.call = call
        self.activity = CallingActivity(call.task, call.seed, source)
        tensors = iter(call.inputs)
        self.inputs = [next(tensors) if origin is None else None for origin in call.slots]
        call.inputs = ()  # modules may let go of theirs
        self.num_missing = sum(origin is not None for origin in call.slots)
        self.state = FrameState.WAITING
        self.requires_grad: list[bool] = []
        self.called: list[int] = []
        self.pushes = list(call.pushes)
        self.fetches: list[messages.Fetch] = []
        self.results: dict[int, Tensor] = {}
        self.backward: messages.Backward | None = None
        self.gradients: list[tuple[int, Tensor | None]] = []
        self.input_gradients: Sequence[Tensor | None] = ()

    def move_to(self, state: FrameState) -> None:
        """The next state.

        Raises:
            RuntimeError: it cannot come now.
        """
        if state not in LEGAL[self.state]:
            raise not_legal(self.state, state, f"program {self.key[1]} of rank {self.key[0]}")
        self.state = state

    @property
    def is_gone(self) -> bool:
        """Whether it has raised, or nobody will ask for anything of it."""
        return self.state is FrameState.GONE

    @property
    def has_run(self) -> bool:
        """Whether its values are there."""
        return self.state in _HAS_RUN

    @property
    def is_awaiting_backward(self) -> bool:
        """Whether it may be asked to go back, or is on its way."""
        return self.call.is_grad and self.state not in (FrameState.GONE_BACK, FrameState.GONE)

    @property
    def keeps_something(self) -> bool:
        """Whether it takes memory: a graph, or values."""
        if self.is_gone:
            return False
        return self.state is not FrameState.GONE_BACK or bool(self.results)


_HAS_RUN = frozenset(
    {FrameState.RUN, FrameState.READY_BACK, FrameState.GOING_BACK, FrameState.GONE_BACK}
)


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
        if ctx.frame.state is FrameState.RUNNING:
            raise RuntimeError(
                "backward() was called in the forward pass of a module, and came to what another"
                " rank has given that module; expected it to stay on this rank. Detach what the"
                " module is given, or ask for gradients of what is here: torch.autograd.grad()."
            )
        if ctx.frame.state is not FrameState.GOING_BACK:
            raise RuntimeError(
                "a backward pass came to what an earlier call on this rank was given: a module has"
                " kept a tensor with a history of that call, in an attribute for example, and has"
                " used it in a later call; expected each call to use what it is given. Return that"
                " tensor and pass it as an argument, or keep tensor.detach()."
            )
        ctx.frame.input_gradients = gradients  # in a pass that makes no graph
        return (None, None, None)


def received(frame: Frame) -> list[Tensor]:
    """What came in, as the modules get it."""
    inputs = [tensor for tensor in frame.inputs if tensor is not None]
    frame.requires_grad = [frame.call.is_grad and tensor.requires_grad for tensor in inputs]
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


def go_back(frame: Frame, gradients: Mapping[int, Tensor]) -> None:
    """The backward pass, from gradients by value."""
    roots, given = [], []
    asked = () if frame.backward is None else frame.backward.values
    for value, gradient in gradients.items():
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
        elif value in asked:  # else a program that used it has sent what nobody needs
            raise RuntimeError(
                "backward() of a tensor that does not require grad and does not have a grad_fn;"
                " expected one that depends on a parameter that requires grad, or on such a tensor,"
                " and is not detached."
            )
    frame.results = {}
    frame.gradients = []
    frame.backward = None
    frame.input_gradients = ()
    if roots:
        autograd_engine.run_backward(roots, given)


def gradients_of(frame: Frame, asked: messages.Backward) -> dict[int, Tensor]:
    """By value, the gradients that a backward pass begins with."""
    found: dict[int, Tensor] = {}
    given = zip(asked.values, asked.gradients, strict=True)
    for value, gradient in (*given, *frame.gradients):
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
