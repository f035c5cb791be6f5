# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The GPT of `draw_report.py` with TensorFlow: some steps of it, and their report."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.report.document import Report

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "benchmarks" / "tf_pipeline"))
from models import Block, loss_of

__all__ = ["train"]

WIDTH, LENGTH, SEQUENCES, VOCABULARY, BLOCKS = 256, 64, 2, 16384, 8
MICROBATCHES = 8
_layers = tf.keras.layers


class Gpt(smp.DistributedModel):  # type: ignore[misc] # Keras has no types
    """Embedding, blocks, head; each in the partition that `places` says."""

    def __init__(self, places: Mapping[str, int]) -> None:
        super().__init__()
        self.places = dict(places)
        self.parts = [_layers.Embedding(VOCABULARY, WIDTH, name="words")]
        for number in range(BLOCKS):
            self.parts.append(Block(WIDTH, name=f"block_{number}"))
        self.parts.append(_layers.LayerNormalization(name="norm"))
        self.parts.append(_layers.Dense(VOCABULARY, use_bias=False, name="head"))

    def call(self, x: Any) -> Any:
        """[sequences, length] to [sequences, length, vocabulary]."""
        for part in self.parts:
            with smp.partition(self.places.get(part.name, 0)):
                x = part(x)
        return x


def train(places: Mapping[str, int]) -> Report:
    """Some steps with layers where `places` says."""
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    by_hand = {"auto_partition": False, "default_partition": 0}
    smp.init({"partitions": 2, "microbatches": MICROBATCHES, **by_hand})
    tf.keras.utils.set_random_seed(0)
    model = Gpt({path.rpartition("/")[2]: place for path, place in places.items()})
    optimizer = tf.keras.optimizers.Adam()
    text = np.random.RandomState(1).randint(0, VOCABULARY, (MICROBATCHES * SEQUENCES, LENGTH + 1))
    tokens, targets = tf.constant(text[:, :-1]), tf.constant(text[:, 1:])

    @smp.step
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model(x), y)
        return optimizer.get_gradients(loss, model.trainable_variables), loss

    def steps(count: int) -> None:
        for _ in range(count):
            gradients, _ = step(tokens, targets)
            found = [each.accumulate() for each in gradients]
            optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))

    steps(1)
    with smp.recording():
        steps(6)
    report = smp.report()
    smp.reset()
    return report
