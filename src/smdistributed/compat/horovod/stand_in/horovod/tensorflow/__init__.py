# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow`."""

from smdistributed.compat.horovod.tensorflow import *  # noqa: F403
