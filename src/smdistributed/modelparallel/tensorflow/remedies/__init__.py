# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What keeps scripts alive that were written for TensorFlow 2.3 to 2.6.

`install` changes base classes of Keras and TensorFlow, only where an old name is missing or an old
way to call them is an error; `smp.compat` changes them back. To read: `optimizers`, `hints` (what
changes), `error_texts` (what is left out of errors), `unfinished_functions` (what would do nothing
without a word), `hooks` (what the rooms above answer), `kerases` (which Keras).

What Keras 3 needs in data-parallel scripts too (`optimizer.variables()`, `metric.reset_states()`,
`compile(experimental_run_tf_function=...)`) is `smdistributed.dataparallel.tensorflow.remedies`.

Source: TensorFlow modelparallel specification, section 6.2.
"""

from __future__ import annotations

import sys

from smdistributed.dataparallel.tensorflow import remedies as of_data_parallelism
from smdistributed.modelparallel.tensorflow.remedies import (
    error_texts,
    hints,
    optimizers,
    unfinished_functions,
)
from smdistributed.modelparallel.tensorflow.remedies.hooks import set_hooks
from smdistributed.modelparallel.tensorflow.remedies.kerases import require_one_keras
from smdistributed.modelparallel.tensorflow.remedies.requirements import require_what_is_not_public

__all__ = ["install", "require_one_keras", "set_hooks"]


def install() -> None:
    """Applies them to TensorFlow and to the Kerases that are imported. Repeatable."""
    of_data_parallelism.install()
    error_texts.apply_to_tensorflow()
    unfinished_functions.apply_to_tensorflow()
    hints.apply_to_tensorflow()
    optimizers.apply_to_tensorflow_1()
    if (keras := sys.modules.get("keras")) is not None:
        hints.apply_to_keras_3(keras)
        optimizers.apply_to_keras_3(keras)
    if (keras := sys.modules.get("tf_keras")) is not None:
        optimizers.apply_to_tf_keras(keras)


# This room is imported before all others, which need both.
require_one_keras()
require_what_is_not_public()
