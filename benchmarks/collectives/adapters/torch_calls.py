# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The ``torch.distributed`` calls, the same for every backend: only ``backend`` differs."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from cases import Case
from operands import Array, ArrayLike

from adapters.base import Adapter

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class TensorElements:
    """A tensor for NumPy, element by element of its bits, without NumPy ever seeing its memory.

    ``Tensor.numpy()`` would fix the tensor to its place, where a library may want to move it.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
        self.size = tensor.numel()

    def __getitem__(self, index: slice) -> Array:
        """A copy of a slice."""
        return self._tensor[index].clone().numpy()

    def __setitem__(self, index: slice, value: Any) -> None:
        """Write an array, or one number for all."""
        if isinstance(value, int):
            self._tensor[index].fill_(value)
        else:
            self._tensor[index].copy_(torch.from_numpy(value))


class TorchAdapter(Adapter):
    """Measures a ``torch.distributed`` backend on CPU tensors that are used again and again."""

    backend: str

    def start(self) -> str:
        torch.set_num_threads(1)
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        timeout = timedelta(seconds=120)
        dist.init_process_group(self.backend, timeout=timeout, **self._rendezvous())
        return f"torch {torch.__version__}"

    def _rendezvous(self) -> dict[str, Any]:
        """Where the ranks meet, for `init_process_group`; by default the variables say it."""
        return {}

    def stop(self) -> None:
        dist.destroy_process_group()

    def barrier(self) -> None:
        dist.barrier()

    def allocate(self, num_elements: int, dtype: str) -> tuple[Any, ArrayLike]:
        tensor = torch.empty(num_elements, dtype=DTYPES[dtype])
        return tensor, TensorElements(tensor)

    def bind(self, case: Case, source: Any, output: Any) -> Callable[[], object]:
        name, rank = case.collective, self.rank
        if name == "all_reduce":
            return lambda: dist.all_reduce(source)
        if name == "reduce":
            return lambda: dist.reduce(source, 0)
        if name == "broadcast":
            return lambda: dist.broadcast(source, 0)
        if name == "all_gather":
            return lambda: dist.all_gather_single(output, source)
        if name == "reduce_scatter":
            return lambda: dist.reduce_scatter_single(output, source)
        if name == "all_to_all":
            return lambda: dist.all_to_all_single(output, source)
        if name == "gather":
            parts = list(output.chunk(case.ranks)) if rank == 0 else None
            return lambda: dist.gather(source, parts, 0)
        if name == "scatter":
            pieces = list(source.chunk(case.ranks)) if rank == 0 else None
            return lambda: dist.scatter(output, pieces, 0)
        if name == "send_recv":
            return self._bind_ping_pong(source)
        return dist.barrier

    def _bind_ping_pong(self, tensor: Any) -> Callable[[], object]:
        def ping() -> None:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)

        def pong() -> None:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)

        return (ping, pong, lambda: None)[min(self.rank, 2)]
