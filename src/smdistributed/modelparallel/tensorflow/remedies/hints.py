# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Old names for which nothing can stand in: errors say what to write instead.

    line of a script                             without a hint
    model.fit_generator(...), reset_states()     Keras 3: no such attribute
    model.save_weights("prefix")                 Keras 3: the name must end in ".weights.h5"
    tf.keras.mixed_precision.experimental        no such attribute

`tf.keras.optimizers.legacy` of Keras 3 says by itself how to get tf-keras, and `model.save(folder)`
works (`smdistributed.dataparallel.tensorflow.remedies`).

Source: TensorFlow modelparallel specification, section 6.2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.tensorflow.patching import REMEDIES, owner_of

__all__ = ["apply_to_keras_3", "apply_to_tensorflow"]

_OF_MODELS = {
    "fit_generator": "Write model.fit(generator).",
    "evaluate_generator": "Write model.evaluate(generator).",
    "predict_generator": "Write model.predict(generator).",
    "reset_states": "Call reset_state() of each recurrent layer.",
}
_TF_KERAS = "Or set TF_USE_LEGACY_KERAS=1 before Python starts, to use tf-keras, which has it."


def apply_to_keras_3(keras: Any) -> None:
    """Gives its models the hints. Repeatable."""
    for name, instead in _OF_MODELS.items():
        REMEDIES.add(keras.Model, name, _missing(name, instead))
    owner = owner_of(keras.Model, "save_weights")
    REMEDIES.replace(owner, "save_weights", _telling_of_prefixes)


def apply_to_tensorflow() -> None:
    """Gives `tf.keras` of either Keras its hints. Repeatable."""
    REMEDIES.add(tf.keras.mixed_precision, "__getattr__", _missing_policies)


def _missing(name: str, instead: str) -> property:
    def get(self: Any) -> Any:
        raise AttributeError(
            f"{type(self).__name__} has no {name}() in Keras 3; expected its newer name."
            f" {instead} {_TF_KERAS}"
        )

    return property(get)


def _telling_of_prefixes(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save_weights(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, filepath, *args, **kwargs)
        except ValueError as error:
            if ".weights.h5" not in str(error) or str(filepath).endswith(".weights.h5"):
                raise
            raise ValueError(
                f"{error} Keras 3 writes no checkpoints by a prefix, as tf-keras does: for a"
                f' checkpoint use tf.train.Checkpoint. Else write save_weights("{filepath}'
                '.weights.h5").'
            ) from error

    return save_weights


def _missing_policies(name: str) -> Any:
    if name == "experimental":
        raise AttributeError(
            "tf.keras.mixed_precision has no `experimental` any more; expected the names without"
            ' it. Write tf.keras.mixed_precision.set_global_policy("mixed_float16") for'
            " experimental.set_policy, and tf.keras.mixed_precision.LossScaleOptimizer(optimizer)."
        )
    raise AttributeError(f"module {tf.keras.mixed_precision.__name__!r} has no attribute {name!r}")
