# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Images in place of MNIST's, which take longer to load than all else takes."""

import numpy as np


def load(count):
    """(float32 [count, 784] in [0, 1), int64 [count]): of each class a pattern, and noise."""
    rng = np.random.default_rng(0)
    patterns, labels = rng.random((10, 784)), rng.integers(10, size=count)
    images = (patterns[labels] + rng.random((count, 784))) / 2
    return images.astype(np.float32), labels
