# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A published path; the code is in `pipeline.step`. The attribute `smp.step` is the decorator."""

from smdistributed.modelparallel.torch.pipeline.step import step

__all__ = ["step"]
