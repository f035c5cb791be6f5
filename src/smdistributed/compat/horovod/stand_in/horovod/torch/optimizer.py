# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.torch.optimizer`: names of `horovod.torch`, which has them all."""

from smdistributed.compat.horovod.torch import *  # noqa: F403
