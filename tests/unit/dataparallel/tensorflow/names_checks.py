# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The public names, and what they do before `init()`.

Source: dataparallel specification, sections 7.1, 7.2, 7.5 and 8.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.dataparallel import exceptions
from tests.multiprocess.with_tensorflow.tf_ranks import no_job, raised

around_checks = no_job
# Widening the public surface is a decision: it changes these lists.
NAMES = {
    "init",
    "size",
    "local_size",
    "rank",
    "local_rank",
    "allreduce",
    "oob_allreduce",
    "broadcast",
    "broadcast_variables",
    "broadcast_global_variables",
    "overlap",
    "shutdown",
    "DistributedOptimizer",
    "DistributedGradientTape",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "ReduceOp",
    "keras",
    "Group",
    "close_group",
    "new_group",
    "Average",
    "Max",
    "Min",
    "Sum",
    "allgather",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "broadcast_object_fn",
    "grouped_allgather",
    "grouped_allreduce",
    "is_initialized",
    "join",
}
KERAS_NAMES = {
    "Compression",
    "DistributedOptimizer",
    "Group",
    "close_group",
    "new_group",
    "ReduceOp",
    "callbacks",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
}


def check_the_names(rank: int, size: int) -> None:
    for module, names in ((sdp, NAMES), (sdp.keras, KERAS_NAMES)):
        assert sorted(module.__all__) == sorted(names)
        assert all(getattr(module, name) is not None for name in names)
    assert set(dir(sdp)) >= NAMES
    assert sdp.keras.__name__ == "smdistributed.dataparallel.tensorflow.keras"
    assert "no attribute 'horovod'" in raised(AttributeError, lambda: sdp.horovod)
    assert {name for name in vars(sdp.ReduceOp) if name.isupper()} == {
        "AVERAGE",
        "SUM",
        "MIN",
        "MAX",
    }


def check_before_init(rank: int, size: int) -> None:
    variable = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = variable * 2.0
    tape = sdp.DistributedGradientTape(tape)
    calls = {
        "size()": sdp.size,
        "allreduce()": lambda: sdp.allreduce(variable, 0, 1),
        "oob_allreduce()": lambda: sdp.oob_allreduce(1.0),
        "broadcast()": lambda: sdp.broadcast(1.0, 0),
        "broadcast_variables()": lambda: sdp.broadcast_variables([variable], 0),
        "reduction of gradients": lambda: tape.gradient(loss, variable),
    }
    for caller, call in calls.items():
        text = raised(exceptions.SMDDPNotInitialized, call)
        assert text.startswith(f"{caller} was called before init()"), text
        assert "Call smdistributed" in text
        assert "init() first" in text
    sdp.shutdown()
    assert sdp.overlap(variable).numpy().tolist() == [1.0, 2.0]


def check_documented_errors_survive_autograph(rank: int, size: int) -> None:
    """AutoGraph makes errors of user code anew, and of some classes it cannot."""
    for name in dir(exceptions):
        kind = getattr(exceptions, name)
        if not (isinstance(kind, type) and issubclass(kind, exceptions.SMDDPError)):
            continue

        @tf.function
        def step(kind: type[Exception] = kind) -> None:
            raise kind("what was wrong")

        with pytest.raises(kind, match="what was wrong"):
            step()
