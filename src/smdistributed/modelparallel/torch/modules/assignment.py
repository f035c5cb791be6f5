# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which partition each module is in: by hand, or by the costs of an observed run.

By hand, an assignment is noted in the module itself, under a name of ours in its `__dict__`: so it
is copied with the module, as `nn.TransformerEncoder` copies its layers.

Source: modelparallel specification, sections 3.8 and 4.6.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from smdistributed.modelparallel.decide.partition import Share
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.torch.job.state import state

__all__ = [
    "READS_CHILDREN",
    "ROOT",
    "Decision",
    "assign_by_hand",
    "check_shared",
    "get_partition",
    "module_paths",
    "partition",
    "set_partition",
]

ROOT = "main"
_NOTE = "_smp_partition"

# Modules of torch that, at least in evaluation, compute with their children's parameters themselves
# instead of calling them.
READS_CHILDREN = (nn.MultiheadAttention, nn.TransformerEncoderLayer)

# Of nested `partition` contexts, innermost last.
_contexts: list[int] = []


@dataclasses.dataclass(frozen=True)
class Decision:
    """Where everything goes.

    Attributes:
        partition_of: by path of module, `main/...`.
        reasons: by path, in words.
        shares: by path, what the module is of the whole model; empty where no costs are known.
        loads: by partition, as shares of the model's cost; empty where none are known.
    """

    partition_of: Mapping[str, int]
    reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shares: Mapping[str, Share] = dataclasses.field(default_factory=dict)
    loads: Sequence[float] = ()

    def lines(self) -> list[str]:
        """For the log: one line for each of `shown`."""
        return [f"{path}: {self.partition_of[path]}" for path in self.shown()]

    def shown(self) -> list[str]:
        """Paths of modules, down to those below which all is in one place."""
        homogeneous: dict[str, bool] = {}
        for path, place in self.partition_of.items():
            parts = path.split("/")
            for depth in range(1, len(parts)):
                above = "/".join(parts[:depth])
                if self.partition_of.get(above, place) != place:
                    homogeneous[above] = False
        shown = []
        for path in self.partition_of:
            parts = path.split("/")
            ancestors = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
            if all(not homogeneous.get(each, True) for each in ancestors):
                shown.append(path)
        return shown


def module_paths(model: nn.Module) -> dict[nn.Module, str]:
    """Each module's path, from `main` on, in an order that is the same on all ranks."""
    return {
        module: f"{ROOT}/{name.replace('.', '/')}" if name else ROOT
        for name, module in model.named_modules()
    }


@contextlib.contextmanager
def partition(index: int) -> Iterator[None]:
    """Modules created in this block, and what they hold, go to partition `index`.

    Of nested blocks the innermost decides. Without effect if `auto_partition` is true.

    Raises:
        ValueError: there is no such partition.
    """
    _check(index, "smp.partition")
    original: Callable[..., None] = nn.Module.__init__

    def noting(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _contexts:
            self.__dict__[_NOTE] = _contexts[-1]

    _contexts.append(index)
    if len(_contexts) == 1:
        nn.Module.__init__ = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        _contexts.pop()
        if not _contexts:
            nn.Module.__init__ = original  # type: ignore[method-assign]


def set_partition(module: nn.Module, index: int) -> None:
    """A module and what it holds go to partition `index`; the last call counts.

    Before the first step. Modules inside that have been assigned themselves stay where they are.
    Without effect if `auto_partition` is true.

    Raises:
        ValueError: there is no such partition.
        RuntimeError: the model has been partitioned already.
    """
    _check(index, "smp.set_partition")
    if state.model is not None and state.model.partitioned:
        gc.collect()  # one that nobody uses any more may hold itself
    if state.model is not None and state.model.partitioned:
        raise RuntimeError(
            "smp.set_partition was called after the first step; expected it before, as by now every"
            " module is where it will stay. Call it between making the model and the first step."
        )
    module.__dict__[_NOTE] = index


def get_partition(module: nn.Module) -> int | None:
    """The partition that a module of the model is in, or None before that is decided.

    Args:
        module: of the user's model, or the `DistributedModel`, which is where its root is.

    Raises:
        SMPNotInitialized: before `smp.init()`.
        ValueError: the model is partitioned, and has no such module.
    """
    state.require("smp.get_partition()")
    model = state.model
    if model is None or not model.partitioned:
        return None
    places: Mapping[nn.Module, int] = model.placement("smp.get_partition()").partition_of_module
    # The model itself, or a wrapper of ours around the root.
    wanted = next((each for each in module.modules() if each in places), None)
    inner = model.get_module()
    if module not in places and wanted is not inner:
        raise ValueError(
            f"smp.get_partition() got a {type(module).__name__} that is not in the model; expected"
            " one of its modules. Pass one that model.modules() returns."
        )
    return places[module if module in places else inner]


def _check(index: int, what: str) -> None:
    config = state.require(what).config
    if config.auto_partition:
        return
    if type(index) is not int or not 0 <= index < config.partitions:
        raise ValueError(
            f"{what}({index!r}): expected an integer from 0 to {config.partitions - 1}, as there"
            f" are {config.partitions} partitions. Set pipeline_parallel_degree, or another index."
        )


def assign_by_hand(model: nn.Module, default: int) -> Decision:
    """What the notes in the modules say.

    A module without one goes with the nearest module above it that has one, else to `default`; the
    root itself runs on partition 0.

    Raises:
        ConfigError: modules of different partitions share a parameter; names both.
    """
    paths = module_paths(model)
    decided: dict[str, int] = {}
    reasons: dict[str, str] = {}

    def descend(module: nn.Module, inherited: int, reason: str) -> None:
        path = paths[module]
        if path in decided:
            return
        place = inherited
        if _NOTE in module.__dict__:
            place, reason = module.__dict__[_NOTE], "assigned by hand"
        decided[path] = 0 if path == ROOT else place
        reasons[path] = "the root runs on partition 0" if path == ROOT else reason
        if _NOTE in module.__dict__:
            reason = f"as {path}, which was assigned by hand"
        for child in module.children():
            descend(child, place, reason)

    descend(model, default, "default_partition")
    check_shared(paths, decided)
    return Decision(decided, reasons)


def check_shared(paths: Mapping[nn.Module, str], decided: Mapping[str, int]) -> None:
    """Whether modules that share parameters are in one partition.

    Args:
        paths: of the model's modules.
        decided: partitions, by path.

    Raises:
        ConfigError: they are not; names both.
    """
    holders: dict[int, tuple[str, str]] = {}
    for module, path in paths.items():
        for name, parameter in module.named_parameters(recurse=False):
            first, first_name = holders.setdefault(id(parameter), (path, name))
            if decided[first] != decided[path]:
                raise ConfigError(
                    f"{first} (partition {decided[first]}) and {path} (partition {decided[path]})"
                    f" share a parameter ({first_name} and {name}); expected modules that share to"
                    " be in one partition. Assign both to the same one."
                )
        if isinstance(module, READS_CHILDREN):
            for part in module.modules():
                if decided[paths[part]] != decided[path] and any(True for _ in part.parameters()):
                    raise ConfigError(
                        f"{path} (partition {decided[path]}) computes with the parameters of"
                        f" {paths[part]} (partition {decided[paths[part]]}) itself, as each"
                        f" {type(module).__name__} does; expected both in one partition. Assign the"
                        " outer one only."
                    )
