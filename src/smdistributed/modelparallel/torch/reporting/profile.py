# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What each module of a model costs in one microbatch, forward and backward: measured, here.

The whole model runs in this process, a few times: once watched operation by operation, for memory
and for what passes between modules, then undisturbed but for a clock reading wherever another
module takes over. Of a backward pass, nodes of the graph tell whose they are: what is new in the
graph when a module returns is its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from smdistributed.modelparallel.report.costs import (
    BackwardLevel,
    ForwardLevel,
    Holder,
    Piece,
    Profile,
)
from smdistributed.modelparallel.torch.containers import flatten
from smdistributed.modelparallel.torch.modules.assignment import ROOT, module_paths
from smdistributed.modelparallel.torch.modules.placement import holds_anything
from smdistributed.modelparallel.torch.partitioning.observation import unchanged
from smdistributed.modelparallel.torch.pipeline.devices import arguments_on
from smdistributed.modelparallel.torch.reporting.live_bytes import LiveBytes

__all__ = ["Loss", "profile"]

_REPEATS = 5

Loss = Callable[..., Tensor]


def profile(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    loss: Loss | None,
    loss_args: tuple[Any, ...],
    device: torch.device,
) -> Profile:
    """Runs a microbatch forward and backward some times. Leaves the model as it was.

    Args:
        model: all of it, in this process; it is moved to the device, and back.
        args, kwargs: what it is called with.
        loss: called with what the model returns, and `loss_args`; None: the sum of that.
        loss_args: go to the device, too.
        device: where it is to run.

    Raises:
        ValueError: nothing of what the model returns has a gradient.
    """
    paths = module_paths(model)
    parameters = list(model.parameters())
    homes = [(tensor, tensor.data) for tensor in (*parameters, *model.buffers())]
    gradients = [parameter.grad for parameter in parameters]
    with unchanged(model), torch.enable_grad():
        try:
            for tensor, _ in homes:
                tensor.data = tensor.data.to(device)
            args, given = arguments_on(device, args, dict(kwargs))
            loss_args, _ = arguments_on(device, loss_args, {})
            inputs = list(_tensors((args, given)))
            levels = LiveBytes(
                [*(tensor for tensor, _ in homes), *inputs, *_tensors(loss_args)], inputs, ROOT
            )

            def run(meter: _Meter) -> _Watch:
                for parameter in parameters:
                    parameter.grad = None
                watch = _Watch(model, paths, meter)
                watch.run(args, given, loss, loss_args)
                return watch

            with levels:
                watched = run(levels)
            timed = [run(_Clock(device)) for _ in range(_REPEATS)]
        finally:
            for tensor, data in homes:
                tensor.data = data
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
    return Profile(
        holders=_holders(paths),
        forward=_medians([watch.forward for watch in timed]),
        backward=_medians([watch.backward for watch in timed]),
        forward_levels=tuple(
            ForwardLevel(path, level.begin, level.peak, level.end)
            for path, level in watched.forward
        ),
        backward_levels=tuple(
            BackwardLevel(path, level.begin, level.peak, level.peak_with, level.gradients)
            for path, level in watched.backward
        ),
        messages=levels.messages(),
    )


def _medians(runs: Sequence[list[tuple[str, Any]]]) -> tuple[Piece, ...]:
    """Of each piece; where runs differ in their modules, of those that are like the last."""
    order = [path for path, _ in runs[-1]]
    alike = [run for run in runs if [path for path, _ in run] == order]
    return tuple(
        Piece(path, statistics.median(run[at][1] for run in alike)) for at, path in enumerate(order)
    )


def _holders(paths: Mapping[nn.Module, str]) -> tuple[Holder, ...]:
    first: dict[int, str] = {}
    found = []
    for module, path in paths.items():
        own = [p for p in module.parameters(recurse=False) if first.setdefault(id(p), path) == path]
        if path == ROOT or holds_anything(module):
            found.append(
                Holder(
                    path=path,
                    parameters=sum(p.numel() for p in own),
                    parameter_bytes=sum(p.nbytes for p in own),
                    gradient_bytes=sum(p.nbytes for p in own if p.requires_grad),
                    buffer_bytes=sum(b.nbytes for b in module.buffers(recurse=False)),
                )
            )
    return tuple(found)


def _tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in flatten(value)[0] if isinstance(leaf, Tensor))


class _Meter(Protocol):
    """What is measured between two places where another module takes over."""

    def begin(self, path: str) -> None:
        """What comes now is this module's."""

    def end(self) -> Any:
        """What there is to say of it."""

    def goes_back(self) -> None:
        """What comes now is of the backward pass."""

    def accumulates(self, num_bytes: int) -> None:
        """A gradient of a parameter is there to stay."""


class _Clock:
    """Seconds."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._since = 0.0

    def begin(self, path: str) -> None:
        """From now on."""
        self._since = self._now()

    def end(self) -> float:
        """Since `begin`."""
        return self._now() - self._since

    def goes_back(self) -> None:
        """Takes its time as the forward does."""

    def accumulates(self, num_bytes: int) -> None:
        """Takes its time as all else does."""

    def _now(self) -> float:
        if self._is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


class _Watch:
    """Follows a run from module to module.

    Attributes:
        forward, backward: paths with what the meter says, in order.
    """

    def __init__(self, model: nn.Module, paths: Mapping[nn.Module, str], meter: _Meter) -> None:
        self._model = model
        self._meter = meter
        # Whoever holds nothing is run by whoever calls it.
        self._paths = {m: path for m, path in paths.items() if m is model or holds_anything(m)}
        self._home = {
            id(p): self._paths[m] for m in self._paths for p in m.parameters(recurse=False)
        }
        self.forward: list[tuple[str, Any]] = []
        self.backward: list[tuple[str, Any]] = []
        self._pieces = self.forward
        self._path: str | None = None
        self._stack: list[str] = []
        self._is_forward = True
        self._nodes: dict[Any, str] = {}

    def run(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        loss: Loss | None,
        loss_args: tuple[Any, ...],
    ) -> None:
        """A microbatch, forward and backward."""
        handles = [
            register_module_forward_pre_hook(self._begin_module),
            register_module_forward_hook(self._end_module, always_call=True),
        ]
        try:
            output = self._model(*args, **kwargs)
            # A loss runs where the tensor is made that it is of.
            made = next((t.grad_fn for t in _tensors(output) if t.grad_fn is not None), None)
            path = self._nodes.get(made, ROOT)
            self._switch(path)
            root = _summed(output) if loss is None else loss(output, *loss_args)
            self._own(_nodes_of([root]), path)
            # As in `loss_of(model(x))`: nobody has it any longer, and the loss may keep none of it.
            del output, made
            self._keep_only(_reachable(_nodes_of([root])))
            self._switch(None)
            self._is_forward = False
            self._pieces = self.backward
            self._meter.goes_back()
            self._go_back(root)
        finally:
            for handle in handles:
                handle.remove()
            self._nodes = {}

    def _go_back(self, root: Tensor) -> None:
        handles = [
            node.register_prehook(lambda _, node=node, path=path: self._reach(node, path))
            for node, path in self._nodes.items()
        ]
        torch.autograd.backward(root)
        self._switch(None)
        for handle in handles:
            handle.remove()

    def _reach(self, node: Any, path: str) -> None:
        self._switch(path)
        parameter = getattr(node, "variable", None)
        if parameter is not None and parameter.grad is None:
            self._meter.accumulates(parameter.nbytes)

    def _switch(self, path: str | None) -> None:
        if path == self._path:
            return
        if self._path is not None:
            self._pieces.append((self._path, self._meter.end()))
        self._path = path
        if path is not None:
            self._meter.begin(path)

    def _begin_module(self, module: nn.Module, _: Any) -> None:
        if not self._is_forward:
            return  # a checkpoint recomputes: that is of the backward pass it is in
        path = self._paths.get(module) or (self._stack[-1] if self._stack else ROOT)
        self._stack.append(path)
        self._switch(path)

    def _end_module(self, module: nn.Module, _: Any, output: Any) -> None:
        if not self._is_forward:
            return
        path = self._stack.pop()
        self._own(_nodes_of(_tensors(output)), path)
        if self._stack:
            self._switch(self._stack[-1])

    def _own(self, nodes: Iterable[Any], path: str) -> None:
        """What of the graph nobody has is this module's; parameters are where they are."""
        for node in _reachable(nodes, self._nodes):
            parameter = getattr(node, "variable", None)
            self._nodes[node] = self._home.get(id(parameter), path)

    def _keep_only(self, nodes: Collection[Any]) -> None:
        """A node keeps what its backward pass needs: who holds others keeps that for nothing."""
        self._nodes = {node: path for node, path in self._nodes.items() if node in nodes}


def _reachable(nodes: Iterable[Any], known: Collection[Any] = ()) -> set[Any]:
    """These nodes, and what lies behind them, as far as it is not known."""
    found: set[Any] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in found and node not in known:
            found.add(node)
            left += (each for each, _ in node.next_functions if each is not None)
    return found


def _nodes_of(tensors: Iterable[Tensor]) -> list[Any]:
    return [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]


def _summed(output: Any) -> Tensor:
    parts = [each.float().sum() for each in _tensors(output) if each.requires_grad]
    if not parts:
        raise ValueError(
            "nothing of what the model returns has a gradient; expected some that has: there is"
            " no backward pass to plan for. Pass loss=..., or train some parameters."
        )
    return torch.stack(parts).sum()
