# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`fit` with all callbacks: the calls of Horovod's Keras MNIST example."""

import hashlib
import sys

import digits
import numpy as np
import tensorflow as tf

import smdistributed.compat.horovod.tensorflow.keras as hvd

hvd.init()
batch_size, steps, epochs = 48 // hvd.size(), 4, 2
images, labels = digits.load(48 * steps)
mine = np.arange(48 * steps).reshape(steps, hvd.size(), batch_size)[:, hvd.rank()].reshape(-1)
dataset = tf.data.Dataset.from_tensor_slices(
    (tf.cast(images[mine], tf.float32), tf.cast(labels[mine], tf.int64))
)
dataset = dataset.repeat().batch(batch_size)

tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(16, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
scaled_lr = 0.001 * hvd.size()
optimizer = tf.optimizers.Adam(scaled_lr)
optimizer = hvd.DistributedOptimizer(
    optimizer, backward_passes_per_step=1, average_aggregated_gradients=True
)
model.compile(
    loss=tf.losses.SparseCategoricalCrossentropy(),
    optimizer=optimizer,
    metrics=["accuracy"],
    experimental_run_tf_function=False,
)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=1, verbose=1),
]
if hvd.rank() == 0:
    path = sys.argv[1] + "/checkpoint-{epoch}.keras"
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(path))
history = model.fit(
    dataset,
    steps_per_epoch=steps,
    callbacks=callbacks,
    epochs=epochs,
    verbose=1 if hvd.rank() == 0 else 0,
).history
weights = b"".join(each.tobytes() for each in model.get_weights())
print("weights", hashlib.sha256(weights).hexdigest())
print("rates", *history["lr"])
print("losses", *history["loss"])
