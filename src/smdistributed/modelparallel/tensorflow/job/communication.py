# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other outside of steps: objects, and sums of tensors.

Objects are carried by the engine: `modelparallel.job.communication` for TensorFlow. Those calls run
at once: where a graph is built, in `@smp.step` and `tf.function`, they raise a RuntimeError. Sums
are operations, also of graphs.

Pickles are opened, so whoever can send one can run code here; the engine's connections have proved
that their ends are of this job (docs/security.md).

Source: TensorFlow modelparallel specification, sections 2 and 5.6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed.collectives import Communicator
from smdistributed.dataparallel.tensorflow.reduce_op import ReduceOp
from smdistributed.dataparallel.tensorflow.reductions import allreduce
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.job.arguments import CommGroup, RankType
from smdistributed.modelparallel.job.communication import Bytes, Communication, Parcel, Work
from smdistributed.modelparallel.tensorflow.job.packing import pack, unpack
from smdistributed.modelparallel.tensorflow.job.state import Job, state

# What scripts get as `smp`; `allgather_in` and `sum_over_pipeline` are for the library alone.
__all__ = [
    "CommGroup",
    "RankType",
    "allgather",
    "barrier",
    "broadcast",
    "dp_barrier",
    "mp_barrier",
    "pp_barrier",
    "rdp_barrier",
    "recv_from",
    "send",
    "tp_barrier",
]

_TAG = 0x534D_0001  # "SM", and 16 bits for the library's own use


class _Carrier:
    """`job.communication.Carrier` over this job's communicators."""

    foreign = "Please report this."

    def require(self, function: str, kind: GroupKind | None) -> Job:
        del kind  # in a graph no call of any kind would run when the step does
        job = state.require(function)
        if not tf.executing_eagerly():
            raise RuntimeError(
                f"{function} was called while TensorFlow builds a graph, where it would run once,"
                " and not in each step; expected a call that runs at once. Call it outside of"
                " @smp.step and tf.function, with what they return."
            )
        return job

    def pack(self, obj: Any) -> Parcel:
        return pack(obj)

    def unpack(self, parcel: Parcel) -> Any:
        return unpack(parcel)

    def start_sending(self, part: Bytes, receiver: int) -> Work | None:
        return _communicator(GroupKind.WORLD).send(part, receiver, _TAG, async_op=True)

    def receive(self, part: Bytes, source: int) -> None:
        _communicator(GroupKind.WORLD).recv(part, source, _TAG)

    def gather(self, kind: GroupKind, mine: Bytes) -> list[Bytes]:
        if state.size_of(kind) == 1:
            return [mine.copy()]
        everyone = [np.empty_like(mine) for _ in state.members(kind)]
        _communicator(kind).all_gather(everyone, mine)
        return everyone

    def meet(self, kind: GroupKind) -> None:
        if state.size_of(kind) > 1:
            _communicator(kind).barrier()


def _communicator(kind: GroupKind) -> Communicator:
    return state.job.communicators[kind]


def sum_over_pipeline(value: Any, caller: str) -> Any:
    """The sum of a tensor over the ranks of this pipeline, in the same bits on all of them.

    An operation, eager or of a graph. Every rank of the pipeline calls it.

    Args:
        value: a tensor of the same shape and dtype on all ranks.
        caller: what needs it, the same on all ranks; for messages.
    """
    group = state.require(caller).pipeline_group
    if group is None:
        return value
    return allreduce(value, op=ReduceOp.SUM, name=caller, group=group)


_communication = Communication(state, _Carrier())

allgather = _communication.allgather
allgather_in = _communication.allgather_in
barrier = _communication.barrier
broadcast = _communication.broadcast
dp_barrier = _communication.dp_barrier
mp_barrier = _communication.mp_barrier
pp_barrier = _communication.pp_barrier
rdp_barrier = _communication.rdp_barrier
recv_from = _communication.recv_from
send = _communication.send
tp_barrier = _communication.tp_barrier
