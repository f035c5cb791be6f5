# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives as TensorFlow kernels of our own: asynchronous, they hold no thread while they wait.

They are in `_tensorflow_operations.so` (native/tensorflow_ops), which is built with this
package and knows TensorFlow by its C functions only: one library for all versions. What it relies
on besides is that an asynchronous kernel may end after it has returned, and how TensorFlow passes
the callback for that. A build of TensorFlow that is not known is tried in a process of its own
first (`builds`).

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from smdistributed.collectives import Communicator
from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.tensorflow.groups import WORLD
from smdistributed.dataparallel.tensorflow.operations import builds

__all__ = [
    "HOLDS_NO_THREAD",
    "added_up",
    "all_gather",
    "all_reduce",
    "are_plain_ones_there",
    "broadcast",
    "clear_group",
    "is_available",
    "raised",
    "set_group",
]

# While an operation waits.
HOLDS_NO_THREAD = True

_LIBRARY = "_tensorflow_operations.so"
_PROBE_SECONDS = 120.0
# In a graph: for so long a kernel waits for other ranks before TensorFlow gets the chance to end a
# step of which another operation has failed.
_PATIENCE_MS = 1000
# The attribute of TensorFlow's `If` that has its branches merged into the graph around it.
_MERGED = "_lower_using_switch_merge"

_lock = threading.Lock()


class _Library:
    """The loaded library: the operations' wrappers in Python, and its own functions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.operations: Any = tf.load_op_library(str(path))
        functions = ctypes.CDLL(str(path))  # the same one: it is loaded once
        self.problem = functions.smd_tensorflow_problem
        self.problem.restype = ctypes.c_char_p
        self.problem.argtypes = []
        self.set_group = functions.smd_tensorflow_set_group
        self.set_group.restype = ctypes.c_int
        self.set_group.argtypes = [ctypes.c_int64, ctypes.c_void_p]
        self.clear_group = functions.smd_tensorflow_clear_group
        self.clear_group.restype = None
        self.clear_group.argtypes = [ctypes.c_int64]
        self.set_probe_group = functions.smd_tensorflow_set_probe_group
        self.set_probe_group.restype = None
        self.set_probe_group.argtypes = [ctypes.c_int64]


@functools.cache
def is_available() -> tuple[bool, str]:
    """Whether the kernels work with this TensorFlow; else why not, in words.

    Loads them. A build that is not known is tried in a child process, which takes seconds, once
    for each user and build.
    """
    try:
        library = _library()
    except (OSError, AttributeError, tf.errors.OpError) as error:
        return False, f"{_LIBRARY} does not load: {error}"
    if problem := library.problem().decode(errors="replace"):
        return False, problem
    return builds.judge(library.path, _try_in_child)


@functools.cache
def are_plain_ones_there() -> bool:
    """Whether `raised` and `added_up` are: they rely on nothing but C functions of TensorFlow's."""
    try:
        needed = ("smddp_raise", "smddp_add_up")
        return not _library().problem() and all(hasattr(_operations(), each) for each in needed)
    except (OSError, AttributeError, tf.errors.OpError):
        return False


def raised(text: Any) -> Any:
    """Fails with a text, uint8 of shape [n]: `tf.errors.AbortedError`. An empty one comes back."""
    return _operations().smddp_raise(text)


def added_up(tensors: Sequence[Any], divisor: int = 1) -> Any:
    """Tensors of one shape, float32 or float64, added one after the other; then divided.

    The roundings are those of a chain of additions.

    Raises:
        tf.errors.InvalidArgumentError: shapes differ.
    """
    return _operations().smddp_add_up(tensors, divisor=divisor)


@tf.RegisterGradient("SmddpAddUp")  # type: ignore[untyped-decorator]
def _gradient_of_added_up(operation: Any, gradient: Any) -> list[Any]:
    divisor = operation.get_attr("divisor")
    return [gradient / tf.cast(divisor, gradient.dtype)] * len(operation.inputs)


def set_group(number: int, group: Communicator) -> None:
    """Operations of this number run in this group from now on."""
    if not _library().set_group(number, group.native.plugin_handle()):
        raise SMDDPUnsupported(
            f"{_LIBRARY} is of another build than the engine; expected both from one installation."
            " Install the package again."
        )


def clear_group(number: int) -> None:
    """Operations of this number that run from now on fail."""
    _library().clear_group(number)


def all_reduce(
    tensors: Sequence[Any], op: int, token: Any, key: str, label: int, number: int
) -> list[Any]:
    """As `operations.all_reduce`; `op` is of `collectives.ReduceOp`, `number` the group's."""
    return _made("smddp_all_reduce", token, tensors, op=op, key=key, label=label, group=number)


def broadcast(
    tensors: Sequence[Any], root: int, token: Any, key: str, label: int, number: int
) -> list[Any]:
    """As `operations.broadcast`; `number` is the group's."""
    return _made("smddp_broadcast", token, tensors, root=root, key=key, label=label, group=number)


def all_gather(tensor: Any, token: Any, key: str, label: int, number: int) -> Any:
    """As `operations.all_gather`; `number` is the group's."""
    return _made("smddp_all_gather", token, tensor, key=key, label=label, group=number)[0]


def _made(name: str, token: Any, tensors: Any, **attributes: Any) -> list[Any]:
    """An operation's results; in a graph, of the operations that wait for it and take them.

    TensorFlow waits for a kernel to its end, whatever else of the step has failed. In a graph one
    of ours that waits long returns with a ticket, and a function waits on: TensorFlow begins none
    in a step that has failed (native/tensorflow_ops/tickets.h).
    """
    operations = _operations()
    if tf.executing_eagerly():  # there is no step that could fail
        return _list(getattr(operations, name)(token, tensors, **attributes))
    make = getattr(operations, f"{name}_or_ticket")
    results, ticket = make(token, tensors, patience_ms=_PATIENCE_MS, **attributes)
    with tf.device("/CPU:0"):
        left = _waited_for(token, ticket)
        with tf.control_dependencies([left]):
            return list(operations.smddp_settle(ticket, token, _list(results)))


def _list(results: Any) -> list[Any]:
    return results if isinstance(results, list) else [results]


def _waited_for(token: Any, ticket: Any) -> Any:
    """What is left of a ticket once the loop that waits for it has ended: the last one, or 0.

    As `tf.cond`, which would make two graphs of its own each time. What is there in time
    goes its way by ordinary kernels, as TensorFlow runs them to the end also in a step that has
    failed: so the ranks stay alike if the script goes on. It begins no function there any more,
    such as the loop.
    """
    wait, go_by = _ways()
    branch = tf.raw_ops.If(
        cond=tf.not_equal(ticket, 0),
        input=[token, ticket],  # with the order token: the next operation comes after it
        Tout=[tf.int64],
        then_branch=wait,
        else_branch=go_by,
        output_shapes=[[]],
    )[0]
    branch.op._set_attr(_MERGED, tf.compat.v1.AttrValue(b=True))
    return branch


@functools.cache
def _ways() -> tuple[Any, Any]:
    """With a ticket and without one, for all graphs; both take the order token as well.

    These are merged into the graph that calls them. The loop and its body are called, other than
    with `tf.while_loop`: it is where functions begin that TensorFlow looks whether the step has
    failed.
    """

    def goes_on(ticket: Any) -> Any:
        return tf.not_equal(ticket, 0)

    def wait_once(ticket: Any) -> Any:
        return _operations().smddp_wait(ticket, patience_ms=_PATIENCE_MS)

    def wait(token: Any, ticket: Any) -> Any:
        loop = {"cond": _function(goes_on, ticket), "body": _function(wait_once, ticket)}
        return tf.raw_ops.While(input=[ticket], **loop)[0]

    def go_by(token: Any, ticket: Any) -> Any:
        return tf.identity(ticket)

    token, ticket = tf.TensorSpec([], tf.resource), tf.TensorSpec([], tf.int64)
    with tf.init_scope(), tf.device("/CPU:0"):
        return _function(wait, token, ticket), _function(go_by, token, ticket)


def _function(python: Callable[..., Any], *inputs: Any) -> Any:
    return tf.function(python, autograph=False).get_concrete_function(*inputs)


def probe() -> None:
    """Runs operations that end after their kernels have returned; for a process of its own.

    Raises:
        RuntimeError: they did not do what they should.
    """
    library = _library()
    library.set_probe_group(WORLD)
    with tf.device("/CPU:0"):
        token = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name="smddp_probe")

        def step(small: Any, large: Any) -> Any:
            place = token, "probe", 0, WORLD
            small, large = all_reduce([small, large], 0, *place)
            (large,) = all_reduce([large], 0, *place)
            (small,) = broadcast([small], 0, *place)
            return all_gather(small, *place), large

        small, large = tf.range(3.0), tf.range(float(1 << 16))
        for run in (step, tf.function(step)):
            for result, expected in zip(run(small, large), (small, large), strict=True):
                if not bool(tf.reduce_all(result == expected)):
                    raise RuntimeError(f"expected {expected}, got {result}")
        library.clear_group(WORLD)
        try:
            step(small, large)
        except tf.errors.FailedPreconditionError:
            return
    raise RuntimeError("an operation without a group did not fail")


def _operations() -> Any:
    return _library().operations


@functools.cache
def _load() -> _Library:
    package = sys.modules[__name__.rpartition(".")[0]]
    # Several where the package is installed for development: its sources, and what is built.
    folders = [Path(folder) for folder in package.__path__]
    for folder in folders:
        if (folder / _LIBRARY).is_file():
            return _Library(folder / _LIBRARY)
    raise OSError(f"it is not in {', '.join(map(str, folders))}; install the package again")


def _library() -> _Library:
    with _lock:
        return _load()


def _try_in_child() -> tuple[bool, str]:
    command = f"from {__name__} import probe; probe(); print('smddp probe ' + 'passed')"
    unknown = f"this build of TensorFlow {tf.__version__} is not known, and a trial of it"
    try:
        child = subprocess.run(
            [sys.executable, "-c", command],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},  # it would take all of a GPU's memory
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return False, f"{unknown} failed: {error}"
    if child.returncode == 0 and "smddp probe passed" in child.stdout:
        return True, ""
    last = (child.stderr.strip().splitlines() or ["no output"])[-1]
    return False, f"{unknown} ended with exit status {child.returncode}: {last}"
