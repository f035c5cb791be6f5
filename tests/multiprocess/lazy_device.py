# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""An accelerator made of CPU memory whose streams are as late as they may be.

What is queued on a stream happens only when somebody waits for it: at the latest moment that the
protocols of `smdistributed.dataparallel.torch.cuda.device` allow. A copy that nobody waited for
before its result was used, or before its source was overwritten, then gives a wrong result every
time, not once in a thousand runs on a busy GPU.

"Device" tensors are CPU tensors, which lets the tests of CPU collectives run on them unchanged:
`staged_smddp` takes the place of `torch_ranks.smddp` and sends all CPU tensors through the staged
path. Work on the caller's current stream happens at once, as CPU work does, unless it is given to
`LazyDevice.kernel`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_ranks
from torch import Tensor

CHUNK_BYTES = 1024


class LazyEvent:
    def __init__(self, stream: LazyStream) -> None:
        self._stream = stream
        self._position = stream.queued

    def synchronize(self) -> None:
        self._stream.run_until(self._position)

    def query(self) -> bool:
        return self._stream.done >= self._position


class LazyStream:
    _lock = threading.RLock()  # one for all: running one stream may run another

    def __init__(self) -> None:
        self.queue: dict[int, Callable[[], Any]] = {}
        self.queued = 0
        self.done = 0

    def add(self, action: Callable[[], Any]) -> None:
        with self._lock:
            self.queue[self.queued] = action
            self.queued += 1

    def run_until(self, position: int) -> None:
        with self._lock:
            while self.done < position:
                self.queue.pop(self.done)()
                self.done += 1

    def wait(self, event: LazyEvent) -> None:
        self.add(event.synchronize)

    def copy(self, target: Tensor, source: Tensor) -> None:
        assert target.shape == source.shape

        def action() -> None:
            with torch.no_grad():
                target.copy_(source)

        self.add(action)

    def mark(self) -> LazyEvent:
        return LazyEvent(self)


class LazyDevice:
    """Counts what is pinned and registered, so that tests can see that it was given back."""

    def __init__(self) -> None:
        self.future_devices: list[torch.device] = []
        self.current = LazyStream()
        self.streams: list[LazyStream] = []
        self.pinned_bytes: list[int] = []
        self.registered: set[int] = set()

    def kernel(self, action: Callable[[], Any]) -> None:
        """Queue work on the caller's current stream."""
        self.current.add(action)

    def stream(self) -> LazyStream:
        self.streams.append(LazyStream())
        return self.streams[-1]

    def mark(self) -> LazyEvent:
        return self.current.mark()

    def wait(self, event: LazyEvent) -> None:
        self.current.wait(event)
        self.current.mark().synchronize()  # the caller's other work happens at once

    def synchronize(self) -> None:
        for stream in (self.current, *self.streams):
            stream.mark().synchronize()

    def pinned(self, nbytes: int) -> Tensor:
        self.pinned_bytes.append(nbytes)
        return torch.full((nbytes,), 0xA5, dtype=torch.uint8)

    def register(self, memory: Tensor) -> bool:
        self.registered.add(memory.data_ptr())
        return True

    def unregister(self, memory: Tensor) -> None:
        self.registered.remove(memory.data_ptr())


def stage(group: Any, chunk_bytes: int = CHUNK_BYTES) -> LazyDevice:
    """Send the CPU tensors of a group through the staged path; all its ranks must do so."""
    from torch._C._distributed_c10d import PrefixStore

    from smdistributed.dataparallel.torch.cuda.staged import StagedCollectives
    from smdistributed.dataparallel.torch.exchange import store_exchange

    device = LazyDevice()
    store = PrefixStore("lazy/", group.get_group_store())
    exchange = store_exchange(store, group.rank(), group.size(), 30.0)
    engine = group._communicator(exchange, f"{group.getGroupName()}:lazy")
    staged = StagedCollectives(
        engine, group.rank(), group.size(), "cpu", lambda _: device, chunk_bytes
    )
    group._handlers["cpu"] = staged
    group._direct_dtypes = {}  # nothing takes the hot path
    group.lazy_device = device
    return device


@contextlib.contextmanager
def staged_smddp(backend: str = "smddp", **options: Any) -> Iterator[None]:
    """As `torch_ranks.smddp`; the tensors of every group that is made inside are staged."""
    from smdistributed.dataparallel.torch import group_creation

    class Staged(group_creation.ProcessGroupSmddp):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            stage(self)

    original = group_creation.ProcessGroupSmddp
    group_creation.ProcessGroupSmddp = Staged  # type: ignore[misc]
    try:
        with torch_ranks.smddp(backend, **options):
            yield
    finally:
        group_creation.ProcessGroupSmddp = original  # type: ignore[misc]
