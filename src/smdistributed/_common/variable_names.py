# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which `SMDDP_*` and `SMP_*` variables there are, so that a misspelt one is told.

A variable that nobody reads has no effect and gives no error: a job that sets
`SMDDP_TIMEOUT_SECONDS` without its last letter would wait for half an hour.
"""

import difflib
from collections.abc import Iterable

from smdistributed._common.variable_table import VARIABLES

__all__ = ["KNOWN", "unknown_variables"]

_PREFIXES = ("SMDDP_", "SMP_")

# SMP_GLOBAL_GRADIENT_NORM is no setting but a way back to what torch does; docs/model_parallel.md
# names it there.
_OURS = frozenset(name for variable in VARIABLES for name in variable.names) | {
    "SMP_GLOBAL_GRADIENT_NORM"
}

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
