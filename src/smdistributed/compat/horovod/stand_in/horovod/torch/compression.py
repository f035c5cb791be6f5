# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.torch.compression`."""

from smdistributed.compat.horovod.torch.compression import *  # noqa: F403
