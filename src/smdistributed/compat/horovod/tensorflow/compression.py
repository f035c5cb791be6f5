# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Horovod's names of what makes tensors smaller on the wire.

Source: Horovod's public API; see docs/horovod.md.
"""

from smdistributed.dataparallel.compression import Compression, Compressor
from smdistributed.dataparallel.compression import FP16Compression as FP16Compressor
from smdistributed.dataparallel.compression import NoneCompression as NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
