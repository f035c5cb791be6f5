# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""smddp through ``torch.distributed``: what a training script gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from operands import NUMPY_DTYPES, ArrayLike

from adapters.torch_calls import DTYPES, TorchAdapter


class SmddpTorchAdapter(TorchAdapter):
    """Ordinary tensors that are used again and again, as gradients are."""

    backend = "smddp"

    def start(self) -> str:
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  (registers the backend)

        return super().start()


class SmddpTorchForeignAdapter(SmddpTorchAdapter):
    """Tensors on NumPy's memory, which cannot be moved into shared memory."""

    def allocate(self, num_elements: int, dtype: str) -> tuple[Any, ArrayLike]:
        array = np.empty(num_elements, NUMPY_DTYPES[dtype])
        return torch.from_numpy(array).view(DTYPES[dtype]), array
