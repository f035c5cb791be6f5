# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank's parameters, optimizer state and objects for all ranks.

Source: Horovod's public API; see docs/horovod.md.
"""

# torch's distributed functions have no types of their own.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.torch.exchanges import allgather_async, broadcast_
from smdistributed.compat.horovod.torch.handles import start_comparison, synchronize
from smdistributed.compat.horovod.torch.job import global_process_set, require_group
from smdistributed.dataparallel.exceptions import (
    SMDDPConfigInvalid,
    SMDDPUnsupported,
)
from smdistributed.dataparallel.pickled import pickled, unpickled
from smdistributed.dataparallel.torch.parallel.agreement import (
    describe_layout,
    require_agreement,
)

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]

_CHUNK_BYTES = 25 << 20  # tensors are put together in packets of this size


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Give every rank the root's parameters, in place. A collective.

    Args:
        params: a dict of names, such as `model.state_dict()`; or a list, of tensors or of pairs of
            names and tensors, such as `list(model.named_parameters())`; names, shapes and dtypes
            are equal on all ranks. What is no tensor is put into the dict itself.
        root_rank: whose values count.

    Raises:
        SMDDPConfigInvalid: (a ValueError) something else, or a list that holds other things than
            tensors.
        SMDDPMismatch: on every rank, if they differ in names, shapes or dtypes.
    """
    group = require_group("broadcast_parameters")
    named = _named(params)
    tensors = [(name, value) for name, value in named if isinstance(value, Tensor)]
    others = {name: value for name, value in named if not isinstance(value, Tensor)}
    if others and not isinstance(params, dict):
        raise SMDDPConfigInvalid(
            f"hvd.broadcast_parameters() got a list with a {type(next(iter(others.values())))};"
            " expected tensors. Pass a dict, or hvd.broadcast_object() what is no tensor."
        )
    lines = [f"{name}: {describe_layout(value)}" for name, value in tensors]
    _require_equal([*lines, *(f"{name}: no tensor" for name in others)], group)
    _broadcast_tensors([value for _, value in tensors], root_rank, group)
    if others:
        params.update(broadcast_object(others, root_rank))


def _named(params: Any) -> list[tuple[str, Any]]:
    if isinstance(params, dict):
        return sorted(params.items())
    if isinstance(params, list):
        return [
            (str(entry[0]), entry[1]) if isinstance(entry, tuple) else (f"tensor {index}", entry)
            for index, entry in enumerate(params)
        ]
    raise SMDDPConfigInvalid(
        f"hvd.broadcast_parameters() got a {type(params).__name__}; expected a dict or a list. Pass"
        " model.state_dict(), or list(model.named_parameters())."
    )


def _require_equal(lines: list[str], group: Any) -> None:
    require_agreement(
        lines,
        group,
        torch.device("cpu"),
        what="the ranks broadcast different parameters",
        advice="Expected the same names, shapes and dtypes on every rank. Look for a branch that"
        " depends on the rank while the model is made.",
    )


def _broadcast_tensors(tensors: Iterable[Tensor], root_rank: int, group: Any) -> None:
    """In place, many at once. A collective; all ranks have compared shapes and dtypes."""
    by_kind: dict[tuple[torch.dtype, str], list[Tensor]] = {}
    for tensor in tensors:
        kind = (tensor.dtype, tensor.device.type)
        by_kind.setdefault(kind, []).append(tensor.detach())
    with torch.no_grad():
        for together in by_kind.values():
            for packet in _packets(together):
                flat = torch.cat([tensor.reshape(-1) for tensor in packet])
                broadcast_(flat, root_rank)
                sizes = [tensor.numel() for tensor in packet]
                for tensor, values in zip(packet, flat.split(sizes), strict=True):
                    tensor.copy_(values.view(tensor.shape))


def _packets(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    packet: list[Tensor] = []
    filled = 0
    for tensor in tensors:
        packet.append(tensor)
        filled += tensor.numel() * tensor.element_size()
        if filled >= _CHUNK_BYTES:
            yield packet
            packet, filled = [], 0
    if packet:
        yield packet


# ---- the state of an optimizer -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Layout:
    """In place of a tensor, in what the root tells of its state."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_on_host: bool


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None
) -> None:
    """Give every rank the state and the options of the root's optimizer. A collective.

    Ranks may have any state before, or none. If the root has none, no rank has any afterwards; the
    first step makes it. Parameters and gradients are left alone.

    Args:
        optimizer: of any class but `LBFGS`, also a `DistributedOptimizer`.
        root_rank: whose values count.
        model: of no effect.

    Raises:
        SMDDPUnsupported: an `LBFGS`.
        SMDDPMismatch: on every rank, if the ranks' parameter groups differ in size.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise SMDDPUnsupported(
            "hvd.broadcast_optimizer_state() got an LBFGS, whose state is not one of tensors for"
            " each parameter; expected another optimizer. Write"
            " optimizer.load_state_dict(hvd.broadcast_object(optimizer.state_dict(), root_rank))."
        )
    group = require_group("broadcast_optimizer_state")
    parameters = [p for each in optimizer.param_groups for p in each["params"]]
    sizes = [len(each["params"]) for each in optimizer.param_groups]
    _require_equal([f"parameter groups: {sizes}"], group)
    told = broadcast_object(_told(optimizer, parameters), root_rank)
    is_root = group.rank() == root_rank
    if not is_root:
        _set_options(optimizer, told["options"])
        _set_state(optimizer, parameters, told["state"])
    _broadcast_tensors(_tensors_of(optimizer, parameters, told["state"]), root_rank, group)


def _told(optimizer: torch.optim.Optimizer, parameters: list[Tensor]) -> dict[str, Any]:
    """What the root tells: options, and the state with layouts in the place of tensors."""
    options = [
        {key: value for key, value in each.items() if key != "params"}
        for each in optimizer.param_groups
    ]
    state = {
        index: {key: _layout_of(value) for key, value in optimizer.state[parameter].items()}
        for index, parameter in enumerate(parameters)
        if parameter in optimizer.state
    }
    return {"options": options, "state": state}


def _layout_of(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return _Layout(tuple(value.shape), value.dtype, value.device.type == "cpu")


def _set_options(optimizer: torch.optim.Optimizer, options: list[dict[str, Any]]) -> None:
    for mine, theirs in zip(optimizer.param_groups, options, strict=True):
        mine.update(theirs)


def _set_state(
    optimizer: torch.optim.Optimizer, parameters: list[Tensor], told: dict[int, dict[str, Any]]
) -> None:
    """Make state of the root's layout; what fits stays in its memory."""
    for index, parameter in enumerate(parameters):
        if index not in told:
            optimizer.state.pop(parameter, None)
            continue
        mine = optimizer.state.get(parameter, {})
        optimizer.state[parameter] = {
            key: _made(value, parameter, mine.get(key)) for key, value in told[index].items()
        }


def _made(told: Any, parameter: Tensor, mine: Any) -> Any:
    if not isinstance(told, _Layout):
        return told
    if isinstance(mine, Tensor) and _layout_of(mine) == told:
        return mine
    device = torch.device("cpu") if told.is_on_host else parameter.device
    if told.shape == tuple(parameter.shape):
        return torch.zeros_like(parameter, dtype=told.dtype, device=device)
    return torch.zeros(told.shape, dtype=told.dtype, device=device)


def _tensors_of(
    optimizer: torch.optim.Optimizer, parameters: list[Tensor], told: dict[int, dict[str, Any]]
) -> list[Tensor]:
    return [
        optimizer.state[parameters[index]][key]
        for index, values in told.items()
        for key, value in values.items()
        if isinstance(value, _Layout)
    ]


# ---- objects -----------------------------------------------------------------------------------


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> Any:
    """Give every rank the root's object; returns it. A collective.

    Args:
        obj: what `pickle` takes (and `cloudpickle` if it is installed); the root's counts.
        root_rank: whose.
        name: compared between the ranks.

    Raises:
        SMDDPConfigInvalid: on every rank, if the root's object cannot be pickled.
    """
    caller = "broadcast_object"
    group = require_group(caller)
    common.require_all_ranks(process_set, caller)
    comparison = start_comparison(caller, name)
    is_root = group.rank() == root_rank
    content, problem = pickled(obj, group.rank(), f"hvd.{caller}()") if is_root else (b"", None)
    packed = _as_tensor(content) if is_root else _room(0)
    size = torch.tensor([packed.numel()], dtype=torch.int64, device="cpu")
    broadcast_(size, root_rank)
    if not is_root:
        packed = _room(int(size))
    broadcast_(packed, root_rank)
    if comparison is not None:
        comparison.wait()
    if problem is not None:
        raise problem
    return obj if is_root else unpickled(packed.numpy().tobytes(), f"hvd.{caller}()")


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """The ranks' objects, in order of ranks. A collective.

    Args:
        obj: as for `broadcast_object`.
        name: compared between the ranks.

    Raises:
        SMDDPConfigInvalid: on every rank, if an object cannot be pickled.
    """
    caller = "allgather_object"
    group = require_group(caller)
    content, problem = pickled(obj, group.rank(), f"hvd.{caller}()")
    packed = _as_tensor(content)
    sizes = torch.empty(group.size(), dtype=torch.int64, device="cpu")
    mine = torch.tensor([packed.numel()], dtype=torch.int64, device="cpu")
    group.all_gather_single(sizes, mine).wait()
    gathered = synchronize(allgather_async(packed, name))
    if problem is not None:
        raise problem
    return [
        unpickled(each.numpy().tobytes(), f"hvd.{caller}()")
        for each in gathered.split(sizes.tolist())
    ]


def _as_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _room(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
