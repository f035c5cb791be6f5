# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How much memory steps of TensorFlow's model parallelism take for activations, by schedule.

Usage: smddprun -np 2 python tools/step_memory.py PIPELINE ACTIVE [--again]

Trains a model of many cheap layers with large activations, in 16 microbatches, and prints for each
rank: how far its resident memory rose in three steps above what it had before; what was held at
the peak, as it was counted; and of how many microbatches. `--again` recomputes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.tensorflow.step.gradients import gradients_in_step
from smdistributed.modelparallel.tensorflow.step.pipeline import current_pipeline

MICROBATCHES, ROWS, WIDTH, LAYERS = 16, 1024, 512, 12  # 2 MiB for an activation of a microbatch
MIB = 2**20


class Scale(tf.keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(WIDTH,), name="scale", initializer="ones")

    def call(self, x: Any) -> Any:
        return tf.tanh(x * self.scale) + x


class Model(smp.DistributedModel):
    def __init__(self, again: bool) -> None:
        super().__init__(activation_checkpointing=again)
        self.parts = [Scale() for _ in range(LAYERS)]

    def call(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return tf.reduce_mean(x, -1)


def _resident(name: str) -> int:
    """Bytes, of this process: VmRSS now, VmHWM at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pipeline")
    parser.add_argument("active", type=int)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    smp.init(
        {
            "partitions": 2,
            "microbatches": MICROBATCHES,
            "pipeline": options.pipeline,
            "active_microbatches": options.active,
        }
    )
    model = Model(options.again)

    def body(x: Any) -> Any:
        loss = tf.reduce_mean(tf.square(model(x)))
        return loss, gradients_in_step(loss, model.trainable_variables)

    train = smp.step(body, input_signature=[tf.TensorSpec([None, WIDTH])])
    for _ in range(4):  # all that is made once
        train(tf.zeros([MICROBATCHES, WIDTH]))
    drawn = np.random.default_rng(0).standard_normal((MICROBATCHES * ROWS, WIDTH), np.float32)
    batch = tf.constant(drawn)
    del drawn
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = _resident("VmRSS")
    with current_pipeline("step_memory").driver.recording() as records:
        for _ in range(3):
            train(batch)
    rise = _resident("VmHWM") - before
    print(
        f"rank {smp.rank()}: {rise // MIB} MiB more;"
        f" held {max(each.peak_bytes for each in records) // MIB} MiB"
        f" of {max(each.peak_microbatches for each in records)} microbatches,"
        f" {max(each.peak_bytes_of_one for each in records) // MIB} MiB of one",
        flush=True,
    )


if __name__ == "__main__":
    main()
