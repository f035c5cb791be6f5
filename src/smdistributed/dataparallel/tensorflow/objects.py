# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Python objects between ranks, pickled: configuration, state, lists of results.

To load what was pickled runs code; only ranks of the job can send it, see `pickled`.

Source: our choice: Horovod's names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.pickled import pickled, unpickled
from smdistributed.dataparallel.tensorflow.broadcasts import broadcast
from smdistributed.dataparallel.tensorflow.gathers import allgather
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.job import resolve_group

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn"]


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    *,
    group: Group | None = None,
) -> Any:
    """The object of one rank, on all of them. Blocks until all have come.

    Args:
        obj: what can be pickled (functions and classes of a script too, where `cloudpickle` is
            installed); that of other ranks does not matter.
        root_rank: whose; with a group, a rank in the group.
        session: to run in, for graphs of TensorFlow 1; default: the one that is entered.
        name, group: as for `broadcast`.

    Returns:
        On the root `obj` itself, on other ranks a copy.

    Raises:
        SMDDPConfigInvalid: (a ValueError) on all ranks: the root's object cannot be pickled; no
            such rank.
        SMDDPUnsupported: in a `tf.function`, or in a graph of TensorFlow 1 without a session.
        As `broadcast`.

    Source: our choice: Horovod's name.
    """
    caller = "broadcast_object()"
    among = resolve_group(group, caller)
    is_root = among.rank() == root_rank
    label = name or "object"
    sent, problem = pickled(obj, _rank_in_job(among), caller) if is_root else (b"", None)
    length = np.array([len(sent)], np.int64)
    length = _value(broadcast(length, root_rank, name=f"{label}.size", group=group), session)
    content = np.frombuffer(sent, np.uint8) if is_root else np.zeros(length, np.uint8)
    content = _value(broadcast(content, root_rank, name=f"{label}.bytes", group=group), session)
    if problem is not None:
        raise problem
    return obj if is_root else unpickled(content.tobytes(), caller)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    *,
    group: Group | None = None,
) -> Callable[[Any], Any]:
    """A function of an object that is `broadcast_object` with these arguments.

    Source: our choice: Horovod's name.
    """

    def broadcast_it(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, group=group)

    return broadcast_it


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, *, group: Group | None = None
) -> list[Any]:
    """The objects of all ranks, in rank order. Blocks until all have come.

    Args:
        obj, session, name, group: as for `broadcast_object`.

    Returns:
        A list of copies, by rank.

    Raises:
        As `broadcast_object`: on all ranks, if one of the objects cannot be pickled.

    Source: our choice: Horovod's name.
    """
    caller = "allgather_object()"
    label = name or "object"
    sent, problem = pickled(obj, _rank_in_job(resolve_group(group, caller)), caller)
    length = np.array([len(sent)], np.int64)
    lengths = _value(allgather(length, name=f"{label}.size", group=group), session)
    content = np.frombuffer(sent, np.uint8)
    gathered = _value(allgather(content, name=f"{label}.bytes", group=group), session)
    if problem is not None:
        raise problem
    ends = np.cumsum(lengths)
    return [
        unpickled(gathered[end - length : end].tobytes(), caller)
        for length, end in zip(lengths, ends, strict=True)
    ]


def _rank_in_job(group: Group) -> int:
    return group.ranks[group.rank()]


def _value(tensor: Any, session: Any) -> Any:
    if tf.executing_eagerly():
        return tensor.numpy()
    session = session or tf.compat.v1.get_default_session()
    if tf.compat.v1.get_default_graph().building_function or session is None:
        raise SMDDPUnsupported(
            "an object was to be sent while TensorFlow builds a graph, and it would be a part of"
            " that graph; expected a call that runs at once. Call it outside of tf.function; in a"
            " script for TensorFlow 1 pass session=."
        )
    return session.run(tensor)
