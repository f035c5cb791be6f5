# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_horovod_meaning.py run: two partitions, and as many replicas as fit."""

from __future__ import annotations

import sys
import types
from unittest import mock

import numpy as np
import tensorflow as tf
from with_tensorflow.modelparallel.job_ranks import warnings
from with_tensorflow.tf_ranks import no_job as around_checks
from with_tensorflow.tf_ranks import raised

import smdistributed.compat.horovod.tensorflow as hvd
import smdistributed.compat.horovod.tensorflow.keras as hvd_keras
import smdistributed.dataparallel.tensorflow as sdp
import smdistributed.modelparallel.tensorflow as smp
from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.modelparallel.exceptions import ConfigError

__all__ = ["around_checks"]


def check_init(rank: int, size: int) -> None:
    smp.init({"partitions": 2, "horovod": size > 2})
    for _ in range(2):
        with warnings() as said:
            hvd.init()
        assert all("hvd.init() was called in a job of model parallelism" in line for line in said)
    assert not said, "it warns once"
    assert sdp.is_initialized()
    assert hvd.is_initialized()


def check_without_replicas_each_rank_is_alone(rank: int, size: int) -> None:
    if size > 2:
        return
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.global_process_set.ranks == [0]
    mine = tf.constant([1.0 + rank])
    for op in (hvd.Average, hvd.Sum, hvd.Max):
        assert hvd.allreduce(mine, op=op) == mine
        assert tf.function(hvd.allreduce)(mine, op=op) == mine
    slices = hvd.allreduce(tf.IndexedSlices(mine, tf.constant([rank])))
    assert slices.indices.numpy().tolist() == [rank]
    assert hvd.allreduce(None) is None
    assert hvd.allgather(mine) == mine
    assert hvd.broadcast(mine, 0) == mine
    assert hvd.allgather_object(rank) == [rank]
    variable = tf.Variable(mine)
    hvd.broadcast_variables([variable], root_rank=0)
    assert variable == mine
    hvd.barrier()


def check_ranks_are_those_of_the_replicas(rank: int, size: int) -> None:
    if size == 2:
        return
    assert (hvd.rank(), hvd.size()) == (smp.dp_rank(), size // 2)
    assert (hvd.local_rank(), hvd.local_size()) == (smp.dp_rank(), size // 2)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.global_process_set.ranks == list(range(size // 2))


def check_operations_are_among_the_replicas(rank: int, size: int) -> None:
    if size == 2:
        return
    replicas = smp.get_dp_group()
    mine = tf.constant([10.0**rank])
    total = sum(10.0**each for each in replicas)
    assert float(hvd.allreduce(mine)[0]) == total / len(replicas)
    assert float(tf.function(lambda: hvd.allreduce(mine, op=hvd.Sum))()[0]) == total
    slices = hvd.allreduce(tf.IndexedSlices(mine, tf.constant([rank])), op=hvd.Sum)
    assert slices.indices.numpy().tolist() == replicas
    assert hvd.allreduce(None) is None
    assert hvd.allgather(mine).numpy().tolist() == [10.0**each for each in replicas]
    assert float(hvd.broadcast(mine, 1)[0]) == 10.0 ** replicas[1]  # a root is a replica
    assert hvd.broadcast_object(rank, 1) == replicas[1]
    assert hvd.allgather_object(rank) == replicas
    # Ranks of other partitions have other variables.
    variables = [tf.Variable(np.full(3 + smp.mp_rank(), rank, np.float32)) for _ in replicas]
    hvd.broadcast_variables(variables, root_rank=0)
    assert all(set(each.numpy()) == {float(replicas[0])} for each in variables)
    hvd.barrier()


def check_what_reduces_by_itself_is_refused(rank: int, size: int) -> None:
    optimizer = tf.keras.optimizers.SGD(0.1)
    for call in (
        lambda: hvd.DistributedOptimizer(optimizer),
        lambda: hvd.DistributedGradientTape(tf.GradientTape()),
        lambda: hvd_keras.DistributedOptimizer(optimizer),
        lambda: hvd_keras.callbacks.MetricAverageCallback().on_train_begin(),
    ):
        assert "hvd.allreduce(g.accumulate())" in raised(SMDDPUnsupported, call)


def check_in_a_step_it_is_refused(rank: int, size: int) -> None:
    @smp.step
    def train(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x)

    assert "in a function with @smp.step" in raised(Exception, train, tf.ones([4]))


def check_horovod_itself_is_refused(rank: int, size: int) -> None:
    """It would mean all ranks. Imported before `smp.init()`, or by the first step."""
    real = types.ModuleType("horovod.tensorflow")
    real.__file__ = "/packages/horovod/tensorflow/__init__.py"
    exec("def allreduce(tensor): ...", vars(real))
    smp.reset()
    with mock.patch.dict(sys.modules, {"horovod.tensorflow": real}):
        text = raised(ConfigError, smp.init, {"partitions": 2, "horovod": size > 2})
        assert "Horovod is imported from /packages/horovod/tensorflow/__init__.py" in text
        assert "import smdistributed.compat.horovod.tensorflow as hvd" in text
    smp.init({"partitions": 2, "horovod": size > 2})
    train = smp.step(lambda x: x)
    with mock.patch.dict(sys.modules, {"horovod.tensorflow": real}):
        assert raised(ConfigError, train, tf.ones([4])) == text
    with mock.patch.dict(sys.modules, {"horovod.tensorflow": hvd}):
        train(tf.ones([4]))


def check_shutdown_ends_nothing_and_afterwards_it_means_all(rank: int, size: int) -> None:
    hvd.shutdown()
    assert sdp.is_initialized()
    smp.shutdown()
    assert not sdp.is_initialized()
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, size)
    assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)) == size
    hvd.shutdown()
