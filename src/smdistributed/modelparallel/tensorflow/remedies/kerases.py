# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One program uses one Keras: Keras 3, or tf-keras under TF_USE_LEGACY_KERAS=1.

A script that sets the variable after it has imported TensorFlow may get a model of the one and
layers of the other, and an error from deep inside. The library never sets it: the order of imports
would decide what it means.

Source: TensorFlow modelparallel specification, section 6.1.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.exceptions import ConfigError

__all__ = ["require_one_keras"]

_ROOTS = ("keras", "tf_keras")
_VARIABLE = "TF_USE_LEGACY_KERAS"


def require_one_keras(*objects: Any) -> None:
    """Fails if two Kerases are in use, or if the one that was asked for is not installed.

    Args:
        objects: models, layers, optimizers or their classes, beside `tf.keras` itself.

    Raises:
        ConfigError: with the cure.
    """
    wants_tf_keras = os.environ.get(_VARIABLE, "").lower() in ("1", "true")
    if wants_tf_keras and importlib.util.find_spec("tf_keras") is None:
        release = ".".join(tf.__version__.split(".")[:2])
        raise ConfigError(
            f"{_VARIABLE}={os.environ[_VARIABLE]}, and tf_keras is not installed; expected the"
            f" package. Run: pip install tf-keras~={release}.0, or remove the variable."
        )
    found: dict[str, str] = {}
    for each in (tf.keras.Model, tf.keras.layers.Layer, *objects):
        cls = each if isinstance(each, type) else type(each)
        root = next((root for root in map(_root, cls.__mro__) if root in _ROOTS), None)
        if root is not None:
            found.setdefault(root, f"{cls.__module__}.{cls.__qualname__}")
    if len(found) > 1:
        raise ConfigError(
            f"Two Kerases are in use: {found['keras']} is of Keras 3, {found['tf_keras']} of"
            f" tf-keras; expected one. Set {_VARIABLE}=1 before Python starts (or before the first"
            " import of tensorflow) to use tf-keras throughout, or do not set it at all."
        )


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]
