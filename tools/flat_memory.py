# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Whether memory stays flat in long runs of TensorFlow's model parallelism.

Usage: smddprun -np 2 python tools/flat_memory.py WHAT [--steps N] [--partitions N]

Does something many times, and prints ten times on rank 0, and at the end for each rank since the
first of these, resident memory in MiB, threads, descriptors and how often steps were traced. Exits
with 1 if memory has grown by more than 5 MiB since the first tenth, or any of the others at all
(`compile` and `job` trace anew each time). WHAT:

    loop      a step in a tf.function, and an evaluation every 50 steps
    eager     the same without the tf.function
    fit       of Keras, with validation every 50 steps
    save      CheckpointManager.save() and restore(), and a step
    compile   model.compile() and a short fit
    job       init(), a model, two steps, reset()
"""

from __future__ import annotations

import argparse
import gc
import importlib
import math
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp

ROWS, WIDTH, EPOCH = 16, 64, 50
LIMITS = {"resident MiB": 5, "threads": 0, "descriptors": 0, "traces": 0}
DRAWS = np.random.default_rng(0)
X = DRAWS.standard_normal((4 * ROWS, WIDTH)).astype(np.float32)
Y = DRAWS.integers(0, 10, 4 * ROWS)


class Model(smp.DistributedModel):
    """With statistics and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = tf.keras.layers.Dense(WIDTH, activation="relu")
        self.norm = tf.keras.layers.BatchNormalization()
        self.dropout = tf.keras.layers.Dropout(0.1)
        self.second = tf.keras.layers.Dense(WIDTH, activation="relu")
        self.last = tf.keras.layers.Dense(10)

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.dropout(self.norm(self.first(x), training=training), training=training)
        return self.last(self.second(x))


class Meter:
    """Counts, and prints ten times.

    Args:
        steps: how many there will be.
    """

    def __init__(self, steps: int) -> None:
        self.rows: list[dict[str, float]] = []
        self._every = max(1, steps // 10)
        self._steps = self._traces = 0
        steps_room = importlib.import_module(smp.__name__ + ".step.step_function")
        prepare = steps_room.prepare

        def counted(*args: Any) -> Any:
            self._traces += 1
            return prepare(*args)

        steps_room.prepare = counted

    def count(self, *_: Any, **__: Any) -> None:
        self._steps += 1
        if self._steps % self._every:
            return
        gc.collect()
        status = Path("/proc/self/status").read_text().splitlines()
        (resident,) = (int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        of_process = {each: len(os.listdir(f"/proc/self/{each}")) for each in ("task", "fd")}
        self.rows.append(
            {
                "resident MiB": round(resident / 1024, 1),
                "threads": of_process["task"],
                "descriptors": of_process["fd"],
                "traces": self._traces,
            }
        )
        if smp.rank() == 0:
            print(f"after {self._steps}: {self.rows[-1]}", flush=True)


def main() -> None:
    """Does what the command line asks for."""
    options = _parse()
    ranks = int(os.environ["WORLD_SIZE"])
    partitions = options.partitions or ranks
    parameters = {"partitions": partitions, "microbatches": 4, "horovod": partitions < ranks}
    tf.config.threading.set_intra_op_parallelism_threads(1)
    smp.init(parameters)
    meter = Meter(options.steps)
    if options.what == "job":
        for _ in range(options.steps):
            _step(Model())[0](0)
            smp.reset()
            tf.keras.backend.clear_session()
            gc.collect()
            smp.init(parameters)
            meter.count()
    elif options.what in ("fit", "compile"):
        _fit(options, meter)
    else:
        _steps(options, meter)
    grown = {key: round(meter.rows[-1][key] - meter.rows[0][key], 1) for key in meter.rows[0]}
    everyone = smp.allgather(grown, smp.WORLD)
    limits = LIMITS | ({"traces": math.inf} if options.what in ("compile", "job") else {})
    too_much = [
        f"rank {rank}: {key} grew by {each[key]}, allowed are {limit}"
        for rank, each in enumerate(everyone)
        for key, limit in limits.items()
        if each[key] > limit
    ]
    if smp.rank() == 0:
        for rank, each in enumerate(everyone):
            print(f"rank {rank} has grown by {each}", flush=True)
    sys.exit("\n".join(too_much) or None)


def _fit(options: argparse.Namespace, meter: Meter) -> None:
    model = Model()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(ROWS, drop_remainder=True)

    def compile_model() -> None:
        model.compile(optimizer=tf.keras.optimizers.Adam(), loss=loss, metrics=["accuracy"])

    compile_model()
    if options.what == "compile":
        for _ in range(options.steps):
            compile_model()
            model.fit(data, verbose=0)
            meter.count()
        return
    counting = tf.keras.callbacks.LambdaCallback(on_train_batch_end=meter.count)
    epochs = {"epochs": options.steps // EPOCH, "steps_per_epoch": EPOCH}
    model.fit(data.repeat(), **epochs, verbose=0, validation_data=data, callbacks=[counting])


def _steps(options: argparse.Namespace, meter: Meter) -> None:
    model = Model()
    train, optimizer = _step(model)
    if options.what != "eager":
        train = tf.function(train)
    evaluate = smp.step(lambda x: model(x, training=False))
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
    with tempfile.TemporaryDirectory() as own:
        folder = smp.allgather(own, smp.WORLD)[0]
        train(tf.constant(0))
        kept = tf.train.Checkpoint(model=model, optimizer=optimizer)
        manager = smp.CheckpointManager(kept, folder, max_to_keep=2)
        for number in range(options.steps):
            train(tf.constant(number % 4))
            if options.what == "save":
                manager.save()
                manager.restore()
            elif number % EPOCH == 0:
                accuracy.update_state(Y, evaluate(X).concat())
                float(accuracy.result())
            meter.count()
        smp.barrier()


def _step(model: Any) -> tuple[Callable[[Any], Any], Any]:
    optimizer = tf.keras.optimizers.Adam()
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x, y = (tf.reshape(tf.constant(each), [4, ROWS, *each.shape[1:]]) for each in (X, Y))

    @smp.step
    def gradients(x: Any, y: Any) -> Any:
        loss = loss_of(y, model(x, training=True))
        return loss, optimizer.get_gradients(loss, model.trainable_variables)

    def train(number: Any) -> Any:
        loss, found = gradients(x[number], y[number])
        means = [each.accumulate() for each in found]
        optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))
        return loss.reduce_mean()

    return train, optimizer


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("loop", "eager", "fit", "save", "compile", "job"))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--partitions", type=int, help="default: as many as ranks")
    return parser.parse_args()


if __name__ == "__main__":
    main()
