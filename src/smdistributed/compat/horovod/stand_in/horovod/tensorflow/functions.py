# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.functions`: names of `horovod.tensorflow`, which has them all."""

from smdistributed.compat.horovod.tensorflow import *  # noqa: F403
