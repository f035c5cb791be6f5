# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of a model whose variables are on several ranks: each rank applies its own.

What looks at all gradients at once asks the other partitions. `clipping` is the arithmetic, and
`smp.clip_by_global_norm`; `applying` says which gradients count; `keras_3`, `tf_keras` and
`tensorflow_1` make it the rule for their optimizers.

These rules stay when `smp.compat.uninstall()` takes the remedies away: without them a cut model
would train in another way than a whole one.

Source: TensorFlow modelparallel specification, section 3.4.
"""

from __future__ import annotations

import sys

from smdistributed.modelparallel.tensorflow.updates import keras_3, tensorflow_1, tf_keras

__all__ = ["install"]


def install() -> None:
    """Makes them the rule in TensorFlow, and in the Kerases that are imported. Repeatable."""
    tensorflow_1.apply_to_tensorflow()
    if (keras := sys.modules.get("keras")) is not None:
        keras_3.apply_to(keras)
    if (keras := sys.modules.get("tf_keras")) is not None:
        tf_keras.apply_to(keras)
