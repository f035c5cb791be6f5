# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The smddp engine called directly on NumPy buffers: what a program without a framework gets."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from cases import REDUCING, Case
from operands import NUMPY_DTYPES, ArrayLike

from adapters.base import Adapter, Unsupported
from smdistributed import collectives


class SmddpDirectAdapter(Adapter):
    """Measures ``smdistributed.collectives`` without torch in the process."""

    def start(self) -> str:
        self._communicator = collectives.init()
        self.rank = self._communicator.rank
        self.world_size = self._communicator.world_size
        try:
            return f"smdistributed {version('smdistributed-open')}"
        except PackageNotFoundError:
            return "smdistributed (not installed as a package)"

    def stop(self) -> None:
        close = getattr(self._communicator, "close", None)
        if close is not None:
            close()

    def barrier(self) -> None:
        self._communicator.barrier()

    def bind(self, case: Case, source: Any, output: Any) -> Callable[[], object]:
        if case.dtype == "bf16" and case.collective in REDUCING:
            raise Unsupported("NumPy has no bfloat16 to hand to the engine; see smddp-torch")
        communicator, name, rank = self._communicator, case.collective, self.rank
        total = collectives.ReduceOp.SUM
        if name == "all_reduce":
            return lambda: communicator.all_reduce(source, op=total)
        if name == "reduce":
            return lambda: communicator.reduce(source, root=0)
        if name == "broadcast":
            return lambda: communicator.broadcast(source, root=0)
        if name == "all_gather":
            return lambda: communicator.all_gather(output, source)
        if name == "reduce_scatter":
            return lambda: communicator.reduce_scatter(output, source)
        if name == "all_to_all":
            return lambda: communicator.all_to_all(output, source)
        if name == "gather":
            gathered = output if rank == 0 else None
            return lambda: communicator.gather(gathered, source, root=0)
        if name == "scatter":
            scattered = source if rank == 0 else None
            return lambda: communicator.scatter(output, scattered, root=0)
        if name == "send_recv":
            return self._bind_ping_pong(source)
        barrier: Callable[[], object] = communicator.barrier
        return barrier

    def _bind_ping_pong(self, array: Any) -> Callable[[], object]:
        communicator = self._communicator

        def ping() -> None:
            communicator.send(array, 1)
            communicator.recv(array, 1)

        def pong() -> None:
            communicator.recv(array, 0)
            communicator.send(array, 0)

        return (ping, pong, lambda: None)[min(self.rank, 2)]


class SmddpSharedAdapter(SmddpDirectAdapter):
    """The same on memory that the engine has allocated, where collectives need no copy."""

    def allocate(self, num_elements: int, dtype: str) -> tuple[Any, ArrayLike]:
        if num_elements == 0:
            return super().allocate(num_elements, dtype)
        numpy_dtype = NUMPY_DTYPES[dtype]
        memory = self._communicator.allocate_shared(num_elements * np.dtype(numpy_dtype).itemsize)
        if memory is None:
            raise Unsupported("there is no memory to share, as with one rank or across hosts")
        array = memory.view(numpy_dtype)
        return array, array
