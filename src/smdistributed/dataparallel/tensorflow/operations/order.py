# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The order token: why collectives run in the same order on all ranks.

The engine wants all ranks of a group to make their calls in the same order, and TensorFlow's
executor runs independent operations as they get ready, which differs between ranks. What TensorFlow
does keep in the order of the program is whatever touches one resource, in nested functions,
branches and loops as well: so it treats assignments to a variable. Each operation of ours therefore
takes a handle, the same in the whole process for all operations of a group, of a variable that is
never written nor read; so does what waits for one (`kernels`). One of a group is under way at a
time; the engine would not begin a second one earlier anyway. Groups have a handle each, so they do
not wait for each other; where waiting takes threads they share one (`backend.lane_of`).

TensorFlow leaves these dependencies out where it builds the backward function of a `tf.function`
that an eager tape watches. There each operation of ours waits for the one built before it.

Graphs of TensorFlow 1 have no such dependencies: see `session_order`.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import tensorflow as tf

from smdistributed.dataparallel.tensorflow.operations.session_order import place_in

__all__ = ["forget", "in_order"]

_NAME = "smddp_order_{}"
_TOKEN = "smddp_order_token_{}"
# Classes of TensorFlow's graphs of branches and of bodies of loops, forward and backward.
_CONTROL_FLOW = ("CondBranchFuncGraph", "WhileBodyFuncGraph")

_lock = threading.Lock()
_process_tokens: dict[int, tf.Tensor] = {}


def in_order(
    make: Callable[[tf.Tensor], Sequence[tf.Tensor]],
    tensors: Sequence[tf.Tensor],
    *,
    group: int,
    lane: int,
    is_alone: bool = False,
) -> Sequence[tf.Tensor]:
    """Has an operation made, and its place among those of ours kept.

    Args:
        make: makes it, given the handle that it is to take as an input, and returns its results.
        tensors: its other inputs.
        group: the number of its group.
        lane: what it is to be in order with.
        is_alone: in a graph of TensorFlow 1 nothing else is brought along with it: it is run by
            itself.
    """
    token = _order_token(lane)
    if tf.executing_eagerly():
        return make(token)
    graph = tf.compat.v1.get_default_graph()
    token = _seen_from(graph, token)
    if not graph.building_function:
        place = place_in(graph, tensors, group=group, lane=lane, is_alone=is_alone)
        with tf.control_dependencies(place.waits_for):
            results = make(token)
        place.note(results)
        return results
    if graph.experimental_acd_manager is not None:
        return make(token)
    last = graph.get_collection_ref(_NAME.format(lane))  # copied from the graph around this one
    with tf.control_dependencies([each for each in last if each.graph is graph]):
        results = make(token)
    last[:] = results[:1]
    return results


def forget(lane: int) -> None:
    """Nothing new is made in this order any more; graphs that have its token keep it."""
    with _lock:
        _process_tokens.pop(lane, None)


def _seen_from(graph: tf.Graph, token: tf.Tensor) -> tf.Tensor:
    """The token as a branch or a loop's body may capture it: of the graph around it.

    Gradients of branches and loops are built on the assumption that there is no other way.
    """
    names = {each.__name__ for each in type(graph).__mro__}
    if names.isdisjoint(_CONTROL_FLOW) or not graph.outer_graph.building_function:
        return token
    return graph.outer_graph.capture(_seen_from(graph.outer_graph, token))


def _order_token(lane: int) -> tf.Tensor:
    """The handle for an operation that is made now: of this process, or of a TensorFlow 1 graph."""
    with _lock, tf.init_scope():
        if tf.executing_eagerly():
            if lane not in _process_tokens:
                _process_tokens[lane] = _make(lane)
            return _process_tokens[lane]
        # Kept by the graph itself, and so no longer than that.
        kept = tf.compat.v1.get_default_graph().get_collection_ref(_TOKEN.format(lane))
        if not kept:
            kept.append(_make(lane))
        return kept[0]


def _make(lane: int) -> tf.Tensor:
    with tf.device("/CPU:0"), tf.name_scope(_NAME.format(lane)):
        return tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=_NAME.format(lane))
