# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Names of Horovod's elastic training with Keras, which exist to say what there is instead.

Source: Horovod's public API; see docs/horovod.md.
"""

from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.common import ELASTIC_INSTEAD, ELASTIC_WHY
from smdistributed.compat.horovod.tensorflow.elastic import run

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

KerasState = common.refused_class("elastic.KerasState", ELASTIC_WHY, ELASTIC_INSTEAD)
CommitStateCallback = common.refused_class(
    "elastic.CommitStateCallback", ELASTIC_WHY, ELASTIC_INSTEAD
)
UpdateBatchStateCallback = common.refused_class(
    "elastic.UpdateBatchStateCallback", ELASTIC_WHY, ELASTIC_INSTEAD
)
UpdateEpochStateCallback = common.refused_class(
    "elastic.UpdateEpochStateCallback", ELASTIC_WHY, ELASTIC_INSTEAD
)
