# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Modules of our own: `smp.nn`.

Source: modelparallel specification, sections 0 and 4.10.
"""

from smdistributed.modelparallel.torch.nn.layer_norm import FusedLayerNorm

__all__ = ["FusedLayerNorm"]
