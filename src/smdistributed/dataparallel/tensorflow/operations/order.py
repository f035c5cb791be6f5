# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The order token: why collectives run in the same order on all ranks.

The engine wants all ranks to make their calls in the same order, and TensorFlow's executor runs
independent operations as they get ready, which differs between ranks. What TensorFlow does keep in
the order of the program is whatever touches one resource, in nested functions, branches and loops
as well: so it treats assignments to a variable. Each operation of ours therefore takes a handle,
the same in the whole process, of a variable that is never written nor read. One of them is under
way at a time; the engine would not begin a second one earlier anyway.

Graphs of TensorFlow 1 have no such dependencies, whoever asks for them must chain what he runs in
one session call (`tf.control_dependencies`).

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

import threading
import weakref

import tensorflow as tf

__all__ = ["order_token"]

_NAME = "smddp_order"

_lock = threading.Lock()
_process_token: tf.Tensor | None = None
_graph_tokens: weakref.WeakKeyDictionary[tf.Graph, tf.Tensor] = weakref.WeakKeyDictionary()


def order_token() -> tf.Tensor:
    """The handle for an operation that is made now: of this process, or of a TensorFlow 1 graph."""
    global _process_token
    with _lock, tf.init_scope():
        if tf.executing_eagerly():
            if _process_token is None:
                _process_token = _make()
            return _process_token
        graph = tf.compat.v1.get_default_graph()
        if graph not in _graph_tokens:
            _graph_tokens[graph] = _make()
        return _graph_tokens[graph]


def _make() -> tf.Tensor:
    with tf.device("/CPU:0"), tf.name_scope(_NAME):
        return tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=_NAME)
