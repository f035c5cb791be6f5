# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What `DistributedOptimizer` takes and refuses, in one process.

Source: dataparallel specification, sections 6.2, 7.7 and 8.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from smdistributed._common.settings import Settings  # noqa: E402
from smdistributed.dataparallel.compression import Compression  # noqa: E402
from smdistributed.dataparallel.exceptions import (  # noqa: E402
    SMDDPConfigInvalid,
    SMDDPNotInitialized,
    SMDDPUnsupported,
)
from smdistributed.dataparallel.tensorflow import keras as sdp_keras  # noqa: E402
from smdistributed.dataparallel.tensorflow import optimizers  # noqa: E402
from smdistributed.dataparallel.tensorflow.optimizers import (  # noqa: E402
    DistributedOptimizer,
)
from smdistributed.dataparallel.tensorflow.optimizers.reducer import reducer_of  # noqa: E402
from smdistributed.dataparallel.tensorflow.reduce_op import ReduceOp  # noqa: E402


def sgd() -> Any:
    return tf.keras.optimizers.SGD(1.0)


def test_signatures() -> None:
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
    parameters = inspect.signature(DistributedOptimizer).parameters
    assert {name: each.default for name, each in parameters.items()} == both
    assert list(parameters) == list(both)
    del both["use_locking"]
    both["op"] = None
    parameters = inspect.signature(sdp_keras.DistributedOptimizer).parameters
    assert {name: each.default for name, each in parameters.items()} == both


def test_names_of_the_keras_module() -> None:
    assert sorted(sdp_keras.__all__) == [
        "Compression",
        "DistributedOptimizer",
        "ReduceOp",
        "callbacks",
        "init",
        "local_rank",
        "local_size",
        "rank",
        "shutdown",
        "size",
    ]
    assert all(hasattr(sdp_keras, name) for name in sdp_keras.__all__)


@pytest.mark.parametrize("value", [1, 25, 0.5])
def test_bucket_sizes(value: float) -> None:
    DistributedOptimizer(sgd(), bucket_cap_mb=value)


@pytest.mark.parametrize("value", [0, -1, True, 1 / 3, float("nan")])
def test_bucket_sizes_that_cannot_be(value: float) -> None:
    with pytest.raises(ValueError, match="must be a positive multiple of 128 bytes"):
        DistributedOptimizer(sgd(), bucket_cap_mb=value)


@pytest.mark.parametrize("name", ["device_dense", "device_sparse"])
def test_devices_are_refused(name: str) -> None:
    with pytest.raises(SMDDPUnsupported, match=f"^{name} is not supported$"):
        DistributedOptimizer(sgd(), **{name: "/gpu:0"})


def test_operations() -> None:
    for op in (None, ReduceOp.AVERAGE, ReduceOp.SUM):
        sdp_keras.DistributedOptimizer(sgd(), op=op)
    for op in (ReduceOp.MIN, ReduceOp.MAX):
        with pytest.raises(ValueError, match=r"expected one of ReduceOp\.AVERAGE, ReduceOp\.SUM"):
            DistributedOptimizer(sgd(), op=op)


def test_what_is_no_optimizer() -> None:
    for value in ("adam", None, object(), tf.keras.optimizers.SGD, tf.keras.losses.Huber()):
        with pytest.raises(SMDDPConfigInvalid, match="Make one first"):
            DistributedOptimizer(value)
    with pytest.raises(ValueError, match="compression=7 is unknown"):
        DistributedOptimizer(sgd(), compression=7)


def test_a_refused_optimizer_is_as_it_was() -> None:
    optimizer = sgd()
    name = optimizer.name
    with pytest.raises(SMDDPConfigInvalid):
        DistributedOptimizer(optimizer, bucket_cap_mb=0)
    assert type(optimizer) is tf.keras.optimizers.SGD
    assert optimizer.name == name


def test_use_before_init() -> None:
    optimizer = DistributedOptimizer(sgd())
    with pytest.raises(SMDDPNotInitialized, match=r"Call .*init\(\) first"):
        optimizer.apply_gradients([(tf.constant([1.0]), tf.Variable([1.0]))])


def test_a_class_of_the_users_own() -> None:
    class Mine(tf.keras.optimizers.SGD):
        pass

    optimizer = DistributedOptimizer(Mine(0.5))
    assert isinstance(optimizer, Mine)
    assert optimizer.__class__ is Mine
    assert optimizer.name == "smdistributed.dataparallel.Mine"
    assert float(Mine.from_config(optimizer.get_config()).learning_rate) == 0.5


_ALONE = """
import sys
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
before = set(sys.modules)
import smdistributed.dataparallel.tensorflow.keras as sdp
new = {name.partition(".")[0] for name in set(sys.modules) - before}
assert not new & {"keras", "tf_keras"}, new
other = "keras" if "tf_keras" in sys.modules else "tf_keras"
assert other not in sys.modules
assert issubclass(sdp.callbacks.MetricAverageCallback, tf.keras.callbacks.Callback)
assert sdp.callbacks.MetricAverageCallback is sdp.callbacks.MetricAverageCallback

sdp.init()
x = tf.random.normal((32, 3))
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile(optimizer=sdp.DistributedOptimizer(tf.keras.optimizers.Adam()), loss="mse")
callbacks = [
    sdp.callbacks.BroadcastGlobalVariablesCallback(0),
    sdp.callbacks.MetricAverageCallback(),
]
history = model.fit(x, x[:, :1], verbose=0, epochs=2, callbacks=callbacks).history["loss"]
assert len(history) == 2 and history[1] < history[0]

from smdistributed.dataparallel.exceptions import SMDDPUnsupported
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    variable = tf.Variable([1.0])
    optimizer = sdp.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
try:
    strategy.run(lambda: optimizer.apply_gradients([(tf.constant([1.0]), variable)]))
except SMDDPUnsupported as error:
    assert "strategy of 2 replicas" in str(error)
else:
    raise AssertionError("two replicas in one process were taken")
"""


@pytest.mark.timeout(150)
@pytest.mark.parametrize("legacy", ["0", "1"])
def test_in_one_process_without_a_launcher(legacy: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ALONE],
        env={**os.environ, "TF_USE_LEGACY_KERAS": legacy, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_callbacks_take_no_device() -> None:
    callbacks = sdp_keras.callbacks
    for make in (
        lambda: callbacks.BroadcastGlobalVariablesCallback(0, device="/gpu:0"),
        lambda: callbacks.MetricAverageCallback(device="/gpu:0"),
    ):
        with pytest.raises(SMDDPUnsupported, match=r"^device is not supported$"):
            make()
    assert {"BroadcastGlobalVariablesCallback", "MetricAverageCallback"} <= set(dir(callbacks))
    with pytest.raises(AttributeError, match="no attribute 'NoSuchCallback'"):
        _ = callbacks.NoSuchCallback


def test_a_cap_that_is_left_to_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """25 is the default in the signature, and means 25 only where a script says it."""
    monkeypatch.setattr(optimizers, "process_settings", lambda: Settings(bucket_cap_bytes=1 << 20))
    left, said = DistributedOptimizer(sgd()), DistributedOptimizer(sgd(), bucket_cap_mb=25)
    assert reducer_of(left).bucket_cap_bytes == 1 << 20
    assert reducer_of(said).bucket_cap_bytes == 25 << 20
