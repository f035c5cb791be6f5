# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Python objects between ranks, pickled: configuration, state, lists of results.

Only ranks of one job exchange them, and they know each other by the job's secret. To load what was
pickled runs code, so this is as safe as that secret.

Source: our choice: Horovod's names.
"""

from __future__ import annotations

import importlib
import importlib.util
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported
from smdistributed.dataparallel.tensorflow.broadcasts import broadcast
from smdistributed.dataparallel.tensorflow.gathers import allgather
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.job import resolve_group

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn"]

# In place of a length: the object could not be pickled there.
_NOT_PICKLED = -1


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
    is_root = resolve_group(group, caller).rank() == root_rank
    label = name or "object"
    pickled, problem = _pickled(obj) if is_root else (b"", None)
    length = np.array([_NOT_PICKLED if problem else len(pickled)], np.int64)
    length = _value(broadcast(length, root_rank, name=f"{label}.size", group=group), session)
    _require_pickled([int(length[0])], problem, caller, [root_rank])
    content = np.frombuffer(pickled, np.uint8) if is_root else np.zeros(length, np.uint8)
    content = _value(broadcast(content, root_rank, name=f"{label}.bytes", group=group), session)
    return obj if is_root else pickle.loads(content.tobytes())


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
    ranks = resolve_group(group, caller).ranks
    label = name or "object"
    pickled, problem = _pickled(obj)
    length = np.array([_NOT_PICKLED if problem else len(pickled)], np.int64)
    lengths = _value(allgather(length, name=f"{label}.size", group=group), session)
    _require_pickled(lengths.tolist(), problem, caller, ranks)
    content = np.frombuffer(pickled, np.uint8)
    gathered = _value(allgather(content, name=f"{label}.bytes", group=group), session)
    ends = np.cumsum(lengths)
    return [
        pickle.loads(gathered[end - length : end].tobytes())
        for length, end in zip(lengths, ends, strict=True)
    ]


def _pickled(obj: Any) -> tuple[bytes, Exception | None]:
    try:
        return _pickler().dumps(obj), None
    except Exception as error:  # whatever the object's own methods raise
        return b"", error


def _pickler() -> Any:
    """`cloudpickle`, which takes functions of a script, where it is installed."""
    if importlib.util.find_spec("cloudpickle") is None:
        return pickle
    return importlib.import_module("cloudpickle")


def _require_pickled(
    lengths: list[int], problem: Exception | None, caller: str, ranks: Any
) -> None:
    if problem is not None:
        raise SMDDPConfigInvalid(
            f"{caller} got an object that cannot be pickled ({problem}); expected one that can."
            " Pass its data: numbers, texts, arrays, lists and dictionaries of these."
        ) from problem
    for length, rank in zip(lengths, ranks, strict=True):
        if length == _NOT_PICKLED:
            raise SMDDPConfigInvalid(
                f"{caller}: the object of rank {rank} cannot be pickled, as its own error says;"
                " expected one that can. Correct it there."
            )


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
