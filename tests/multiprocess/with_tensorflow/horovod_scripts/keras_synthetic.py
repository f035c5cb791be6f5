# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Random data with `fit`: the calls of Horovod's Keras synthetic benchmark."""

import tensorflow as tf

import smdistributed.compat.horovod.tensorflow.keras as hvd

hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())  # so that the broadcast has something to do
model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, "softmax")])
optimizer = tf.optimizers.SGD(0.01)
data = tf.random.uniform([4, 8, 8, 3])
target = tf.random.uniform([4, 1], minval=0, maxval=9, dtype=tf.int64)
dataset = tf.data.Dataset.from_tensor_slices((data, target)).cache().repeat().batch(4)
optimizer = hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.fp16)
model.compile(
    loss=tf.losses.SparseCategoricalCrossentropy(),
    optimizer=optimizer,
    experimental_run_tf_function=False,
)


class TimingCallback(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, "loss", logs["loss"])


callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
]
callbacks.append(TimingCallback())
model.fit(dataset, steps_per_epoch=3, callbacks=callbacks, epochs=2, verbose=0)
weights = hvd.allgather(model.get_weights()[0][None])
print("spread", float(tf.reduce_max(tf.abs(weights - weights[0]))))
