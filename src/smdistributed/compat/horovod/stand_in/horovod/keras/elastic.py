# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.keras.elastic`."""

from smdistributed.compat.horovod.tensorflow.keras.elastic import *  # noqa: F403
