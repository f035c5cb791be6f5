# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A script as published ones for TensorFlow 2.3 were: replicas, an eager test, metrics in steps.

    python published_script.py [--epochs N] [--steps N] [--hvd first|middle|last|none]
        [--first-batch tensor|python] [--checkpoint-dir FOLDER]

What today's Keras names otherwise stands here by its old name. Without `hvd` it is the published
script for one replica.
"""

# ruff: noqa: E402 (what this is about)

import argparse
import sys
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--steps", type=int, default=-1)
parser.add_argument("--hvd", choices=("first", "middle", "last", "none"), default="first")
parser.add_argument("--first-batch", choices=("tensor", "python"), default="tensor")
parser.add_argument("--checkpoint-dir", default="/opt/ml/checkpoints")
args = parser.parse_args()

if args.hvd == "first":
    import horovod.tensorflow as hvd
import smdistributed.modelparallel.tensorflow as smp

if args.hvd == "middle":
    import horovod.tensorflow as hvd
import tensorflow as tf
from tensorflow.keras import Model
from tensorflow.keras.layers import Conv2D, Dense, Flatten

if args.hvd == "last":
    import horovod.tensorflow as hvd

sys.path.append(str(Path(__file__).resolve().parents[4] / "examples" / "01_mnist"))
import digits

tf.random.set_seed(1234)
smp.init()

train, test = digits.split(digits.load())


def images_of(part):
    """float64, between 0 and 1, as from `x / 255.0` of bytes."""
    pixels = part.images.astype("float64").reshape(-1, digits.IMAGE_SIDE, digits.IMAGE_SIDE, 1)
    return (pixels - pixels.min()) / (pixels.max() - pixels.min())


train_ds = (
    tf.data.Dataset.from_tensor_slices((images_of(train), train.labels.astype("uint8")))
    .shuffle(10000, seed=smp.dp_rank())
    .batch(64, drop_remainder=True)
)
test_ds = tf.data.Dataset.from_tensor_slices((images_of(test), test.labels.astype("uint8"))).batch(
    200, drop_remainder=True
)


class MyModel(smp.DistributedModel):
    def __init__(self):
        super(MyModel, self).__init__()  # noqa: UP008 (as published)
        self.conv = Conv2D(32, 5, strides=2, activation="relu")
        self.flatten = Flatten()
        self.d1 = Dense(64, activation="relu")
        self.d2 = Dense(10)

    def call(self, x):
        x = self.conv(x)
        x = self.flatten(x)
        x = self.d1(x)
        return self.d2(x)


model = MyModel()
assert isinstance(model, Model)
loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(learning_rate=0.003)
train_loss = tf.keras.metrics.Mean(name="train_loss")
train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
test_loss = tf.keras.metrics.Mean(name="test_loss")
accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")

checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
ckpt_manager = smp.CheckpointManager(checkpoint, args.checkpoint_dir)


@smp.step
def get_grads(images, labels):
    predictions = model(images, training=True)
    loss = loss_object(labels, predictions)
    grads = optimizer.get_gradients(loss, model.trainable_variables)
    return grads, loss, predictions


@tf.function
def train_step(images, labels, first_batch):
    gradients, loss, predictions = get_grads(images, labels)
    gradients = [g.accumulate() for g in gradients]
    if args.hvd != "none":
        gradients = [hvd.allreduce(g) for g in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905 (as published)
    if args.hvd != "none" and first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables(), root_rank=0)
    train_loss(loss.reduce_mean())
    train_accuracy(labels, predictions.merge())
    return loss.reduce_mean()


@smp.step(
    input_signature=[
        tf.TensorSpec(shape=[None, 28, 28, 1], dtype=tf.float64),
        tf.TensorSpec(shape=[None], dtype=tf.uint8),
    ]
)
def test_step(images, labels):
    predictions = model(images, training=False)
    t_loss = loss_object(labels, predictions)
    test_loss(t_loss)
    accuracy(labels, predictions)
    return t_loss


for epoch in range(args.epochs):
    for metric in (train_loss, train_accuracy, test_loss, accuracy):
        metric.reset_states()
    for step, (images, labels) in enumerate(train_ds.take(args.steps)):
        is_first = epoch == 0 and step == 0
        loss = train_step(
            images, labels, tf.constant(is_first) if args.first_batch == "tensor" else is_first
        )
        if smp.rank() == 0:
            print(f"Loss: {loss}")
    for images, labels in test_ds:
        test_step(images, labels)
    smp.barrier()
    if smp.rank() == 0:
        print(
            f"Epoch {epoch + 1}, Loss: {train_loss.result()}, Accuracy: {train_accuracy.result()},"
            f" Test Loss: {test_loss.result()}, Test Accuracy: {accuracy.result()}"
        )
    ckpt_manager.save()
    smp.barrier()

if args.hvd != "none":
    assert (hvd.rank(), hvd.size()) == (smp.dp_rank(), smp.dp_size())
