# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A training whose state is kept: what tests of checkpoints share."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp
from tests.multiprocess.with_tensorflow.modelparallel.plain_process import (
    OPTIMIZERS,
    X,
    Y,
    model_of,
    plain_model,
    variables_of,
)


class Training:
    """A model in a job, its optimizer, and a manager of checkpoints."""

    def __init__(self, folder: Path, optimizer: str = "adam", **of_model: Any) -> None:
        self.model = model_of(smp.DistributedModel, **of_model)
        self.optimizer = OPTIMIZERS[optimizer]()
        self.counter = tf.Variable(0, dtype=tf.int64)
        self.checkpoint = tf.train.Checkpoint(
            model=self.model, optimizer=self.optimizer, counter=self.counter
        )
        self.manager = smp.CheckpointManager(self.checkpoint, folder, max_to_keep=2)
        self.losses: list[float] = []
        loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @smp.step
        def gradients(x: Any, y: Any) -> Any:
            loss = loss_of(y, self.model(x, training=True))
            return loss, self.optimizer.get_gradients(loss, self.model.trainable_variables)

        @tf.function
        def train(x: Any, y: Any) -> Any:
            loss, found = gradients(x, y)
            self.optimizer.apply_gradients(
                zip(
                    [each.accumulate() for each in found],
                    self.model.trainable_variables,
                    strict=True,
                )
            )
            return loss.reduce_mean()

        @smp.step
        def predict(x: Any) -> Any:
            return self.model(x)

        self._train, self.predict = train, predict

    def steps(self, count: int) -> list[float]:
        """Trains, and returns the losses."""
        losses = []
        for _ in range(count):
            losses.append(float(self._train(X, Y)))
            self.counter.assign_add(1)
        return losses

    def kept(self) -> list[Any]:
        """All variables that this rank has of the model and the optimizer."""
        return [*self.model.variables, *variables_of(self.optimizer)]

    def values(self) -> dict[str, Any]:
        """Of these, by number."""
        return {str(number): np.array(each) for number, each in enumerate(self.kept())}


@contextlib.contextmanager
def training(folder: Path, partitions: int, *args: Any, **of_model: Any) -> Iterator[Training]:
    """A training in a job of its own; replicas where there are more ranks."""
    tf.keras.backend.clear_session()  # names count from the beginning, on all ranks
    smp.init({"partitions": partitions, "microbatches": 2, "horovod": True})
    try:
        yield Training(folder, *args, **of_model)
    finally:
        smp.reset()
        gc.collect()


def shared_folder(name: str) -> Path:
    """Of all ranks of a test, empty at first: beside the files of this start of ranks."""
    return Path(os.environ["TEST_FOLDER"], os.environ["TF_USE_LEGACY_KERAS"], name)


def plain_state(prefix: str, optimizer: str) -> dict[str, Any]:
    """What plain TensorFlow restores of a checkpoint, and would write itself."""
    model, chosen = plain_model(), OPTIMIZERS[optimizer]()
    build = chosen._create_all_weights if optimizer == "legacy" else chosen.build
    build(model.trainable_variables)
    counter = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=chosen, counter=counter)
    status = checkpoint.restore(prefix)
    status.assert_consumed()
    status.assert_existing_objects_matched()
    return content(checkpoint.write(prefix + "-plain"))


def content(prefix: str) -> dict[str, Any]:
    """Of a checkpoint, but for how often it was saved."""
    reader = tf.train.load_checkpoint(prefix)
    return {
        key: reader.get_tensor(key)
        for key in reader.get_variable_to_shape_map()
        if not key.startswith("save_counter") and key != "_CHECKPOINTABLE_OBJECT_GRAPH"
    }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """The same bits under the same names."""
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
