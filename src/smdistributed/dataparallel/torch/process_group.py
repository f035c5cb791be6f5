# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The process group behind backend `smddp`: torch.distributed calls in, engine calls out.

A Python subclass of torch's `ProcessGroup`, so one wheel serves every torch version. torch's Python
functions call its methods directly; torch's C++ code (DDP, functional collectives) reaches those
that torch's trampoline class forwards. What shaped it:

- `all_reduce` of a contiguous CPU tensor is the hot path: a few attribute reads, one engine call,
  one shared handle. Everything unusual fails one of its tests and is dealt with elsewhere.
- torch puts our group in the place of its own, for all devices. So a call is handed on by the
  device of its tensors: CPU tensors of ours to `DirectCollectives`, CUDA tensors to whatever this
  group chose for them (`cuda/`), the devices of other backends in the string the user gave
  (`"cpu:smddp,cuda:nccl"`) to those.

Options objects (`opts`) are torch's; the short forms of `options.py` are accepted everywhere. The
result of every collective is a work handle; a blocking call returns a completed one.

Thread rule: as torch's, one thread at a time per group. A blocking call releases the GIL.
"""

# torch's stubs of ProcessGroup give overloads for the short forms, and leave out the methods of
# backends that are called here.
# mypy: disable-error-code="override, assignment, no-any-return"

from __future__ import annotations

import dataclasses
import os
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

from smdistributed._common.discovery import host_identity
from smdistributed._common.engine_options import EngineOptions
from smdistributed._common.settings import ZeroCopy
from smdistributed.collectives import _native
from smdistributed.collectives.network import tell_of_interfaces
from smdistributed.collectives.trust import tell_of_weak_trust
from smdistributed.dataparallel.engine_errors import ENGINE_ERRORS
from smdistributed.dataparallel.torch.adoption.observer import make_observer
from smdistributed.dataparallel.torch.collectives import DirectCollectives
from smdistributed.dataparallel.torch.compilation import keep_from_compiler
from smdistributed.dataparallel.torch.cuda.create import CudaPath, CudaRequest
from smdistributed.dataparallel.torch.exchange import (
    NotedExchange,
    pack,
    store_exchange,
    unpack,
)
from smdistributed.dataparallel.torch.options import as_list, as_lists, as_options
from smdistributed.dataparallel.torch.process_group_identity import BACKEND_NAME, GroupIdentity
from smdistributed.dataparallel.torch.shared_memory import SharedMemory
from smdistributed.dataparallel.torch.tensors import (
    DTYPE_CODES,
    LOWEST_ADDRESS,
    STRIDED,
    address,
    only_tensor,
    reduction,
)
from smdistributed.dataparallel.torch.work import COMPLETED, SmddpWork

__all__ = ["BACKEND_NAME", "ProcessGroupSmddp"]

_UNSET = timedelta(0)
# Of the hot path. Complex ones may be conjugated views, and are looked at elsewhere.
_DIRECT_DTYPES = {dtype: code for dtype, code in DTYPE_CODES.items() if not dtype.is_complex}


@keep_from_compiler
class ProcessGroupSmddp(GroupIdentity):
    """A group of ranks whose CPU tensors are moved by the collectives engine.

    Args:
        store: shared by the group's ranks and by nobody else (torch passes a prefixed one).
        rank, size: of this process in the group.
        timeout: for the start of the group and for each operation that names none.
        group_name: torch's unique name of the group; the engine's messages carry it.
        devices: types of the devices whose tensors are ours.
        others: process groups for the remaining device types, made by the creator.
        global_ranks: the group's ranks in the default group; empty for the default group.
        engine_options: how the engine behaves; `timeout` replaces theirs.
        cuda: what is known about CUDA tensors; used if "cuda" is among `devices`.
        zero_copy: `SMDDP_ZERO_COPY`; which tensors may lie in memory that the ranks share. For
            `RECURRING` make a `MovingProcessGroup`.

    Attributes:
        shared_memory: gives tensors in memory that the ranks share.

    Raises:
        SMDDPTimeoutError, SMDDPPeerLost: the ranks do not all meet.
        SMDDPConfigInvalid: a path for CUDA tensors was forced that cannot work.

    Every operation raises `SMDDPConfigInvalid` or `SMDDPUnsupported` for tensors that cannot work
    (on this rank), and the engine's errors as their `SMDDP...` classes (on every rank).
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        engine_options: EngineOptions,
        group_name: str = "",
        devices: Sequence[str] = ("cpu", "cuda"),
        others: Mapping[str, Any] | None = None,
        global_ranks: Sequence[int] = (),
        cuda: CudaRequest | None = None,
        zero_copy: ZeroCopy = ZeroCopy.OWN,
    ) -> None:
        super().__init__(
            store, rank, size, timeout, group_name, devices, others or {}, global_ranks
        )
        self._engine_options = engine_options
        self._cuda_request = cuda or CudaRequest()
        self._splits = 0
        host = host_identity(os.environ).encode()
        report = self._cuda_request.report() if "cuda" in self._devices else b""
        exchange = NotedExchange(
            store_exchange(store, rank, size, timeout.total_seconds()), pack([host, report])
        )
        self._engine = self._communicator(exchange, group_name)
        hosts, reports = zip(*(unpack(note) for note in exchange.notes), strict=True)
        self._ranks_of_this_host = [peer for peer, other in enumerate(hosts) if other == host]
        tell_of_interfaces(self._engine)
        tell_of_weak_trust(self._engine, self._engine_options.token)
        self._zero_copy = zero_copy
        self.shared_memory = SharedMemory(self._engine, zero_copy)
        self._observer = make_observer(self._engine, zero_copy)
        self._direct = DirectCollectives(self._engine, rank, size, self._observer)
        # What handles the tensors of a device type, where that is not `_direct`.
        self._handlers: dict[str, Any] = dict(self._others)
        self._cuda: CudaPath | None = None
        if "cuda" in self._devices:
            self._cuda = CudaPath(self, self._cuda_request, reports, self._communicator)
            self._handlers.update(self._cuda.handlers)
            self._working_devices += self._cuda.working_devices
        # Looked up once, for the hot path. CPU tensors of another backend must fail a test there.
        self._all_reduce_ptr: Any = self._engine.all_reduce_ptr
        self._direct_dtypes = {} if "cpu" in self._others else _DIRECT_DTYPES
        self._observe_from = self._observer.from_elements
        self._limit_s = 0.0  # handed to the engine; 0 is the timeout it was created with

    @property
    def ranks_of_this_host(self) -> Sequence[int]:
        """The group's ranks on this process's host, ascending; this one is among them."""
        return self._ranks_of_this_host

    def _communicator(self, exchange: Any, name: str) -> Any:
        """An engine communicator of this group's ranks, with this group's options."""
        timeout_s = self._timeout.total_seconds()
        return _native.Communicator(
            self.rank(),
            self.size(),
            exchange,
            dataclasses.replace(self._engine_options, timeout_s=timeout_s),
            name=name,
            errors=ENGINE_ERRORS,
        )

    def _by(self, tensor: Tensor) -> Any:
        """Whoever handles tensors of this one's device."""
        if not self._handlers:
            return self._direct
        return self._handlers.get(tensor.device.type, self._direct)

    def _by_first(self, tensors: Sequence[Tensor]) -> Any:
        return self._by(tensors[0]) if self._handlers and tensors else self._direct

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
        dtype = self._direct_dtypes.get(tensor.dtype)
        if (
            dtype is None
            or not tensor.is_cpu
            or tensor.layout is not STRIDED
            or not tensor.is_contiguous()
            or tensor.is_neg()
        ):
            return self._by(tensor).allreduce(tensors, opts)
        count = tensor.numel()
        if count >= self._observe_from:
            self._observer.see(tensor, "all_reduce")
        code = hash(opts.reduceOp)  # torch's number of the operation; SUM is 0 there and with us
        factor = 1.0
        if code:
            code, factor = reduction(opts.reduceOp, tensor.dtype, "all_reduce")
        memory = tensor.untyped_storage()  # `tensor.data = other` must not give it back meanwhile
        begin = tensor.data_ptr()
        if begin < LOWEST_ADDRESS:
            begin = address(tensor)
        limit = opts.timeout
        limit_s = limit.total_seconds() if limit > _UNSET else self._limit_s
        if opts.asyncOp:
            work = self._all_reduce_ptr(
                begin, count, dtype, code, factor, True, limit_s, (tensor, memory)
            )
            return SmddpWork(work, tensors)
        self._all_reduce_ptr(begin, count, dtype, code, factor, False, limit_s)
        return COMPLETED

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> TorchWork:
        """Reduce each tensor in place, as one operation for the caller."""
        if type(opts) is not AllreduceCoalescedOptions:
            opts = as_options(AllreduceCoalescedOptions, opts)
        return self._by_first(tensors).allreduce_coalesced(tensors, opts)

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
        if type(opts) is not ReduceOptions:
            opts = as_options(ReduceOptions, opts, op=op, root=root, timeout=timeout)
        return self._by_first(tensors).reduce(tensors, opts)

    def reduce_scatter(
        self, outputs: Any, input_lists: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> TorchWork:
        """Reduce the inputs of each index; the one at this rank's index goes to its output."""
        outputs, input_lists = as_list(outputs), as_lists(input_lists)
        if type(opts) is not ReduceScatterOptions:
            opts = as_options(ReduceScatterOptions, opts, timeout=timeout)
        return self._by_first(outputs).reduce_scatter(outputs, input_lists, opts)

    def reduce_scatter_single(self, output: Tensor, mine: Tensor, opts: Any = None) -> TorchWork:
        """As `reduce_scatter`, with one input that holds equal shares one after the other."""
        if type(opts) is not ReduceScatterOptions:
            opts = as_options(ReduceScatterOptions, opts)
        return self._by(output).reduce_scatter_single(output, mine, opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> TorchWork:
        """`reduce_scatter_single` of several tensors."""
        if type(opts) is not ReduceScatterOptions:
            opts = as_options(ReduceScatterOptions, opts)
        return self._by_first(inputs).reduce_scatter_single_coalesced(outputs, inputs, opts)

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
        if type(opts) is not BroadcastOptions or type(tensors) is not list:
            tensors = as_list(tensors)
            opts = as_options(BroadcastOptions, opts, root=root, timeout=timeout)
        return self._by_first(tensors).broadcast(tensors, opts)

    def allgather(
        self, output_lists: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> TorchWork:
        """Every rank's tensor into every rank's list; the sizes may differ between ranks."""
        output_lists = as_lists(output_lists)
        if type(opts) is not AllgatherOptions or type(inputs) is not list:
            inputs = as_list(inputs)
            opts = as_options(AllgatherOptions, opts, timeout=timeout)
        return self._by_first(inputs).allgather(output_lists, inputs, opts)

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> TorchWork:
        """`all_gather` of several tensors. `output_lists[rank][i]` receives tensor i of `rank`."""
        if type(opts) is not AllgatherOptions:
            opts = as_options(AllgatherOptions, opts)
        return self._by_first(inputs).allgather_coalesced(output_lists, inputs, opts)

    def all_gather_single(self, output: Tensor, mine: Tensor, opts: Any = None) -> TorchWork:
        """Every rank's tensor, one after the other, into one output."""
        if type(opts) is not AllgatherOptions:
            opts = as_options(AllgatherOptions, opts)
        return self._by(output).all_gather_single(output, mine, opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> TorchWork:
        """`all_gather_single` of several tensors."""
        if type(opts) is not AllgatherOptions:
            opts = as_options(AllgatherOptions, opts)
        return self._by_first(inputs).all_gather_single_coalesced(outputs, inputs, opts)

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
        if type(opts) is not GatherOptions:
            opts = as_options(GatherOptions, opts, root=root, timeout=timeout)
        return self._by_first(inputs).gather(output_lists, inputs, opts)

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
        if type(opts) is not ScatterOptions:
            opts = as_options(ScatterOptions, opts, root=root, timeout=timeout)
        return self._by_first(outputs).scatter(outputs, input_lists, opts)

    def alltoall(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Tensor i of every rank's inputs to rank i; any sizes that agree pairwise."""
        if type(opts) is not AllToAllOptions:
            opts = as_options(AllToAllOptions, opts, timeout=timeout)
        return self._by_first(inputs).alltoall(outputs, inputs, opts)

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
        if type(opts) is not AllToAllOptions:
            opts = as_options(AllToAllOptions, opts, timeout=timeout)
        return self._by(output).all_to_all_single(
            output, mine, output_split_sizes, input_split_sizes, opts
        )

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> TorchWork:
        """Return when every rank has entered.

        `device_ids` are a hint: what this rank has queued on that CUDA device is finished first.
        The ranks meet in the engine in any case, so a hint on some ranks only does no harm.
        """
        if type(opts) is not BarrierOptions:
            opts = as_options(BarrierOptions, opts, timeout=timeout)
        device = opts.device
        if device is not None and (other := self._others.get(device.type)) is not None:
            return other.barrier(opts)
        if device is not None and self._cuda is not None:
            self._cuda.finish_queued(device)
        return self._direct.barrier(opts)

    def compare(self, purpose: str) -> TorchWork:
        """Start to compare in words what the ranks are about to do; no data moves.

        Engines match calls by their order: two calls of one shape that a rank makes in another
        order would be mixed up. What is compared beforehand is not. Costs one small operation.

        Returns:
            A handle. Waiting for it raises `SMDDPMismatch` if the purposes differ, which ends the
            group, so that what follows fails as well.
        """
        return self._direct.compare(purpose)

    # ---- point to point --------------------------------------------------------------------

    def send(self, tensors: Sequence[Tensor], peer: int, tag: int = 0) -> TorchWork:
        """Start sending to `peer`; complete when the tensor may be used again."""
        return self._by_first(tensors).send(tensors, peer, tag)

    def recv(self, tensors: Sequence[Tensor], peer: int, tag: int = 0) -> TorchWork:
        """Start receiving from `peer`."""
        return self._by_first(tensors).recv(tensors, peer, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> TorchWork:
        """Start receiving from whoever sends first; the handle's `source_rank()` says who did."""
        return self._by_first(tensors).recv_anysource(tensors, tag)

    def _start_coalescing(self, device: torch.device) -> None:
        self._handlers.get(device.type, self._direct)._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> TorchWork:
        return self._handlers.get(device.type, self._direct)._end_coalescing(device)

    # ---- memory that the ranks of a host share ---------------------------------------------

    def allocate_shared(self, nbytes: int) -> Tensor | None:
        """Memory in which collectives work without a copy between the ranks of this host.

        Not a collective: a rank may call it alone. The memory lives as long as the tensor or any
        view of its storage, also beyond the group.

        Returns:
            uint8 of shape `[nbytes]`, on the CPU, 128-byte aligned, zeros; or None where there is
            none to be had (one rank, several hosts, TCP, no room left, `SMDDP_ZERO_COPY=0`, 0
            bytes): use ordinary memory then. `memory.empty_shared` does.
        """
        return self.shared_memory.allocate(nbytes)

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether `allocate_tensor` is worth asking; FSDP2 does.

        See `FSDPModule.set_allocate_memory_from_process_group_for_comm`.
        """
        return device.type == "cpu" and self.shared_memory.is_available

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor of shape `[size]` that collectives reach without a copy if there is room.

        Its memory goes back to the group with its last view, and is used for later ones.
        """
        if device.type != "cpu":
            return torch.empty(size, dtype=dtype, device=device)
        return self.shared_memory.empty((size,), dtype)

    # ---- settings, sub-groups, the end -----------------------------------------------------

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the time that later operations may take."""
        self._timeout = timeout
        self._limit_s = timeout.total_seconds()
        self._direct.set_timeout(timeout)
        for handler in self._handlers.values():
            handler.set_timeout(timeout)

    _set_default_timeout = set_timeout

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
        group = type(self)(
            PrefixStore(f"{name}/", self._store),
            ranks.index(self.rank()),
            len(ranks),
            timeout or self._timeout,
            group_name=name,
            devices=self._devices,
            global_ranks=[self._global_ranks[r] if self._global_ranks else r for r in ranks],
            engine_options=self._engine_options,
            cuda=self._cuda_request,
            zero_copy=self._zero_copy,
        )
        group.setGroupDesc(group_desc or f"{self._description}:split:{self._splits}")
        return group

    def shutdown(self) -> None:
        """Leave the group: says goodbye to the other ranks and releases everything."""
        self._engine.close()
        for handler in self._handlers.values():
            handler.shutdown()

    def abort(self, reason: str = "") -> None:
        """End all pending and later operations of the group, on every rank, with an error.

        Args:
            reason: what the error says; by default, which rank called.
        """
        self._engine.abort(reason or f"rank {self.rank()} called abort() on group '{self._name}'")
        for handler in self._handlers.values():
            handler.abort()
