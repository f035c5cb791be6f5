# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`fit` shuffles arrays alike on the ranks of a pipeline, which need the same batches.

Keras shuffles by TensorFlow's global seed. Where the script has set none, each process has its own,
and `fit(x, y)` as everybody writes it would train on batches that fit nothing. To set one for the
time of `fit` would be worse than what plain Keras does: with a global seed, Keras 3 has the same
order in every epoch.

Source: our choice.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

__all__ = ["seed_to_agree_on", "shuffled_alike"]

# The function in which both Kerases shuffle the numbers of rows, and its name after conversion.
_SHUFFLING = ("permutation", "tf__permutation")
_MOST_FRAMES = 12


def seed_to_agree_on() -> int | None:
    """Of this rank, of which rank 0's counts; None if the script has set a global seed."""
    return secrets.randbits(32) if context.global_seed() is None else None


@contextlib.contextmanager
def shuffled_alike(seeds: Sequence[int | None]) -> Iterator[None]:
    """While it is open, Keras shuffles rows by the first of the ranks' seeds, if all have one."""
    if len(seeds) == 1 or None in seeds:
        yield
        return
    generator = np.random.default_rng(seeds[0])
    places = {id(each): each for each in (tf.random, tf.compat.v2.random)}.values()
    originals = [each.shuffle for each in places]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def shuffle(value: Any, seed: Any = None, name: Any = None) -> Any:
        if not _is_shuffling_rows():
            return originals[0](value, seed, name)
        # A call for each epoch: the first ones of all ranks give the same order, and so on.
        order = tf.numpy_function(generator.permutation, [tf.size(value, tf.int64)], tf.int64)
        return tf.gather(value, tf.reshape(order, tf.shape(value)))

    try:
        for each in places:
            each.shuffle = shuffle
        yield
    finally:
        for each, original in zip(places, originals, strict=True):
            each.shuffle = original


def _is_shuffling_rows() -> bool:
    frame = sys._getframe(2)
    for _ in range(_MOST_FRAMES):
        if frame.f_code.co_name in _SHUFFLING:
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False
