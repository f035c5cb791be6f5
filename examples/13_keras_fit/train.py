# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A Keras model reads digits: `compile` and `fit`, in one process or several.

What it takes to go from one process to several is marked "smddp:"; all else is Keras. It runs with
Keras 3 and, with TF_USE_LEGACY_KERAS=1, with tf-keras.

    smddprun -np 2 train.py
    python train.py                      # the same in one process
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

# smddp: import the library's module for Keras
import smdistributed.dataparallel.tensorflow.keras as sdp

sys.path.append(str(Path(__file__).resolve().parents[1] / "01_mnist"))
import digits


def part_of_this_rank(side: digits.Digits, batch_size: int) -> tuple[tf.data.Dataset, int]:
    """What this rank reads of some digits, in batches, and how many of them make an epoch.

    Every rank takes each n-th image of one order, in which all ranks shuffle. The incomplete last
    batch is left out, since all ranks must make the same number of steps.
    """
    images = side.images.reshape(-1, digits.IMAGE_SIDE, digits.IMAGE_SIDE, 1)
    dataset = tf.data.Dataset.from_tensor_slices((images, side.labels))
    dataset = dataset.shuffle(len(images), seed=1)
    # smddp: give each rank its own part of the data
    dataset = dataset.shard(sdp.size(), sdp.rank())
    dataset = dataset.batch(batch_size, drop_remainder=True)
    if len(dataset) == 0:
        raise SystemExit(
            f"--batch-size {batch_size} is more than the {len(images) // sdp.size()} images that "
            f"each of {sdp.size()} process(es) holds; expected at least one full step. Pass "
            f"--batch-size {len(images) // sdp.size()} or less."
        )
    return dataset, len(dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description="Data-parallel training with Keras.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, help="per epoch; else all of the images")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step and process")
    parser.add_argument(
        "--lr", type=float, default=0.0005, help="learning rate of one process; it grows with them"
    )
    parser.add_argument("--seed", type=int, help="of the weights; else each process draws its own")
    parser.add_argument("--save", metavar="FILE.keras", help="the model, written by rank 0")
    parser.add_argument(
        "--hash", action="store_true", help="every rank prints the SHA-256 of its final weights"
    )
    args = parser.parse_args()

    # smddp: initialize the library
    sdp.init()

    # smddp: pin each GPU to one process
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[sdp.local_rank()], "GPU")

    if args.seed is not None:
        tf.keras.utils.set_random_seed(args.seed)

    train, test = digits.split(digits.load())
    train_set, steps_per_epoch = part_of_this_rank(train, args.batch_size)
    test_set, _ = part_of_this_rank(test, 125)
    if args.steps is not None:
        steps_per_epoch = min(args.steps, steps_per_epoch)

    model = tf.keras.Sequential(
        [
            tf.keras.Input((digits.IMAGE_SIDE, digits.IMAGE_SIDE, 1)),
            tf.keras.layers.Conv2D(16, 5, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(32, 5, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(digits.NUM_CLASSES, activation="softmax"),
        ]
    )

    # smddp: scale the learning rate, and wrap the optimizer, which then averages the gradients
    optimizer = sdp.DistributedOptimizer(tf.keras.optimizers.Adam(args.lr * sdp.size()))
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        # smddp: begin with the weights of rank 0 on all ranks
        sdp.callbacks.BroadcastGlobalVariablesCallback(0),
        # smddp: average metrics over all ranks; before callbacks that read them
        sdp.callbacks.MetricAverageCallback(),
    ]
    history = model.fit(
        train_set.repeat(),
        epochs=args.epochs,
        steps_per_epoch=steps_per_epoch,
        validation_data=test_set,
        callbacks=callbacks,
        shuffle=False,  # the data set does
        # smddp: one rank speaks
        verbose=2 if sdp.rank() == 0 else 0,
    )

    if args.hash:
        weights = b"".join(np.asarray(weight).tobytes() for weight in model.get_weights())
        digest = hashlib.sha256(weights).hexdigest()
        print(f"weights of rank {sdp.rank()}: sha256 {digest}", flush=True)

    # smddp: save on one rank only; all hold the same weights
    if sdp.rank() == 0:
        accuracy = history.history["val_accuracy"][-1]
        print(f"{sdp.size()} process(es): test accuracy {accuracy:.2%}", flush=True)
        if args.save is not None:
            model.save(args.save)


if __name__ == "__main__":
    main()
