# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The groups of a job: engines among its ranks, and groups for operations in graphs.

All ranks make all groups in one order, and leave them without waiting for each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np

import smdistributed.dataparallel.tensorflow as data_parallel
from smdistributed.collectives import Communicator
from smdistributed.dataparallel.tensorflow.groups import Group, shown_ranks
from smdistributed.dataparallel.tensorflow.job import leave_at_once, resolve_group
from smdistributed.modelparallel.decide.topology import GroupKind, Topology

__all__ = ["exchange", "make_communicators", "make_group_of_operations", "make_pipeline_channel"]


def make_communicators(
    topology: Topology, world: Communicator, leaving: contextlib.ExitStack
) -> Mapping[GroupKind, Communicator]:
    """The group of each kind that this rank is in, but for those of one rank; see `Job`."""
    made = {topology.groups(GroupKind.WORLD): world}
    found = {GroupKind.WORLD: world}
    for kind in GroupKind:
        groups = topology.groups(kind)
        if topology.size_of(kind) == 1:
            continue
        if groups not in made:
            members = topology.members(kind, world.rank)
            made[groups] = _split(world, members, f" of {shown_ranks(members)}", leaving)
        found[kind] = made[groups]
    return found


def make_pipeline_channel(
    topology: Topology, world: Communicator, leaving: contextlib.ExitStack
) -> Communicator:
    """The MP group of this rank, for the messages of steps."""
    members = topology.members(GroupKind.MP, world.rank)
    return _split(world, members, f" (pipeline of {shown_ranks(members)})", leaving)


def make_group_of_operations(members: Sequence[int], leaving: contextlib.ExitStack) -> Group:
    """A group for operations of `dataparallel.tensorflow`, whose job is begun if need be.

    A script that has begun it before, by `hvd.init()` say, keeps it.
    """
    if not data_parallel.is_initialized():
        data_parallel.init()
        leaving.callback(leave_at_once)
    everyone = resolve_group(None, "smp.init()")
    if tuple(members) == everyone.ranks:
        return everyone
    group = data_parallel.new_group(members)
    leaving.callback(leave_at_once, group)
    return group


def exchange(communicator: Communicator, text: bytes) -> list[bytes]:
    """What all ranks of a group say, by rank."""
    sizes = np.empty(communicator.world_size, np.int64)
    communicator.all_gather(sizes, np.array([len(text)], np.int64))
    said = [np.empty(size, np.uint8) for size in sizes]
    communicator.all_gather(said, np.frombuffer(text, np.uint8))
    return [each.tobytes() for each in said]


def _split(
    world: Communicator, members: Sequence[int], note: str, leaving: contextlib.ExitStack
) -> Communicator:
    group = world.split(members[0], note=note)
    assert group is not None  # we are a member
    leaving.callback(group.close)
    return group
