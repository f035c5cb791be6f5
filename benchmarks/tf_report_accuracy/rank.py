# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What `smp.plan()` says of GPTs, in one process, or `smp.report()`, on two ranks.

`run.py` starts it. GPTs that are cut in the middle and far from it; and one whose head is its
embedding, so that the first rank has two segments in each direction, and is given as many blocks.
Prints one object in a line: by model and pipeline, the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.report.expectation import expect_alike

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tf_pipeline"))
from models import SHAPES, VOCABULARY, Block, Entry, Exit, Shape, batch_of, loss_of

# By name: blocks on rank 0, of all; whether the head is the embedding, on rank 0.
CASES = {
    "in the middle": (0.5, False),
    "three quarters on rank 0": (0.75, False),
    "tied": (0.5, True),
}
PIPELINES = ("interleaved", "simple")
_layers = tf.keras.layers


class Tied(_layers.Layer):  # type: ignore[misc] # Keras has no types
    """Tokens to vectors, and vectors to logits, by one matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width = shape.width

    def build(self, _: Any) -> None:
        self.words = self.add_weight(shape=(VOCABULARY, self.width), name="words")

    def call(self, x: Any, goes_back: bool = False) -> Any:
        words = tf.convert_to_tensor(self.words)
        return tf.matmul(x, words, transpose_b=True) if goes_back else tf.gather(words, x)


class Gpt(smp.DistributedModel):  # type: ignore[misc] # Keras has no types
    """Cut after some of its blocks."""

    def __init__(self, shape: Shape, cut: float, ties: bool) -> None:
        super().__init__()
        self.blocks = [Block(shape.width) for _ in range(shape.blocks)]
        self.num_first = round(cut * shape.blocks)
        self.ties = ties
        self.entry = Tied(shape) if ties else Entry(shape)
        self.exit = None if ties else Exit()

    def call(self, tokens: Any) -> Any:
        """[sequences, length] to [sequences, length, vocabulary]."""
        with smp.partition(0):
            x = self.entry(tokens)
        for number, block in enumerate(self.blocks):
            with smp.partition(int(number >= self.num_first)):
                x = block(x)
        if self.ties:
            with smp.partition(0):
                return self.entry(x, goes_back=True)
        with smp.partition(1):
            return self.exit(x)


def _model_and_step(shape: Shape, case: str) -> tuple[Any, Any]:
    tf.keras.utils.set_random_seed(0)
    model = Gpt(shape, *CASES[case])
    optimizer = tf.keras.optimizers.Adam()

    @smp.step
    def step(x: Any, y: Any) -> Any:
        loss = loss_of(model(x), y)
        return optimizer.get_gradients(loss, model.trainable_variables), loss

    def train(x: Any, y: Any) -> None:
        gradients, _ = step(x, y)
        found = [each.accumulate() for each in gradients]
        optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))

    return step, train


def _measure(options: argparse.Namespace, case: str, pipeline: str, ranks: int) -> Any:
    shape = SHAPES[options.shape]
    by_hand = {"auto_partition": False, "default_partition": 0, "pipeline": pipeline}
    smp.init({"partitions": ranks, "microbatches": options.microbatches, **by_hand})
    step, train = _model_and_step(shape, case)
    batch = batch_of(shape, options.microbatches)
    train(*batch)
    if ranks == 1:
        found = smp.plan(step, batch, ranks=2, microbatches=options.microbatches)[0]
    else:
        train(*batch)
        with smp.recording():
            for _ in range(options.steps):
                train(*batch)
        found = smp.report()
    smp.reset()
    return found


def _planned(report: Any) -> dict[str, Any]:
    """Of a plan."""
    expected = report.expected
    return {"step_s": expected.step_s, "bubble": expected.bubble, "held": expected.peak_bytes}


def _found(report: Any) -> dict[str, Any]:
    """Of steps that ran: `median` is as `expected`, with one time for all turns of a segment."""
    measured, expected = report.measured, report.expected
    return {
        "step_s": {"expected": expected.step_s, "measured": measured.step_s},
        "bubble": {
            "median": expect_alike(expected, report.settings).bubble,
            "expected": expected.bubble,
            "measured": measured.bubble,
        },
        "held": {
            "expected": expected.peak_bytes,
            "measured": [each.grown for each in measured.memory],
        },
    }


def main() -> None:
    """All models; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    ranks = int(os.environ["WORLD_SIZE"])
    figures = {}
    for case in CASES:
        for pipeline in PIPELINES:
            report = _measure(options, case, pipeline, ranks)
            figures[f"{case}, {pipeline}"] = _planned(report) if ranks == 1 else _found(report)
    if os.environ["RANK"] == "0":
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
