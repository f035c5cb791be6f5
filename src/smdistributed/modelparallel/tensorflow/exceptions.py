# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The exceptions of `smdistributed.modelparallel.exceptions`, where scripts look for them.

Training toolkits list every class that `dir()` finds here, so nothing else may be imported.
Source: TensorFlow modelparallel specification, section 1.
"""

from smdistributed.modelparallel.exceptions import (
    ConfigError,
    ModelNotPartitionedError,
    MultipleDistributedModelError,
    SMPError,
    SMPNotInitialized,
    StepAborted,
)

__all__ = [
    "ConfigError",
    "ModelNotPartitionedError",
    "MultipleDistributedModelError",
    "SMPError",
    "SMPNotInitialized",
    "StepAborted",
]
