# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The all_reduce through shared memory that DeepSpeed compiles for inference on CPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from cases import Case
from operands import ArrayLike

from adapters.base import Adapter, Unsupported
from adapters.torch_calls import DTYPES, TensorElements

# What its function `vector_kernel_level` answers, and what its Python code asks for before a call.
_LEVEL_OF = {"f32": 1, "f16": 2, "bf16": 2}
_LEVEL_NAMES = {1: "AVX2", 2: "AVX-512BW"}


class DeepSpeedShmAdapter(Adapter):
    """Measures ``torch.ops.deepspeed.inference_all_reduce_``; it is compiled when first used."""

    def start(self) -> str:
        torch.set_num_threads(1)
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        os.environ["LOCAL_SIZE"] = os.environ["WORLD_SIZE"]  # by this it knows that all are here
        os.environ["DS_ACCELERATOR"] = "cpu"
        from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

        module = ShareMemCommBuilder().load(verbose=False)
        module.initialize(self.world_size, self.rank)
        self._level = int(module.vector_kernel_level())
        self._reduce = torch.ops.deepspeed.inference_all_reduce_
        self._token = torch.zeros(16)
        return f"DeepSpeed {version('deepspeed')}"

    def stop(self) -> None:
        """Its shared memory is unlinked when the process ends."""

    def barrier(self) -> None:
        self._reduce(self._token)  # it has no barrier; its smallest sum is one

    def allocate(self, num_elements: int, dtype: str) -> tuple[Any, ArrayLike]:
        tensor = torch.empty(num_elements, dtype=DTYPES[dtype])
        return tensor, TensorElements(tensor)

    def bind(self, case: Case, source: Any, output: Any) -> Callable[[], object]:
        if case.collective != "all_reduce":
            raise Unsupported("it has all_reduce only")
        needed = _LEVEL_OF[case.dtype]
        if self._level < needed:
            raise Unsupported(
                f"its kernels for {case.dtype} need {_LEVEL_NAMES[needed]}, which this CPU has not"
            )
        reduce = self._reduce
        return lambda: reduce(source)
