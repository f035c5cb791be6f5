# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.compression`."""

from smdistributed.compat.horovod.tensorflow.compression import *  # noqa: F403
