# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What Horovod's names for PyTorch and for TensorFlow share. Loads no framework.

The markers of reductions, `op=` beside the older `average=`, process sets (there is one, of all
ranks), which libraries Horovod was built with (none), and names that exist only to say what to
write instead of them.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any, NoReturn, TypeVar

from smdistributed.dataparallel import exceptions, profiler

__all__ = [
    "ELASTIC_INSTEAD",
    "ELASTIC_WHY",
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "NotInitialized",
    "Op",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "named_as_documented",
    "nccl_built",
    "not_initialized",
    "refused",
    "refused_class",
    "remove_process_set",
    "require_all_ranks",
    "require_all_ranks_in_init",
    "require_host",
    "require_neutral",
    "resolve",
    "rocm_built",
    "start_timeline",
]

_Error = TypeVar("_Error", bound=Exception)

# Collectives that fail raise this library's errors; `except hvd.HorovodInternalError` meets them.
HorovodInternalError = exceptions.SMDDPError


def named_as_documented(cls: type[_Error]) -> type[_Error]:
    """A documented error that is one of Python's too, as Horovod raises it, under its own name.

    Args:
        cls: derived from the documented error first. Copies, and what another process gets of one,
            are the documented error alone.
    """
    documented = cls.__bases__[0]

    def reduce(error: Exception) -> Any:
        return documented, error.args

    cls.__name__ = cls.__qualname__ = documented.__name__
    cls.__module__ = documented.__module__
    cls.__reduce__ = reduce  # type: ignore[method-assign, assignment]
    return cls


@named_as_documented
class NotInitialized(exceptions.SMDDPNotInitialized, ValueError):
    """A function that needs `init()` was called before it. Horovod raises a ValueError there."""


def not_initialized(caller: str) -> NotInitialized:
    """The error of `hvd.<caller>()` before `hvd.init()`."""
    return NotInitialized(
        f"hvd.{caller}() was called before hvd.init(), and needs the ranks to have met. Call"
        " hvd.init() first."
    )


class Op(enum.IntEnum):
    """How a reduction combines what the ranks bring; the numbers are Horovod's."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average = Op.Average
Sum = Op.Sum
Adasum = Op.Adasum
Min = Op.Min
Max = Op.Max
Product = Op.Product

_REFUSED_OPS = {
    Op.Adasum: "this library has no adaptive summation. Write op=hvd.Average, and scale the"
    " learning rate by hvd.size() instead.",
    Op.Product: "it is not among the operations that this call computes. Gather the ranks' values"
    " with hvd.allgather() and multiply them instead.",
}


def resolve(average: bool | None, op: Any, caller: str, allowed: Collection[Op] = tuple(Op)) -> Op:
    """The operation that `average=` and `op=` name; neither of them is `Average`.

    Args:
        average: Horovod's older argument: True is `Average`, False is `Sum`.
        op: one of `Average, Sum, Min, Max, Product`.
        caller: who was called, without `hvd.` and without brackets.
        allowed: what the caller can compute. `Adasum` is never allowed.

    Raises:
        SMDDPConfigInvalid: (a ValueError) both are given, or `op` is no operation, or the
            caller's result has no meaning for it.
        SMDDPUnsupported: `op` is `Adasum`, or a `Product` that the caller does not compute.
    """
    if op is None:
        return Op.Average if average is None or average else Op.Sum
    if average is not None:
        raise exceptions.SMDDPConfigInvalid(
            f"hvd.{caller}() got average={average!r} and op={_shown(op)}; expected one of them."
            " Leave average out."
        )
    if isinstance(op, Op):
        if op in allowed and op is not Op.Adasum:
            return op
        if op in _REFUSED_OPS:
            raise exceptions.SMDDPUnsupported(
                f"hvd.{caller}() got op={_shown(op)}: {_REFUSED_OPS[op]}"
            )
    names = ", ".join(_shown(each) for each in allowed if each is not Op.Adasum)
    raise exceptions.SMDDPConfigInvalid(
        f"hvd.{caller}() got op={_shown(op)}; expected one of {names}, or None for hvd.Average."
        " Pass one of these."
    )


def _shown(op: Any) -> str:
    return f"hvd.{op.name}" if isinstance(op, Op) else repr(op)


class ProcessSet:
    """Ranks that run collectives together. There is one, `global_process_set`: all ranks.

    Its `process_set_id` is 0 and its `mpi_comm` None, as in Horovod. Another one cannot be made.

    Raises:
        SMDDPUnsupported: always, if called by the user.
    """

    process_set_id = 0
    mpi_comm = None

    def __init__(self, ranks_or_comm: Any = None, /) -> None:
        _refuse_process_sets("ProcessSet")

    @classmethod
    def of_all(cls, rank: Callable[[], int], size: Callable[[], int]) -> ProcessSet:
        """The set of all ranks, for a front end whose `hvd.rank` and `hvd.size` these are."""
        everyone = cls.__new__(cls)
        everyone._rank, everyone._size = rank, size
        return everyone

    _rank: Callable[[], int]
    _size: Callable[[], int]

    @property
    def ranks(self) -> list[int]:
        """All ranks. Raises `SMDDPNotInitialized` before `init()`."""
        return list(range(self._size()))

    def size(self) -> int:
        """Number of all ranks. Raises `SMDDPNotInitialized` before `init()`."""
        return self._size()

    def rank(self) -> int:
        """Rank of this process. Raises `SMDDPNotInitialized` before `init()`."""
        return self._rank()

    def included(self) -> bool:
        """Whether this process is in the set, which it always is."""
        return True

    def __str__(self) -> str:
        return "ProcessSet(process_set_id=0, of all ranks)"


def _refuse_process_sets(name: str, *_: Any, **__: Any) -> NoReturn:
    raise exceptions.SMDDPUnsupported(
        f"hvd.{name}() makes or removes a process set; the only one here is"
        " hvd.global_process_set, of all ranks. For collectives among some of the ranks use the"
        " framework's own: a group of torch.distributed.new_group(), or the group= argument of"
        " smdistributed.dataparallel.tensorflow."
    )


def add_process_set(process_set: Any) -> NoReturn:
    """Raises `SMDDPUnsupported`: there is one process set, of all ranks."""
    _refuse_process_sets("add_process_set")


def remove_process_set(process_set: Any) -> NoReturn:
    """Raises `SMDDPUnsupported`: there is one process set, of all ranks."""
    _refuse_process_sets("remove_process_set")


def require_all_ranks(process_set: Any, caller: str) -> None:
    """Raises `SMDDPUnsupported` unless a `process_set` argument means all ranks."""
    if process_set is None or isinstance(process_set, ProcessSet):
        return
    raise exceptions.SMDDPUnsupported(
        f"hvd.{caller}() got process_set={process_set!r}; expected hvd.global_process_set, the"
        " only process set here. Leave the argument out."
    )


def require_host(caller: str, **devices: Any) -> None:
    """Raises `SMDDPUnsupported` if an argument names a device to communicate on, but a CPU."""
    for name, given in devices.items():
        if given and "cpu" not in str(given).lower():
            raise exceptions.SMDDPUnsupported(
                f"hvd.{caller}() got {name}={given!r}: tensors travel through the memory of the"
                " host; expected '' or a CPU, as '/cpu:0'. Leave it out."
            )


def require_all_ranks_in_init(comm: Any, process_sets: Any, instead: str) -> None:
    """Raises `SMDDPUnsupported` unless the arguments of `init()` mean all ranks.

    Args:
        instead: a sentence with its stop: how the front end runs collectives among some ranks.
    """
    why = "the ranks are those that the launcher started"
    require_neutral("init", "comm", comm, (None, []), why, "Leave it out.")
    require_neutral("init", "process_sets", process_sets, (None, []), why, instead)


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool) -> None:
    """What `hvd.start_timeline()` does once there is a job."""
    why = "this library has no background cycles to mark"
    require_neutral("start_timeline", "mark_cycles", mark_cycles, (False,), why, "Leave it out.")
    profiler.start_profiler(file_path)


def require_neutral(
    caller: str, name: str, given: Any, neutral: Iterable[Any], why: str, instead: str
) -> None:
    """Raises `SMDDPUnsupported` unless an argument has one of the values that change nothing.

    Args:
        caller: who was called, without `hvd.` and without brackets.
        neutral: the values that are accepted; the first one is the default.
        why: a clause without a stop: why other values are not there.
        instead: a sentence with its stop: what to write instead.
    """
    accepted = list(neutral)
    if any(given is each or (type(given) is type(each) and given == each) for each in accepted):
        return
    expected = " or ".join(repr(each) for each in accepted)
    raise exceptions.SMDDPUnsupported(
        f"hvd.{caller}() got {name}={given!r}: {why}; expected {expected}. {instead}"
    )


# Of the names below `elastic`.
ELASTIC_WHY = "ranks do not come and go while a job runs"
ELASTIC_INSTEAD = (
    "Save a checkpoint now and then, and load the last one where training begins, so that the job"
    " can be started again with other ranks."
)


def refused(name: str, why: str, instead: str) -> Callable[..., NoReturn]:
    """A function of this name that exists only to raise `SMDDPUnsupported`.

    Args:
        name: as the user writes it, without `hvd.` and without brackets.
        why: a clause without a stop: why it is not there.
        instead: a sentence with its stop: what to write instead.
    """

    def function(*_: Any, **__: Any) -> NoReturn:
        raise exceptions.SMDDPUnsupported(_refusal(name, why, instead))

    function.__name__ = function.__qualname__ = name.rpartition(".")[2]
    function.__doc__ = f"Raises `SMDDPUnsupported`: {why}. {instead}"
    return function


def refused_class(name: str, why: str, instead: str, base: type = object) -> type:
    """As `refused`, a class that cannot be constructed; `isinstance` and subclasses work."""

    def construct(cls: type, *_: Any, **__: Any) -> NoReturn:
        raise exceptions.SMDDPUnsupported(_refusal(name, why, instead))

    documented = f"Raises `SMDDPUnsupported` when constructed: {why}. {instead}"
    return type(name.rpartition(".")[2], (base,), {"__new__": construct, "__doc__": documented})


def _refusal(name: str, why: str, instead: str) -> str:
    return f"hvd.{name} is not there: {why}. {instead}"


def _not_built(name: str, answer: Any) -> Callable[[], Any]:
    def function() -> Any:
        return answer

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"{answer!r}: this library brings its own collectives, and none of Horovod's libraries."
    )
    return function


mpi_threads_supported = _not_built("mpi_threads_supported", False)
mpi_enabled = _not_built("mpi_enabled", False)
mpi_built = _not_built("mpi_built", False)
gloo_enabled = _not_built("gloo_enabled", False)
gloo_built = _not_built("gloo_built", False)
nccl_built = _not_built("nccl_built", 0)
ddl_built = _not_built("ddl_built", False)
ccl_built = _not_built("ccl_built", False)
cuda_built = _not_built("cuda_built", False)
rocm_built = _not_built("rocm_built", False)
