# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What `DistributedOptimizer` and the callbacks take and refuse, in one process.

Source: dataparallel specification, sections 6.2, 7.7 and 8.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow_harness import forget_the_launcher

from smdistributed._common.settings import Settings
from smdistributed.dataparallel.compression import Compression
from smdistributed.dataparallel.exceptions import (
    SMDDPConfigInvalid,
    SMDDPNotInitialized,
    SMDDPUnsupported,
)
from smdistributed.dataparallel.tensorflow import keras as sdp_keras
from smdistributed.dataparallel.tensorflow import optimizers
from smdistributed.dataparallel.tensorflow.optimizers import DistributedOptimizer
from smdistributed.dataparallel.tensorflow.optimizers.reducer import reducer_of
from smdistributed.dataparallel.tensorflow.reduce_op import ReduceOp
from tests.multiprocess.with_tensorflow.tf_ranks import no_job, raised

around_checks = no_job


def sgd() -> Any:
    return tf.keras.optimizers.SGD(1.0)


def check_signatures(rank: int, size: int) -> None:
    both = {
        "optimizer": inspect.Parameter.empty,
        "name": None,
        "use_locking": False,
        "device_dense": "",
        "device_sparse": "",
        "compression": Compression.none,
        "sparse_as_dense": True,
        "op": ReduceOp.AVERAGE,
        "bucket_cap_mb": 25,
    }
    ours = {
        "group": None,
        "backward_passes_per_step": 1,
        "average_aggregated_gradients": False,
    }
    parameters = inspect.signature(DistributedOptimizer).parameters
    assert {name: each.default for name, each in parameters.items()} == {**both, **ours}
    assert list(parameters) == [*both, *ours]
    del both["use_locking"]
    both["op"] = None
    parameters = inspect.signature(sdp_keras.DistributedOptimizer).parameters
    assert {name: each.default for name, each in parameters.items()} == {**both, **ours}
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in ours)


def check_bucket_sizes(rank: int, size: int) -> None:
    for value in (1, 25, 0.5):
        DistributedOptimizer(sgd(), bucket_cap_mb=value)
    for value in (0, -1, 1 / 3, float("nan")):
        text = raised(ValueError, DistributedOptimizer, sgd(), bucket_cap_mb=value)
        assert "must be a positive multiple of 128 bytes" in text, text
    text = raised(ValueError, DistributedOptimizer, sgd(), bucket_cap_mb=True)
    assert text.startswith("bucket_cap_mb=True is of type bool; expected a number"), text


def check_devices_are_refused(rank: int, size: int) -> None:
    for name in ("device_dense", "device_sparse"):
        text = raised(SMDDPUnsupported, DistributedOptimizer, sgd(), **{name: "/gpu:0"})
        assert text == f"{name} is not supported"


def check_operations(rank: int, size: int) -> None:
    for op in (None, ReduceOp.AVERAGE, ReduceOp.SUM):
        sdp_keras.DistributedOptimizer(sgd(), op=op)
    for op in (ReduceOp.MIN, ReduceOp.MAX):
        text = raised(ValueError, DistributedOptimizer, sgd(), op=op)
        assert "expected one of ReduceOp.AVERAGE, ReduceOp.SUM" in text, text


def check_what_is_no_optimizer(rank: int, size: int) -> None:
    for value in ("adam", None, object(), tf.keras.optimizers.SGD, tf.keras.losses.Huber()):
        assert "Make one first" in raised(SMDDPConfigInvalid, DistributedOptimizer, value)
    text = raised(ValueError, DistributedOptimizer, sgd(), compression=7)
    assert "compression=7 is unknown" in text


def check_a_refused_optimizer_is_as_it_was(rank: int, size: int) -> None:
    optimizer = sgd()
    name = optimizer.name
    raised(SMDDPConfigInvalid, DistributedOptimizer, optimizer, bucket_cap_mb=0)
    assert type(optimizer) is tf.keras.optimizers.SGD
    assert optimizer.name == name


def check_use_before_init(rank: int, size: int) -> None:
    pairs = [(tf.constant([1.0]), tf.Variable([1.0]))]
    text = raised(SMDDPNotInitialized, DistributedOptimizer(sgd()).apply_gradients, pairs)
    assert "init() first" in text


def check_a_class_of_the_users_own(rank: int, size: int) -> None:
    class Mine(tf.keras.optimizers.SGD):
        pass

    optimizer = DistributedOptimizer(Mine(0.5))
    assert isinstance(optimizer, Mine)
    assert optimizer.__class__ is Mine
    assert optimizer.name == "smdistributed.dataparallel.Mine"
    assert float(Mine.from_config(optimizer.get_config()).learning_rate) == 0.5


def check_callbacks_take_no_device(rank: int, size: int) -> None:
    callbacks = sdp_keras.callbacks
    for make in (
        lambda: callbacks.BroadcastGlobalVariablesCallback(0, device="/gpu:0"),
        lambda: callbacks.MetricAverageCallback(device="/gpu:0"),
    ):
        assert raised(SMDDPUnsupported, make) == "device is not supported"
    assert {"BroadcastGlobalVariablesCallback", "MetricAverageCallback"} <= set(dir(callbacks))
    text = raised(AttributeError, lambda: callbacks.NoSuchCallback)
    assert "no attribute 'NoSuchCallback'" in text


def check_a_cap_that_is_left_to_the_setting(rank: int, size: int) -> None:
    """25 is the default in the signature, and means 25 only where a script says it."""
    settings = Settings(bucket_cap_bytes=1 << 20)
    with mock.patch.object(optimizers, "process_settings", return_value=settings):
        left, said = DistributedOptimizer(sgd()), DistributedOptimizer(sgd(), bucket_cap_mb=25)
        assert reducer_of(left).bucket_cap_bytes == 1 << 20
        assert reducer_of(said).bucket_cap_bytes == 25 << 20


def train_without_a_launcher(rank: int, size: int) -> None:
    """With whichever Keras it is; the other one is not loaded."""
    forget_the_launcher()
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    callbacks = sdp_keras.callbacks
    assert issubclass(callbacks.MetricAverageCallback, tf.keras.callbacks.Callback)
    assert callbacks.MetricAverageCallback is callbacks.MetricAverageCallback
    assert len({"keras", "tf_keras"} & set(sys.modules)) == 1

    sdp_keras.init()
    x = tf.random.normal((32, 3))
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    optimizer = sdp_keras.DistributedOptimizer(tf.keras.optimizers.Adam())
    model.compile(optimizer=optimizer, loss="mse")
    chosen = [callbacks.BroadcastGlobalVariablesCallback(0), callbacks.MetricAverageCallback()]
    losses = model.fit(x, x[:, :1], verbose=0, epochs=2, callbacks=chosen).history["loss"]
    assert len(losses) == 2
    assert losses[1] < losses[0]

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = tf.Variable([1.0])
        optimizer = sdp_keras.DistributedOptimizer(sgd())
    pairs = [(tf.constant([1.0]), variable)]
    text = raised(SMDDPUnsupported, strategy.run, lambda: optimizer.apply_gradients(pairs))
    assert "strategy of 2 replicas" in text
