# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives over CUDA tensors by way of host memory, reduced there by the engine.

Where NCCL cannot be used: ranks that share a GPU, a torch without NCCL. It is also how the original
library worked, which copied its fusion buffers to the host and summed them in CPU servers.

The group has a communicator of its own for this. Collectives run in the order of submission on one
thread (a *lane*), which waits for the other ranks; CPU collectives of the same group must not, and
would get between them in an order that differs from rank to rank.

Messages have a second lane, for a send and the receive it waits for must not queue behind each
other: it copies, starts sends, and never waits for another rank.

    send   lane: copy to the host, wait for it, start the engine's send; the handle is complete
           when that is
    recv   caller: start the engine's receive. When it is complete, lane: copy to the device

Streams: work starts after what the caller's current stream held at the call; `wait` on the handle
(and a blocking call, and the handle's future) makes the current stream wait for the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work as TorchWork

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPError
from smdistributed.dataparallel.torch import background, sparse
from smdistributed.dataparallel.torch.calls import Calls
from smdistributed.dataparallel.torch.collectives import Collectives
from smdistributed.dataparallel.torch.cuda.chunks import Layout, pieces
from smdistributed.dataparallel.torch.cuda.device import Device, Event, Stream
from smdistributed.dataparallel.torch.cuda.lane import Lane
from smdistributed.dataparallel.torch.cuda.pending import Pending, StagedWork
from smdistributed.dataparallel.torch.cuda.pipeline import CHUNK_BYTES, Pipeline
from smdistributed.dataparallel.torch.operation import Operation
from smdistributed.dataparallel.torch.work import COMPLETED

__all__ = ["StagedCollectives"]


class StagedCollectives(Collectives):
    """All collectives of one group over tensors that the engine cannot reach.

    Args:
        engine: a `_native.Communicator` for nothing else; closed with this object.
        rank, size: of this process in the group.
        device_type: of the tensors.
        device_of: the device interface for a torch device.
        chunk_bytes: host memory per piece; the same on all ranks.
    """

    def __init__(
        self,
        engine: Any,
        rank: int,
        size: int,
        device_type: str,
        device_of: Callable[[torch.device], Device],
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        super().__init__(Calls(rank, size, device_type))
        self._engine = engine
        self._rank = rank
        self._size = size
        self._chunk_bytes = chunk_bytes
        self._device_of = device_of
        self._sites: dict[torch.device, _Site] = {}
        # The thread that uses the slots gives them back; it must not hold this object.
        self._lane = Lane(f"smddp-staged-{engine.name}", functools.partial(_release, self._sites))
        self._messages = Lane(f"smddp-messages-{engine.name}")

    def _site(self, tensors: Sequence[Tensor]) -> _Site:
        devices = {tensor.device for tensor in tensors}
        if len(devices) != 1:
            raise SMDDPConfigInvalid(
                f"one call got tensors on {', '.join(sorted(map(str, devices)))}; expected all of"
                " them on one device. Move them there first."
            )
        device = devices.pop()
        if device not in self._sites:
            ours = self._device_of(device)
            self._sites[device] = _Site(
                ours, Pipeline(ours, self._engine, self._size, self._chunk_bytes)
            )
        return self._sites[device]

    # ---- collectives -----------------------------------------------------------------------

    def _run(
        self,
        operations: Sequence[Operation],
        result: Sequence[Tensor],
        timeout_s: float,
        is_async: bool,
    ) -> TorchWork:
        tensors = [t for call in operations for t in (*call.inputs, *call.outputs)] or result
        if not tensors:
            return COMPLETED
        site = self._site(tensors)
        name = operations[0].kind if operations else "all_reduce"
        pending = Pending(site.device, name)
        after = site.device.mark()

        def job() -> None:
            ready: Event | None = None
            try:
                for operation in operations:
                    ready = site.pipeline.run(operation, after, timeout_s) or ready
            except BaseException as error:  # for whoever waits; a lane has nobody to tell
                pending.fail(error)
            else:
                pending.complete(ready)

        if not self._lane.submit(job):
            raise self._closed(name)
        if is_async:
            return StagedWork(pending, result, site.device)
        pending.wait()
        return COMPLETED

    def _all_reduce_sparse(self, tensor: Tensor, opts: Any) -> None:
        self._lane.drain()  # the engine's operations come in one order on all ranks
        on_host = tensor.cpu()
        sparse.all_reduce(
            on_host,
            opts.reduceOp,
            Calls(self._rank, self._size),
            self._engine,
            self._timeout_s(opts),
        )
        with torch.no_grad():
            tensor.copy_(on_host)

    # ---- messages --------------------------------------------------------------------------

    def _start(self, operation: Operation, result: Sequence[Tensor]) -> TorchWork:
        site = self._site(result)
        pending = Pending(site.device, operation.kind)
        (piece,) = pieces(operation, self._size, self._chunk_bytes)
        layout = Layout(piece)
        on_host = layout.on_host(site.device.pinned(layout.size_bytes))
        after = site.device.mark()
        if operation.kind == "send":
            self._send(site, piece, on_host, after, pending)
        else:
            self._receive(site, piece, on_host, after, pending)
        return StagedWork(pending, result, site.device)

    def _send(
        self, site: _Site, piece: Operation, on_host: Operation, after: Event, pending: Pending
    ) -> None:
        timeout_s = self._limit_s

        def sent(work: Any) -> None:
            if (error := work.exception()) is not None:
                pending.fail(error)
            else:
                pending.complete(None)

        def job() -> None:
            try:
                site.messages.wait(after)
                site.messages.copy(on_host.inputs[0], piece.inputs[0])
                site.messages.mark().synchronize()
                on_host.start(self._engine, timeout_s).add_done_callback(sent)
            except BaseException as error:  # for whoever waits
                pending.fail(error)

        if not self._messages.submit(job):
            raise self._closed("send")

    def _receive(
        self, site: _Site, piece: Operation, on_host: Operation, after: Event, pending: Pending
    ) -> None:
        def received(work: Any) -> None:
            if (error := work.exception()) is not None:
                pending.fail(error)
            elif not self._messages.submit(lambda: copy_in(work.source)):
                pending.fail(self._closed("recv"))

        def copy_in(source: int) -> None:
            try:
                site.messages.wait(after)
                site.messages.copy(piece.outputs[0], on_host.outputs[0])
                pending.complete(site.messages.mark(), source)
            except BaseException as error:  # for whoever waits
                pending.fail(error)

        on_host.start(self._engine, self._limit_s).add_done_callback(received)

    # ---- waiting, and the end --------------------------------------------------------------

    def drain(self) -> None:
        """Wait until the collectives that were submitted have ended, well or not."""
        self._lane.drain()

    def shutdown(self) -> None:
        """Leave the group and give back threads and pinned memory. Idempotent.

        As with CPU tensors, operations that nobody has waited for may fail, and unawaited sends
        are let out first.
        """
        self._messages.drain()
        self._engine.close()
        self._close_lanes()

    def abort(self) -> None:
        """End pending and later operations on every rank with an error; gives memory back."""
        self._engine.abort(f"rank {self._rank} called abort() on '{self._engine.name}'")
        self._close_lanes()

    def _close_lanes(self) -> None:
        background.close(self._messages, self._lane)

    def __del__(self) -> None:
        # A group that was dropped without being destroyed; its threads hold no reference to it.
        # They are not joined: at interpreter exit they are frozen already.
        self._messages.stop()
        self._lane.stop()

    def _closed(self, name: str) -> SMDDPError:
        return SMDDPError(
            f"{name} on CUDA tensors of '{self._engine.name}': this rank has left the group or"
            " aborted it; expected operations only before that. Make a new group."
        )


class _Site:
    """What one device needs to take part: its pipeline, and a stream for messages."""

    def __init__(self, device: Device, pipeline: Pipeline) -> None:
        self.device = device
        self.pipeline = pipeline
        self.messages: Stream = device.stream()


def _release(sites: dict[torch.device, _Site]) -> None:
    for site in sites.values():
        site.pipeline.release()
    sites.clear()
