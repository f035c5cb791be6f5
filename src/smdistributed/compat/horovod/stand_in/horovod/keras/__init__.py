# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.keras`, by its older name."""

from smdistributed.compat.horovod.tensorflow.keras import *  # noqa: F403
