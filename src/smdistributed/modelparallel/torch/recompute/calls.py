# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of modules that recompute, on whatever rank these are.

A checkpoint is where its module runs: there it keeps the module's input, and there it computes it
again. So all of the module must be on one partition.

Source: modelparallel specification, section 6.4.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.torch.job.state import state
from smdistributed.modelparallel.torch.modules.assignment import module_paths
from smdistributed.modelparallel.torch.pipeline import interception
from smdistributed.modelparallel.torch.pipeline.pipeline import current_pipeline
from smdistributed.modelparallel.torch.recompute.elsewhere import Elsewhere
from smdistributed.modelparallel.torch.recompute.recomputation import (
    in_a_row,
    recomputed,
)
from smdistributed.modelparallel.torch.recompute.sequential_rows import (
    DIVIDED,
    most_layers,
    rows,
)

__all__ = [
    "call_layers",
    "check_undivided",
    "checkpoint",
    "checkpoint_sequential",
    "place_of",
    "warn_of_packing",
]

# Of which it has been said that they are divided.
_told: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def checkpoint(
    module: nn.Module, /, *args: Any, preserve_rng_state: bool = True, **kwargs: Any
) -> Any:
    """What `module(*args, **kwargs)` returns; what it computes is computed again when it is needed.

    For use in a module's `forward`; the module may be on any rank. Arguments can be anything that
    the module takes. Without gradients it is a plain call.

    Args:
        module: all of it on one partition. Where a part is elsewhere, it is called without a
            checkpoint, with a warning; if the partition was made by hand, that is an error.
        preserve_rng_state: False if nothing in it is random: saves a few KiB for each call.

    Raises:
        TypeError: it is no module.
        ConfigError: it is on several partitions, by hand.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"checkpoint() got a {type(module).__name__}; expected a torch.nn.Module, which can run"
            " on another rank. Make the function the forward of a module, or call"
            " torch.utils.checkpoint.checkpoint(function, ..., use_reentrant=False) where all that"
            " it calls is on this rank."
        )
    return _call([module], place_of(module), args, kwargs, preserve_rng_state)


def checkpoint_sequential(
    sequential_module: nn.Sequential,
    input: Any,
    strategy: str = "each",
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
) -> Any:
    """What `sequential_module(input)` returns, with its layers checkpointed in rows.

    A row is on one partition, and is one message if that is another one. Layers that hold neither
    parameters nor buffers go with the row they are in.

    Args:
        sequential_module: its layers may be on several partitions.
        input: of the first layer; each gets what the one before returns, as a single argument.
        strategy: "each" layer is a row; "contiguous": those that follow each other on one
            partition; "group_N": at most N of these.
        preserve_rng_state: as of `checkpoint`.
        pack_args_as_tuple: without effect; deprecated.

    Raises:
        TypeError: it is no `nn.Sequential`.
        ValueError: there is no such strategy.
        ConfigError: a layer is on several partitions, by hand.
    """
    if not isinstance(sequential_module, nn.Sequential):
        raise TypeError(
            f"checkpoint_sequential() got a {type(sequential_module).__name__}; expected a"
            " torch.nn.Sequential. Use checkpoint() for other modules."
        )
    most = most_layers(strategy)
    if pack_args_as_tuple:
        warn_of_packing()
    return call_layers(sequential_module, most, preserve_rng_state, input)


def call_layers(
    layers: nn.Sequential, most: int | None, preserve_rng_state: bool, /, input: Any
) -> Any:
    """As `checkpoint_sequential`; at most so many layers in a row, None: as many as there are."""
    where = place_of(layers)
    places = [where] * len(layers) if where != DIVIDED else [place_of(layer) for layer in layers]
    for indices, place in rows(places, most):
        row = [layers[index] for index in indices]
        if place is None and where == DIVIDED:
            input = in_a_row(row, input)  # it may be computed where its input is: see lazy results
        else:
            input = _call(row, place, (input,), {}, preserve_rng_state)
    return input


def place_of(module: nn.Module, owners: Mapping[nn.Module, int] | None = None) -> int | None:
    """The partition that all of a module is on; None if it holds nothing, or there is one only.

    Args:
        owners: of modules that hold anything; None: as they are now.

    Returns: `DIVIDED` if it is on several.
    """
    owners = interception.owners() if owners is None else owners
    places = {owners[part] for part in module.modules() if part in owners}
    if len(places) > 1:
        return DIVIDED
    return next(iter(places), None)


def check_undivided(module: nn.Module, owners: Mapping[nn.Module, int]) -> None:
    """A module that is on several partitions is not checkpointed: says so, once.

    Raises:
        ConfigError: it is, by hand.
    """
    if place_of(module, owners) != DIVIDED:
        return
    name = module_paths(state.model.get_module()).get(module, type(module).__name__)
    places = sorted({owners[part] for part in module.modules() if part in owners})
    text = (
        f"{name} is to be checkpointed, but its parts are in partitions"
        f" {', '.join(map(str, places))}; expected all of it in one, where it is computed again."
        " Checkpoint what is in it, each layer for example"
    )
    if not state.cfg.auto_partition and not state.cfg.load_partition:
        raise ConfigError(f"{text}, or assign all of it to one partition.")
    if module not in _told and state.rank == 0:
        get_logger().warning("%s. It runs without a checkpoint.", text)
    _told.add(module)


@functools.cache
def warn_of_packing() -> None:
    """Of an argument that has lost its meaning; once."""
    get_logger().warning(
        "pack_args_as_tuple is deprecated and has no effect: a layer gets what the one before"
        " returns, as it is. Leave it out."
    )


def _call(
    row: Sequence[nn.Module],
    place: int | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    preserve_rng_state: bool,
) -> Any:
    if place == DIVIDED:
        check_undivided(row[0], interception.owners())
        return in_a_row(row, *args, **kwargs)
    if place is not None:
        pipeline = current_pipeline("checkpoint()")
        if place != pipeline.rank:
            helper = pipeline.helpers[place]
            assert isinstance(helper, Elsewhere)
            return helper.run(row, args, kwargs, preserve_rng_state)
    return recomputed(functools.partial(in_a_row, row), row, args, kwargs, preserve_rng_state)
