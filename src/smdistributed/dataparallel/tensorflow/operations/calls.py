# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The collectives, made by the backend of this process in their place among the others.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from smdistributed.collectives import ReduceOp
from smdistributed.dataparallel.tensorflow.operations import backend
from smdistributed.dataparallel.tensorflow.operations.labels import label_of
from smdistributed.dataparallel.tensorflow.operations.order import in_order
from smdistributed.dataparallel.tensorflow.operations.refusals import require_no_refusal
from smdistributed.dataparallel.tensorflow.operations.session_order import number_in
from smdistributed.dataparallel.tensorflow.saving import refuse_to_save
from smdistributed.dataparallel.tensorflow.xla import require_no_xla

__all__ = ["all_gather", "all_reduce", "broadcast"]


def all_reduce(
    tensors: Sequence[tf.Tensor], op: ReduceOp, key: str, label: int = 0, *, group: int
) -> list[tf.Tensor]:
    """Reduces tensors over the ranks of a group, as one collective.

    Args:
        tensors: at least one, of one dtype; the same shapes on all ranks.
        op: SUM, AVG, MIN, MAX. Gradients flow through SUM and AVG.
        key: what for, in messages: "gradients 1 of 3".
        label: what for, as the ranks compare it (`labels`); 0: not at all.
        group: the number of an open group.

    Returns:
        New tensors of the same shapes; the same bits on all ranks.
    """
    require_no_refusal(key)
    make, label = backend.current().all_reduce, _placed_label(label, group)
    return _placed(
        lambda token: make(list(tensors), int(op), token, key, label, group), tensors, group
    )


def broadcast(
    tensors: Sequence[tf.Tensor],
    root: int,
    key: str,
    label: int = 0,
    *,
    group: int,
    is_alone: bool = False,
) -> list[tf.Tensor]:
    """Gives all ranks of a group the tensors of one of them.

    Args:
        tensors: at least one, of one dtype; the same shapes on all ranks.
        root: whose, by its rank in the group.
        key, label, group: as for `all_reduce`.
        is_alone: as for `in_order`.
    """
    require_no_refusal(key)
    make = backend.current().broadcast
    label = label if is_alone else _placed_label(label, group)
    return _placed(
        lambda token: make(list(tensors), root, token, key, label, group),
        tensors,
        group,
        is_alone=is_alone,
    )


def all_gather(tensor: tf.Tensor, key: str, label: int = 0, *, group: int) -> tf.Tensor:
    """The rows of all ranks of a group, in rank order.

    Args:
        tensor: at least one dimension; the number of rows may differ between ranks.
        key, label, group: as for `all_reduce`.
    """
    require_no_refusal(key)
    make, label = backend.current().all_gather, _placed_label(label, group)
    return _placed(lambda token: [make(tensor, token, key, label, group)], [tensor], group)[0]


def _placed_label(label: int, group: int) -> int:
    """With the operation's place where TensorFlow keeps no order: in a graph of TensorFlow 1."""
    if not label or tf.executing_eagerly():
        return label
    graph = tf.compat.v1.get_default_graph()
    return label if graph.building_function else label_of(label, "place", number_in(graph, group))


def _placed(
    make: Callable[[tf.Tensor], list[tf.Tensor]],
    tensors: Sequence[tf.Tensor],
    group: int,
    *,
    is_alone: bool = False,
) -> list[tf.Tensor]:
    """Has an operation made, given the order token, where and as that is allowed."""
    require_no_xla()
    if not tf.executing_eagerly():
        refuse_to_save()
    lane = backend.lane_of(group)
    return list(in_order(make, tensors, group=group, lane=lane, is_alone=is_alone))
