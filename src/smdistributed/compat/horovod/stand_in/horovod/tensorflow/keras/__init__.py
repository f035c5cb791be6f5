# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.keras`."""

from smdistributed.compat.horovod.tensorflow.keras import *  # noqa: F403
