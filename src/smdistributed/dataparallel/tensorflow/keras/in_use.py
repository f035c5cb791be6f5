# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which Keras a script uses.

Source: our choice.
"""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

__all__ = ["keras_in_use"]


def keras_in_use() -> Any:
    """Keras 3 or tf-keras: the one that is imported; `tf.keras` if none or both are."""
    imported = [name for name in ("keras", "tf_keras") if name in sys.modules]
    return sys.modules[imported[0]] if len(imported) == 1 else tf.keras
