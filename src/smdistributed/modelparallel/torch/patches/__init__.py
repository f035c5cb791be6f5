# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Functions of torch, by the names under which scripts import them from here.

Source: modelparallel specification, section 0.
"""

from smdistributed.modelparallel.torch.patches import checkpoint

__all__ = ["checkpoint"]
