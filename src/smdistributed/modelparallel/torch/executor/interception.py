# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where calls of modules that live elsewhere leave torch: `nn.Module.__call__`.

It is replaced, once for the process, while a pipeline exists; not the modules' `forward`, or every
hook would run on both ranks. So are `autograd.Function.apply` and `autograd.backward`, which would
take what is not here yet for a tensor without history. And a module's attribute, such as a buffer,
outlives the microbatch that sets it, and placeholders do not.
"""

# torch's functions of autograd have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd import Function

from smdistributed.modelparallel.torch.executor.deferred import (
    Deferred,
    arrived,
    force_arguments,
    nothing_deferred,
)

__all__ = ["install", "microbatch", "owners", "uninstall"]


class _Executor(Protocol):
    @property
    def microbatch(self) -> int: ...

    def is_active(self) -> bool: ...

    def call(self, module: nn.Module, owner: int, args: Any, kwargs: Any) -> Any: ...


_HERE_IN_PART = -1

_original = nn.Module.__call__
_original_apply = Function.__dict__["apply"].__func__
_original_backward = torch.autograd.backward
_original_setattr = nn.Module.__setattr__
_executor: _Executor | None = None
_routes: dict[int, int] = {}
_owners: Mapping[nn.Module, int] = {}


def install(executor: _Executor, owners: Mapping[nn.Module, int], rank: int) -> None:
    """From now on modules in `owners` run on the rank it says."""
    global _executor, _owners
    _executor = executor
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
    nn.Module.__setattr__ = _setattr  # type: ignore[method-assign]


def uninstall(executor: _Executor) -> None:
    """Gives calls back, if they are this executor's."""
    global _executor, _owners
    if _executor is executor:
        _executor = None
        _owners = {}
        _routes.clear()
        nn.Module.__call__ = _original  # type: ignore[method-assign]
        Function.apply = classmethod(_original_apply)  # type: ignore[assignment]
        torch.autograd.backward = _original_backward
        nn.Module.__setattr__ = _original_setattr  # type: ignore[method-assign]


def owners() -> Mapping[nn.Module, int]:
    """The ranks that modules run on now; those that are not in it run where they are called."""
    return _owners


def microbatch() -> int:
    """The one that user code works on now; 0 where there is no pipeline."""
    return _executor.microbatch if _executor is not None and _executor.is_active() else 0


def _call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    route = _routes.get(id(self))
    if route is None:  # all of it runs here: so it is with most calls, which should cost nothing
        for value in (*args, *kwargs.values()) if kwargs else args:
            if type(value) is Deferred:
                args, kwargs = force_arguments(args, kwargs)
                break
        return _original(self, *args, **kwargs)
    if route == _HERE_IN_PART or _executor is None:
        return _original(self, *args, **kwargs)
    return _executor.call(self, route, args, kwargs)


def _apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
    args, kwargs = force_arguments(args, kwargs)
    with nothing_deferred():
        return _original_apply(cls, *args, **kwargs)


def _backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
    _original_backward(arrived(tensors), arrived(grad_tensors), *args, **kwargs)


def _setattr(self: nn.Module, name: str, value: Any) -> None:
    _original_setattr(self, name, arrived(value) if type(value) is Deferred else value)
