# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Steps that fail where TensorFlow leaves collectives out: their groups end, on all ranks.

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

__all__ = ["watch"]

_LOOPS = ("While", "StatelessWhile", "For")
# The attribute of operations of TensorFlow's own that carry out collectives of ours: the group.
_BORROWED = "_smddp_group"
_CALLED = re.compile(r"\[Op:(__[^\]]+)\]")  # with "<lambda>" in it, where it is one
_SHOWN = 300

# By their numbers: those that are open.
_groups: Mapping[int, Communicator] = {}
_is_installed = False


def watch(groups: Mapping[int, Communicator]) -> None:
    """From now on such a step ends those of these groups whose collectives were left out.

    Args:
        groups: by number; what it holds when a step fails.
    """
    global _groups, _is_installed
    _groups = groups
    if not _is_installed:
        _is_installed = True
        tf.errors.OpError.__init__ = _watched(tf.errors.OpError.__init__)


def _watched(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def watched(self: Any, node_def: Any, op: Any, message: str, *args: Any, **kwargs: Any) -> None:
        make(self, node_def, op, message, *args, **kwargs)
        if not _groups or isinstance(self, tf.errors.OutOfRangeError) or "SMDDP" in str(message):
            return
        try:
            for number in _left_out(op, str(message)):
                if (group := _groups.get(number)) is not None:
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


def _left_out(op: Any, message: str) -> set[int]:
    """The groups of collectives that TensorFlow may have left out, by number."""
    if op is not None:
        return _left_out_of(op.graph.as_graph_def()) | _in_loops_of(op.graph)
    known = context.context()
    found = set()
    for name in _CALLED.findall(message):
        if known.has_function(name):
            functions = _Functions(known)
            found |= _left_out_among(functions[name].node_def, functions, is_loop=False)
    return found


def _left_out_of(graph: Any) -> set[int]:
    functions = {each.signature.name: each for each in graph.library.function}
    return _left_out_among(graph.node, functions, is_loop=False)


def _in_loops_of(graph: tf.Graph) -> set[int]:
    """Of TensorFlow 1's control flow, which is no function."""
    found = set()
    for operation in graph.get_operations():
        group = _group_of(operation.node_def)
        around = None if group is None else operation._get_control_flow_context()
        while around is not None and group is not None:
            if around.IsWhileContext():
                found.add(group)
            around = around.outer_context
    return found


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


def _left_out_among(
    nodes: Iterable[Any], functions: Mapping[str, Any], *, is_loop: bool
) -> set[int]:
    is_risky = is_loop or len(tf.config.list_logical_devices()) > 1
    found = set()
    for node in nodes:
        group = _group_of(node)
        if group is not None and is_risky:
            found.add(group)
        if node.op.startswith("Smddp"):
            continue
        for name in _called_by(node):
            function = functions[name]
            is_called = is_loop or node.op in _LOOPS or function.attr["_noinline"].b
            found |= _left_out_among(function.node_def, functions, is_loop=is_called)
    return found


def _called_by(node: Any) -> list[str]:
    found = []
    for value in node.attr.values():
        if value.HasField("func"):
            found.append(value.func.name)
        found += [each.name for each in value.list.func]
    return found


def _group_of(node: Any) -> int | None:
    """The number of a collective's group; None: it is none."""
    for name in ("group", _BORROWED):
        is_ours = node.op.startswith("Smddp") or name == _BORROWED
        if is_ours and name in node.attr:
            return int(node.attr[name].i)
    return None
