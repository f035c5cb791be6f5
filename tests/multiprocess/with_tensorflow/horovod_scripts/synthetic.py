# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Random data, with compression: the calls of Horovod's synthetic benchmark."""

import timeit

import tensorflow as tf

import smdistributed.compat.horovod.tensorflow as hvd

hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())  # so that the broadcast has something to do
model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])
optimizer = tf.optimizers.SGD(0.01)
data = tf.random.uniform([4, 8, 8, 3])
target = tf.random.uniform([4, 1], minval=0, maxval=9, dtype=tf.int64)


@tf.function
def benchmark_step(first_batch):
    compression = hvd.Compression.fp16
    with tf.GradientTape() as tape:
        probs = model(data, training=True)
        loss = tf.losses.sparse_categorical_crossentropy(target, probs, from_logits=True)
    tape = hvd.DistributedGradientTape(tape, compression=compression)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables(), root_rank=0)


with tf.device("CPU"):
    benchmark_step(first_batch=True)
    timeit.timeit(lambda: benchmark_step(first_batch=False), number=3)
spread = hvd.allreduce(model.get_weights()[0], op=hvd.Max) - hvd.allreduce(
    model.get_weights()[0], op=hvd.Min
)
print("spread", float(tf.reduce_max(spread)))
