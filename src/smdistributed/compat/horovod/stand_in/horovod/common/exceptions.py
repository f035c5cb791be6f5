# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.common.exceptions`: what scripts catch."""

from smdistributed.compat.horovod.common import HorovodInternalError

__all__ = ["HorovodInternalError"]
