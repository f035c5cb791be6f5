# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_job.py run: the job of model parallelism, from before init() to after.

The checks run in this order: first what is wrong, then one job, then its end and another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import smdistributed.dataparallel.tensorflow as sdp
import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import ConfigError, SMPNotInitialized
from smdistributed.modelparallel.tensorflow.job import communication, devices, ranks
from smdistributed.modelparallel.tensorflow.job.packing import pack, unpack
from smdistributed.modelparallel.tensorflow.job.state import state
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

PARAMETERS = "SM_HP_MP_PARAMETERS"
LARGE = 1_000_000  # elements: far beyond what the wires buffer


@contextlib.contextmanager
def warnings() -> Iterator[list[str]]:
    """What the library warns of."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("smdistributed").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("smdistributed").removeHandler(handler)


def tagged(rank: int, *shape: int) -> np.ndarray[Any, Any]:
    """Elements that each tell their rank and index."""
    return (np.arange(int(np.prod(shape))) % 1000 + 1000.0 * rank).reshape(shape)


# --- Before init() ---


def check_before_init(rank: int, size: int) -> None:
    assert smp.core.initialized is smp.is_initialized() is False
    smp.reset()
    for name in ranks.__all__:
        if not name.endswith("process_group"):
            text = raised(SMPNotInitialized, getattr(smp, name))
            assert text.startswith(f"smp.{name}() was used before smp.init()"), text
    for call in (
        smp.barrier,
        smp.mp_barrier,
        lambda: smp.send(1, 0, smp.WORLD_RANK),
        lambda: smp.recv_from(0, smp.WORLD_RANK),
        lambda: smp.broadcast(1, smp.WORLD),
        lambda: smp.allgather(1, smp.WORLD),
        lambda: smp.state.cfg,
        lambda: state.require("smp.step"),
    ):
        assert "Call smp.init(config) first" in raised(SMPNotInitialized, call)


def check_names(rank: int, size: int) -> None:
    for module in (communication, ranks):
        for name in module.__all__:
            assert getattr(smp, name) is getattr(module, name)
            assert name in smp.__all__
    assert len(set(smp.__all__)) == len(smp.__all__)
    assert all(hasattr(smp, name) for name in smp.__all__)
    for member in (*smp.CommGroup, *smp.RankType):
        assert getattr(smp, member.name) is member
    for name in ("save", "load", "DistributedOptimizer", "nn", "amp"):
        assert not hasattr(smp, name)
        assert f"smp.{name} is PyTorch only" in raised(AttributeError, getattr, smp, name)
    assert "no attribute 'nothing'" in raised(AttributeError, lambda: smp.nothing)
    for kind in ("mp", "dp", "pp", "tp", "rdp"):
        text = raised(NotImplementedError, getattr(smp, f"get_{kind}_process_group"))
        assert f"expected smp.get_{kind}_group(), which lists the ranks" in text
    assert "range(smp.size())" in raised(NotImplementedError, smp.get_world_process_group)


# --- Parameters that cannot work leave nothing behind ---


def check_parameters_that_cannot_work(rank: int, size: int) -> None:
    for parameters, words in (
        ({"ddp": True}, "PyTorch only, set `horovod: True`"),
        ({"fp16": True}, "fp16 is True, which is PyTorch only"),
        ([("partitions", 2)], "smp.init() got list; expected a dict"),
        ({"partitions": size + 1, "horovod": True}, f"{size} processes cannot hold pipeline_par"),
    ):
        assert words in raised(ConfigError, smp.init, parameters)
        assert not smp.is_initialized()
    assert not sdp.is_initialized()


def check_replicas_need_horovod(rank: int, size: int) -> None:
    if size > 1:
        assert "Set `horovod: True`" in raised(ConfigError, smp.init, {"partitions": 1})
        assert not smp.is_initialized()


def check_ranks_that_disagree(rank: int, size: int) -> None:
    if size > 1:
        parameters = {"partitions": size, "microbatches": 4 if rank else 2}
        text = raised(ConfigError, smp.init, parameters)
        assert "microbatches is 4 on rank 1, and 2 on rank 0; expected the same" in text
        assert not smp.is_initialized()


# --- A job, all parameters from the launcher ---


def check_init(rank: int, size: int) -> None:
    parts = min(2, size)
    os.environ[PARAMETERS] = (
        f'{{"partitions": {parts}, "microbatches": 4, "horovod": true, "mine": "x"}}'
    )
    with warnings() as said:
        smp.init()
    del os.environ[PARAMETERS]
    assert [line.split(" is no ")[0] for line in said] == (["mine"] if rank == 0 else [])
    assert smp.core.initialized is smp.is_initialized() is True
    assert (smp.state.cfg.framework, smp.state.cfg.mine) == ("tensorflow", "x")
    assert (smp.num_microbatches(), smp.state.cfg.partitions) == (4, parts)


def check_a_second_init_is_ignored(rank: int, size: int) -> None:
    with warnings() as said:
        smp.init({"microbatches": 8})
    assert smp.num_microbatches() == 4
    expected = "initialized already, ignoring this call and its configuration {'microbatches': 8}"
    assert [expected in line for line in said] == ([True] if rank == 0 else [])


def check_ranks(rank: int, size: int) -> None:
    parts = min(2, size)
    replica, part = divmod(rank, parts)  # "cluster"
    mp_group = [replica * parts + each for each in range(parts)]
    dp_group = list(range(part, size, parts))
    assert (smp.rank(), smp.size(), smp.local_rank(), smp.local_size()) == (rank, size, rank, size)
    assert smp.get_mp_group() == smp.get_pp_group() == mp_group
    assert smp.get_dp_group() == smp.get_rdp_group() == dp_group
    assert smp.get_tp_group() == [rank]
    assert smp.mp_rank() == smp.pp_rank() == part
    assert smp.dp_rank() == smp.rdp_rank() == replica
    assert (smp.mp_size(), smp.pp_size(), smp.tp_size(), smp.tp_rank()) == (parts, parts, 1, 0)
    assert smp.dp_size() == smp.rdp_size() == size // parts
    job = state.require("smp.step")
    assert (job.rank, job.size, job.members(GroupKind.MP)) == (rank, size, tuple(mp_group))
    assert (job.rank_in(GroupKind.DP), job.size_of(GroupKind.DP)) == (replica, size // parts)


def check_the_channel_of_steps(rank: int, size: int) -> None:
    """Messages within the MP group, by ranks in it."""
    channel = state.job.pipeline_channel
    assert (channel.rank, channel.world_size) == (smp.mp_rank(), smp.mp_size())
    body = tagged(rank, 100)
    for peer in range(channel.world_size):
        if peer != channel.rank:
            channel.native.post_message(peer, b"head", [(body.ctypes.data, body.nbytes)])
            message = channel.native.next_message(60.0)
            assert message is not None
            assert message.source == peer
            received = np.frombuffer(message, np.float64)
            assert (received == tagged(smp.get_mp_group()[peer], 100)).all()


def check_the_group_of_replicas(rank: int, size: int) -> None:
    """Operations of the data parallel library among the ranks with the same partition."""
    group = state.job.replica_group
    assert group is not None
    assert list(group.ranks) == smp.get_dp_group()
    assert group.rank() == smp.dp_rank()

    @tf.function
    def total(value: Any) -> Any:
        return sdp.allreduce(value, op=sdp.Sum, group=group)

    assert float(total(tf.constant(10.0**rank))) == sum(10.0**each for each in group.ranks)


# --- Objects between ranks ---


def values(rank: int) -> dict[str, Any]:
    """Each tells its sender; no two of one kind."""
    grid = tagged(rank, 60, 40)
    return {
        "number": rank,
        "text": "x" * 200_000 + str(rank),
        "array": grid[::2, ::3],
        "large array": tagged(rank, LARGE),
        "tensor": tf.constant(grid, tf.float32),
        "large tensor": tf.constant(tagged(rank, LARGE), tf.float32),
        "bfloat16": tf.cast(grid % 100, tf.bfloat16),
        "large bfloat16": tf.cast(tagged(rank, LARGE) % 100, tf.bfloat16),
        "float16": tf.cast(grid % 100, tf.float16),
        "bool": tf.constant(grid % 2 == 0),
        "complex": tf.complex(grid, -grid),
        "uint8": tf.cast(grid % 200, tf.uint8),
        "int64": tf.cast(grid, tf.int64),
        "no dimensions": tf.constant(float(rank)),
        "bfloat16 without dimensions": tf.constant(rank, tf.bfloat16),
        "texts": tf.constant([f"rank {rank}", "", "ü"]),
        "a text": tf.constant(b"\xff\x00"),
        "empty": tf.zeros((0, 3), tf.int16),
        "no texts": tf.zeros((0,), tf.string),
        "nested": [(None, {"deep": tf.constant([rank])}), {1, 2}],
    }


def require_same(received: Any, expected: Any) -> None:
    assert type(received) is type(expected), (received, expected)
    if isinstance(expected, dict):
        assert received.keys() == expected.keys()
        for key in expected:
            require_same(received[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(received) == len(expected)
        for one, other in zip(received, expected, strict=True):
            require_same(one, other)
    elif isinstance(expected, (tf.Tensor, np.ndarray)):
        assert received.dtype == expected.dtype
        assert received.shape == expected.shape
        if isinstance(expected, tf.Tensor):
            received, expected = received.numpy(), expected.numpy()
        np.testing.assert_array_equal(received, expected)
    else:
        assert received == expected


def check_kinds_of_values(rank: int, size: int) -> None:
    """Through memory, without another rank."""
    for name, value in values(rank).items():
        require_same({name: unpack(pack(value))}, {name: value})
    slices = tf.IndexedSlices(tf.constant([[1.0, 2.0]]), tf.constant([3]), tf.constant([5, 2]))
    copy = unpack(pack(slices))
    assert isinstance(copy, tf.IndexedSlices)
    require_same(tf.convert_to_tensor(copy), tf.convert_to_tensor(slices))


def check_variables_travel_as_their_values(rank: int, size: int) -> None:
    layer = tf.keras.layers.Dense(3)
    layer.build((None, 2))
    for variable in (tf.Variable([1.0, rank]), tf.Variable(rank, dtype=tf.bfloat16), layer.kernel):
        [value] = unpack(pack([variable]))
        assert isinstance(value, tf.Tensor)
        require_same(value, tf.convert_to_tensor(variable))
        variable.assign(value)


def check_what_is_received_is_a_copy(rank: int, size: int) -> None:
    mine = tagged(rank, LARGE)
    own = smp.allgather(mine, smp.WORLD)[rank]
    own += 1
    assert (mine == tagged(rank, LARGE)).all()


def check_messages(rank: int, size: int) -> None:
    """Around the ring, all sending before any receives."""
    if size == 1:
        return
    left = (rank - 1) % size
    smp.send(values(rank), (rank + 1) % size, smp.WORLD_RANK)
    require_same(smp.recv_from(left, smp.RankType.WORLD_RANK), values(left))
    for number in range(20):
        if rank == 0:
            smp.send(number, size - 1, smp.WORLD_RANK)
        elif rank == size - 1:
            assert smp.recv_from(0, smp.WORLD_RANK) == number


def check_groups(rank: int, size: int) -> None:
    """Broadcasts and gathers of every group."""
    for group, rank_type, members in (
        (smp.MP_GROUP, smp.MP_RANK, smp.get_mp_group()),
        (smp.PP_GROUP, smp.PP_RANK, smp.get_pp_group()),
        (smp.DP_GROUP, smp.DP_RANK, smp.get_dp_group()),
        (smp.RDP_GROUP, smp.RDP_RANK, smp.get_rdp_group()),
        (smp.TP_GROUP, smp.TP_RANK, smp.get_tp_group()),
        (smp.WORLD, smp.WORLD_RANK, list(range(size))),
    ):
        for sender, world_rank in enumerate(members):
            expected = (group.name, world_rank)
            if world_rank == rank:
                smp.broadcast(expected, group)
            else:
                assert smp.recv_from(sender, rank_type) == expected
        gathered = smp.allgather({"t": tf.fill([rank], rank)}, group)  # rank 0's is empty
        for member, received in zip(members, gathered, strict=True):
            require_same(received, {"t": tf.fill([member], member)})
    for meet in (smp.mp_barrier, smp.dp_barrier, smp.pp_barrier, smp.tp_barrier, smp.rdp_barrier):
        meet()
    for group in smp.CommGroup:
        smp.barrier(group)
    smp.barrier()


def check_a_barrier_waits(rank: int, size: int) -> None:
    arrived = time.monotonic()
    if rank == 0:
        time.sleep(0.2)
        arrived = time.monotonic()
    smp.barrier()
    left = time.monotonic()
    # One clock: all ranks are on this host.
    assert left >= max(smp.allgather(arrived, smp.WORLD))


def check_what_does_not_pickle(rank: int, size: int) -> None:
    """An error on both sides, which names rank and type; then all goes on as before."""
    bad = {"lock": threading.Lock(), "tensor": tf.ones([100_000])}
    reason = "rank 0 sends no object: an object of type dict does not pickle"
    if size > 1:
        if rank == 0:
            assert raised(TypeError, smp.send, bad, 1, smp.WORLD_RANK).startswith(reason)
            smp.send("after", 1, smp.WORLD_RANK)
        elif rank == 1:
            text = raised(TypeError, smp.recv_from, 0, smp.WORLD_RANK)
            assert text.startswith(f"rank 1 has waited for rank 0 in vain: {reason}"), text
            assert smp.recv_from(0, smp.WORLD_RANK) == "after"
    assert reason in raised(TypeError, smp.allgather, rank if rank else bad, smp.WORLD)
    assert smp.allgather(rank, smp.WORLD) == list(range(size)), "nothing is left over"


def check_in_a_graph(rank: int, size: int) -> None:
    """No primitive runs there, and nothing of it is left in the graph or on its way."""
    for name, call in (
        ("send", lambda: smp.send(1, 0, smp.WORLD_RANK)),
        ("recv_from", lambda: smp.recv_from(0, smp.WORLD_RANK)),
        ("broadcast", lambda: smp.broadcast(1, smp.WORLD)),
        ("allgather", lambda: smp.allgather(1, smp.TP_GROUP)),
        ("barrier", smp.barrier),
        ("dp_barrier", smp.dp_barrier),
    ):

        @tf.function(autograph=False)
        def graph(call: Any = call) -> None:
            call()

        text = raised(RuntimeError, graph)
        assert f"smp.{name}() was called while TensorFlow builds a graph" in text
    assert tf.function(lambda: smp.rank() + tf.constant(0))() == rank
    symbolic: list[Any] = []
    tf.function(lambda x: symbolic.append(x))(tf.constant(1))
    assert "does not pickle" in raised(TypeError, pack, symbolic[0])


def check_wrong_arguments(rank: int, size: int) -> None:
    for call, words in (
        (lambda: smp.send(1, size, smp.WORLD_RANK), f"got dest_rank={size}; expected an integer"),
        (lambda: smp.recv_from(rank, smp.WORLD_RANK), f"which is rank {rank} itself"),
        (lambda: smp.send(1, 0, smp.WORLD), "expected a member of smp.RankType: smp.WORLD_RANK"),
        (lambda: smp.broadcast(1, [0]), "expected a member of smp.CommGroup"),
        (lambda: smp.barrier("world"), "got group='world'"),
    ):
        assert words in raised(ConfigError, call)


def check_gpus(rank: int, size: int) -> None:
    """On a host with several, each rank takes its own, unless the script has chosen."""
    gpus = ["first", "second"]
    done: list[Any] = []
    config = tf.config
    with pytest.MonkeyPatch.context() as patch:

        def host(visible: list[str], settings: Any = None) -> None:
            patch.setattr(config, "list_physical_devices", lambda _: gpus)
            patch.setattr(config, "get_visible_devices", lambda _: visible)
            patch.setattr(config, "get_logical_device_configuration", lambda _: settings)

        patch.setattr(config, "set_visible_devices", lambda own, _: done.append(own))
        patch.setattr(
            config.experimental, "set_memory_growth", lambda own, on: done.append((own, on))
        )
        host(visible=["second"])
        devices.pin_gpu(0)
        host(visible=gpus, settings=["1 GB"])
        devices.pin_gpu(0)
        assert not done
        host(visible=gpus)
        for local_rank, own in ((1, "second"), (2, "first")):
            devices.pin_gpu(local_rank)
            assert done == [[own], (own, True)]
            done.clear()
    devices.pin_gpu(0)  # this host has none, or one


# --- Its end, and another job ---


def check_reset(rank: int, size: int) -> None:
    called = []
    state.model = "a model"
    state.call_at_reset(lambda: called.append((smp.rank(), state.model)))
    smp.barrier()
    smp.reset()
    assert called == [(rank, "a model")]
    assert state.model is None
    assert not smp.is_initialized()
    assert not sdp.is_initialized(), "which smp.init() has begun"


def check_another_job(rank: int, size: int) -> None:
    """Spread, and in a job of data parallelism that the script has begun and ends itself."""
    sdp.init()
    for _ in range(2):
        smp.init({"partitions": min(2, size), "placement_strategy": "spread", "horovod": True})
        assert smp.mp_rank() == rank // max(1, size // 2)
        assert smp.allgather(rank, smp.MP_GROUP) == smp.get_mp_group()
        total = sdp.allreduce(tf.constant(10.0**rank), op=sdp.Sum, group=state.job.replica_group)
        assert float(total) == sum(10.0**each for each in smp.get_dp_group())
        smp.barrier()
        smp.shutdown()
        assert sdp.is_initialized()
    assert float(sdp.allreduce(tf.constant(1.0), op=sdp.Sum)) == size
    sdp.shutdown()


def check_a_job_without_replicas(rank: int, size: int) -> None:
    smp.init({"partitions": size})
    assert (smp.mp_size(), smp.dp_size()) == (size, 1)
    assert state.job.replica_group is None
    assert state.job.horovod_group.ranks == (rank,)
    assert smp.allgather(rank, smp.MP_GROUP) == list(range(size))
    smp.barrier()


def check_what_was_sent_before_the_end_arrives(rank: int, size: int) -> None:
    smp.reset()
    smp.init({"partitions": size})
    if rank == 0 and size > 1:
        smp.send(tagged(0, LARGE), size - 1, smp.WORLD_RANK)
        smp.reset()
    elif rank == size - 1 and size > 1:
        time.sleep(0.2)
        require_same(smp.recv_from(0, smp.WORLD_RANK), tagged(0, LARGE))
    assert "torch" not in sys.modules
