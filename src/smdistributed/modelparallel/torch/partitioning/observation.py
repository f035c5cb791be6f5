# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a forward pass costs, module by module: the input of the automatic partition.

The first call of the model in the first step runs once more than it would, without gradients, and
is watched: who calls whom in which order, how much is computed, what passes between modules, and
whose parameters are used by whom. Times are estimated from operations and bytes, so that all runs
decide alike, unless they are to be measured.

Source: modelparallel specification, sections 3.7 and 7.
"""

# torch's modes have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.decide import partition
from smdistributed.modelparallel.torch.containers import flatten
from smdistributed.modelparallel.torch.delayed_initialization import (
    Disguise,
    has_delayed,
    materialise,
)
from smdistributed.modelparallel.torch.modules.assignment import (
    READS_CHILDREN,
    ROOT,
    module_paths,
)
from smdistributed.modelparallel.torch.modules.buffers import kept_buffers
from smdistributed.modelparallel.torch.partitioning.without_gradients import without_gradients
from smdistributed.modelparallel.torch.pipeline.devices import arguments_on

__all__ = ["Observation", "observe", "unchanged", "unobserved"]

# A training step has so many numbers for one of a parameter: weight, gradient, two moments.
_COPIES = 4
# In 16 bits weight and gradient are there twice, as the optimizer has them in fp32 too.
_BYTES_IN_SIXTEEN_BITS = 2 * 2 + _COPIES * 4
# Of one core, and of a GPU; only their proportions matter, to each other and to the link's.
_RATES = {"cpu": (30e9, 8e9), "cuda": (30e12, 1e12)}
_LINKS = {
    "cpu": partition.Link(call_s=2e-4, bytes_per_s=3e9),
    "cuda": partition.Link(call_s=2e-4, bytes_per_s=10e9),
}
# What a further message must save, as a share of the model's cost, to be worth its wait.
_LEAST_GAIN = 0.005
# Of the parameter `memory_weight`: else messages would count for nothing.
_MOST_MEMORY = 0.999
# Backward takes about twice as long as forward.
_PASSES = 3


@dataclasses.dataclass
class _Cost:
    """Of a module without what it calls."""

    calls: int = 0
    flops: float = 0.0
    moved_bytes: float = 0.0
    kept_bytes: float = 0.0
    input_bytes: float = 0.0
    output_bytes: float = 0.0
    measured_s: float = 0.0
    called: dict[nn.Module, None] = dataclasses.field(default_factory=dict)  # in order, once each
    uses: set[int] = dataclasses.field(default_factory=set)  # parameters, by id


class Observation:
    """The costs of a model's modules.

    Args:
        model: which was observed, or will not be.
        is_measured: times were measured instead of estimated.
    """

    def __init__(self, model: nn.Module, device: torch.device, is_measured: bool) -> None:
        self.model = model
        self.costs = {module: _Cost() for module in model.modules()}
        self._device = "cuda" if device.type == "cuda" else "cpu"
        self._is_measured = is_measured
        self._parameters = {id(p): number for number, p in enumerate(model.parameters())}

    @property
    def link(self) -> partition.Link:
        """What messages between partitions cost."""
        return _LINKS[self._device]

    def tree(self, microbatches: int) -> partition.Module:
        """The modules as the partition wants them.

        Args:
            microbatches: that may be under way at a time: so often are activations kept.
        """
        paths = module_paths(self.model)
        callers: dict[nn.Module, nn.Module] = {}
        for module, cost in self.costs.items():
            for called in cost.called:
                callers.setdefault(called, module)
        below: dict[nn.Module, list[nn.Module]] = {module: [] for module in self.costs}
        placed = {self.model}
        # Who was called goes below its first caller, in order; a cycle of callers cannot be, as the
        # first call of each came from one that was under way.
        order = [self.model]
        for module in order:
            for called in self.costs[module].called:
                if callers.get(called) is module and called not in placed:
                    placed.add(called)
                    below[module].append(called)
                    order.append(called)
        for module in self.costs:
            for child in module.children():
                if child not in placed:  # never called: who holds it uses what it holds
                    placed.add(child)
                    below[self._nearest(module, placed)].append(child)
        return self._node(self.model, below, paths, microbatches)

    def _nearest(self, module: nn.Module, placed: set[nn.Module]) -> nn.Module:
        return module if module in placed else self.model

    def _node(
        self,
        module: nn.Module,
        below: dict[nn.Module, list[nn.Module]],
        paths: dict[nn.Module, str],
        microbatches: int,
    ) -> partition.Module:
        cost = self.costs[module]
        own = list(module.parameters(recurse=False))
        num_bytes = sum(p.numel() * p.element_size() for p in own)
        was_called = cost.calls > 0 or module is self.model
        has_any = next(module.parameters(), None) is not None
        return partition.Module(
            name=paths[module],
            memory_bytes=sum(map(_training_bytes, own)) + microbatches * cost.kept_bytes,
            seconds=self._seconds(cost, num_bytes),
            input_bytes=cost.input_bytes,
            output_bytes=cost.output_bytes,
            has_parameters=has_any and was_called,
            shares=frozenset(str(number) for number in self._shared(module, own)),
            children=tuple(self._node(each, below, paths, microbatches) for each in below[module]),
        )

    def _shared(self, module: nn.Module, own: list[nn.Parameter]) -> set[int]:
        """Parameters that it holds, or uses though others hold them, by a number of the model's."""
        numbers = self._parameters
        mine = {id(parameter) for parameter in own}
        if isinstance(module, READS_CHILDREN):
            mine.update(id(parameter) for parameter in module.parameters())
        foreign = {p for p in self.costs[module].uses if p in numbers and p not in mine}
        return {numbers[p] for p in mine | foreign if p in numbers}

    def _seconds(self, cost: _Cost, num_bytes: float) -> float:
        if self._is_measured:
            return _PASSES * cost.measured_s
        flops_per_s, bytes_per_s = _RATES[self._device]
        if cost.calls == 0 and not cost.flops:
            return num_bytes / bytes_per_s  # nothing is known of it but its size
        return _PASSES * (cost.flops / flops_per_s + cost.moved_bytes / bytes_per_s)


def unobserved(model: nn.Module, device: torch.device) -> Observation:
    """What sizes of parameters alone tell (`skip_tracing`): called in the order of definition."""
    found = Observation(model, device, is_measured=False)
    for module, cost in found.costs.items():
        for child in module.children():
            cost.called[child] = None
            found.costs[child].calls = 1
            num_bytes = sum(p.numel() * p.element_size() for p in child.parameters(recurse=False))
            found.costs[child].moved_bytes = num_bytes
    return found


def observe(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
    is_measured: bool,
) -> Observation:
    """Runs `model(*args, **kwargs)` once and watches. Leaves model and random state as they were.

    If the model has delayed parameters, shapes alone are computed. Where that is not enough, as
    times are measured or `forward` looks at values, all of the model gets its own on this rank.

    Args:
        device: where it runs; the model comes back to where it was.
        is_measured: measure the times of modules, in a second run.
    """
    if has_delayed(model):
        known = None if is_measured else _observe_shapes(model, args, kwargs, device)
        if known is not None:
            return known
        num_bytes = sum(each.nbytes for each in model.parameters())
        get_logger().warning(
            "The first step must be watched with values: until it is partitioned, this rank holds"
            " the whole model, %.1f MB. With skip_tracing, or a partition by hand, none does.",
            num_bytes / 1e6,
        )
        materialise(model)
    found = Observation(model, device, is_measured)
    with unchanged(model), without_gradients():
        homes = {p: p.device for p in (*model.parameters(), *model.buffers())}
        is_elsewhere = any(home.type != device.type for home in homes.values())
        if is_elsewhere:
            model.to(device)
        args, kwargs = arguments_on(device, args, kwargs)
        try:
            with _Watch(found):
                model(*args, **kwargs)
            if is_measured:
                _measure(found, args, kwargs)
        finally:
            if is_elsewhere:
                for tensor, home in homes.items():
                    tensor.data = tensor.data.to(home)
    return found


def _observe_shapes(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> Observation | None:
    """What a run tells in which no parameter has a value; None if it needs any."""
    found = Observation(model, device, is_measured=False)
    try:
        args, kwargs = arguments_on(device, args, kwargs)
        with unchanged(model), without_gradients(), Disguise(device), _Shapes(), _Watch(found):
            model(*args, **kwargs)
    except Exception as error:  # of any kind; if it is not for want of values it comes again
        get_logger().info("shapes do not tell what the model does: %s", error)
        return None
    return found


class _Shapes(TorchDispatchMode):
    """What is computed with tensors on the meta device is there too; other values are real."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            leaves, structure = flatten((args, kwargs))
            if any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in leaves):
                leaves = [leaf.to("meta") if isinstance(leaf, Tensor) else leaf for leaf in leaves]
                args, kwargs = structure.unflatten(leaves)
                if kwargs.get("device") is not None:
                    kwargs = {**kwargs, "device": torch.device("meta")}
            return func(*args, **kwargs)


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Buffers of the model, and random states, are after the block as they were before."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices), kept_buffers(model.modules()):
        yield


def _flop_registry() -> Mapping[Any, Callable[..., int]]:
    """By operation, what counts its floating-point operations.

    Imported when an observation begins: torch's module imports Triton where that is installed. Not
    beside TensorFlow: both carry LLVM, and the process would end.
    """
    hides = "tensorflow" in sys.modules and "triton" not in sys.modules
    modules: dict[str, Any] = sys.modules
    if hides:
        modules["triton"] = None
    try:
        from torch.utils.flop_counter import flop_registry
    finally:
        if hides:
            del modules["triton"]
    return flop_registry


class _Watch(TorchDispatchMode):
    """Notes each operation with the module whose forward it is in."""

    def __init__(self, found: Observation) -> None:
        super().__init__()
        self._flop_registry = _flop_registry()
        self._costs = found.costs
        self._stack: list[nn.Module] = []
        self._parameters = {id(parameter) for parameter in found.model.parameters()}
        self._handles: list[Any] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes seconds

    def __enter__(self) -> _Watch:
        self._handles = [
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(self._end, with_kwargs=True, always_call=True),
        ]
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        for handle in self._handles:
            handle.remove()

    def _begin(self, module: nn.Module, args: Any) -> None:
        if module not in self._costs:
            return
        if self._stack:
            self._costs[self._stack[-1]].called.setdefault(module)
        self._costs[module].calls += 1
        self._stack.append(module)

    def _end(self, module: nn.Module, args: Any, kwargs: Any = None, output: Any = None) -> None:
        # Where `forward` has raised, torch calls it with fewer arguments.
        if not self._stack or self._stack[-1] is not module:
            return
        self._stack.pop()
        cost = self._costs[module]
        cost.input_bytes += _num_bytes((args, kwargs), self._parameters)
        cost.output_bytes += _num_bytes(output, self._parameters)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._stack:
            self._note(self._costs[self._stack[-1]], func, args, kwargs, result)
        return result

    def _note(self, cost: _Cost, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        tensors = [leaf for leaf in flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        cost.uses.update(id(tensor) for tensor in tensors if id(tensor) in self._parameters)
        count = self._flop_registry.get(func.overloadpacket)
        if count is not None:
            cost.flops += count(*args, **kwargs, out_val=result)
        if _is_view(func):
            return
        made = [leaf for leaf in flatten(result)[0] if isinstance(leaf, Tensor)]
        out = sum(tensor.nbytes for tensor in made)
        cost.kept_bytes += out
        cost.moved_bytes += out + sum(tensor.nbytes for tensor in tensors)


def _is_view(func: Any) -> bool:
    return any(
        argument.alias_info is not None and not argument.alias_info.is_write
        for argument in func._schema.arguments
    )


def _training_bytes(parameter: nn.Parameter) -> int:
    is_narrow = parameter.dtype in (torch.float16, torch.bfloat16)
    return parameter.numel() * (
        _BYTES_IN_SIXTEEN_BITS if is_narrow else _COPIES * parameter.element_size()
    )


def _num_bytes(value: Any, parameters: set[int]) -> int:
    return sum(
        leaf.nbytes
        for leaf in flatten(value)[0]
        if isinstance(leaf, Tensor) and id(leaf) not in parameters
    )


@dataclasses.dataclass(slots=True)
class _Call:
    """Of a module, under way.

    Attributes:
        begin_s: by the clock.
        inner_s: seconds of the modules that it has called.
    """

    module: nn.Module
    begin_s: float
    inner_s: float = 0.0


def _measure(found: Observation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Times each module, without those it calls."""
    stack: list[_Call] = []

    def now() -> float:
        if found.link is _LINKS["cuda"]:
            torch.cuda.synchronize()
        return time.perf_counter()

    def begin(module: nn.Module, _: Any) -> None:
        stack.append(_Call(module, now()))

    def end(module: nn.Module, *_: Any) -> None:
        if not stack or stack[-1].module is not module:
            return
        call = stack.pop()
        whole_s = now() - call.begin_s
        if module in found.costs:
            found.costs[module].measured_s += whole_s - call.inner_s
        if stack:
            stack[-1].inner_s += whole_s

    handles = [
        register_module_forward_pre_hook(begin),
        register_module_forward_hook(end, always_call=True),
    ]
    try:
        found.model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()


def decide(found: Observation, partitions: int, memory_weight: float, microbatches: int) -> Any:
    """The automatic partition: `partition.assign` on what the observation has found.

    Returns:
        Its `Assignment`; names are paths.
    """
    tree = found.tree(microbatches)
    assert tree.name == ROOT
    memory_weight = min(memory_weight, _MOST_MEMORY)
    return partition.assign(
        tree, partitions, memory_weight, _worth_crossing(found.link, tree, memory_weight)
    )


def _worth_crossing(
    link: partition.Link, tree: partition.Module, memory_weight: float
) -> partition.Link:
    """A link whose messages cost each side `_LEAST_GAIN` of the model's cost at least.

    A microbatch that crosses once more waits once more, which no load shows: a cut through a block
    must be worth it. Where memory decides, the time of messages alone would hardly count.
    """
    seconds = _total_seconds(tree)
    call_s = _LEAST_GAIN * seconds / (1 - memory_weight)
    return dataclasses.replace(link, call_s=max(link.call_s, call_s))


def _total_seconds(tree: partition.Module) -> float:
    seconds, left = 0.0, [tree]
    while left:
        module = left.pop()
        seconds += module.seconds
        left.extend(module.children)
    return seconds
