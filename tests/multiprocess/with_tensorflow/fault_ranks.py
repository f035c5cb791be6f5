# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_faults.py run: collectives of TensorFlow, and what happens amid them.

As a script, `python fault_ranks.py FAULT`, it trains until the fault strikes rank 1, and does
nothing about it, as most scripts do.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine_ranks import meet_by_files
from held_resources import write_resources
from machine_speed import scaled

VICTIM = 1
NUM_RANKS = 3
# Until a rank that does not come is missed.
MISSED_S = scaled(2.0)
LIMIT_S = scaled(40.0)


@dataclasses.dataclass(frozen=True)
class Told:
    """An error as data."""

    type_name: str
    bases: list[str]
    text: str
    after_s: float


def told_by(function: Callable[..., Any], *arguments: Any) -> Told | None:
    """The error of a call, if there is one."""
    begin = time.monotonic()
    try:
        function(*arguments)
    except (Exception, KeyboardInterrupt) as error:
        bases = [base.__name__ for base in type(error).__mro__]
        return Told(bases[0], bases[1:], str(error), time.monotonic() - begin)
    return None


def run_fault(rank: int, world_size: int, name: str, scratch: str) -> Any:
    """What a fault returns, of plain data."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    result = globals()[f"fault_{name}"](rank, Path(scratch))
    return json.loads(json.dumps(result, default=dataclasses.asdict))


def _start() -> tuple[Any, Any]:
    import tensorflow as tf

    import smdistributed.dataparallel.tensorflow as sdp

    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    sdp.init()
    return tf, sdp


def _training_step(tf: Any, sdp: Any) -> Callable[[], Any]:
    """A step without an end of its own: forward, tape, several buckets, a loss."""
    weights = [tf.Variable(tf.ones([64, 64])) for _ in range(4)]

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            x = tf.ones([4, 64])
            for weight in weights:
                x = tf.tanh(x @ weight)
            loss = tf.reduce_mean(x)
        tape = sdp.DistributedGradientTape(tape)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.01 * gradient)
        return sdp.oob_allreduce(loss)

    return step


def _forever(step: Callable[[], Any]) -> None:
    while True:
        step()


def _strike(signal_number: int, delay_s: float) -> None:
    """A signal to this process while it is at work."""

    def act() -> None:
        time.sleep(delay_s)
        os.kill(os.getpid(), signal_number)

    threading.Thread(target=act, daemon=True).start()


def _wait_for(paths: Sequence[Path]) -> None:
    end = time.monotonic() + LIMIT_S
    while not all(path.exists() for path in paths) and time.monotonic() < end:
        time.sleep(0.01)


# --- a rank that dies ----------------------------------------------------------------------------


def fault_killed_in_a_function(rank: int, scratch: Path) -> Any:
    tf, sdp = _start()
    step = _training_step(tf, sdp)
    step()
    sdp.oob_allreduce(1.0)
    if rank == VICTIM:
        _strike(signal.SIGKILL, 0.15)
    first = told_by(_forever, step)
    # The group stays lost: eagerly, and in a function that is traced after it.
    return first, told_by(sdp.oob_allreduce, 1.0), told_by(_training_step(tf, sdp))


def fault_killed_eagerly(rank: int, scratch: Path) -> Any:
    tf, sdp = _start()
    sdp.oob_allreduce(1.0)
    if rank == VICTIM:
        _strike(signal.SIGKILL, 0.15)
    x = tf.ones([600_011])
    return told_by(_forever, lambda: sdp.oob_allreduce(x)), told_by(sdp.shutdown)


# --- ranks that disagree -------------------------------------------------------------------------


def _disagree(rank: int, usual: str, odd: str, *, is_eager: bool = False) -> Any:
    """Rank 1 makes the odd call: in a function, where its place in the program says when."""
    tf, sdp = _start()
    calls: dict[str, Callable[[], Any]] = {
        "sum of 4": lambda: sdp.oob_allreduce(tf.ones([4]), op=sdp.ReduceOp.SUM),
        "sum of 5": lambda: sdp.oob_allreduce(tf.ones([5]), op=sdp.ReduceOp.SUM),
        "sum of 2 by 2": lambda: sdp.oob_allreduce(tf.ones([2, 2]), op=sdp.ReduceOp.SUM),
        "sums of 3 and 5": lambda: sdp.oob_allreduce([tf.ones([3]), tf.ones([5])]),
        "sums of 5 and 3": lambda: sdp.oob_allreduce([tf.ones([5]), tf.ones([3])]),
        "sum of 4 int32": lambda: sdp.oob_allreduce(tf.ones([4], tf.int32), op=sdp.ReduceOp.SUM),
        "max of 4": lambda: sdp.oob_allreduce(tf.ones([4]), op=sdp.ReduceOp.MAX),
        "broadcast of 4 from 0": lambda: sdp.broadcast(tf.ones([4]), 0),
        "broadcast of 4 from 1": lambda: sdp.broadcast(tf.ones([4]), 1),
        "sum named a": lambda: sdp.oob_allreduce(tf.ones([4]), name="a"),
        "sum named b": lambda: sdp.oob_allreduce(tf.ones([4]), name="b"),
        "doubled sum": lambda: sdp.allreduce(tf.ones([4]), op=sdp.Sum, postscale_factor=2.0),
        "trebled sum": lambda: sdp.allreduce(tf.ones([4]), op=sdp.Sum, postscale_factor=3.0),
        "broadcast named a": lambda: sdp.broadcast(tf.ones([4]), 0, name="a"),
        "broadcast named b": lambda: sdp.broadcast(tf.ones([4]), 0, name="b"),
        "gradient named a": lambda: sdp.allreduce(tf.ones([4]), 0, 2, name="a"),
        "gradient named b": lambda: sdp.allreduce(tf.ones([4]), 1, 2, name="b"),
        "gradients of a, b": lambda: _gradients(tf, sdp, "ab"),
        "gradients of b, a": lambda: _gradients(tf, sdp, "ba"),
        "variables a, b": lambda: sdp.broadcast_variables([made["a"], made["b"]], 0),
        "variables b, a": lambda: sdp.broadcast_variables([made["b"], made["a"]], 0),
    }
    made = {name: tf.Variable([1.0, 1.0]) for name in "ab"}
    call = calls[odd if rank == VICTIM else usual]
    sdp.oob_allreduce(0.0)
    told = told_by(call if is_eager else tf.function(call, autograph=False))
    return told, told_by(sdp.shutdown)


def _gradients(tf: Any, sdp: Any, order: str) -> Any:
    made = {name: tf.Variable([1.0, 1.0]) for name in "ab"}
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(made["a"] * made["a"] + 5.0 * made["b"])
    return sdp.DistributedGradientTape(tape).gradient(loss, [made[name] for name in order])


def fault_disagree_in_size(rank: int, scratch: Path) -> Any:
    return _disagree(rank, "sum of 4", "sum of 5")


def fault_disagree_in_layout(rank: int, scratch: Path) -> Any:
    """As many elements altogether, in one bucket."""
    return _disagree(rank, "sums of 3 and 5", "sums of 5 and 3")


def fault_disagree_in_shape(rank: int, scratch: Path) -> Any:
    """As many elements."""
    return _disagree(rank, "sum of 4", "sum of 2 by 2")


def fault_disagree_in_dtype(rank: int, scratch: Path) -> Any:
    return _disagree(rank, "sum of 4", "sum of 4 int32")


def fault_disagree_in_operation(rank: int, scratch: Path) -> Any:
    return _disagree(rank, "sum of 4", "max of 4")


def fault_disagree_in_root(rank: int, scratch: Path) -> Any:
    return _disagree(rank, "broadcast of 4 from 0", "broadcast of 4 from 1")


def fault_disagree_in_collective(rank: int, scratch: Path) -> Any:
    return _disagree(rank, "sum of 4", "broadcast of 4 from 0")


def fault_disagree_in_name(rank: int, scratch: Path) -> Any:
    return _disagree(rank, "sum named a", "sum named b")


def fault_disagree_in_factors(rank: int, scratch: Path) -> Any:
    return _disagree(rank, "doubled sum", "trebled sum")


def fault_disagree_in_name_of_gradient(rank: int, scratch: Path) -> Any:
    return _disagree(rank, "gradient named a", "gradient named b")


def fault_disagree_in_name_of_broadcast(rank: int, scratch: Path) -> Any:
    return _disagree(rank, "broadcast named a", "broadcast named b")


def fault_disagree_in_order_of_gradients(rank: int, scratch: Path) -> Any:
    """Of variables that have one shape and one name."""
    return _disagree(rank, "gradients of a, b", "gradients of b, a", is_eager=True)


def fault_disagree_in_order_of_variables(rank: int, scratch: Path) -> Any:
    return _disagree(rank, "variables a, b", "variables b, a")


# --- ranks that do not come ----------------------------------------------------------------------


def fault_fewer_steps_and_waiting(rank: int, scratch: Path) -> Any:
    """An epoch is shorter on rank 1, which then does something else, without communication."""
    os.environ["SMDDP_TIMEOUT_SECONDS"] = str(MISSED_S)
    import smdistributed.dataparallel.tensorflow  # noqa: F401 -- takes longer than MISSED_S

    meet_by_files(str(scratch), rank, NUM_RANKS, "imported")
    tf, sdp = _start()
    step = _training_step(tf, sdp)
    step.get_concrete_function()  # so does tracing
    meet_by_files(str(scratch), rank, NUM_RANKS, "traced")
    step()
    others = [scratch / f"told{other}" for other in range(sdp.size()) if other != VICTIM]
    if rank == VICTIM:
        _wait_for(others)
        return None
    told = told_by(step)
    (scratch / f"told{rank}").touch()
    return told


def fault_fewer_steps_and_shutdown(rank: int, scratch: Path) -> Any:
    tf, sdp = _start()
    step = _training_step(tf, sdp)
    step()
    return told_by(sdp.shutdown if rank == VICTIM else step)


# --- an error of another operation of the step ---------------------------------------------------


def _local_error(rank: int, scratch: Path, make: Callable[[Any, Any], Callable[[Any], Any]]) -> Any:
    """A matrix of rank 0 has no inverse; rank 1 comes to the step's sum when that has been told."""
    tf, sdp = _start()
    call = make(tf, sdp)
    invertible, singular = [[1.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]
    call(invertible)
    if rank == VICTIM:
        _wait_for([scratch / "told0"])
    told = told_by(call, singular if rank == 0 else invertible)
    (scratch / f"told{rank}").touch()
    return told, told_by(sdp.oob_allreduce, 1.0)


def fault_local_error_in_a_function(rank: int, scratch: Path) -> Any:
    def make(tf: Any, sdp: Any) -> Callable[[Any], Any]:
        @tf.function(input_signature=[tf.TensorSpec([2, 2])])
        def step(matrix: Any) -> Any:
            return sdp.oob_allreduce(matrix[0, 0]), tf.linalg.inv(matrix)

        return step

    return _local_error(rank, scratch, make)


def fault_local_error_after_the_collective(rank: int, scratch: Path) -> Any:
    """In the order of the program; it has nothing to do with it."""

    def make(tf: Any, sdp: Any) -> Callable[[Any], Any]:
        @tf.function(input_signature=[tf.TensorSpec([2, 2])])
        def step(matrix: Any) -> Any:
            total = sdp.oob_allreduce(matrix[0, 0])
            tf.debugging.assert_positive(matrix[1, 1], "this is wrong")
            return total

        return step

    return _local_error(rank, scratch, make)


def fault_local_error_in_a_session(rank: int, scratch: Path) -> Any:
    def make(tf: Any, sdp: Any) -> Callable[[Any], Any]:
        graph = tf.Graph()
        with graph.as_default():
            matrix = tf.compat.v1.placeholder(tf.float32, [2, 2])
            fetched = sdp.oob_allreduce(tf.constant(1.0)), tf.linalg.inv(matrix)
        session = tf.compat.v1.Session(graph=graph)
        return lambda value: session.run(fetched, {matrix: value})

    return _local_error(rank, scratch, make)


def _caught_error(rank: int, make: Callable[[Any, Any], tuple[Any, Any]]) -> Any:
    """Two of four steps fail, on each rank before the last one has come; the script goes on."""
    tf, sdp = _start()
    step, read = make(tf, sdp)
    told = []
    invertible, singular = [[1.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]
    for number in range(4):
        if rank == number % sdp.size():
            time.sleep(0.2)  # less than a collective waits before it returns
        try:
            step(singular if number % 2 else invertible)
        except tf.errors.OpError as error:
            told.append(type(error).__name__)
    return told, read(), told_by(sdp.shutdown)


def fault_caught_error_in_a_function(rank: int, scratch: Path) -> Any:
    def make(tf: Any, sdp: Any) -> tuple[Any, Any]:
        first, second = tf.Variable(0.0), tf.Variable(0.0)

        @tf.function(input_signature=[tf.TensorSpec([2, 2])])
        def step(matrix: Any) -> Any:
            inverse = tf.linalg.inv(matrix)
            first.assign_add(sdp.oob_allreduce(1.0, op=sdp.ReduceOp.SUM))
            second.assign_add(sdp.oob_allreduce(2.0, op=sdp.ReduceOp.SUM))
            return inverse

        step.get_concrete_function()  # takes a while
        sdp.oob_allreduce(0.0)
        return step, lambda: [float(first), float(second)]

    return _caught_error(rank, make)


def fault_caught_error_in_a_session(rank: int, scratch: Path) -> Any:
    def make(tf: Any, sdp: Any) -> tuple[Any, Any]:
        v1 = tf.compat.v1
        graph = tf.Graph()
        with graph.as_default():
            matrix = v1.placeholder(tf.float32, [2, 2])
            variables = [
                v1.get_variable(name, [], initializer=v1.zeros_initializer()) for name in "ab"
            ]
            sums = [sdp.oob_allreduce(tf.constant(x), op=sdp.ReduceOp.SUM) for x in (1.0, 2.0)]
            added = [v1.assign_add(*pair) for pair in zip(variables, sums, strict=True)]
            fetched = [tf.linalg.inv(matrix), *added]
            start = v1.global_variables_initializer()
        session = v1.Session(graph=graph)
        session.run(start)
        sdp.oob_allreduce(0.0)
        step = lambda value: session.run(fetched, {matrix: value})  # noqa: E731
        return step, lambda: [float(each) for each in session.run(variables)]

    return _caught_error(rank, make)


def _error_beside_a_loop(rank: int, step: Callable[[Any], Any], errors: Any) -> Any:
    """Rank 0's second step fails before the others come, and its script goes on."""
    told = []
    for number in range(2):
        if rank > 0:
            time.sleep(0.2)  # less than a collective waits before it returns
        try:
            step([[0.0]] if rank == 0 and number == 1 else [[1.0]])
        except errors as error:
            told.append(str(error))
    return told[:1], told_by(_forever, lambda: step([[1.0]]))


def fault_error_beside_a_loop_in_a_function(rank: int, scratch: Path) -> Any:
    tf, sdp = _start()
    total = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([1, 1])], autograph=False)
    def step(matrix: Any) -> Any:
        inverse = tf.linalg.inv(matrix)
        _, added = tf.while_loop(
            lambda i, x: i < 2, lambda i, x: (i + 1, x + sdp.oob_allreduce(1.0)), (0, 0.0)
        )
        total.assign_add(added)
        return inverse

    step.get_concrete_function()
    sdp.oob_allreduce(0.0)
    return _error_beside_a_loop(rank, step, tf.errors.OpError)


def fault_error_beside_a_loop_in_a_lambda(rank: int, scratch: Path) -> Any:
    """Of which TensorFlow makes a name of its own."""
    tf, sdp = _start()
    added = tf.function(
        lambda: tf.while_loop(
            lambda i, x: i < 2, lambda i, x: (i + 1, x + sdp.oob_allreduce(1.0)), (0, 0.0)
        )
    )
    step = tf.function(
        lambda matrix: (tf.linalg.inv(matrix), added()),
        input_signature=[tf.TensorSpec([1, 1])],
        autograph=False,
    )
    step.get_concrete_function()
    sdp.oob_allreduce(0.0)
    return _error_beside_a_loop(rank, step, tf.errors.OpError)


def fault_error_beside_a_loop_in_a_session(rank: int, scratch: Path) -> Any:
    tf, sdp = _start()
    v1 = tf.compat.v1
    graph = tf.Graph()
    v1.disable_control_flow_v2()
    with graph.as_default():
        matrix = v1.placeholder(tf.float32, [1, 1])
        loop = v1.while_loop(
            lambda i, x: i < 2, lambda i, x: (i + 1, x + sdp.oob_allreduce(1.0)), (0, 0.0)
        )
        fetched = [tf.linalg.inv(matrix), loop]
    session = v1.Session(graph=graph)
    sdp.oob_allreduce(0.0)
    step = lambda value: session.run(fetched, {matrix: value})  # noqa: E731
    return _error_beside_a_loop(rank, step, tf.errors.OpError)


# --- Ctrl-C --------------------------------------------------------------------------------------


def _interrupted(rank: int, scratch: Path, make: Callable[[Any, Any], Callable[[], Any]]) -> Any:
    """Rank 0 waits for rank 1, which is busy until rank 0 has ended, when Ctrl-C comes."""
    return _interrupted_in(rank, scratch, make(*_start()))


def _interrupted_in(rank: int, scratch: Path, call: Callable[[], Any]) -> Any:
    call()
    if rank == VICTIM:
        _wait_for([scratch / "told0"])

    def wait() -> None:
        if rank == 0:
            _strike(signal.SIGINT, 0.3)  # here, where it is heard whenever it comes
        _forever(call)

    told = told_by(wait)
    if rank == 0:
        (scratch / "told0").touch()
    return told


def fault_interrupted_in_a_function(rank: int, scratch: Path) -> Any:
    return _interrupted(rank, scratch, _training_step)


def fault_interrupted_eagerly(rank: int, scratch: Path) -> Any:
    return _interrupted(rank, scratch, lambda tf, sdp: lambda: sdp.oob_allreduce(tf.ones([4])))


def fault_interrupt_that_is_handled(rank: int, scratch: Path) -> Any:
    """A script may have another use for Ctrl-C, such as to stop after this epoch."""
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    tf, sdp = _start()
    sum_of = tf.function(lambda x: sdp.oob_allreduce(x, op=sdp.ReduceOp.SUM), autograph=False)
    sum_of(0.0)
    if rank == VICTIM:
        time.sleep(1.5)  # longer than we wait for what Python does about it
    elif rank == 0:
        _strike(signal.SIGINT, 0.2)
    value = float(sum_of(1.0))
    end = time.monotonic() + LIMIT_S
    while rank == 0 and not came and time.monotonic() < end:
        time.sleep(0.01)
    sdp.shutdown()
    return value, len(came)


# --- in a group of some ranks --------------------------------------------------------------------


def _start_with_a_group() -> tuple[Any, Any, Any]:
    """Of ranks 0 and 1."""
    tf, sdp = _start()
    return tf, sdp, sdp.new_group([0, 1])


def _sum_of_all(sdp: Any) -> float:
    return float(sdp.oob_allreduce(1.0, op=sdp.ReduceOp.SUM))


def fault_killed_in_a_group(rank: int, scratch: Path) -> Any:
    """Rank 1; rank 2 is not in the group."""
    tf, sdp, group = _start_with_a_group()
    if rank == 2:
        return None
    if rank == VICTIM:
        _strike(signal.SIGKILL, 0.15)
    x = tf.ones([600_011])
    return told_by(_forever, lambda: sdp.oob_allreduce(x, group=group))


def fault_local_error_in_a_group(rank: int, scratch: Path) -> Any:
    """As `_local_error`; the group of all ranks goes on."""
    tf, sdp, group = _start_with_a_group()
    told = None
    if group.included():

        @tf.function(input_signature=[tf.TensorSpec([2, 2])])
        def step(matrix: Any) -> Any:
            return sdp.oob_allreduce(matrix[0, 0], group=group), tf.linalg.inv(matrix)

        step([[1.0, 0.0], [0.0, 2.0]])
        if rank == VICTIM:
            _wait_for([scratch / "told0"])
        told = told_by(step, [[1.0, 0.0], [0.0, 0.0 if rank == 0 else 2.0]])
        (scratch / f"told{rank}").touch()
    return told, _sum_of_all(sdp)


def fault_error_beside_a_loop_in_a_group(rank: int, scratch: Path) -> Any:
    """With a collective of all ranks that stands in no loop."""
    tf, sdp, group = _start_with_a_group()

    @tf.function(input_signature=[tf.TensorSpec([1, 1])], autograph=False)
    def step(matrix: Any) -> Any:
        inverse = tf.linalg.inv(matrix)
        of_all = sdp.oob_allreduce(1.0, op=sdp.ReduceOp.SUM)
        if group.included():
            body = lambda i, x: (i + 1, x + sdp.oob_allreduce(1.0, group=group))  # noqa: E731
            tf.while_loop(lambda i, x: i < 2, body, (0, 0.0))
        return inverse, of_all

    step.get_concrete_function()
    step([[1.0]])
    sdp.oob_allreduce(0.0)
    own = told_by(step, [[0.0 if rank == 0 else 1.0]])
    later = None
    if group.included():
        later = told_by(_forever, lambda: sdp.oob_allreduce(1.0, group=group))
    return own, later, _sum_of_all(sdp)


def fault_a_group_that_one_rank_cannot_make(rank: int, scratch: Path) -> Any:
    """For want of descriptors; rank 2 is to be no member."""
    _, sdp = _start()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if rank == VICTIM:
        used = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, before[1]))
    told = told_by(sdp.new_group, [0, 1])
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    return told


def fault_interrupted_in_a_group(rank: int, scratch: Path) -> Any:
    tf, sdp, group = _start_with_a_group()
    if rank == 2:
        return None
    call = lambda: sdp.oob_allreduce(tf.ones([4]), group=group)  # noqa: E731
    return _interrupted_in(rank, scratch, call)


# --- nothing wrong -------------------------------------------------------------------------------


def fault_calls_outside_of_a_job(rank: int, scratch: Path) -> Any:
    """Before init() and after shutdown(); a second job, and functions that survive the first."""
    import tensorflow as tf

    import smdistributed.dataparallel.tensorflow as sdp

    x = tf.ones([4])
    weight = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        y = weight * weight
    calls: dict[str, Callable[[], Any]] = {
        "rank": sdp.rank,
        "size": sdp.size,
        "local_rank": sdp.local_rank,
        "local_size": sdp.local_size,
        "allreduce": lambda: sdp.allreduce(x, 0, 1),
        "oob_allreduce": lambda: sdp.oob_allreduce(x),
        "broadcast": lambda: sdp.broadcast(x, 0),
        "broadcast_variables": lambda: sdp.broadcast_variables([weight], 0),
        "tape": lambda: sdp.DistributedGradientTape(tape).gradient(y, [weight]),
        "in a function": tf.function(lambda: sdp.oob_allreduce(x)),
    }

    def all_told() -> dict[str, Told | None]:
        return {name: told_by(call) for name, call in calls.items()}

    before = all_told()
    sdp.shutdown()  # does nothing
    sdp.init()
    again = told_by(sdp.init)
    kept = tf.function(lambda: sdp.oob_allreduce(x, op=sdp.ReduceOp.SUM))
    values = [float(kept()[0])]
    sdp.shutdown()
    sdp.shutdown()
    after = {**all_told(), "traced before": told_by(kept)}
    after.pop("tape")  # used up
    sdp.init()
    values += [float(kept()[0]), float(sdp.oob_allreduce(x, op=sdp.ReduceOp.SUM)[0])]
    sdp.shutdown()
    return before, again, after, values


def fault_forks_after_init(rank: int, scratch: Path) -> Any:
    """A child that does not communicate is harmless; one that does is told."""
    tf, sdp = _start()
    step = _training_step(tf, sdp)
    step()
    status = {}
    for name, body in (
        ("idle", lambda: None),
        ("rank", lambda: sys.exit(0 if sdp.rank() == rank else 4)),
    ):
        child = os.fork()
        if child == 0:
            code = 5
            try:
                body()
                code = 0
            except SystemExit as leaving:
                code = int(leaving.code or 0)
            finally:
                os._exit(code)
        status[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        step()
    value = float(sdp.oob_allreduce(1.0, op=sdp.ReduceOp.SUM))
    sdp.shutdown()
    return status, value


# --- as a script ---------------------------------------------------------------------------------


def main(fault: str, folder: str) -> None:
    tf, sdp = _start()
    step = _training_step(tf, sdp)
    step()
    write_resources(sdp.rank(), folder)
    sdp.oob_allreduce(1.0)
    if sdp.rank() == VICTIM:
        if fault == "raises":
            raise ZeroDivisionError("of this script")
        if fault == "ends":
            return
        _strike({"killed": signal.SIGKILL, "interrupted": signal.SIGINT}[fault], 0.15)
    _forever(step)


if __name__ == "__main__":
    main(*sys.argv[1:])
