# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of TensorFlow 1: `tf.compat.v1.train`.

Source: TensorFlow modelparallel specification, section 3.4.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.tensorflow.patching import RULES
from smdistributed.modelparallel.tensorflow.updates.applying import local_pairs

__all__ = ["apply_to_tensorflow"]


def apply_to_tensorflow() -> None:
    """Changes `tf.compat.v1.train.Optimizer`. Repeatable."""
    RULES.replace(tf.compat.v1.train.Optimizer, "apply_gradients", _of_local_variables)


def _of_local_variables(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply_gradients(
        self: Any, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        given = list(grads_and_vars)
        pairs = local_pairs(given)
        if pairs or not given:
            return original(self, pairs, global_step, name)
        # All of them are elsewhere.
        return tf.no_op() if global_step is None else global_step.assign_add(1)

    return apply_gradients
