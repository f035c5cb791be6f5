# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Names of Horovod's elastic training, which exist to say what there is instead.

Source: Horovod's public API; see docs/horovod.md.
"""

from smdistributed.compat.horovod import common

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]

ELASTIC_WHY = "ranks do not come and go while a job runs"
ELASTIC_INSTEAD = (
    "Save a checkpoint now and then, and load the last one where training begins, so that the job"
    " can be started again with other ranks."
)

run = common.refused("elastic.run", ELASTIC_WHY, ELASTIC_INSTEAD)
TensorFlowState = common.refused_class("elastic.TensorFlowState", ELASTIC_WHY, ELASTIC_INSTEAD)
TensorFlowKerasState = common.refused_class(
    "elastic.TensorFlowKerasState", ELASTIC_WHY, ELASTIC_INSTEAD
)
