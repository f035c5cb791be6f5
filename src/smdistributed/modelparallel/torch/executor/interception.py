# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where calls of modules that live elsewhere leave torch: `nn.Module.__call__`.

It is replaced, once for the process, while a pipeline exists; not the modules' `forward`, or every
hook would run on both ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import nn

from smdistributed.modelparallel.torch.executor.deferred import force_arguments

__all__ = ["install", "uninstall"]


class _Executor(Protocol):
    def call(self, module: nn.Module, owner: int, args: Any, kwargs: Any) -> Any: ...


_HERE_IN_PART = -1

_original = nn.Module.__call__
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


def uninstall(executor: _Executor) -> None:
    """Gives calls back, if they are this executor's."""
    global _executor, _owners
    if _executor is executor:
        _executor = None
        _owners = {}
        _routes.clear()
        nn.Module.__call__ = _original  # type: ignore[method-assign]


def _call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    route = _routes.get(id(self))
    if route is None:  # all of it runs here
        args, kwargs = force_arguments(args, kwargs)
        return _original(self, *args, **kwargs)
    if route == _HERE_IN_PART or _executor is None:
        return _original(self, *args, **kwargs)
    return _executor.call(self, route, args, kwargs)
