# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.torch`."""

from smdistributed.compat.horovod.torch import *  # noqa: F403
