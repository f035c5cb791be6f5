# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The process group behind backend `smddp`: torch.distributed calls in, engine calls out.

A Python subclass of torch's `ProcessGroup`, so one wheel serves every torch version. torch's Python
functions call its methods directly; torch's C++ code (DDP, functional collectives) reaches those
that torch's trampoline class forwards. What shaped it (zero-copy trials, sections 1 and 2):

- `all_reduce` of a contiguous CPU tensor is the hot path: a few attribute reads, one engine call,
  one shared handle. Everything unusual fails one of its tests and is dealt with elsewhere.
- C++ sees the group's name only through `setGroupName` and its relatives, which must be overridden.
- torch puts our group in the place of its own, for all devices. Devices that belong to another
  backend in the string the user gave (`"cpu:smddp,cuda:nccl"`) are in `_others`, and their tensors
  are handed on.

Options objects (`opts`) are torch's; the short forms of `options.py` are accepted everywhere. The
result of every collective is a work handle; a blocking call returns a completed one.

Thread rule: as torch's, one thread at a time per group. A blocking call releases the GIL.
"""

# torch's stubs of ProcessGroup and Backend give overloads for the short forms, call one of two
# constructors the only one, and leave out the methods of backends that are called here.
# mypy: disable-error-code="override, assignment, no-any-return"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    Backend,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    PrefixStore,
    ProcessGroup,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Store,
)
from torch._C._distributed_c10d import Work as TorchWork

from smdistributed.collectives import _native
from smdistributed.dataparallel import exceptions
from smdistributed.dataparallel.torch import sparse
from smdistributed.dataparallel.torch.calls import ANY_SOURCE, Calls, EngineCall, reduction
from smdistributed.dataparallel.torch.exchange import store_exchange
from smdistributed.dataparallel.torch.options import as_list, as_lists, as_options, seconds
from smdistributed.dataparallel.torch.tensors import DTYPE_CODES, in_place, only_tensor
from smdistributed.dataparallel.torch.work import COMPLETED, AllOf, SmddpWork

__all__ = ["BACKEND_NAME", "ProcessGroupSmddp"]

BACKEND_NAME = "smddp"

_UNSET = timedelta(0)
_ERRORS: Mapping[str, type[Exception]] = {
    "configuration": exceptions.SMDDPConfigInvalid,
    "mismatch": exceptions.SMDDPMismatch,
    "peer_lost": exceptions.SMDDPPeerLost,
    "timeout": exceptions.SMDDPTimeoutError,
    "unsupported": exceptions.SMDDPUnsupported,
    "internal": exceptions.SMDDPError,
}


class ProcessGroupSmddp(ProcessGroup):
    """A group of ranks whose CPU tensors are moved by the collectives engine.

    Args:
        store: shared by the group's ranks and by nobody else (torch passes a prefixed one).
        rank, size: of this process in the group.
        timeout: for the start of the group and for each operation that names none.
        group_name: torch's unique name of the group; the engine's messages carry it.
        devices: types of the devices whose tensors are ours.
        others: backends of the remaining device types, made by the creator.
        global_ranks: the group's ranks in the default group; empty for the default group.
        transport, interfaces: `SMDDP_TRANSPORT` and `SMDDP_INTERFACE`, for the engine.

    Raises: `SMDDPTimeoutError` or `SMDDPPeerLost` if the ranks do not all meet.

    Every operation raises `SMDDPConfigInvalid` or `SMDDPUnsupported` for tensors that cannot work
    (on this rank), and the engine's errors as their `SMDDP...` classes (on every rank).
    """

    # Asked of whatever `_get_backend` returns, which is this object for our devices.
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        group_name: str = "",
        devices: Sequence[str] = ("cpu", "cuda"),
        others: Mapping[str, Backend] | None = None,
        global_ranks: Sequence[int] = (),
        transport: str = "auto",
        interfaces: str = "auto",
    ) -> None:
        # The constructor that takes a store makes an object whose methods C++ cannot override.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store = store
        self._timeout = timeout
        self._limit_s = 0.0  # handed to the engine; 0 is the timeout it was created with
        self._name = group_name
        self._description = "undefined"
        self._devices = tuple(devices)
        self._others: dict[str, Any] = dict(others or {})
        self._global_ranks = list(global_ranks)
        self._transport = transport
        self._interfaces = interfaces
        self._splits = 0
        self._coalescing: list[TorchWork] | None = None
        self._engine: Any = _native.Communicator(
            rank,
            size,
            store_exchange(store, rank, size, timeout.total_seconds()),
            name=group_name,
            timeout_s=timeout.total_seconds(),
            transport=transport,
            interfaces=interfaces,
            errors=_ERRORS,
        )
        self._calls = Calls(self._engine, rank, size)
        self._all_reduce_ptr: Any = self._engine.all_reduce_ptr  # looked up once, for the hot path

    # ---- reductions ------------------------------------------------------------------------

    def allreduce(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, op: Any = None
    ) -> TorchWork:
        """Reduce in place; afterwards the tensor is bitwise identical on all ranks.

        Sparse (COO) tensors can be summed; that form is complete when it returns.
        """
        if type(opts) is not AllreduceOptions or len(tensors) != 1:
            tensors = as_list(tensors)
            opts = as_options(AllreduceOptions, opts, op=op, timeout=timeout)
            only_tensor(tensors, "all_reduce")
        tensor = tensors[0]
        dtype = DTYPE_CODES.get(tensor.dtype)
        code = hash(opts.reduceOp)  # torch's number of the operation; SUM is 0 there and with us
        factor = 1.0
        if (
            code
            or dtype is None
            or not tensor.is_cpu
            or tensor.layout is not torch.strided
            or not tensor.is_contiguous()
        ):
            backend = self._other(tensor)
            if backend is not None:
                return backend.allreduce(tensors, opts)
            if tensor.layout is torch.sparse_coo:
                return self._sparse_all_reduce(tensor, opts)
            in_place(tensor, "all_reduce")
            code, factor = reduction(opts.reduceOp, tensor.dtype, "all_reduce")
        limit = opts.timeout
        limit_s = limit.total_seconds() if limit > _UNSET else self._limit_s
        if opts.asyncOp:
            work = self._all_reduce_ptr(
                tensor.data_ptr(), tensor.numel(), dtype, code, factor, True, limit_s, tensor
            )
            return SmddpWork(work, tensors)
        self._all_reduce_ptr(tensor.data_ptr(), tensor.numel(), dtype, code, factor, False, limit_s)
        return COMPLETED

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> TorchWork:
        """Reduce each tensor in place, as one operation for the caller."""
        opts = as_options(AllreduceCoalescedOptions, opts)
        if tensors and (backend := self._other(tensors[0])) is not None:
            return backend.allreduce_coalesced(tensors, opts)
        op = opts.reduceOp
        calls = [self._calls.all_reduce(t, op, "all_reduce_coalesced") for t in tensors]
        return self._coalesced(calls, opts, tensors)

    def _sparse_all_reduce(self, tensor: Tensor, opts: Any) -> TorchWork:
        sparse.all_reduce(tensor, opts.reduceOp, self._calls, seconds(opts.timeout))
        return SmddpWork(AllOf([]), [tensor]) if opts.asyncOp else COMPLETED

    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> TorchWork:
        """Reduce into the root's tensor; the other ranks' tensors keep their values."""
        tensors = as_list(tensors)
        opts = as_options(ReduceOptions, opts, op=op, root=root, timeout=timeout)
        tensor = only_tensor(tensors, "reduce")
        if (backend := self._other(tensor)) is not None:
            return backend.reduce(tensors, opts)
        return self._run(self._calls.reduce(tensor, opts.reduceOp, opts.rootRank), opts, tensors)

    def reduce_scatter(
        self, outputs: Any, input_lists: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> TorchWork:
        """Reduce the inputs of each index; the one at this rank's index goes to its output."""
        outputs, input_lists = as_list(outputs), as_lists(input_lists)
        opts = as_options(ReduceScatterOptions, opts, timeout=timeout)
        output = only_tensor(outputs, "reduce_scatter")
        if (backend := self._other(output)) is not None:
            return backend.reduce_scatter(outputs, input_lists, opts)
        call = self._calls.reduce_scatter(output, input_lists[0], opts.reduceOp, "reduce_scatter")
        return self._run(call, opts, outputs)

    def reduce_scatter_single(self, output: Tensor, mine: Tensor, opts: Any = None) -> TorchWork:
        """As `reduce_scatter`, with one input that holds equal shares one after the other."""
        opts = as_options(ReduceScatterOptions, opts)
        if (backend := self._other(output)) is not None:
            return backend.reduce_scatter_single(output, mine, opts)
        call = self._calls.reduce_scatter_single(
            output, mine, opts.reduceOp, "reduce_scatter_single"
        )
        return self._run(call, opts, [output])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> TorchWork:
        """`reduce_scatter_single` of several tensors."""
        operation = "reduce_scatter_single_coalesced"
        opts = as_options(ReduceScatterOptions, opts)
        if inputs and (backend := self._other(inputs[0])) is not None:
            return backend.reduce_scatter_single_coalesced(outputs, inputs, opts)
        calls = [
            self._calls.reduce_scatter_single(output, mine, opts.reduceOp, operation)
            for output, mine in zip(outputs, inputs, strict=True)
        ]
        return self._coalesced(calls, opts, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- one to many, many to one, many to many --------------------------------------------

    def broadcast(
        self,
        tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> TorchWork:
        """Copy the root's tensor to every rank, in place."""
        tensors = as_list(tensors)
        opts = as_options(BroadcastOptions, opts, root=root, timeout=timeout)
        tensor = only_tensor(tensors, "broadcast")
        if (backend := self._other(tensor)) is not None:
            return backend.broadcast(tensors, opts)
        return self._run(self._calls.broadcast(tensor, opts.rootRank), opts, tensors)

    def allgather(
        self, output_lists: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> TorchWork:
        """Every rank's tensor into every rank's list; the sizes may differ between ranks."""
        output_lists, inputs = as_lists(output_lists), as_list(inputs)
        opts = as_options(AllgatherOptions, opts, timeout=timeout)
        mine = only_tensor(inputs, "all_gather")
        if (backend := self._other(mine)) is not None:
            return backend.allgather(output_lists, inputs, opts)
        outputs = output_lists[0]
        return self._run(self._calls.all_gather(outputs, mine, "all_gather"), opts, outputs)

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> TorchWork:
        """`all_gather` of several tensors. `output_lists[rank][i]` receives tensor i of `rank`."""
        opts = as_options(AllgatherOptions, opts)
        if inputs and (backend := self._other(inputs[0])) is not None:
            return backend.allgather_coalesced(output_lists, inputs, opts)
        calls = [
            self._calls.all_gather(outputs, mine, "all_gather_coalesced")
            for outputs, mine in zip(zip(*output_lists, strict=True), inputs, strict=True)
        ]
        return self._coalesced(calls, opts, [t for outputs in output_lists for t in outputs])

    def all_gather_single(self, output: Tensor, mine: Tensor, opts: Any = None) -> TorchWork:
        """Every rank's tensor, one after the other, into one output."""
        opts = as_options(AllgatherOptions, opts)
        if (backend := self._other(output)) is not None:
            return backend.all_gather_single(output, mine, opts)
        call = self._calls.all_gather_single(output, mine, "all_gather_single")
        return self._run(call, opts, [output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> TorchWork:
        """`all_gather_single` of several tensors."""
        operation = "all_gather_single_coalesced"
        opts = as_options(AllgatherOptions, opts)
        if inputs and (backend := self._other(inputs[0])) is not None:
            return backend.all_gather_single_coalesced(outputs, inputs, opts)
        calls = [
            self._calls.all_gather_single(output, mine, operation)
            for output, mine in zip(outputs, inputs, strict=True)
        ]
        return self._coalesced(calls, opts, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self,
        output_lists: Any,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> TorchWork:
        """Every rank's tensor into the root's list; the sizes may differ between ranks."""
        output_lists, inputs = as_lists(output_lists), as_list(inputs)
        opts = as_options(GatherOptions, opts, root=root, timeout=timeout)
        mine = only_tensor(inputs, "gather")
        if (backend := self._other(mine)) is not None:
            return backend.gather(output_lists, inputs, opts)
        outputs = output_lists[0] if output_lists else []
        return self._run(self._calls.gather(outputs, mine, opts.rootRank), opts, outputs)

    def scatter(
        self,
        outputs: Any,
        input_lists: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> TorchWork:
        """The root's list, one tensor to each rank; the sizes may differ between ranks."""
        outputs, input_lists = as_list(outputs), as_lists(input_lists)
        opts = as_options(ScatterOptions, opts, root=root, timeout=timeout)
        output = only_tensor(outputs, "scatter")
        if (backend := self._other(output)) is not None:
            return backend.scatter(outputs, input_lists, opts)
        inputs = input_lists[0] if input_lists else []
        return self._run(self._calls.scatter(output, inputs, opts.rootRank), opts, outputs)

    def alltoall(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Tensor i of every rank's inputs to rank i; any sizes that agree pairwise."""
        opts = as_options(AllToAllOptions, opts, timeout=timeout)
        if inputs and (backend := self._other(inputs[0])) is not None:
            return backend.alltoall(outputs, inputs, opts)
        return self._run(self._calls.all_to_all(outputs, inputs), opts, outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        mine: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Shares of dimension 0 of the input, one to each rank; empty splits are even ones."""
        opts = as_options(AllToAllOptions, opts, timeout=timeout)
        if (backend := self._other(output)) is not None:
            return backend.all_to_all_single(
                output, mine, output_split_sizes, input_split_sizes, opts
            )
        call = self._calls.all_to_all_single(output, mine, output_split_sizes, input_split_sizes)
        return self._run(call, opts, [output])

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> TorchWork:
        """Return when every rank has entered. `device_ids` are a hint that CPU ranks ignore."""
        opts = as_options(BarrierOptions, opts, timeout=timeout)
        device = opts.device
        if device is not None and (backend := self._others.get(device.type)) is not None:
            return backend.barrier(opts)
        limit_s = seconds(opts.timeout) or self._limit_s
        if opts.asyncOp:
            return SmddpWork(self._engine.barrier(True, limit_s), [])
        self._engine.barrier(False, limit_s)
        return COMPLETED

    # ---- point to point --------------------------------------------------------------------

    def send(self, tensors: Sequence[Tensor], peer: int, tag: int = 0) -> TorchWork:
        """Start sending to `peer`; complete when the tensor may be used again."""
        tensor = only_tensor(tensors, "send")
        if (backend := self._other(tensor)) is not None:
            return backend.send(tensors, peer, tag)
        return self._start(self._calls.send(tensor, peer, tag), tensors)

    def recv(self, tensors: Sequence[Tensor], peer: int, tag: int = 0) -> TorchWork:
        """Start receiving from `peer`."""
        tensor = only_tensor(tensors, "recv")
        if (backend := self._other(tensor)) is not None:
            return backend.recv(tensors, peer, tag)
        return self._start(self._calls.recv(tensor, peer, tag), tensors)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> TorchWork:
        """Start receiving from whoever sends first; the handle's `source_rank()` says who did."""
        tensor = only_tensor(tensors, "recv")
        if (backend := self._other(tensor)) is not None:
            return backend.recv_anysource(tensors, tag)
        return self._start(self._calls.recv(tensor, ANY_SOURCE, tag), tensors)

    # ---- how calls are carried out ---------------------------------------------------------

    def _other(self, tensor: Tensor) -> Any:
        """The backend that this tensor's device belongs to, if it is not ours."""
        return self._others.get(tensor.device.type) if self._others else None

    def _run(self, call: EngineCall, opts: Any, result: Sequence[Tensor]) -> TorchWork:
        limit_s = seconds(opts.timeout) or self._limit_s
        if opts.asyncOp:
            return SmddpWork(call.start(limit_s), result, call.finish)
        call.run(limit_s)
        return COMPLETED

    def _start(self, call: EngineCall, result: Sequence[Tensor]) -> TorchWork:
        return self._note(SmddpWork(call.start(self._limit_s), result, call.finish))

    def _coalesced(
        self, calls: Sequence[EngineCall], opts: Any, result: Sequence[Tensor]
    ) -> TorchWork:
        """Several calls as one; all were checked before the first of them starts."""
        limit_s = seconds(opts.timeout) or self._limit_s
        if not opts.asyncOp and self._coalescing is None:
            for call in calls:
                call.run(limit_s)
            return COMPLETED
        works = AllOf([call.start(limit_s) for call in calls])
        finishes = [call.finish for call in calls if call.finish is not None]

        def finish() -> None:
            for step in finishes:
                step()

        return self._note(SmddpWork(works, result, finish if finishes else None))

    def _note(self, work: TorchWork) -> TorchWork:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        if (backend := self._others.get(device.type)) is not None:
            backend._start_coalescing()
        else:
            self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> TorchWork:
        if (backend := self._others.get(device.type)) is not None:
            return backend._end_coalescing()
        works, self._coalescing = self._coalescing or [], None
        return works[0] if len(works) == 1 else _TogetherWork(works)

    # ---- what torch asks a group about itself ----------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 -- torch's name
        return BACKEND_NAME

    def name(self) -> str:
        return BACKEND_NAME

    _get_backend_name = name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def get_group_store(self) -> Store:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        ours = [torch.device("cpu")] if "cpu" in self._devices else []
        return ours + [torch.device(device) for device in self._others]

    def _get_backend(self, device: torch.device) -> Any:
        """What does the work for a device: this group itself for ours."""
        if (backend := self._others.get(device.type)) is not None:
            return backend
        if device.type in self._devices:
            return self
        raise RuntimeError(
            f"No backend type associated with device type {device.type}; group '{self._name}' has"
            f" smddp for {', '.join(self._devices)}. Name a backend for it in init_process_group."
        )

    @property
    def options(self) -> Backend.Options:
        options = Backend.Options(BACKEND_NAME, self._timeout)
        options.global_ranks_in_group = self._global_ranks
        options.group_name = self._name
        return options

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the time that later operations may take."""
        self._timeout = timeout
        self._limit_s = timeout.total_seconds()
        for backend in self._others.values():
            backend.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to set: the engine numbers operations from 1 in every communicator."""

    def eager_connect_single_device(self, device: torch.device | None) -> None:
        """Nothing to do: the group was connected when it was made."""

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> ProcessGroup | None:
        """A new group of some of this group's ranks; None on the ranks left out.

        All ranks of this group must call it. Sub-groups drop the devices of other backends.
        """
        self._splits += 1
        ranks = sorted(ranks)
        name = group_name or f"{self._name}:split:{self._splits}:{','.join(map(str, ranks))}"
        if self.rank() not in ranks:
            return None
        group = ProcessGroupSmddp(
            PrefixStore(f"{name}/", self._store),
            ranks.index(self.rank()),
            len(ranks),
            timeout or self._timeout,
            group_name=name,
            devices=self._devices,
            global_ranks=[self._global_ranks[r] if self._global_ranks else r for r in ranks],
            transport=self._transport,
            interfaces=self._interfaces,
        )
        group.setGroupDesc(group_desc or f"{self._description}:split:{self._splits}")
        return group

    # ---- the end ---------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leave the group: says goodbye to the other ranks and releases everything."""
        self._engine.close()
        for backend in self._others.values():
            backend.shutdown()

    def abort(self) -> None:
        """End all pending and later operations of the group, on every rank, with an error."""
        self._engine.abort(f"rank {self.rank()} called abort() on group '{self._name}'")
        for backend in self._others.values():
            backend.abort()


class _TogetherWork(TorchWork):
    """The handle of what was called between `_start_coalescing` and `_end_coalescing`."""

    def __init__(self, works: Sequence[TorchWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait() if timeout is None else work.wait(timeout)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)
