# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`Compression.none` and `Compression.fp16`; scripts may derive from `Compressor`.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

from smdistributed.dataparallel.compression import (
    Compression,
    Compressor,
    FP16Compression,
    NoneCompression,
)
from smdistributed.dataparallel.torch import casts  # noqa: F401 -- fp16 takes torch tensors

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]

NoneCompressor = NoneCompression
FP16Compressor = FP16Compression
