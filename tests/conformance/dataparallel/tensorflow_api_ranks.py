# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks find that call TensorFlow's front end; `test_tensorflow_api.py` judges it."""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Callable
from typing import Any

PACKAGE = "smdistributed.dataparallel.tensorflow"


def raised(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[list[str], str]:
    """Class names of what a call raises, the most derived first, and the text; nothing: []."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return [base.__name__ for base in type(error).__mro__], str(error)
    return [], ""


def signature(function: Any) -> dict[str, Any]:
    """Parameters with their defaults, which are text where they do not pickle alike."""
    return {
        parameter.name: _as_data(parameter.default)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != "self"
    }


def _as_data(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return ...
    if isinstance(default, int) and not isinstance(default, bool | enum.Enum):
        return int(default)
    if type(default) in (str, float, bool, type(None)):
        return default
    return getattr(default, "name", None) or getattr(default, "__name__", repr(default))


def find(rank: int, world_size: int) -> dict[str, Any]:
    """Sections 7 and 8, all in one job."""
    import tensorflow as tf

    sdp = importlib.import_module(PACKAGE)
    found: dict[str, Any] = {}
    found["before init"] = {
        name: raised(function)
        for name, function in {
            "size": sdp.size,
            "local_size": sdp.local_size,
            "rank": sdp.rank,
            "local_rank": sdp.local_rank,
            "allreduce": lambda: sdp.allreduce(tf.constant(1.0), 0, 1),
            "oob_allreduce": lambda: sdp.oob_allreduce(tf.constant(1.0)),
            "broadcast": lambda: sdp.broadcast(tf.constant(1.0), 0),
            "broadcast_variables": lambda: sdp.broadcast_variables([tf.Variable(1.0)], 0),
        }.items()
    }
    found["init returns"] = sdp.init()
    found["second init"] = raised(sdp.init)
    keras = sdp.keras
    found["second init through keras"] = raised(keras.init)
    found["process"] = [sdp.size(), sdp.local_size(), sdp.rank(), sdp.local_rank()]
    found["through keras"] = [keras.size(), keras.local_size(), keras.rank(), keras.local_rank()]

    found["names"] = sorted(sdp.__all__)
    found["missing names"] = [name for name in sdp.__all__ if not hasattr(sdp, name)]
    found["keras names"] = sorted(keras.__all__)
    found["callbacks"] = sorted(keras.callbacks.__all__)
    found["is keras the subpackage"] = keras is importlib.import_module(f"{PACKAGE}.keras")
    found["signatures"] = {
        name: signature(getattr(sdp, name))
        for name in sdp.__all__
        if inspect.isroutine(getattr(sdp, name)) or name == "BroadcastGlobalVariablesHook"
    }
    found["keras signatures"] = {
        "DistributedOptimizer": signature(keras.DistributedOptimizer),
        "BroadcastGlobalVariablesCallback": signature(
            keras.callbacks.BroadcastGlobalVariablesCallback
        ),
        "MetricAverageCallback": signature(keras.callbacks.MetricAverageCallback),
    }
    found["reduce ops"] = sorted(name for name in vars(sdp.ReduceOp) if name[0] != "_")
    found |= _refusals(sdp, tf)
    found |= _results(sdp, tf, rank)
    found["shutdown returns"] = sdp.shutdown()
    found["after shutdown"] = raised(sdp.rank)
    sdp.init()
    found["again"] = sdp.size()
    return found


def _refusals(sdp: Any, tf: Any) -> dict[str, Any]:
    tape = tf.GradientTape()
    one = tf.constant(1.0)

    def optimizer() -> Any:
        return tf.keras.optimizers.SGD(0.1)

    return {
        "device_dense": [
            raised(sdp.DistributedGradientTape, tape, device_dense="/gpu:0"),
            raised(sdp.DistributedOptimizer, optimizer(), device_dense="/gpu:0"),
            raised(sdp.keras.DistributedOptimizer, optimizer(), device_dense="/gpu:0"),
        ],
        "device_sparse": [
            raised(sdp.DistributedGradientTape, tape, device_sparse="/cpu:0"),
            raised(sdp.DistributedOptimizer, optimizer(), device_sparse="/cpu:0"),
            raised(sdp.keras.DistributedOptimizer, optimizer(), device_sparse="/cpu:0"),
        ],
        "tape op": {
            name: raised(sdp.DistributedGradientTape, tape, op=getattr(sdp.ReduceOp, name))[0]
            for name in ("AVERAGE", "SUM", "MIN", "MAX")
        },
        "tape op None": raised(sdp.DistributedGradientTape, tape, op=None),
        "compression": [
            raised(sdp.DistributedGradientTape, tape, compression="fp16")[0],
            raised(sdp.DistributedOptimizer, optimizer(), compression=16)[0],
            raised(sdp.oob_allreduce, one, compression="none")[0],
            raised(sdp.allreduce, one, 0, 1, compression="none")[0],
        ],
        "bucket_cap_mb": {
            repr(value): raised(sdp.DistributedOptimizer, optimizer(), bucket_cap_mb=value)
            for value in (1, 25, 0.5, 0, -1, True, 1 / 3, 0.00005)
        },
        "root_rank": {root: raised(sdp.broadcast, one, root)[0] for root in (-1, 2, "0", None)},
        "root_rank of variables": raised(sdp.broadcast_variables, [tf.Variable(1.0)], 2)[0],
        "broadcast_global_variables": raised(sdp.broadcast_global_variables, 0),
        "tensors for variables": raised(sdp.broadcast_variables, [one], 0)[0],
    }


def _results(sdp: Any, tf: Any, rank: int) -> dict[str, Any]:
    """Rank r brings r + 1 and 10 r, of two ranks."""
    tensor = tf.constant([rank + 1.0, 10.0 * rank])
    average = sdp.oob_allreduce(tensor)
    found: dict[str, Any] = {
        "average": (average.numpy().tolist(), average.dtype.name, tuple(average.shape)),
        "input is as it was": tensor.numpy().tolist() == [rank + 1.0, 10.0 * rank],
        "ops": {
            name: sdp.oob_allreduce(tensor, op=getattr(sdp.ReduceOp, name)).numpy().tolist()
            for name in ("AVERAGE", "SUM", "MIN", "MAX")
        },
        "op None": sdp.allreduce(tensor, 0, 1, op=None).numpy().tolist(),
        # Hints that are wrong cost time, no more.
        "wrong hints": [
            sdp.allreduce(tensor, index, number).numpy().tolist()
            for index, number in ((0, 2), (7, 3), (-1, 0))
        ],
        "list": [each.numpy().tolist() for each in sdp.allreduce([tensor, tensor[:1]], 0, 2)],
        "integers": sdp.oob_allreduce(tf.constant([rank, 3, -rank])).numpy().tolist(),
        "kinds": [
            float(sdp.oob_allreduce(value))
            for value in (float(rank), tf.Variable(float(rank)), tensor.numpy()[1] / 10)
        ],
        "fp16 on the wire": sdp.oob_allreduce(
            tf.constant([1.0 + 2**-14]), compression=sdp.Compression.fp16
        )
        .numpy()
        .tolist(),
        "fp16 average": float(sdp.oob_allreduce(tf.constant(60000.0, tf.float16))),
        "broadcast": [sdp.broadcast(tensor, root).numpy().tolist() for root in (0, 1)],
    }
    variables = [
        tf.Variable(float(rank)),
        tf.Variable([rank, 7], dtype=tf.int64),
        tf.keras.Variable([[10.0 * rank]]),
    ]
    found["broadcast_variables returns"] = sdp.broadcast_variables(iter(variables), root_rank=1)
    found["variables"] = [tf.convert_to_tensor(each).numpy().tolist() for each in variables]
    found["no variables"] = sdp.broadcast_variables([], 0)

    with tf.GradientTape(persistent=True) as tape:
        x = tf.constant(3.0)
        tape.watch(x)
        marked = sdp.overlap(x * x * (rank + 1.0))
    found["overlap"] = float(marked)
    wrapped = sdp.DistributedGradientTape(tape)
    found["tape"] = {
        "is a tape": isinstance(wrapped, tf.GradientTape),
        "gradient": float(wrapped.gradient(marked, x)),
        "structure": _floats(wrapped.gradient(marked, {"x": [x], "none": tf.constant(1.0)})),
        "jacobian": float(wrapped.jacobian(marked, x)),
        "sum": float(sdp.DistributedGradientTape(tape, op=sdp.ReduceOp.SUM).gradient(marked, x)),
    }
    plain = tf.keras.optimizers.Adam(0.25)
    optimizer = sdp.DistributedOptimizer(tf.keras.optimizers.Adam(0.25))
    found["optimizer"] = {
        "is of its class": isinstance(optimizer, tf.keras.optimizers.Adam),
        "name": optimizer.name,
        "configuration": {k: v for k, v in optimizer.get_config().items() if k != "name"}
        == {k: v for k, v in plain.get_config().items() if k != "name"},
    }
    # Lines of documented scripts that Keras 3 would refuse.
    optimizer.build([tf.keras.Variable(1.0)])
    found["opt.variables()"] = len(optimizer.variables()) == len(list(optimizer.variables)) > 0
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer=plain, loss="mse", experimental_run_tf_function=False)
    metric = tf.keras.metrics.Mean()
    metric.update_state(4.0)
    metric.reset_states()
    found["reset_states"] = float(metric.result())
    return found


def _floats(structure: Any) -> Any:
    if isinstance(structure, dict):
        return {name: _floats(value) for name, value in structure.items()}
    if isinstance(structure, list):
        return [_floats(value) for value in structure]
    return None if structure is None else float(structure)
