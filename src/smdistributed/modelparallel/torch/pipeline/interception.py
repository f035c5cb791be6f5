# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where calls of modules that live elsewhere leave torch: `nn.Module.__call__`.

It is replaced, once for the process, while a pipeline exists; not the modules' `forward`, or every
hook would run on both ranks. So are `autograd.Function.apply` and `autograd.backward`, which would
take what is not here yet for a tensor without history. And a module's attribute, such as a buffer,
outlives the microbatch that sets it, and placeholders do not; attributes.py says what else is done
about attributes. A `forward` that is set on a module in a step, as transformers does to collect
hidden states, would not be seen on the module's rank.
"""

# torch's functions of autograd have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.autograd import Function

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.exceptions import SMPError
from smdistributed.modelparallel.torch.pipeline.caller.caller import Caller
from smdistributed.modelparallel.torch.pipeline.caller.programs import partial_pass
from smdistributed.modelparallel.torch.pipeline.changes.attributes import (
    Attributes,
    Missing,
    is_watched,
)
from smdistributed.modelparallel.torch.pipeline.loop.activities import Activities
from smdistributed.modelparallel.torch.pipeline.loop.activity import Activity
from smdistributed.modelparallel.torch.pipeline.values.deferred import (
    Deferred,
    arrived,
    force_arguments,
    nothing_deferred,
    require_unused,
)

__all__ = ["NO_ZERO_GRAD", "install", "microbatch", "owners", "uninstall"]

NO_ZERO_GRAD = (
    "{} was called inside of a step; expected a call before it, on all ranks: the function that is"
    " decorated with @smp.step runs once for each microbatch, whose gradients add up, and on one"
    " rank of the pipeline."
)

_HERE_IN_PART = -1

_original = nn.Module.__call__
_original_apply = Function.__dict__["apply"].__func__
_original_backward = torch.autograd.backward
# Below torch.autograd.grad and backward, by whatever name they were imported; no documented name.
_original_engine = getattr(torch.autograd, "_engine_run_backward", None)
_original_zero_grad = nn.Module.zero_grad
_original_setattr = nn.Module.__setattr__
_original_delattr = nn.Module.__delattr__
_activities: Activities | None = None
_caller: Caller
_attributes: Attributes
_routes: dict[int, int] = {}
_owners: Mapping[nn.Module, int] = {}
# By module, and by the microbatch that has replaced its `forward` in a step: what was there before
# (None: nothing).
_replaced: dict[nn.Module, dict[int, Any]] = {}
_has_warned_of_mode = False


def install(
    activities: Activities,
    caller: Caller,
    attributes: Attributes,
    owners: Mapping[nn.Module, int],
    rank: int,
) -> None:
    """From now on modules in `owners` run on the rank it says.

    Args:
        activities: while one of them runs, calls are those of a step.
        caller: calls modules of other ranks.
        attributes: is told what modules set in a step.
        owners: by module, the rank that runs it.
        rank: this one.
    """
    global _activities, _caller, _attributes, _owners, _has_warned_of_mode
    _has_warned_of_mode = False
    _activities, _caller, _attributes = activities, caller, attributes
    _owners = owners  # holds the modules, and so their ids are theirs
    _routes.clear()
    for module, owner in owners.items():
        if owner != rank:
            _routes[id(module)] = owner
        elif any(owners.get(child, rank) != rank for child in module.modules()):
            _routes[id(module)] = _HERE_IN_PART
    nn.Module.__call__ = _call  # type: ignore[method-assign]
    Function.apply = classmethod(_apply)  # type: ignore[assignment]
    torch.autograd.backward = _backward
    if _original_engine is not None:
        torch.autograd._engine_run_backward = _run_engine  # type: ignore[attr-defined,assignment]
    nn.Module.zero_grad = _zero_grad  # type: ignore[method-assign]
    nn.Module.__setattr__ = _setattr  # type: ignore[method-assign]
    nn.Module.__delattr__ = _delattr  # type: ignore[method-assign]


def uninstall(activities: Activities) -> None:
    """Gives calls back to torch, if they are of these activities."""
    global _activities, _owners
    if _activities is activities:
        _activities = None
        _owners = {}
        _routes.clear()
        nn.Module.__call__ = _original  # type: ignore[method-assign]
        Function.apply = classmethod(_original_apply)  # type: ignore[assignment]
        torch.autograd.backward = _original_backward
        if _original_engine is not None:
            torch.autograd._engine_run_backward = _original_engine  # type: ignore[attr-defined]
        nn.Module.zero_grad = _original_zero_grad  # type: ignore[method-assign]
        nn.Module.__setattr__ = _original_setattr  # type: ignore[method-assign]
        nn.Module.__delattr__ = _original_delattr  # type: ignore[method-assign]
        _replaced.clear()


def owners() -> Mapping[nn.Module, int]:
    """The ranks that modules run on now; those that are not in it run where they are called."""
    return _owners


def microbatch() -> int:
    """The one that user code works on now; 0 where there is no pipeline."""
    activity = _running()
    return 0 if activity is None else activity.task.microbatch


def _running() -> Activity | None:
    """What runs on this thread; None on one that the user has started beside the step."""
    if _activities is None:
        return None
    fiber = _activities.current
    activity: Activity | None = fiber.activity if fiber.thread == threading.get_ident() else None
    return activity


def _call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    route = _routes.get(id(self))
    if route is None:  # all of it runs here: so it is with most calls, which should cost nothing
        for value in (*args, *kwargs.values()) if kwargs else args:
            if type(value) is Deferred:
                args, kwargs = force_arguments(args, kwargs)
                break
        return _original(self, *args, **kwargs)
    if route == _HERE_IN_PART or _activities is None:
        return _original(self, *args, **kwargs)
    if _replaced:
        _require_own_forward(self, route)
    return _caller.call_module(self, route, args, kwargs)


def _require_own_forward(module: nn.Module, owner: int) -> None:
    number = microbatch()
    for each in module.modules():
        if number in _replaced.get(each, ()):
            what = f"{type(each).__name__} at {_caller.path_of(each)!r}"
            raise SMPError(
                f"the forward() of {what} was replaced in a step (by {_replacement(each)}), but"
                f" that module runs on rank {_owners.get(each, owner)} of the pipeline, which would"
                " call its own; expected forward() to stay as it is. Transformers replaces it to"
                " collect what output_hidden_states, output_attentions or output_router_logits ask"
                " for: leave them off, or put the module on the rank that calls it:"
                ' smp.set_partition(module, 0), with "auto_partition": False.'
            )


def _replacement(module: nn.Module) -> str:
    function = module.__dict__.get("forward")
    module_name = getattr(function, "__module__", "")
    return f"{module_name}.{getattr(function, '__qualname__', type(function).__name__)}"


def _apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
    args, kwargs = force_arguments(args, kwargs)
    with nothing_deferred():
        return _original_apply(cls, *args, **kwargs)


def _backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
    require_unused([*args, kwargs.get("inputs")], "backward(inputs=...)")
    _original_backward(arrived(tensors), arrived(grad_tensors), *arrived(args), **arrived(kwargs))


def _run_engine(outputs: Any, *args: Any, **kwargs: Any) -> Any:
    assert _original_engine is not None
    _, _, makes_graph, inputs = args[:4]
    if not makes_graph and not inputs:
        return _original_engine(outputs, *args, **kwargs)
    with partial_pass():
        return _original_engine(outputs, *args, **kwargs)


def _zero_grad(self: nn.Module, set_to_none: bool = True) -> None:
    if _running() is not None:
        raise SMPError(NO_ZERO_GRAD.format("zero_grad()"))
    _original_zero_grad(self, set_to_none)


def _setattr(self: nn.Module, name: str, value: Any) -> None:
    if name == "forward":
        _note_forward(self, value)
    elif name == "training" and value is not self.__dict__.get(name):
        _note_mode(self)
    if type(value) is Deferred:
        value = arrived(value)
    if _activities is not None and (is_watched(value) or is_watched(self.__dict__.get(name))):
        activity = _running()
        if activity is not None:
            if name in self._buffers:
                _require_own_buffer(self, name)
            _attributes.note(activity, self, name, value)
    _original_setattr(self, name, value)


def _require_own_buffer(module: nn.Module, name: str) -> None:
    owner = _routes.get(id(module), _HERE_IN_PART)
    if owner != _HERE_IN_PART:
        raise SMPError(
            f"buffer {name!r} of {_caller.path_of(module)} was set in a step, but that module runs"
            f" on rank {owner} of the pipeline, where it would stay as it is; expected its own"
            " forward() to set it. Pass the value as an argument, or set it outside of steps on"
            " all ranks."
        )


def _delattr(self: nn.Module, name: str) -> None:
    if name == "forward":
        _note_forward(self, None)
    elif _activities is not None and is_watched(self.__dict__.get(name)):
        activity = _running()
        if activity is not None:
            _attributes.note(activity, self, name, Missing.ATTRIBUTE)
    _original_delattr(self, name)


def _note_mode(module: nn.Module) -> None:
    """By train() or eval(); outside of steps all ranks do the same."""
    global _has_warned_of_mode
    if _running() is None:
        return
    _attributes.note_own(module, "training")
    owner = _routes.get(id(module), _HERE_IN_PART)
    if owner != _HERE_IN_PART and not _has_warned_of_mode:
        _has_warned_of_mode = True
        get_logger().warning(
            "train() or eval() of %s was called in a step, and that module runs on rank %d of the"
            " pipeline, where it stays in its mode. Call it outside of steps, on all ranks.",
            _caller.path_of(module),
            owner,
        )


def _note_forward(module: nn.Module, function: Any) -> None:
    """In a step `forward` is set, or (None) deleted. Outside of steps all ranks do the same."""
    activity = _running()
    if activity is None:
        known = _replaced.get(module, {})
        if function in known.values() or _is_of_class(module, function):
            _replaced.pop(module, None)
        return
    _attributes.note_own(module, "forward")
    number = activity.task.microbatch
    known = _replaced.setdefault(module, {})
    if number not in known:
        known[number] = module.__dict__.get("forward")
    if function is known[number] or _is_of_class(module, function):
        del known[number]
    if not known:
        del _replaced[module]


def _is_of_class(module: nn.Module, function: Any) -> bool:
    """Whether it is the module's own method, which was looked up before and is put back now."""
    own = getattr(type(module), "forward", None)
    return (
        getattr(function, "__func__", None) is own and getattr(function, "__self__", None) is module
    )
