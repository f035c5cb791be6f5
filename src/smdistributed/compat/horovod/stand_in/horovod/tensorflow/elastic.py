# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.elastic`."""

from smdistributed.compat.horovod.tensorflow.elastic import *  # noqa: F403
