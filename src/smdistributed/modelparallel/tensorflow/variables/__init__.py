# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Variables without values: every rank builds the whole model, and has memory for its own part.

To read in this order: `book` (what is made, and who gets a value), `creation` (where it is made),
`drawing` (what the values are), `guarded` (what a variable without a value answers), `slots`
(optimizers).

Source: TensorFlow modelparallel specification, section 3.4.
"""

from smdistributed.modelparallel.tensorflow.variables.book import (
    Book,
    Record,
    empty_optimizers,
    without_values,
)
from smdistributed.modelparallel.tensorflow.variables.creation import (
    is_global_seed,
    outside_of_functions,
)
from smdistributed.modelparallel.tensorflow.variables.guarded import (
    GuardedVariable,
    Loan,
    Owner,
    State,
    VariableElsewhereError,
    VariableWithoutValueError,
    is_elsewhere,
    is_tracing,
    lending,
    mark_elsewhere,
    pretending_elsewhere,
    raw,
    require_value,
    tracing,
)

__all__ = [
    "Book",
    "GuardedVariable",
    "Loan",
    "Owner",
    "Record",
    "State",
    "VariableElsewhereError",
    "VariableWithoutValueError",
    "empty_optimizers",
    "is_elsewhere",
    "is_global_seed",
    "is_tracing",
    "lending",
    "mark_elsewhere",
    "outside_of_functions",
    "pretending_elsewhere",
    "raw",
    "require_value",
    "tracing",
    "without_values",
]
