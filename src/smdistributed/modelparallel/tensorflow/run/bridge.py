# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A step in a user's graph: a queue takes its arguments to the driver, another says how it ended.

What waits in the graph is an operation of TensorFlow's that holds no thread of its pools, so one
thread is enough. The driver's calls are made on a thread of this library, one for each program that
a graph has called. The results lie ready, under the number of the call, before the graph hears of
its end: so it takes them at once, however many there are.

Calls wait for each other: threads of the user's may run one graph at once, and `tf.data` does.

In a `tf.function` TensorFlow keeps the order of what touches a resource. So the queues' operations
are in a function of their own that takes all variables that the step reads or writes, and a
variable of the driver's, in which it counts calls: steps keep their order also where they share no
variable of the user's. The count tells a call whether a result is its own: a call that TensorFlow
has cancelled, because something beside it failed, leaves one behind.

Source: our choice.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import tensorflow as tf

from smdistributed._common.error_text import error_text
from smdistributed._common.log import get_logger
from smdistributed.dataparallel.exceptions import SMDDPError
from smdistributed.dataparallel.tensorflow.autograph import not_converted
from smdistributed.dataparallel.tensorflow.operations import interrupts
from smdistributed.dataparallel.tensorflow.operations.raising import raised_if_any
from smdistributed.modelparallel.exceptions import StepAborted
from smdistributed.modelparallel.tensorflow.variables import outside_of_functions

__all__ = ["Bridges", "Called", "Runner"]

_log = get_logger()

# At most one call is under way; what cancelled calls have left may lie beside it.
_CAPACITY = 16
_JOIN_S = 2.0
_CPU = "/CPU:0"
# How often an answer goes back, for whom it is to take it, before it counts as of a cancelled call.
_PASSES = 4
# Of TensorFlow's generators of random numbers: the name of one, and how large its state is.
_PHILOX = 1
_COUNTER = 3
# The attribute of a graph with the bridges that it uses.
_KEPT = "_smp_bridges"


class Called(Protocol):
    """What a graph has to know of a step that it calls: names and attributes as of `Program`."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def microbatches(self) -> int:
        """How many rows of arguments, and of results, a call has."""

    @property
    def arguments(self) -> Sequence[Any]:
        """`tf.TensorSpec`s of a row."""

    @property
    def results(self) -> Sequence[Any]:
        """`tf.TensorSpec`s of a row."""


CalledT = TypeVar("CalledT", bound=Called)
CalledT_contra = TypeVar("CalledT_contra", bound=Called, contravariant=True)


class Runner(Protocol[CalledT_contra]):
    """What runs a step when the graph runs: a `Driver`, or what prepares its work."""

    @property
    def failure(self) -> str:
        """Of the last step that failed, in words."""

    def run(self, program: CalledT_contra, pieces: Sequence[Sequence[Any]], /) -> list[list[Any]]:
        """As `Driver.run`."""

    def interrupt(self, reason: str, /) -> bool:
        """As `Driver.interrupt`."""


class Bridges(Generic[CalledT]):
    """Between graphs of the user's and what runs steps on this rank.

    Args:
        runner: of this rank.
    """

    def __init__(self, runner: Runner[CalledT]) -> None:
        self._runner = runner
        interrupts.also_end(runner.interrupt)
        with outside_of_functions():
            self._count = tf.Variable(
                tf.zeros([_COUNTER], tf.int64), trainable=False, name="smp_calls"
            )
            # One for the process: it has a thread. A call that is cancelled lets go of it, too.
            with tf.device(_CPU):
                self._turn = tf.raw_ops.MutexV2(shared_name="smp_calls")
        self._bridges: weakref.WeakValueDictionary[CalledT, _Bridge[CalledT]] = (
            weakref.WeakValueDictionary()
        )
        self._ends: list[_Ends] = []  # of all bridges, until they are closed

    @not_converted
    def call_in_graph(
        self, program: CalledT, pieces: Sequence[Sequence[Any]], touched: Sequence[Any]
    ) -> list[list[Any]]:
        """A step as part of the graph that is being made.

        Args:
            program: of this rank.
            pieces: by microbatch, the arguments: tensors of the graph, of the program's dtypes.
            touched: the states that segments of this rank read or change: each has a `handle`, the
                resource.

        Returns:
            By microbatch, this rank's results: tensors of the graph.

        Raises:
            tf.errors.AbortedError: when the graph runs: the step has failed; the text begins as
                that of the error which `Driver.run` raises.
        """
        bridge = self._bridges.get(program)
        if bridge is None:
            self._ends = [each for each in self._ends if not each.is_closed]
            bridge = self._bridges[program] = _Bridge(
                self._runner, program, touched, self._count, self._turn, self._ends
            )
        for graph in _graphs():
            _keep(graph, bridge)
        return bridge.call(pieces)

    def close(self) -> None:
        """Ends the threads; graphs that call a step from now on fail."""
        for ends in list(self._ends):
            ends.close()


def _graphs() -> Iterator[Any]:
    """The graph that is being made, and the functions around it."""
    graph = tf.compat.v1.get_default_graph()
    yield graph
    while (graph := getattr(graph, "outer_graph", None)) is not None and graph.building_function:
        yield graph


def _keep(graph: Any, bridge: _Bridge[Any]) -> None:
    """The bridge lives as long as a graph that calls it."""
    if not hasattr(graph, _KEPT):
        setattr(graph, _KEPT, set())
    getattr(graph, _KEPT).add(bridge)


class _Bridge(Generic[CalledT]):
    """Of one program."""

    def __init__(
        self,
        runner: Runner[CalledT],
        program: CalledT,
        touched: Sequence[Any],
        count: Any,
        turn: Any,
        all_ends: list[_Ends],
    ) -> None:
        self.program = program
        self._runner = runner
        with tf.init_scope():
            arguments = [spec.dtype for spec in program.arguments] * program.microbatches
            self._requests = tf.queue.FIFOQueue(_CAPACITY, [tf.int64, *arguments])
            self._answers = tf.queue.FIFOQueue(_CAPACITY, [tf.int64, tf.string, tf.int64])
            self._results = _Results(program)
            self._crossing = _crossing(
                program, self._requests, self._answers, self._results, touched, count, turn
            )
        name = f"smp-driver-{program.name}"
        thread = threading.Thread(
            target=_serve, args=(self._requests, weakref.ref(self)), name=name, daemon=True
        )
        ends = _Ends(self._requests, self._answers, self._results, thread)
        all_ends.append(ends)
        weakref.finalize(self, ends.close)
        thread.start()

    def call(self, pieces: Sequence[Sequence[Any]]) -> list[list[Any]]:
        program = self.program
        results = self._crossing(*[tensor for each in pieces for tensor in each])
        count = len(program.results)
        return [
            list(results[start : start + count])
            for start in range(0, count * program.microbatches, count or 1)
        ] or [[] for _ in range(program.microbatches)]

    def answer(self, number: Any, tensors: Sequence[Any]) -> None:
        """Runs the step of a call; on the thread of this program."""
        program = self.program
        count = len(program.arguments)
        pieces = [
            tensors[microbatch * count : (microbatch + 1) * count]
            for microbatch in range(program.microbatches)
        ]
        try:
            results = self._runner.run(program, pieces)
            self._results.put(number, [tensor for each in results for tensor in each])
            failure = ""
        except BaseException as error:  # KeyboardInterrupt too: the call is to know
            _log.debug("step %s failed in a graph", program.name, exc_info=True)
            failure = _failure(error, self._runner.failure)
        try:
            self._answers.enqueue([number, failure, _PASSES])
        except tf.errors.CancelledError:
            _log.debug("nobody waits for step %s any more", program.name)


class _Results:
    """Of calls that have ended, by their numbers: a map of TensorFlow's that holds tensors.

    Args:
        program: whose results they are.
    """

    _next = itertools.count()

    def __init__(self, program: Called) -> None:
        self._specs = list(program.results) * program.microbatches
        self._map = {
            "dtypes": [spec.dtype for spec in self._specs],
            "shared_name": f"smp_results_{next(self._next)}",
        }

    def put(self, number: Any, tensors: Sequence[Any]) -> None:
        """Lays the results of a call ready; those of calls that were cancelled go."""
        if not self._specs:
            return
        with tf.device(_CPU):
            if tf.raw_ops.MapSize(**self._map) > 0:
                self.clear()
            indices = tf.range(len(self._specs))
            tf.raw_ops.MapStage(key=number, indices=indices, values=tensors, **self._map)

    def take(self, number: Any) -> list[Any]:
        """The results of a call, in a graph. They must lie ready."""
        if not self._specs:
            return []
        with tf.device(_CPU):
            indices = tf.range(len(self._specs))
            tensors = tf.raw_ops.MapUnstage(key=number, indices=indices, **self._map)
        for tensor, spec in zip(tensors, self._specs, strict=True):
            tensor.set_shape(spec.shape)
        return list(tensors)

    def clear(self) -> None:
        """Lets go of all."""
        if self._specs:
            with tf.device(_CPU):
                tf.raw_ops.MapClear(**self._map)


def _failure(error: BaseException, failure: str) -> str:
    """In one line, beginning with a documented class."""
    text = error_text(error)
    return text if isinstance(error, SMDDPError) else f"{StepAborted.__name__}: {failure}"


def _serve(requests: Any, reference: weakref.ref[_Bridge[Any]]) -> None:
    """The thread of a program: ends when the queue is closed."""
    while True:
        try:
            request = requests.dequeue()
        except (tf.errors.OutOfRangeError, tf.errors.CancelledError):
            return
        number, *tensors = request if isinstance(request, (list, tuple)) else [request]
        bridge = reference()
        if bridge is None:
            return
        bridge.answer(number, tensors)
        del bridge, request, number, tensors


class _Ends:
    """What of a bridge is to be closed when it goes, and when the job ends.

    Both are needed: where a Ctrl-C ends the former, the latter does it.

    Attributes:
        is_closed: all of it.
    """

    def __init__(
        self, requests: Any, answers: Any, results: _Results, thread: threading.Thread
    ) -> None:
        self._queues: tuple[Any, ...] = (requests, answers)
        self._results = results
        self._thread = thread
        self.is_closed = False

    def close(self) -> None:
        """Closes what is open yet."""
        if self.is_closed:
            return
        with tf.init_scope():
            for queue in self._queues:
                with contextlib.suppress(tf.errors.CancelledError):  # closed before
                    queue.close(cancel_pending_enqueues=True)
            if self._thread.is_alive() and self._thread is not threading.current_thread():
                self._thread.join(_JOIN_S)
            self._results.clear()
        self._queues = ()  # which go with it
        self.is_closed = True


def _crossing(
    program: Called,
    requests: Any,
    answers: Any,
    results: _Results,
    touched: Sequence[Any],
    count: Any,
    turn: Any,
) -> Any:
    """The function that a graph calls; its call takes all resources."""

    def crossing(*tensors: Any) -> list[Any]:
        handles = [tf.raw_ops.VarIsInitializedOp(resource=each.handle) for each in touched]
        with tf.control_dependencies(handles), tf.device(_CPU):
            mine = tf.raw_ops.MutexLock(mutex=turn)
        with tf.control_dependencies([mine]):
            number = _next_of(count)
            with tf.control_dependencies([requests.enqueue([number, *tensors])]):
                failure = _end_of(number, answers)
        ended = raised_if_any(failure)
        with tf.control_dependencies([ended]):
            found = results.take(number)
        with tf.control_dependencies([ended, *found]):
            tf.raw_ops.ConsumeMutexLock(mutex_lock=mine)
        return found

    signature = list(program.arguments) * program.microbatches
    return tf.function(crossing, input_signature=signature, autograph=False)


def _next_of(count: Any) -> Any:
    """A number that no other call has: the one operation of TensorFlow's that reads and adds.

    The mutex is not enough: TensorFlow lets a second one in if one that waits for it is cancelled.
    """
    counter = tf.raw_ops.RngReadAndSkip(
        resource=count.handle, alg=_PHILOX, delta=tf.constant(1, tf.uint64)
    )
    return counter[0]


def _end_of(number: Any, answers: Any) -> Any:
    """Takes answers until it is that of this call: gives how it failed, in words."""

    def take(*_: Any) -> list[Any]:
        answered, failure, passes = answers.dequeue()
        is_for_other = tf.logical_and(tf.not_equal(answered, number), passes > 0)

        def pass_on() -> Any:
            with tf.control_dependencies([answers.enqueue([answered, failure, passes - 1])]):
                return tf.constant(True)

        with tf.control_dependencies([tf.cond(is_for_other, pass_on, lambda: tf.constant(False))]):
            return [tf.reshape(answered, []), tf.reshape(failure, [])]

    _, failure = tf.while_loop(
        lambda answered, _: tf.not_equal(answered, number),
        take,
        [tf.constant(-1, tf.int64), tf.constant("")],
        parallel_iterations=1,
    )
    return failure
