# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.keras.callbacks`."""

from smdistributed.compat.horovod.tensorflow.keras.callbacks import *  # noqa: F403
