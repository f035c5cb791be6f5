# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""All collectives over the tensors of one device, whoever carries them out.

`Collectives` knows torch's argument lists: which tensors are checked by which rule, and what the
handle's result is. It leaves three things to a subclass: to run an operation, to start a message,
and to run several operations as one. `DirectCollectives` gives CPU tensors to the engine as they
are; `cuda/staged.py` takes CUDA tensors through host memory.

`opts` are torch's options objects here; the short forms have been dealt with (`process_group.py`).
"""

# The methods are those of the process group, which documents them.
# ruff: noqa: D102

from __future__ import annotations

import abc
import functools
import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work as TorchWork

from smdistributed.dataparallel.torch import sparse
from smdistributed.dataparallel.torch.adoption.observer import Observer
from smdistributed.dataparallel.torch.calls import Calls
from smdistributed.dataparallel.torch.coalescing import Runnable, coalesce
from smdistributed.dataparallel.torch.compilation import keep_from_compiler
from smdistributed.dataparallel.torch.operation import Operation
from smdistributed.dataparallel.torch.options import seconds
from smdistributed.dataparallel.torch.tensors import only_tensor
from smdistributed.dataparallel.torch.work import COMPLETED, AllOf, SmddpWork

__all__ = ["Collectives", "DirectCollectives"]


class Collectives(abc.ABC):
    """The collectives of one group over the tensors of one device type.

    Args:
        calls: checks tensors for this device type.
        timeout_s: for operations whose options name none; 0 is the engine's own.

    Every method raises `SMDDPConfigInvalid` or `SMDDPUnsupported` for tensors that cannot work, and
    the engine's errors; each returns a handle, completed if the options ask for a blocking call.
    """

    def __init__(self, calls: Calls, timeout_s: float = 0.0) -> None:
        self._calls = calls
        self._limit_s = timeout_s
        self._coalescing: list[TorchWork] | None = None

    # ---- how operations are carried out ----------------------------------------------------

    @abc.abstractmethod
    def _run(
        self,
        operations: Sequence[Operation],
        result: Sequence[Tensor],
        timeout_s: float,
        is_async: bool,
    ) -> TorchWork:
        """Carry out operations one after the other; one handle for all of them."""

    @abc.abstractmethod
    def _start(self, operation: Operation, result: Sequence[Tensor]) -> TorchWork:
        """Start a message."""

    @abc.abstractmethod
    def _all_reduce_sparse(self, tensor: Tensor, opts: Any) -> None:
        """Sum a sparse (COO) tensor; complete on return."""

    def _call(self, operation: Operation, opts: Any, result: Sequence[Tensor]) -> TorchWork:
        timeout_s = opts.timeout.total_seconds()
        if timeout_s <= 0:
            timeout_s = self._limit_s
        return self._run((operation,), result, timeout_s, opts.asyncOp)

    def _timeout_s(self, opts: Any) -> float:
        return seconds(opts.timeout) or self._limit_s

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the time that later operations may take."""
        self._limit_s = timeout.total_seconds()

    # ---- reductions ------------------------------------------------------------------------

    def allreduce(self, tensors: Sequence[Tensor], opts: Any) -> TorchWork:
        tensor = only_tensor(tensors, "all_reduce")
        if tensor.layout is torch.sparse_coo:
            self._all_reduce_sparse(tensor, opts)
            return self._run([], [tensor], 0.0, opts.asyncOp)
        call = self._calls.all_reduce(tensor, opts.reduceOp, "all_reduce")
        return self._call(call, opts, tensors)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any) -> TorchWork:
        op = opts.reduceOp
        calls = [self._calls.all_reduce(t, op, "all_reduce_coalesced") for t in tensors]
        return self._coalesced(calls, opts, tensors)

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> TorchWork:
        tensor = only_tensor(tensors, "reduce")
        call = self._calls.reduce(tensor, opts.reduceOp, opts.rootRank)
        return self._call(call, opts, tensors)

    def reduce_scatter(
        self, outputs: Sequence[Tensor], input_lists: Sequence[Sequence[Tensor]], opts: Any
    ) -> TorchWork:
        output = only_tensor(outputs, "reduce_scatter")
        call = self._calls.reduce_scatter(output, input_lists[0], opts.reduceOp, "reduce_scatter")
        return self._call(call, opts, outputs)

    def reduce_scatter_single(self, output: Tensor, mine: Tensor, opts: Any) -> TorchWork:
        operation = "reduce_scatter_single"
        call = self._calls.reduce_scatter_single(output, mine, opts.reduceOp, operation)
        return self._call(call, opts, [output])

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any
    ) -> TorchWork:
        operation = "reduce_scatter_single_coalesced"
        calls = [
            self._calls.reduce_scatter_single(output, mine, opts.reduceOp, operation)
            for output, mine in zip(outputs, inputs, strict=True)
        ]
        return self._coalesced(calls, opts, outputs)

    # ---- one to many, many to one, many to many --------------------------------------------

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> TorchWork:
        tensor = only_tensor(tensors, "broadcast")
        return self._call(self._calls.broadcast(tensor, opts.rootRank), opts, tensors)

    def allgather(
        self, output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any
    ) -> TorchWork:
        mine = only_tensor(inputs, "all_gather")
        outputs = output_lists[0]
        return self._call(self._calls.all_gather(outputs, mine, "all_gather"), opts, outputs)

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any
    ) -> TorchWork:
        calls = [
            self._calls.all_gather(outputs, mine, "all_gather_coalesced")
            for outputs, mine in zip(zip(*output_lists, strict=True), inputs, strict=True)
        ]
        return self._coalesced(calls, opts, [t for outputs in output_lists for t in outputs])

    def all_gather_single(self, output: Tensor, mine: Tensor, opts: Any) -> TorchWork:
        call = self._calls.all_gather_single(output, mine, "all_gather_single")
        return self._call(call, opts, [output])

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any
    ) -> TorchWork:
        calls = [
            self._calls.all_gather_single(output, mine, "all_gather_single_coalesced")
            for output, mine in zip(outputs, inputs, strict=True)
        ]
        return self._coalesced(calls, opts, outputs)

    def gather(
        self, output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any
    ) -> TorchWork:
        mine = only_tensor(inputs, "gather")
        outputs = output_lists[0] if output_lists else []
        return self._call(self._calls.gather(outputs, mine, opts.rootRank), opts, outputs)

    def scatter(
        self, outputs: Sequence[Tensor], input_lists: Sequence[Sequence[Tensor]], opts: Any
    ) -> TorchWork:
        output = only_tensor(outputs, "scatter")
        inputs = input_lists[0] if input_lists else []
        return self._call(self._calls.scatter(output, inputs, opts.rootRank), opts, outputs)

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any) -> TorchWork:
        return self._call(self._calls.all_to_all(outputs, inputs), opts, outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        mine: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any,
    ) -> TorchWork:
        call = self._calls.all_to_all_single(output, mine, output_split_sizes, input_split_sizes)
        return self._call(call, opts, [output])

    # ---- point to point --------------------------------------------------------------------

    def send(self, tensors: Sequence[Tensor], peer: int, tag: int) -> TorchWork:
        call = self._calls.send(only_tensor(tensors, "send"), peer, tag)
        return self._note(self._start(call, tensors))

    def recv(self, tensors: Sequence[Tensor], peer: int, tag: int) -> TorchWork:
        call = self._calls.recv(only_tensor(tensors, "recv"), peer, tag)
        return self._note(self._start(call, tensors))

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> TorchWork:
        call = self._calls.recv_anysource(only_tensor(tensors, "recv"), tag)
        return self._note(self._start(call, tensors))

    # ---- several calls, one handle ---------------------------------------------------------

    def _coalesced(
        self, calls: Sequence[Operation], opts: Any, result: Sequence[Tensor]
    ) -> TorchWork:
        """Several calls as one; all were checked before the first of them starts."""
        is_async = opts.asyncOp or self._coalescing is not None  # whoever ends it waits
        return self._note(self._run(calls, result, self._timeout_s(opts), is_async))

    def _note(self, work: TorchWork) -> TorchWork:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> TorchWork:
        works, self._coalescing = self._coalescing or [], None
        return works[0] if len(works) == 1 else _TogetherWork(works)


class DirectCollectives(Collectives):
    """CPU tensors: the engine works on the caller's memory.

    Args:
        engine: the group's `_native.Communicator`.
        rank, size: of this process in the group.
        observer: sees tensors that recur.
    """

    def __init__(self, engine: Any, rank: int, size: int, observer: Observer) -> None:
        super().__init__(Calls(rank, size))
        self._engine = engine
        self._observer = observer
        self._observe_from = observer.from_elements

    def _run(
        self,
        operations: Sequence[Operation],
        result: Sequence[Tensor],
        timeout_s: float,
        is_async: bool,
    ) -> TorchWork:
        for operation in operations:
            # The engine reads inputs where they lie if they are shared. Of several inputs it would
            # have to find each in its place in one buffer. Of outputs only a broadcast makes use.
            recurring = operation.inputs
            if not recurring and operation.kind == "broadcast":
                recurring = operation.outputs
            if len(recurring) == 1:
                tensor = recurring[0]
                if tensor.numel() >= self._observe_from:
                    self._observer.see(tensor, operation.kind)
        if len(operations) == 1 and not is_async:
            operations[0].run(self._engine, timeout_s)
            return COMPLETED
        runnable = operations if len(operations) == 1 else coalesce(operations)
        if not is_async:
            for each in runnable:
                each.run(self._engine, timeout_s)
            return COMPLETED
        if len(runnable) == 1:
            return self._work(runnable[0], result, timeout_s)
        works = AllOf([each.start(self._engine, timeout_s) for each in runnable])
        copying = [each.copy_back for each in runnable if each.copies]

        def finish() -> None:
            for copy_back in copying:
                copy_back()

        return SmddpWork(works, result, finish if copying else None)

    def _start(self, operation: Operation, result: Sequence[Tensor]) -> TorchWork:
        return self._work(operation, result, self._limit_s)

    def _work(self, operation: Runnable, result: Sequence[Tensor], timeout_s: float) -> TorchWork:
        work = operation.start(self._engine, timeout_s)
        return SmddpWork(work, result, operation.copy_back if operation.copies else None)

    def _all_reduce_sparse(self, tensor: Tensor, opts: Any) -> None:
        sparse.all_reduce(tensor, opts.reduceOp, self._calls, self._engine, self._timeout_s(opts))

    def barrier(self, opts: Any) -> TorchWork:
        """Return when every rank has entered."""
        limit_s = self._timeout_s(opts)
        if opts.asyncOp:
            return SmddpWork(self._engine.barrier(True, limit_s), [])
        self._engine.barrier(False, limit_s)
        return COMPLETED

    def compare(self, purpose: str) -> TorchWork:
        """See `ProcessGroupSmddp.compare`: an all-gather of nothing, with a label."""
        size = self._calls.size
        work = self._engine.all_gather_ptr(
            0, [0] * size, [0] * size, 0, True, self._limit_s, None, _label(purpose), purpose
        )
        return SmddpWork(work, [])


@functools.lru_cache(maxsize=4096)
def _label(purpose: str) -> int:
    """A digest that is not 0, which stands for no label."""
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little") | 1


@keep_from_compiler
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

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception())), None)

    def result(self) -> list[Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        several = torch.futures.collect_all([work.get_future() for work in self._works])
        return several.then(lambda _: self.result())
