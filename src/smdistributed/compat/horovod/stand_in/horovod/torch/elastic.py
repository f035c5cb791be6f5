# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.torch.elastic`."""

from smdistributed.compat.horovod.torch.elastic import *  # noqa: F403
