# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A published path; the code is in `job.state`."""

from smdistributed.modelparallel.torch.job.state import state

__all__ = ["state"]
