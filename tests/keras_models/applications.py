# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models of `keras.applications`, with random weights and small images."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tests.keras_models.registry import BATCH, Row

TITLE = "keras.applications"
CLASSES = 10


def _make(name: str, size: int, **options: Any) -> Any:
    import tensorflow as tf

    make = getattr(tf.keras.applications, name)
    return make(weights=None, input_shape=(size, size, 3), classes=CLASSES, **options)


def _images(random: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    return {
        "x": random.uniform(-1, 1, (BATCH, size, size, 3)),
        "target": random.integers(0, CLASSES, BATCH),
    }


def _row(name: str, size: int = 32, remark: str = "", **options: Any) -> Row:
    return Row(
        name.lower(),
        functools.partial(_make, name, size, **options),
        functools.partial(_images, size=size),
        rate=1e-4,
        remark=remark,
    )


ROWS = (
    _row("ResNet50", remark="residual blocks"),
    _row("MobileNetV3Small", include_preprocessing=False, remark="squeeze and excite; dropout"),
    _row("EfficientNetB0", remark="dropout of whole branches"),
    _row("ConvNeXtTiny", remark="LayerNormalization, layers of its own"),
    _row("DenseNet121", remark="every layer feeds all later ones of its block"),
    _row("Xception", size=71, remark="separable convolutions"),
)
