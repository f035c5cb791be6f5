# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Steps that fail where TensorFlow leaves collectives out: the group ends, on all ranks.

In a step that has failed TensorFlow still runs what is ready, so collectives of straight code are
carried out on all ranks, and a script that catches the error may go on. It goes round no loop again
and begins no function, though, and copies between devices end: collectives there are left out, on
the rank that failed alone. The next step's would meet them on the other ranks, and the sums be
wrong without a word. So we look at each error of TensorFlow's that is made in Python, the only
place where all of them come by.

Not at `OutOfRangeError`: the end of the data is no failure.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context  # the definitions of functions are nowhere else

from smdistributed._common.log import get_logger
from smdistributed.collectives import Communicator

__all__ = ["end_watch", "watch"]

_LOOPS = ("While", "StatelessWhile", "For")
# Attributes of operations of TensorFlow's own that carry out collectives of ours.
_BORROWED = "_smddp_key"
_CALLED = re.compile(r"\[Op:(__[^\]]+)\]")  # with "<lambda>" in it, where it is one
_SHOWN = 300

_group: Communicator | None = None
_is_installed = False


def watch(group: Communicator) -> None:
    """From now on such a step ends this group."""
    global _group, _is_installed
    _group = group
    if not _is_installed:
        _is_installed = True
        tf.errors.OpError.__init__ = _watched(tf.errors.OpError.__init__)


def end_watch() -> None:
    """There is no group any more."""
    global _group
    _group = None


def _watched(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def watched(self: Any, node_def: Any, op: Any, message: str, *args: Any, **kwargs: Any) -> None:
        make(self, node_def, op, message, *args, **kwargs)
        group = _group
        if group is None or isinstance(self, tf.errors.OutOfRangeError) or "SMDDP" in str(message):
            return
        try:
            if _has_left_out(op, str(message)):
                group.native.abort(_reason(self, str(message)))
        except Exception as error:
            get_logger().debug("it is not known whether a step that failed communicates: %s", error)

    return watched


def _reason(error: Any, message: str) -> str:
    lines = [line for line in message.splitlines() if line.strip()]
    return (
        "a step of it failed that has collectives in a loop, in a function that is called, or on"
        " another device than their tensors; TensorFlow leaves out what it has not begun there, so"
        f" the ranks cannot go on together. {type(error).__name__}: {' '.join(lines)[:_SHOWN]}"
    )


def _has_left_out(op: Any, message: str) -> bool:
    if op is not None:
        return _is_any_left_out(op.graph.as_graph_def()) or _is_any_in_a_loop(op.graph)
    known = context.context()
    for name in _CALLED.findall(message):
        if known.has_function(name):
            functions = _Functions(known)
            if _is_left_out(functions[name].node_def, functions, is_loop=False):
                return True
    return False


def _is_any_left_out(graph: Any) -> bool:
    functions = {each.signature.name: each for each in graph.library.function}
    return _is_left_out(graph.node, functions, is_loop=False)


def _is_any_in_a_loop(graph: tf.Graph) -> bool:
    """Of TensorFlow 1's control flow, which is no function."""
    for operation in graph.get_operations():
        if not _is_collective(operation.node_def):
            continue
        around = operation._get_control_flow_context()
        while around is not None:
            if around.IsWhileContext():
                return True
            around = around.outer_context
    return False


class _Functions(Mapping[str, Any]):
    """Of the eager runtime."""

    def __init__(self, known: Any) -> None:
        self._known = known

    def __getitem__(self, name: str) -> Any:
        return self._known.get_function_def(name)

    def __iter__(self) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


def _is_left_out(nodes: Iterable[Any], functions: Mapping[str, Any], *, is_loop: bool) -> bool:
    """Whether there is a collective that TensorFlow may leave out when the step fails."""
    is_risky = is_loop or len(tf.config.list_logical_devices()) > 1
    for node in nodes:
        if is_risky and _is_collective(node):
            return True
        if node.op.startswith("Smddp"):
            continue
        for name in _called_by(node):
            function = functions[name]
            is_called = is_loop or node.op in _LOOPS or function.attr["_noinline"].b
            if _is_left_out(function.node_def, functions, is_loop=is_called):
                return True
    return False


def _called_by(node: Any) -> list[str]:
    found = []
    for value in node.attr.values():
        if value.HasField("func"):
            found.append(value.func.name)
        found += [each.name for each in value.list.func]
    return found


def _is_collective(node: Any) -> bool:
    is_ours = node.op.startswith("Smddp") and node.op not in ("SmddpWait", "SmddpSettle")
    return is_ours or _BORROWED in node.attr
