# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Objects between ranks, carried by process groups: `modelparallel.job.communication` for torch.

Messages have a tag of their own, so calls of `torch.distributed` on the same groups may stand
between. Tensors travel in host memory, wherever they are (`packing`).

Pickles are opened, so whoever can send one can run code here. The messages use connections whose
ends have proved that they are of this job (docs/security.md); `allgather` within a group uses the
backend that the job was given, and Gloo's connections prove nothing.

Source: modelparallel specification, section 4.7.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.job.arguments import CommGroup, RankType
from smdistributed.modelparallel.job.communication import Bytes, Communication, Parcel, Work
from smdistributed.modelparallel.torch.job.packing import Packed, pack, unpack
from smdistributed.modelparallel.torch.job.state import Job, state

# What scripts get as `smp`; `allgather_in` is for the library alone.
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

# "SM", and 16 bits for the library's own use. Gloo takes 32 bits with a sign.
_TAG = 0x534D_0001


class _Carrier:
    """`job.communication.Carrier` over this job's process groups."""

    foreign = f"Do not use tag {_TAG:#x} with torch.distributed, or report this."

    def require(self, function: str, kind: GroupKind | None) -> Job:
        # Inside of a step some groups have no other members that would take part.
        if kind in (GroupKind.WORLD, GroupKind.MP, GroupKind.PP):
            return state.require_outside_of_body(function)
        return state.require(function)

    def pack(self, obj: Any) -> Parcel:
        packed = pack(obj)
        return Parcel(packed.stream.numpy(), tuple(block.numpy() for block in packed.blocks))

    def unpack(self, parcel: Parcel) -> Any:
        blocks = tuple(torch.from_numpy(block) for block in parcel.blocks)
        return unpack(Packed(torch.from_numpy(parcel.stream), blocks), state.device)

    def start_sending(self, part: Bytes, receiver: int) -> Work | None:
        # torch's work keeps the tensor, and that the array.
        sent: Work | None = dist.isend(
            torch.from_numpy(part), group_dst=receiver, group=state.message_group, tag=_TAG
        )
        return sent

    def receive(self, part: Bytes, source: int) -> None:
        dist.recv(torch.from_numpy(part), group_src=source, group=state.message_group, tag=_TAG)

    def gather(self, kind: GroupKind, mine: Bytes) -> list[Bytes]:
        everyone = [np.empty_like(mine) for _ in state.members(kind)]
        tensors = [torch.from_numpy(each) for each in everyone]
        dist.all_gather(tensors, torch.from_numpy(mine), group=state.cpu_group(kind))
        return everyone

    def meet(self, kind: GroupKind) -> None:
        dist.barrier(group=state.cpu_group(kind))


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
