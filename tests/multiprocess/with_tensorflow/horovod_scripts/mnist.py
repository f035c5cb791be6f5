# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A loop with `DistributedGradientTape`: the calls of Horovod's TensorFlow 2 MNIST example."""

import hashlib
import sys

import digits
import numpy as np
import tensorflow as tf

import smdistributed.compat.horovod.tensorflow as hvd

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

batch_size, steps = 48 // hvd.size(), 6
images, labels = digits.load(48 * steps)
# Of each batch of 48 this rank's part.
mine = np.arange(48 * steps).reshape(steps, hvd.size(), batch_size)[:, hvd.rank()].reshape(-1)
dataset = tf.data.Dataset.from_tensor_slices(
    (tf.cast(images[mine], tf.float32), tf.cast(labels[mine], tf.int64))
).batch(batch_size)

tf.keras.utils.set_random_seed(0)  # alike in the first step, before the broadcast
model = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(16, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
loss = tf.losses.SparseCategoricalCrossentropy()
optimizer = tf.optimizers.Adam(0.001)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables(), root_rank=0)
    return loss_value


for batch, (some, their_labels) in enumerate(dataset.take(steps)):
    loss_value = training_step(some, their_labels, batch == 0)
    if batch % 10 == 0 and hvd.rank() == 0:
        print(f"Step #{batch}\tLoss: {loss_value:.6f}")

if hvd.rank() == 0:
    checkpoint.save(f"{sys.argv[1]}/checkpoints")
weights = b"".join(each.tobytes() for each in model.get_weights())
print("weights", hashlib.sha256(weights).hexdigest())
np.savez(f"{sys.argv[1]}/{hvd.size()}-{hvd.rank()}.npz", *model.get_weights())
