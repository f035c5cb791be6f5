# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The module that scripts written before 1.4 import as `dist`. Deprecated since 1.4.0.

    import smdistributed.dataparallel.torch.distributed as dist
    dist.init_process_group()

It is a thin facade over torch's default group: a script may call these functions and those of
`torch.distributed` side by side, on the same group. What is a rank here is a process.

Every function but `is_available`, `is_initialized`, `init_process_group` and
`destroy_process_group` raises `SMDDPNotInitialized` (a RuntimeError) before the group exists, and
the errors of the backend afterwards: `SMDDPPeerLost`, `SMDDPTimeoutError`, `SMDDPMismatch` on all
ranks, `SMDDPConfigInvalid` and `SMDDPUnsupported` for arguments that cannot work.

Source: dataparallel specification, sections 5 and 5.1.
"""

# torch's collectives have no types of their own.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed import ProcessGroup, Work

from smdistributed._common.discovery import discover
from smdistributed._common.log import get_logger
from smdistributed.dataparallel import torch as package
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported
from smdistributed.dataparallel.torch.default_group import (
    World,
    group,
    require_initialized,
    resolve_group,
)
from smdistributed.dataparallel.torch.deprecation import DEPRECATION_TEXT, warn_legacy
from smdistributed.dataparallel.torch.process_group import BACKEND_NAME
from smdistributed.dataparallel.torch.registration import register

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "is_available",
    "is_initialized",
]

register()

Group = ProcessGroup | World | None
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# torch's arguments that keep their meaning; all others are accepted and ignored.
_HONOURED = ("init_method", "timeout", "world_size", "rank", "store")
_UNSET = (None, -1)  # torch's own ways to say nothing
_BACKENDS = (None, BACKEND_NAME, "nccl", "gloo")

# The default group that `init_process_group` made or adopted; tells a second call from a first.
_known_group: weakref.ref[ProcessGroup] | None = None


class ReduceOp:
    """How `all_reduce` combines; the values are torch's, so either spelling works in both places.

    `AVERAGE` is the sum divided by the number of ranks, for floating point and complex tensors. It
    is computed without leaving the range of 16-bit types on the way.
    """

    AVERAGE = dist.ReduceOp.AVG
    SUM = dist.ReduceOp.SUM
    MIN = dist.ReduceOp.MIN
    MAX = dist.ReduceOp.MAX


def is_available() -> bool:
    """Whether this process was started as one of a distributed job, by whatever launcher.

    Usable before initialisation, to decide about it.
    """
    return discover().source != "none"


def init_process_group(*args: Any, **kwargs: Any) -> None:
    """Make torch's default group, with backend `smddp`. Blocks until all ranks have met.

    Takes the arguments of `torch.distributed.init_process_group`. `timeout`, `rank`, `world_size`,
    `store` and `init_method` have effect. The backend may be None, "smddp", "nccl" or "gloo", and
    is `smddp` in any case; all other arguments are accepted and ignored.

    A default group that exists already is adopted as it is. A second call does nothing and warns.
    In a process that no launcher started, and without arguments, the group has this one rank.
    Nothing here needs CUDA; choosing a GPU is the caller's.

    Raises:
        TypeError: an argument is given by position and by name, or there are too many.
        SMDDPConfigInvalid: another backend, or a variable with a value that cannot work.
        SMDDPTimeoutError, SMDDPPeerLost: the ranks did not all meet; torch's `DistStoreError` or
            `DistNetworkError` where they did not even reach rank 0's address.
    """
    warn_legacy(DEPRECATION_TEXT)
    options = _honoured(args, kwargs)
    if dist.is_initialized():
        _adopt()
        return
    if discover().source == "none" and options.keys() <= {"timeout"}:
        options |= {"store": HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(backend=BACKEND_NAME, **options)
    _remember()


def is_initialized() -> bool:
    """Whether torch's default group exists, whoever made it."""
    return dist.is_initialized()


def destroy_process_group(group: Group = None) -> None:
    """Leave a group, by default all of them; without any this does nothing."""
    if dist.is_initialized():
        dist.destroy_process_group(resolve_group(group))


def get_world_size(group: Group = group.WORLD) -> int:
    """Number of processes in the group."""
    require_initialized("get_world_size()")
    return dist.get_world_size(resolve_group(group))


def get_rank(group: Group = group.WORLD) -> int:
    """Rank of this process in the group: 0 to `get_world_size() - 1`, across all hosts."""
    require_initialized("get_rank()")
    return dist.get_rank(resolve_group(group))


def get_local_rank() -> int:
    """Rank of this process among those on its host; the GPU it should use."""
    return package.get_local_rank()


def all_reduce(
    tensor: Tensor,
    op: Any = ReduceOp.SUM,
    group: Group = group.WORLD,
    async_op: bool = False,
) -> Work | None:
    """Combine a tensor over all ranks, in place; the bits are then the same everywhere.

    Args:
        tensor: any tensor, with equal shape and dtype on all ranks.
        op: of `ReduceOp`; None is SUM.
        group: who takes part.
        async_op: return at once, with a handle to wait for.

    Returns:
        The handle if `async_op`, else None.

    Raises:
        SMDDPUnsupported: AVERAGE of an integer or bool tensor.
        SMDDPConfigInvalid: `op` is no reduce operation.
    """
    require_initialized("all_reduce()")
    operation = _checked_op(op, tensor)
    return dist.all_reduce(tensor, operation, resolve_group(group), async_op)


def broadcast(
    tensor: Tensor, src: int = 0, group: Group = group.WORLD, async_op: bool = False
) -> Work | None:
    """Copy the tensor of rank `src` into every rank's tensor, which has as many elements.

    Returns:
        A handle if `async_op`, else None.
    """
    require_initialized("broadcast()")
    return dist.broadcast(tensor, src, resolve_group(group), async_op)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: Group = group.WORLD, async_op: bool = False
) -> Work | None:
    """Copy every rank's tensor into each rank's list, which holds one tensor for each rank.

    Returns:
        A handle if `async_op`, else None.
    """
    require_initialized("all_gather()")
    return dist.all_gather(tensor_list, tensor, resolve_group(group), async_op)


def _also_spelled(
    **spellings: str,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Lets callers use a second name for a keyword, without changing the documented signature."""

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        @functools.wraps(function)
        def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            renamed: dict[str, Any] = {}
            for name, value in kwargs.items():
                documented = spellings.get(name, name)
                if documented in renamed:
                    raise TypeError(
                        f"{function.__name__}() got one argument under two names, {documented!r}"
                        " and its other spelling; expected one of them. Leave one out."
                    )
                renamed[documented] = value
            return function(*args, **renamed)

        return call

    return decorate


@_also_spelled(output="output_t", input="input_t")
def all_to_all_single(
    output_t: Tensor,
    input_t: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = group.WORLD,
    async_op: bool = False,
) -> Work | None:
    """Send a share of dimension 0 of the input to each rank, and receive one from each.

    Args:
        output_t: receives the shares, by rank; torch's spelling `output` is accepted too.
        input_t: holds the shares, by rank; torch's spelling `input` is accepted too.
        output_split_sizes, input_split_sizes: rows per rank; None is equal shares.
        group: who takes part.
        async_op: return at once, with a handle to wait for.

    Returns:
        The handle if `async_op`, else None.
    """
    require_initialized("all_to_all_single()")
    return dist.all_to_all_single(
        output_t, input_t, output_split_sizes, input_split_sizes, resolve_group(group), async_op
    )


def barrier(group: Group = group.WORLD, async_op: bool = False) -> Work | None:
    """Return when every rank has entered; returns a handle if `async_op`."""
    require_initialized("barrier()")
    return dist.barrier(resolve_group(group), async_op)


def _honoured(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments that have effect, by torch's names; checks the backend."""
    names = list(inspect.signature(dist.init_process_group).parameters)
    if len(args) > len(names):
        raise TypeError(
            f"init_process_group() got {len(args)} positional arguments; expected at most"
            f" {len(names)}, torch's: {', '.join(names)}. Pass what you need by name."
        )
    positional = dict(zip(names, args, strict=False))
    for name, value in positional.items():
        if name in kwargs:
            raise TypeError(
                f"init_process_group() got {name} twice, {value!r} by position and"
                f" {kwargs[name]!r} by name; expected one of them. Leave one out."
            )
    given = positional | kwargs
    backend = given.get("backend")
    if (backend.lower() if isinstance(backend, str) else backend) not in _BACKENDS:
        raise SMDDPConfigInvalid(
            f"backend={backend!r} is unknown to the legacy module; expected one of"
            f" {', '.join(map(repr, _BACKENDS))}, and the group uses {BACKEND_NAME!r} in any case."
            " For other backends call torch.distributed.init_process_group."
        )
    return {
        name: given[name]
        for name in _HONOURED
        if name in given and not any(given[name] is unset for unset in _UNSET)
    }


def _adopt() -> None:
    """Use the default group that exists; warn about what the caller may not expect."""
    current = dist.distributed_c10d._get_default_group()
    if _known_group is not None and _known_group() is current:
        warnings.warn(
            "init_process_group() was called again; the process group exists and is left as it is."
            " Call it once, or ask is_initialized() before.",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    _remember()
    backend = dist.get_backend()
    if backend != BACKEND_NAME:
        get_logger().warning(
            "init_process_group() found torch's default group with backend %r and uses it as it is;"
            " expected 'smddp'. Call it before anything else makes the group, or drop that call.",
            backend,
        )


def _remember() -> None:
    global _known_group
    _known_group = weakref.ref(dist.distributed_c10d._get_default_group())


def _checked_op(op: Any, tensor: Tensor) -> Any:
    """The torch operation that an `op` argument means.

    Raises: `SMDDPConfigInvalid`, `SMDDPUnsupported` as `all_reduce`.
    """
    if op is None:
        return ReduceOp.SUM
    if not isinstance(op, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
        raise SMDDPConfigInvalid(
            f"op={op!r} is no reduce operation; expected ReduceOp.AVERAGE, SUM, MIN or MAX, or None"
            " for SUM. Pass one of these."
        )
    is_average = hash(op) == hash(ReduceOp.AVERAGE)  # the one comparison that knows both spellings
    if is_average and not (tensor.is_floating_point() or tensor.is_complex()):
        raise SMDDPUnsupported(
            f"all_reduce with ReduceOp.AVERAGE got a tensor of {tensor.dtype}, whose average is no"
            " value of that type in general; expected a floating point or complex tensor. Use"
            " ReduceOp.SUM and divide, or convert the tensor first."
        )
    return op
