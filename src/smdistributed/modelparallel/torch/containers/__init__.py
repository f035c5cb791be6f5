# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Lists, dicts, dataclasses and other objects that hold tensors: taken apart and rebuilt.

The rules are those of `smdistributed.modelparallel.containers`; what PyTorch adds to them is said
here. Importing them from here makes sure that it has been.
"""

from __future__ import annotations

import torch
from torch import nn

from smdistributed.modelparallel.containers.structures import (
    LEAF,
    Structure,
    flatten,
    is_container,
    is_mutable,
    map_leaves,
    never_open,
    open_results_of,
    slot_names,
    stands_twice,
)

__all__ = [
    "LEAF",
    "Structure",
    "flatten",
    "is_container",
    "is_mutable",
    "map_leaves",
    "slot_names",
    "stands_twice",
]

never_open(torch.Tensor, nn.Module, torch.Size)
open_results_of("torch.return_types")
