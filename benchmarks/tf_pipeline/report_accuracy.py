# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How well `smp.plan()` and the lists predict what `smp.report()` measures: bubble and memory.

    python benchmarks/tf_pipeline/report_accuracy.py --plan plans.json
    smddprun -np 2 python benchmarks/tf_pipeline/report_accuracy.py --plan plans.json

The first, in one process, plans; the second trains on 2 ranks, and prints for each rank: the bubble
as planned, as the lists lead to with the times of the steps themselves, and as measured; and the
most bytes that a rank holds of microbatches, as planned, by the lists, and as measured. GPTs that
are cut in the middle and far from it; and one whose head is its embedding, so that the first rank
has two segments in each direction, and is given fewer blocks for it. Leave the machine alone.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import tensorflow as tf
from models import SHAPES, VOCABULARY, Block, Entry, Exit, Shape, batch_of, loss_of

import smdistributed.modelparallel.tensorflow as smp

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
        found = smp.plan(step, batch, ranks=2, microbatches=options.microbatches)[0].expected
    else:
        train(*batch)
        with smp.recording():
            for _ in range(options.steps):
                train(*batch)
        found = smp.report()
    smp.reset()
    return found


def _row(name: str, rank: int, planned: Any, report: Any) -> list[str]:
    measured, expected = report.measured, report.expected
    memory = measured.memory[rank]
    figures = (
        (planned["bubble"][rank], expected.bubble[rank], measured.bubble[rank], 100),
        (planned["held"][rank], expected.peak_bytes[rank], memory.grown, 1e-6),
    )
    row = [name, str(rank)]
    for before, after, found, factor in figures:
        row += [f"{each * factor:.1f}" for each in (before, after, found)]
        row.append(f"{before / found:.2f} {after / found:.2f}")
    return row


def main() -> None:
    """All cases; rank 0 prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", type=Path, required=True, help="written, and then read")
    parser.add_argument("--shape", choices=SHAPES, default="gpt-8")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=9)
    options = parser.parse_args()
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    plans = json.loads(options.plan.read_text()) if ranks > 1 else {}
    for case in CASES:
        for pipeline in PIPELINES:
            name = f"{case}, {pipeline}"
            found = _measure(options, case, pipeline, ranks)
            if ranks == 1:
                plans[name] = {"bubble": found.bubble, "held": found.peak_bytes}
                continue
            for rank in range(ranks if os.environ["RANK"] == "0" else 0):
                print("".join(cell.rjust(12) for cell in _row(name, rank, plans[name], found)))
    if ranks == 1:
        options.plan.write_text(json.dumps(plans))


if __name__ == "__main__":
    main()
