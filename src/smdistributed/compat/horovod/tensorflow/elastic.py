# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Names of Horovod's elastic training, which exist to say what there is instead.

Source: Horovod's public API; see docs/horovod.md.
"""

from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.common import ELASTIC_INSTEAD, ELASTIC_WHY

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]

run = common.refused("elastic.run", ELASTIC_WHY, ELASTIC_INSTEAD)
TensorFlowState = common.refused_class("elastic.TensorFlowState", ELASTIC_WHY, ELASTIC_INSTEAD)
TensorFlowKerasState = common.refused_class(
    "elastic.TensorFlowKerasState", ELASTIC_WHY, ELASTIC_INSTEAD
)
