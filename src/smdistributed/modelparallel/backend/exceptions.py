# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The exceptions of `smdistributed.modelparallel.exceptions`, where training toolkits look.

They list every class that `dir()` finds here, so nothing else may be imported.
Source: modelparallel specification, section 0.
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
