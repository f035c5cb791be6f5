# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which `SMDDP_*` and `SMP_*` variables there are, so that a misspelt one is told.

A variable that nobody reads has no effect and gives no error: a job that sets
`SMDDP_TIMEOUT_SECONDS` without its last letter would wait for half an hour.
"""

import difflib
from collections.abc import Iterable

__all__ = ["KNOWN", "unknown_variables"]

_PREFIXES = ("SMDDP_", "SMP_")

_OURS = frozenset(
    {
        "SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES",
        "SMDDP_AG_SORT_BUFFER_SIZE_BYTES",
        "SMDDP_ALGORITHM",
        "SMDDP_BUCKET_CAP_MB",
        "SMDDP_CPU_SHIM",
        "SMDDP_DETERMINISTIC",
        "SMDDP_INTERFACE",
        "SMDDP_KERNELS",
        "SMDDP_MESSAGE_LIMIT_MB",
        "SMDDP_RUN_ID",
        "SMDDP_SIGNAL_REPORT",
        "SMDDP_STALL_SECONDS",
        "SMDDP_TCP_CONGESTION",
        "SMDDP_TCP_CONNECTIONS",
        "SMDDP_TF_OPERATIONS",
        "SMDDP_TIMEOUT_SECONDS",
        "SMDDP_TLS_CA",
        "SMDDP_TLS_CERT",
        "SMDDP_TLS_KEY",
        "SMDDP_TOKEN",
        "SMDDP_TOKEN_FILE",
        "SMDDP_TRACE",
        "SMDDP_TRANSPORT",
        "SMDDP_ZERO_COPY",
        "SMP_GLOBAL_GRADIENT_NORM",
        "SMP_REPORT",
    }
)

# SageMaker's documentation of the original libraries names them; here they have no effect.
_OF_THE_ORIGINAL = frozenset(
    {
        "SMP_D2D_GPU_BUFFER_SIZE_BYTES",
        "SMP_DISABLE_D2D",
        "SMP_ENABLE_CROSS_NODE_D2D",
        "SMP_NCCL_THROTTLE_LIMIT",
    }
)

KNOWN = _OURS | _OF_THE_ORIGINAL


def unknown_variables(names: Iterable[str]) -> list[str]:
    """Returns a sentence for each variable that looks like one of ours and is none, by name.

    Args:
        names: of the variables that are set.
    """
    unknown = sorted(name for name in names if name.startswith(_PREFIXES) and name not in KNOWN)
    return [
        f"the variable {name} is unknown and has no effect; {_advice(name)}" for name in unknown
    ]


def _advice(name: str) -> str:
    nearest = difflib.get_close_matches(name, sorted(_OURS), n=1)
    if nearest:
        return f"expected {nearest[0]}? Correct the name, or unset it."
    return "expected one that docs/environment.md lists. Correct the name, or unset it."
