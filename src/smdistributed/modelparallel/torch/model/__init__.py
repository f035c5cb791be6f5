# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.DistributedModel`: the user's module, with its parts on several ranks.

Source: modelparallel specification, section 0 (the path is published).
"""

from smdistributed.modelparallel.torch.model.distributed_model import DistributedModel

__all__ = ["DistributedModel"]
