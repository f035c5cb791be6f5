# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Import this module for its effect: afterwards `Compression.fp16` takes torch tensors.

Source: dataparallel specification, section 6.4.
"""

from __future__ import annotations

import torch

from smdistributed.dataparallel.compression import cast, wide_float_dtype

__all__: list[str] = []

_WIDE_FLOATS = frozenset((torch.float32, torch.float64, torch.bfloat16))


@wide_float_dtype.register(torch.Tensor)
def _(tensor: torch.Tensor) -> torch.dtype | None:
    return tensor.dtype if tensor.dtype in _WIDE_FLOATS else None


@cast.register(torch.Tensor)
def _(tensor: torch.Tensor, dtype: torch.dtype | str) -> torch.Tensor:
    return tensor.to(torch.float16 if dtype == "float16" else dtype)
