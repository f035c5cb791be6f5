# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank of the benchmark; one part of it. Rank 0 prints its findings as one line of JSON.

Started by run.py under smddprun.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.tensorflow.step.pipeline import current_pipeline

BATCH, WIDTH = 192, 512  # of one microbatch of the stages


def main() -> None:
    """Measures one part."""
    options = _parse()
    tf.config.threading.set_inter_op_parallelism_threads(options.inter)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    config = {"partitions": _job_size(), "microbatches": options.microbatches}
    if options.part in ("segment", "message"):
        config |= {"auto_partition": False, "default_partition": 0}
    smp.init(config)
    found = PARTS[options.part](options)
    if smp.rank() == 0:
        print(json.dumps(found), flush=True)


def _job_size() -> int:
    """Ranks of the job, before it is joined."""
    return int(os.environ["WORLD_SIZE"])


# ---- parts ---------------------------------------------------------------------------------------


class Stages(smp.DistributedModel):  # type: ignore[misc] # Keras has no types
    """As many stages as partitions, each of the same work forward and backward.

    Their matrices are not trained, so the backward of a product is one product as well; a factor at
    the beginning of each stage is.
    """

    def __init__(self, stages: int, products: int) -> None:
        super().__init__()
        self.stages = [Stage(products) for _ in range(stages)]

    def call(self, x: Any) -> Any:
        for stage in self.stages:
            x = stage(x)
        return x


class Stage(tf.keras.layers.Layer):  # type: ignore[misc] # Keras has no types
    """A factor, and products with one matrix."""

    def __init__(self, products: int) -> None:
        super().__init__()
        self.products = products

    def build(self, shape: Any) -> None:
        self.factor = self.add_weight(shape=(), initializer="ones", name="factor")
        self.matrix = self.add_weight(
            shape=(WIDTH, WIDTH), initializer="orthogonal", trainable=False, name="matrix"
        )

    def call(self, x: Any) -> Any:
        x = x * self.factor
        for _ in range(self.products):
            x = tf.matmul(x, self.matrix)
        return x


def overlap(options: argparse.Namespace) -> dict[str, Any]:
    """The time of a step beside that of its stages."""
    products = _products_of(options.stage_ms / 2e3)  # as many backward
    model = Stages(smp.mp_size(), products)

    @smp.step
    def train(x: Any) -> Any:
        loss = tf.reduce_mean(model(x) ** 2)
        return loss, tf.keras.optimizers.SGD().get_gradients(loss, model.trainable_variables)

    x = tf.ones((BATCH * smp.num_microbatches(), WIDTH))
    stage = Stage(products)

    @tf.function(input_signature=[tf.TensorSpec((BATCH, WIDTH))])
    def one(piece: Any) -> Any:
        y = stage(piece)
        return tf.gradients(tf.reduce_mean(y**2), piece)

    piece = tf.ones((BATCH, WIDTH))
    steps, alone = _in_turns(options.rounds, lambda: train(x), lambda: one(piece))
    turns = smp.num_microbatches() + smp.mp_size() - 1
    of_stage = max(smp.allgather(statistics.median(alone), smp.MP_GROUP))
    ideals = [each * turns for each in alone]
    return {
        "part": "overlap",
        "ranks": smp.mp_size(),
        "microbatches": smp.num_microbatches(),
        "asked_ms": options.stage_ms,
        "stage_ms": of_stage * 1e3,
        "ideal_ms": of_stage * turns * 1e3,
        "step_ms": _spread(steps),
        "of_ideal": _ratios(ideals, steps),
    }


def empty(options: argparse.Namespace) -> dict[str, Any]:
    """The time of a step that computes next to nothing."""
    model = Stages(smp.mp_size(), 1)

    @smp.step
    def train(x: Any) -> Any:
        loss = tf.reduce_mean(model(x) ** 2)
        return loss, tf.keras.optimizers.SGD().get_gradients(loss, model.trainable_variables)

    @tf.function
    def in_graph(x: Any) -> Any:
        loss, gradients = train(x)
        return loss.reduce_mean(), [each.accumulate() for each in gradients]

    x = tf.ones((smp.num_microbatches(), WIDTH))
    steps, graphs = _in_turns(options.rounds, lambda: train(x), lambda: in_graph(x))
    return {
        "part": "empty",
        "ranks": smp.mp_size(),
        "microbatches": smp.num_microbatches(),
        "step_ms": _spread(steps),
        "in_graph_ms": _spread(graphs),
    }


class Deep(smp.DistributedModel):  # type: ignore[misc] # Keras has no types
    """Many small layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.inner = [tf.keras.layers.Dense(32, activation="relu") for _ in range(layers)]

    def call(self, x: Any) -> Any:
        for layer in self.inner:
            x = layer(x)
        return x


def first_call(options: argparse.Namespace) -> dict[str, Any]:
    """The time of the first call of a step of a deep model, and of later ones."""
    model = Deep(options.layers)
    bodies = 0

    @smp.step
    def train(x: Any) -> Any:
        nonlocal bodies
        bodies += 1
        loss = tf.reduce_mean(model(x) ** 2)
        return loss, tf.keras.optimizers.SGD().get_gradients(loss, model.trainable_variables)

    x = tf.ones((4 * smp.num_microbatches(), 32))
    begin = time.perf_counter()
    train(x)
    first_s = time.perf_counter() - begin
    later, _ = _in_turns(options.rounds, lambda: train(x), lambda: None)
    return {
        "part": "first-call",
        "ranks": smp.mp_size(),
        "microbatches": smp.num_microbatches(),
        "layers": options.layers,
        "first_s": first_s,
        "bodies": bodies,
        "later_ms": _spread(later),
    }


class Chain(smp.DistributedModel):  # type: ignore[misc] # Keras has no types
    """Layers that compute next to nothing, each on another rank than the one before."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.factor = Stage(0)
        self.inner = [Turned() for _ in range(layers)]

    def call(self, x: Any, hops: int) -> Any:
        """Goes through the first `hops` layers, and back to where it was."""
        x = self.factor(x)
        for number, layer in enumerate(self.inner[:hops]):
            with smp.partition((number + 1) % smp.mp_size()):
                x = layer(x)
        return x


class Turned(tf.keras.layers.Layer):  # type: ignore[misc] # Keras has no types
    """Another shape over the same memory: nothing to compute, neither forward nor backward."""

    def call(self, x: Any) -> Any:
        return tf.reshape(x, x.shape[::-1])


FEW_HOPS, MANY_HOPS = 2, 18  # even, so that the loss is on rank 0


def segment(options: argparse.Namespace) -> dict[str, Any]:
    """What an almost empty segment takes: a step on one rank with a backward pass, and without.

    The one has a segment more for each microbatch, and a result, a scalar.
    """
    model = Chain(0)

    @smp.step
    def forward(x: Any) -> Any:
        return tf.nn.l2_loss(model(x, hops=0))

    @smp.step
    def both(x: Any) -> Any:
        loss = tf.nn.l2_loss(model(x, hops=0))
        return loss, tf.keras.optimizers.SGD().get_gradients(loss, model.trainable_variables)

    x = tf.ones((smp.num_microbatches(), 1))
    fewer, more = _turns_of(lambda: forward(x)), _turns_of(lambda: both(x))
    ones, others = _in_turns(options.rounds, lambda: forward(x), lambda: both(x))
    return {
        "part": "segment",
        "microbatches": smp.num_microbatches(),
        "segments": more - fewer,
        "segment_ms": _spread(_slopes(ones, others, more - fewer)),
    }


def message(options: argparse.Namespace) -> dict[str, Any]:
    """What a hop takes: an almost empty segment, and its output to the next rank, which waits.

    From steps of one microbatch with few hops and with many, where nothing overlaps.
    """
    model = Chain(MANY_HOPS)

    @smp.step
    def train(x: Any, hops: int) -> Any:
        loss = tf.nn.l2_loss(model(x, hops=hops))
        return loss, tf.keras.optimizers.SGD().get_gradients(loss, model.trainable_variables)

    x = tf.ones((1, options.bytes // 4))
    # The many first: a model's layers are those of its first trace.
    many, few = _turns_of(lambda: train(x, MANY_HOPS)), _turns_of(lambda: train(x, FEW_HOPS))
    ones, others = _in_turns(
        options.rounds, lambda: train(x, FEW_HOPS), lambda: train(x, MANY_HOPS)
    )
    return {
        "part": "message",
        "ranks": smp.mp_size(),
        "bytes": options.bytes,
        "hops": many - few,
        "hop_ms": _spread(_slopes(ones, others, many - few)),
    }


def _turns_of(step: Callable[[], Any]) -> int:
    """How many calls of segments a step is, on all ranks."""
    step()
    with current_pipeline("a benchmark").driver.recording() as records:
        step()
    return int(sum(smp.allgather(len(records[0].turns), smp.WORLD)))


PARTS = {
    "overlap": overlap,
    "empty": empty,
    "first-call": first_call,
    "segment": segment,
    "message": message,
}


# ---- measuring -----------------------------------------------------------------------------------


def _products_of(seconds: float) -> int:
    """How many products take so long, forward; the same on all ranks."""
    matrix, piece = tf.ones((WIDTH, WIDTH)), tf.ones((BATCH, WIDTH))

    @tf.function
    def hundred(x: Any) -> Any:
        for _ in range(100):
            x = tf.matmul(x, matrix) / WIDTH
        return x

    hundred(piece)
    smp.barrier()
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        hundred(piece)
        times.append((time.perf_counter() - begin) / 100)
    found = max(1, round(seconds / statistics.median(times)))
    return int(min(smp.allgather(found, smp.WORLD)))


def _in_turns(
    rounds: int, one: Callable[[], Any], other: Callable[[], Any]
) -> tuple[list[float], list[float]]:
    """Seconds of both, measured in turns, all ranks at once."""
    for _ in range(2):
        one()
        other()
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for times, do in zip(found, (one, other), strict=True):
            smp.barrier()
            begin = time.perf_counter()
            do()
            times.append(time.perf_counter() - begin)
    return found


def _spread(seconds: list[float]) -> dict[str, float]:
    return {
        "least": min(seconds) * 1e3,
        "median": statistics.median(seconds) * 1e3,
        "greatest": max(seconds) * 1e3,
    }


def _slopes(fewer: list[float], more: list[float], added: int) -> list[float]:
    """Seconds of one of `added` things, from turns without them and with them."""
    return [(two - one) / added for one, two in zip(fewer, more, strict=True)]


def _ratios(ideals: list[float], steps: list[float]) -> dict[str, float]:
    ratios = [ideal / step for ideal, step in zip(ideals, steps, strict=True)]
    return {"least": min(ratios), "median": statistics.median(ratios), "greatest": max(ratios)}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=tuple(PARTS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--microbatches", type=int)
    parser.add_argument("--stage-ms", type=float)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--bytes", type=int, help="of a tensor that goes to another rank")
    parser.add_argument("--inter", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
