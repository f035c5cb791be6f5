# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The guide's TensorFlow 2 script, with the dots filled in: real digits, a loop, a test at the end.

What it takes to go from one process to several is marked "smddp:", in the guide's words and calls;
all else is TensorFlow. It runs with Keras 3 and, with TF_USE_LEGACY_KERAS=1, with tf-keras.

    smddprun -np 2 train.py
    python train.py                      # the same in one process
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import tensorflow as tf

# smddp: import the library
import smdistributed.dataparallel.tensorflow as sdp

sys.path.append(str(Path(__file__).resolve().parents[1] / "01_mnist"))
import digits


def positive_int(text: str) -> int:
    """An argparse type: a whole number from 1 up."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"got {text!r}; expected a whole number from 1 up. Pass, for instance, 8"
        )
    return value


parser = argparse.ArgumentParser(description="Data-parallel MNIST training with TensorFlow.")
parser.add_argument("--epochs", type=positive_int, default=5)
parser.add_argument("--steps", type=positive_int, help="stop training after so many steps")
parser.add_argument(
    "--batch-size", type=positive_int, default=32, help="images per step and process"
)
parser.add_argument(
    "--lr", type=float, default=0.0005, help="learning rate of one process; it grows with them"
)
parser.add_argument("--seed", type=int, help="of the weights; else each process draws its own")
parser.add_argument("--checkpoint-dir", type=Path, metavar="DIR", help="where rank 0 saves")
parser.add_argument(
    "--hash", action="store_true", help="every rank prints the SHA-256 of its final weights"
)
args = parser.parse_args()

# smddp: initialize the library
sdp.init()

gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    # smddp: pin each GPU to one process
    tf.config.experimental.set_visible_devices(gpus[sdp.local_rank()], "GPU")

if args.seed is not None:
    tf.keras.utils.set_random_seed(args.seed)

train, test = digits.split(digits.load())
images = train.images.reshape(-1, digits.IMAGE_SIDE, digits.IMAGE_SIDE, 1)
dataset = (
    tf.data.Dataset.from_tensor_slices((images, train.labels))
    # All ranks shuffle alike, so that their parts do not overlap ...
    .shuffle(len(images), seed=1)
    # smddp: ... and give each rank its own part of the data
    .shard(sdp.size(), sdp.rank())
    # Without the incomplete last batch: all ranks make the same number of steps.
    .batch(args.batch_size, drop_remainder=True)
    .repeat(args.epochs)
)
num_steps = len(dataset) if args.steps is None else min(args.steps, len(dataset))
if num_steps == 0:
    raise SystemExit(
        f"--batch-size {args.batch_size} is more than the {len(images) // sdp.size()} images that "
        f"each of {sdp.size()} process(es) holds; expected at least one full step. Pass "
        f"--batch-size {len(images) // sdp.size()} or less."
    )

mnist_model = tf.keras.Sequential(
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
loss = tf.losses.SparseCategoricalCrossentropy()

# smddp: scale the learning rate
opt = tf.optimizers.Adam(args.lr * sdp.size())

checkpoint = tf.train.Checkpoint(model=mnist_model, optimizer=opt)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = mnist_model(images, training=True)
        loss_value = loss(labels, probs)

    # smddp: wrap tf.GradientTape with the library's DistributedGradientTape
    tape = sdp.DistributedGradientTape(tape)

    grads = tape.gradient(loss_value, mnist_model.trainable_variables)
    opt.apply_gradients(zip(grads, mnist_model.trainable_variables))  # noqa: B905 (as documented)

    if first_batch:
        # smddp: broadcast model and optimizer variables
        sdp.broadcast_variables(mnist_model.variables, root_rank=0)
        sdp.broadcast_variables(opt.variables(), root_rank=0)

    # smddp: average the loss across ranks
    return sdp.oob_allreduce(loss_value)


if sdp.rank() == 0:
    print(
        f"{sdp.size()} process(es), {args.batch_size} images each per step; {len(images)} training "
        f"and {len(test.labels)} test images",
        flush=True,
    )
for step, (image_batch, label_batch) in enumerate(dataset.take(num_steps), 1):
    loss_value = training_step(image_batch, label_batch, step == 1)
    if sdp.rank() == 0 and (step % 50 == 0 or step in (1, num_steps)):
        print(f"step {step:3d} of {num_steps}: loss {loss_value:.4f}", flush=True)

# Every rank reads its part of the test images.
test_images = test.images.reshape(-1, digits.IMAGE_SIDE, digits.IMAGE_SIDE, 1)
probs = mnist_model(test_images[sdp.rank() :: sdp.size()], training=False)
is_correct = tf.argmax(probs, axis=1) == test.labels[sdp.rank() :: sdp.size()]
# smddp: an average over ranks, times their number, is the sum
num_correct = sdp.oob_allreduce(tf.reduce_sum(tf.cast(is_correct, tf.float32))) * sdp.size()

if args.hash:
    weights = b"".join(variable.numpy().tobytes() for variable in mnist_model.variables)
    digest = hashlib.sha256(weights).hexdigest()
    print(f"weights of rank {sdp.rank()}: sha256 {digest}", flush=True)

# smddp: save checkpoints only from rank 0
if sdp.rank() == 0:
    print(f"test accuracy {num_correct / len(test.labels):.2%}", flush=True)
    if args.checkpoint_dir is not None:
        checkpoint.save(args.checkpoint_dir / "mnist")
