# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""smddp through ``torch.distributed``: what a training script gets."""

from __future__ import annotations

from typing import Any

import torch
from operands import ArrayLike

from adapters.torch_calls import DTYPES, TensorElements, TorchAdapter


class SmddpTorchPlainAdapter(TorchAdapter):
    """Ordinary tensors, which the library copies through staging buffers."""

    backend = "smddp"

    def start(self) -> str:
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  (registers the backend)

        return super().start()


class SmddpTorchAdapter(SmddpTorchPlainAdapter):
    """Tensors of ``empty_shared``, which lie where all ranks reach them, as gradient buckets do."""

    def allocate(self, num_elements: int, dtype: str) -> tuple[Any, ArrayLike]:
        from smdistributed.dataparallel.torch import empty_shared

        tensor: torch.Tensor = empty_shared(num_elements, dtype=DTYPES[dtype])
        return tensor, TensorElements(tensor)
