# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A `tf.function` whose first call failed, and which TensorFlow calls without running anything.

Where the first trace of a `tf.function` fails after a variable was made in it, TensorFlow takes an
empty function for it from then on, and returns None (2.16 to 2.21). A script that catches the error
of a step, and goes on, would train nothing and hear nothing.

Source: our choice.
"""

from __future__ import annotations

import functools
from typing import Any

from smdistributed.dataparallel.tensorflow.patching import RULES

__all__ = ["apply_to_tensorflow"]


def apply_to_tensorflow() -> None:
    """To call such a function is an error. Repeatable."""
    from tensorflow.python.eager.polymorphic_function import tracing_compilation

    RULES.replace(tracing_compilation, "call_function", _refusing_nothing)


def _refusing_nothing(original: Any) -> Any:
    @functools.wraps(original)
    def call_function(args: Any = None, kwargs: Any = None, tracing_options: Any = None) -> Any:
        if tracing_options is None:
            raise RuntimeError(
                "A tf.function was called whose first call failed while it was traced, when it had"
                " made variables already; TensorFlow would run nothing of it from now on, and"
                " return None. Make it anew, with tf.function(...), after such an error; or make"
                " the variables before it is called: optimizer.build(model.trainable_variables)."
            )
        return original(args, kwargs, tracing_options)

    return call_function
