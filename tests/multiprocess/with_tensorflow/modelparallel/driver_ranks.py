# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the driver and its bridge, on programs made by hand. Used by `test_driver.py`."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import dataclasses
import gc
import mmap
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from hand_made_programs import Chain, Rank, a_job, expected_of, numbers_of, pieces_of
from machine_speed import soon_s
from tf_ranks import raised

from smdistributed.dataparallel.exceptions import SMDDPMismatch
from smdistributed.modelparallel.exceptions import StepAborted
from smdistributed.modelparallel.tensorflow.run.bridge import Bridges
from smdistributed.modelparallel.tensorflow.run.plan import Plan
from smdistributed.modelparallel.tensorflow.run.program import (
    Argument,
    Kept,
    Program,
    Received,
    SegmentCall,
    Send,
)
from smdistributed.modelparallel.tensorflow.run.wire import tensor_header, tensor_of

MICROBATCHES = 4
SOON_S = soon_s()


@contextlib.contextmanager
def around_checks(rank: int, world_size: int) -> Iterator[tuple[Rank]]:
    tf.config.threading.set_inter_op_parallelism_threads(int(os.environ["SMP_TEST_THREADS"]))
    tf.config.threading.set_intra_op_parallelism_threads(1)
    with a_job(rank, world_size) as arguments:
        yield arguments


def _require_right(job: Rank, results: Any, scale: int = 1, microbatches: int = 4) -> None:
    expected = expected_of(job.rank, job.size, microbatches, scale)
    assert numbers_of(results) == expected, (numbers_of(results), expected)


def _in_graph(job: Rank, chain: Chain, pieces: Any) -> Any:
    return job.bridges.call_in_graph(chain.program, pieces, chain.touched)


def _step_in_a_function(job: Rank, chain: Chain) -> Any:
    @tf.function
    def step(scale: Any) -> Any:
        pieces = [[tf.range(4.0) * scale + 10.0 * scale * each] for each in range(MICROBATCHES)]
        return _in_graph(job, chain, pieces)

    return step


# --- steps that go well ------------------------------------------------------------------------


def check_steps_called_eagerly(job: Rank) -> None:
    train, evaluate = (Chain(job.rank, job.size, number=each) for each in (1, 2))
    for scale in (1, 2, 3):
        for chain in (train, evaluate):
            _require_right(job, job.driver.run(chain.program, pieces_of(4, scale)), scale)
    assert int(train.calls) == 3 * MICROBATCHES


def check_one_microbatch_and_more_than_turns_in_flight(job: Rank) -> None:
    for microbatches in (1, 2, 9):
        chain = Chain(job.rank, job.size, microbatches, number=10 + microbatches)
        results = job.driver.run(chain.program, pieces_of(microbatches))
        _require_right(job, results, microbatches=microbatches)


def check_steps_in_a_function(job: Rank) -> None:
    chain = Chain(job.rank, job.size, number=20)
    step = _step_in_a_function(job, chain)
    for scale in (1, 2, 3):
        _require_right(job, step(tf.constant(float(scale))), scale)
    assert step.experimental_get_tracing_count() == 1
    found = step.get_concrete_function(tf.constant(1.0)).structured_outputs
    assert found[0][0].shape == []


def check_steps_in_a_branch_and_a_loop(job: Rank) -> None:
    chain = Chain(job.rank, job.size, number=21)

    @tf.function
    def run(is_step: Any, times: Any) -> Any:
        total = tf.zeros([2])
        for _ in tf.range(times):
            if is_step:
                results = _in_graph(job, chain, pieces_of(MICROBATCHES))
                total += tf.add_n([tf.stack(each) for each in results])
        return total

    expected = np.sum(expected_of(job.rank, job.size, MICROBATCHES), axis=0)
    assert (run(tf.constant(True), tf.constant(3)).numpy() == 3 * expected).all()
    assert (run(tf.constant(False), tf.constant(3)).numpy() == 0).all()
    assert int(chain.calls) == 3 * MICROBATCHES


def check_steps_keep_their_order_with_variables(job: Rank) -> None:
    chain, other = (Chain(job.rank, job.size, number=each) for each in (22, 23))
    weight = chain.weight
    begin = float(weight)

    @tf.function
    def run() -> Any:
        before = chain.calls.read_value()
        _in_graph(job, chain, pieces_of(MICROBATCHES))
        between = chain.calls.read_value()
        weight.assign(2.0 * weight)
        second = _in_graph(job, chain, pieces_of(MICROBATCHES))
        third = _in_graph(job, other, pieces_of(MICROBATCHES))  # shares no variable
        after = chain.calls.read_value()
        weight.assign(begin)
        return before, between, after, second, third

    for repetition in range(20):
        before, between, after, second, third = run()
        calls = [int(each) - 2 * MICROBATCHES * repetition for each in (before, between, after)]
        assert calls == [0, MICROBATCHES, 2 * MICROBATCHES], calls
        doubled = 2.0 ** (job.rank + 1)  # the weights of this rank and of those before it
        expected = [row[0] * doubled for row in expected_of(job.rank, job.size, MICROBATCHES)]
        assert [float(row[0]) for row in second] == expected
        _require_right(job, third)


def check_steps_of_ranks_without_variables_keep_their_order(job: Rank) -> None:
    """Two steps of a rank that touches nothing, one after the other: seen by what arrives."""
    first, second = (Chain(job.rank, job.size, number=each) for each in (24, 25))

    @tf.function
    def run() -> Any:
        pieces = pieces_of(MICROBATCHES)
        one = job.bridges.call_in_graph(first.program, pieces, [])
        two = job.bridges.call_in_graph(second.program, pieces, [])
        return one, two

    for _ in range(20):
        for results in run():
            _require_right(job, results)


def check_a_step_that_threads_call_at_once(job: Rank) -> None:
    chain = Chain(0, 1, number=26)  # nothing travels, so ranks need not agree on an order
    step = _step_in_a_function(job, chain)
    step(tf.constant(1.0))
    found: dict[int, list[Any]] = {scale: [] for scale in range(1, 5)}

    def call(scale: int) -> None:
        for _ in range(10):
            found[scale].append(numbers_of(step(tf.constant(float(scale)))))

    threads = [threading.Thread(target=call, args=(scale,), daemon=True) for scale in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
        assert not thread.is_alive()
    for scale, results in found.items():
        assert results == [expected_of(0, 1, MICROBATCHES, scale)] * 10, (scale, results)


# --- tensors that travel -----------------------------------------------------------------------


def _travellers() -> list[Any]:
    numbers = [3, 0, 1, 7]
    dtypes = "float16 bfloat16 float32 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64"
    tensors = [tf.constant(numbers, dtype=tf.dtypes.as_dtype(name)) for name in dtypes.split()]
    tensors += [
        tf.complex(tf.constant([1.5, 2.0]), tf.constant([0.5, -1.0])),
        tf.constant([[True, False, True]]),
        tf.constant([["a", ""], ["longer \x00 text", "é"]]),
        tf.constant("alone"),
        tf.zeros([0], tf.string),
        tf.constant(2.5),
        tf.constant(True),
        tf.constant(1.5, tf.bfloat16),
        tf.zeros([0]),
        tf.zeros([3, 0, 2], tf.int64),
        tf.zeros([0, 2], tf.bfloat16),
        tf.transpose(tf.reshape(tf.range(6.0), [2, 3])),
        tf.reshape(tf.range(2.0 * 300_000), [300_000, 2]),
    ]
    eight = getattr(tf.dtypes, "float8_e5m2", None) or tf.dtypes.experimental.float8_e5m2
    return [*tensors, tf.cast([1.0, 2.0], eight), tf.cast([1.0, 2.0], tf.qint32)]


def _relay(job: Rank, number: int, tensors: list[Any]) -> Program:
    """Rank 0 sends tensors to all others, which return them."""
    count = len(tensors)
    everyone = tuple(range(1, job.size))
    send = SegmentCall(
        "sender", "forward", 0, lambda _: tensors,
        sends=tuple(Send(each, each, everyone) for each in range(count)),
    )  # fmt: skip
    keep = SegmentCall(
        "receiver", "forward", job.rank, lambda received: received,
        inputs=tuple(Received(each, 0) for each in range(count)),
        keeps=tuple((each, each) for each in range(count)),
    )  # fmt: skip
    give = SegmentCall(
        "receiver", "backward", job.rank, lambda kept: kept,
        inputs=tuple(Kept(each) for each in range(count)),
        results=tuple((each, each) for each in range(count)),
    )  # fmt: skip
    is_sender = job.rank == 0
    return Program(
        number,
        "relay",
        1,
        {"send": send, "keep": keep, "give": give},
        [("send", 0)] if is_sender else [("keep", 0), ("give", 0)],
        results=[] if is_sender else [tf.TensorSpec(each.shape, each.dtype) for each in tensors],
    )


def check_tensors_of_all_types_arrive_as_they_were(job: Rank) -> None:
    expected = _travellers()
    program = _relay(job, 30, expected)
    for _ in range(2):
        (results,) = job.driver.run(program, [[]])
        for tensor, wanted in zip(results, expected if job.rank else [], strict=True):
            assert tensor.dtype == wanted.dtype
            assert tensor.shape == wanted.shape
            if wanted.dtype == tf.qint32:
                tensor, wanted = (tf.bitcast(each, tf.int32) for each in (tensor, wanted))
            assert np.array_equal(tensor.numpy(), wanted.numpy()), (wanted.dtype, tensor)


def check_a_resource_cannot_travel(job: Rank) -> None:
    variable = tf.Variable(1.0)
    program = _relay(job, 31, [variable.handle])
    kind = TypeError if job.rank == 0 else StepAborted
    text = raised(kind, job.driver.run, program, [[]])
    assert "rank 0 (partition 0, host" in text, text
    assert "forward of sender, microbatch 0" in text, text
    assert "a resource cannot go to another rank" in text, text


class _Message(mmap.mmap):
    """Memory as a channel delivers it."""

    @property
    def nbytes(self) -> int:
        return len(self)


def check_a_tensor_holds_its_message_and_gives_it_back(job: Rank) -> None:
    for dtype in (tf.float32, tf.bfloat16, tf.bool):
        sent = tf.cast(tf.reshape(tf.range(4096) % 2, [64, 64]), dtype)
        header, array = tensor_header(sent, 1, 1, 0, 0)
        message = _Message(-1, array.nbytes)
        message[:] = array.tobytes()
        tensor = tensor_of(message, header)
        assert (tensor.numpy() == sent.numpy()).all()
        message[:] = bytes(array.nbytes)
        assert not tensor.numpy().astype(np.float32).any(), "it is a copy"
        is_held = weakref.ref(message)
        del message
        gc.collect()
        assert is_held() is not None, "its memory may be another's now"
        del tensor
        gc.collect()
        assert is_held() is None, "its memory is never given back"


class _Poisoning:
    """A channel that spoils the memory of a message when nobody holds it any more."""

    def __init__(self, channel: Any) -> None:
        self.num_spoilt = 0
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def next_message(self, timeout_s: float) -> Any:
        message = self._channel.next_message(timeout_s)
        if message is None or message.nbytes == 0:
            return message
        # No array of NumPy's: `np.frombuffer` would hold what is behind it alone.
        seen: Any = type("Seen", (ctypes.c_ubyte * message.nbytes,), {}).from_buffer(message)
        seen.source, seen.header, seen.nbytes = message.source, message.header, message.nbytes
        weakref.finalize(seen, self._spoil, message)
        return seen

    def _spoil(self, message: Any) -> None:
        np.frombuffer(message, np.uint8)[:] = 0xFF
        self.num_spoilt += 1


def check_what_was_received_stays_as_it_was(job: Rank) -> None:
    """While it is held, over many steps, after a failed one and in a variable."""
    draws = np.random.default_rng(3)  # the same on all ranks
    variable = tf.Variable(tf.zeros([64, 80]))
    held: list[tuple[Any, Any]] = []
    kept = variable.numpy()
    mail = job.driver._mail
    with mock.patch.object(mail, "channel", _Poisoning(mail.channel)) as channel:
        for number in range(40):
            values = [draws.standard_normal(size) for size in ((64, 80), (300,), (7, 3))]
            sent = [tf.constant(each, tf.float32) for each in values]
            sent.append(tf.cast(sent[0], tf.bfloat16))
            if number == 20:
                kind = TypeError if job.rank == 0 else StepAborted
                raised(kind, job.driver.run, _relay(job, 100, [*sent, variable.handle]), [[]])
            (results,) = job.driver.run(_relay(job, 101 + number, sent), [[]])
            if job.rank == 0:
                continue
            held += [(each, each.numpy().tobytes()) for each in results]
            assert [before for _, before in held[-4:]] == [each.numpy().tobytes() for each in sent]
            assert (variable.numpy() == kept).all()
            variable.assign(results[0])  # it takes over the memory
            kept = results[0].numpy()
            del results
            if number % 5 == 4:
                variable.assign_add(tf.ones_like(variable))
                variable.scatter_nd_update([[0, 0]], [2.0])
                kept = variable.numpy()
                del held[: len(held) // 2]
        gc.collect()
        assert all(tensor.numpy().tobytes() == before for tensor, before in held)
        assert channel.num_spoilt > 50 or job.rank == 0, channel.num_spoilt


def check_kept_tensors_are_dropped_after_their_last_use(job: Rank) -> None:
    made_ones: list[Any] = []
    most = 0

    def num_alive() -> int:
        return sum(reference() is not None for reference in made_ones)

    def make(tensors: list[Any]) -> list[Any]:
        nonlocal most
        made = tf.identity(tensors[0])
        made_ones.append(weakref.ref(made))
        most = max(most, num_alive())
        return [made]

    make_call = SegmentCall("a", "forward", job.rank, make, (Argument(0),), keeps=((0, 0),))
    unused = SegmentCall("b", "forward", job.rank, make, (Argument(0),), keeps=((0, 1),))
    use = SegmentCall("c", "backward", job.rank, list, (Kept(0),), results=())
    turns = [(key, each) for each in range(5) for key in ("make", "unused", "use")]
    segments = {"make": make_call, "unused": unused, "use": use}
    program = Program(40, "keeping", 5, segments, turns, [tf.TensorSpec([], tf.float32)])
    job.driver.run(program, [[tf.constant(1.0)] for _ in range(5)])
    gc.collect()
    assert most <= 3, most
    assert len(made_ones) == 10
    assert num_alive() == 0


def check_a_program_that_uses_what_nobody_keeps_is_refused(job: Rank) -> None:
    use = SegmentCall("m/late", "backward", 0, list, (Kept(7),))
    text = raised(ValueError, Plan, Program(41, "wrong", 1, {"use": use}, [("use", 0)]))
    assert "backward of m/late, microbatch 0, uses slot 7" in text, text


# --- failures ----------------------------------------------------------------------------------


def _fails(phase: str, microbatch: int) -> Any:
    def fault(in_phase: str, in_microbatch: int) -> None:
        if (in_phase, in_microbatch) == (phase, microbatch):
            tf.linalg.inv(tf.zeros([2, 2]))

    return fault


def _require_told(job: Rank, victim: int, phase: str, error: BaseException) -> None:
    line = f"{phase} of m/dense_{victim}, microbatch 2: "
    text = str(error)
    if job.rank == victim:
        assert isinstance(error, tf.errors.InvalidArgumentError), repr(error)
        assert "not invertible" in text, text
    else:
        assert type(error) is StepAborted, repr(error)
        line += "InvalidArgumentError: "
    assert text.startswith(f"rank {victim} (partition {victim}, host "), text
    assert line in text, text


def check_a_segment_that_raises_ends_the_step_everywhere(job: Rank) -> None:
    chain = Chain(job.rank, job.size, number=50)
    for victim in range(job.size):
        for phase in ("forward", "backward"):
            before = int(chain.calls)
            fault = _fails(phase, 2) if job.rank == victim else lambda *_: None
            chain.fail_from_now_on(fault)
            begin = time.monotonic()
            try:
                job.driver.run(chain.program, pieces_of(MICROBATCHES, 5))
                raise AssertionError("the step went well")
            except (StepAborted, tf.errors.OpError) as error:
                _require_told(job, victim, phase, error)
            assert time.monotonic() - begin < SOON_S
            assert int(chain.calls) == before, "what the failed step assigned was not put back"
            chain.fail_from_now_on(lambda *_: None)
            _require_right(job, job.driver.run(chain.program, pieces_of(MICROBATCHES)))


def check_python_errors_keep_their_class(job: Rank) -> None:
    chain = Chain(job.rank, job.size, number=51)

    class Own(Exception):
        def __str__(self) -> str:
            return "always the same"

    for error in (KeyError("k"), ValueError(), Own(), IndexError(3, "x")):

        def fault(phase: str, microbatch: int, error: Exception = error) -> None:
            if job.rank == 0 and phase == "backward":
                raise error

        chain.fail_from_now_on(fault)
        kind = type(error) if job.rank == 0 else StepAborted
        try:
            job.driver.run(chain.program, pieces_of(MICROBATCHES))
            raise AssertionError("the step went well")
        except kind as caught:
            text = "".join([str(caught), *getattr(caught, "__notes__", [])])
        assert "backward of m/dense_0, microbatch 0" in text, text
        if job.rank:
            assert f"microbatch 0: {type(error).__name__}" in text, text


def check_a_failed_step_in_a_function(job: Rank) -> None:
    chain = Chain(job.rank, job.size, number=52)
    step = _step_in_a_function(job, chain)
    _require_right(job, step(tf.constant(1.0)))
    for victim in range(job.size):
        chain.fail_from_now_on(_fails("backward", 2) if job.rank == victim else lambda *_: None)
        before = int(chain.calls)
        begin = time.monotonic()
        text = raised(tf.errors.AbortedError, step, tf.constant(1.0))
        assert time.monotonic() - begin < SOON_S
        # First, or, where TensorFlow is as it was, behind its list of the places in the script.
        assert f"StepAborted: rank {victim} (partition {victim}, host " in text, text
        assert f"backward of m/dense_{victim}, microbatch 2: InvalidArgumentError" in text, text
        assert int(chain.calls) == before
        chain.fail_from_now_on(lambda *_: None)
        _require_right(job, step(tf.constant(2.0)), 2)


def check_a_call_that_was_cancelled_leaves_no_result_to_the_next(job: Rank) -> None:
    if os.environ["SMP_TEST_THREADS"] == "1":
        return  # what fails beside a step that waits needs a thread
    chain = Chain(job.rank, job.size, number=53)
    has_begun = threading.Event()

    def slow(phase: str, microbatch: int) -> None:
        has_begun.set()
        time.sleep(0.02)

    def wait(matrix: Any) -> Any:
        has_begun.wait(SOON_S)
        return matrix

    @tf.function
    def run(scale: Any, matrix: Any) -> Any:
        pieces = [[tf.range(4.0) * scale + 10.0 * scale * each] for each in range(MICROBATCHES)]
        matrix = tf.numpy_function(wait, [matrix], tf.float32)
        return _in_graph(job, chain, pieces), tf.linalg.inv(matrix)

    good, bad = tf.eye(2), tf.zeros([2, 2])
    for scale in (1, 2, 3):
        has_begun.clear()
        chain.fail_from_now_on(slow)
        text = raised(tf.errors.InvalidArgumentError, run, tf.constant(7.0 * scale), bad)
        assert "not invertible" in text, text
        _require_right(job, run(tf.constant(float(scale)), good)[0], scale)


def check_a_call_that_is_cancelled_while_it_waits_for_another(job: Rank) -> None:
    """The one that goes on, and one that comes after, get their own results."""
    if os.environ["SMP_TEST_THREADS"] == "1":
        return  # what fails beside a step that waits needs a thread
    chain = Chain(job.rank, job.size, number=54)
    has_begun, may_end = threading.Event(), threading.Event()

    def held(phase: str, microbatch: int) -> None:
        has_begun.set()
        may_end.wait(SOON_S)

    def later(matrix: Any) -> Any:
        time.sleep(0.1)  # so that the step beside it waits; if not yet, it does not begin to
        return matrix

    @tf.function
    def run(scale: Any, matrix: Any) -> Any:
        pieces = [[tf.range(4.0) * scale + 10.0 * scale * each] for each in range(MICROBATCHES)]
        matrix = tf.numpy_function(later, [matrix], tf.float32)
        return _in_graph(job, chain, pieces), tf.linalg.inv(matrix)

    good, bad = tf.eye(2), tf.zeros([2, 2])
    _require_right(job, run(tf.constant(1.0), good)[0])  # traced
    before = int(chain.calls)
    chain.fail_from_now_on(held)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        first = threads.submit(run, tf.constant(1.0), good)
        assert has_begun.wait(SOON_S)
        text = raised(tf.errors.InvalidArgumentError, run, tf.constant(7.0), bad)
        assert "not invertible" in text, text
        second = threads.submit(run, tf.constant(2.0), good)
        assert not first.done()
        may_end.set()
        _require_right(job, first.result(SOON_S)[0])
        _require_right(job, second.result(SOON_S)[0], 2)
    chain.fail_from_now_on(lambda *_: None)
    _require_right(job, run(tf.constant(3.0), good)[0], 3)
    assert int(chain.calls) == before + 3 * MICROBATCHES, "the one that was cancelled has not run"


# --- ranks that do not do the same -------------------------------------------------------------


def check_agreements(job: Rank) -> None:
    for number in range(3):
        value = bytes([job.rank]) * number * 100_000
        values = job.driver.agree("traces step f for a new signature", value)
        assert values == [bytes([rank]) * number * 100_000 for rank in range(job.size)]


def check_agreements_on_other_things(job: Rank) -> None:
    does = "traces step g" if job.rank == 0 else "traces step f"
    try:
        job.driver.agree(does, b"")
        raise AssertionError("they agree")
    except (SMDDPMismatch, StepAborted) as error:
        text = str(error)
    assert "traces step g" in text, text
    assert "traces step f" in text, text
    assert job.driver.agree("goes on", b"x") == [b"x"] * job.size


def check_one_rank_traces_and_the_others_run(job: Rank) -> None:
    chain = Chain(job.rank, job.size, number=60, name="f")
    _require_right(job, job.driver.run(chain.program, pieces_of(MICROBATCHES)))
    for odd in range(job.size):
        begin = time.monotonic()
        try:
            if job.rank == odd:
                job.driver.agree("traces step g for a new signature", b"")
            else:
                job.driver.run(chain.program, pieces_of(MICROBATCHES))
            raise AssertionError("they agree")
        except (SMDDPMismatch, StepAborted) as error:
            text = str(error)
        assert time.monotonic() - begin < SOON_S
        assert "runs step f" in text, text
        assert "traces step g for a new signature" in text, text
        _require_right(job, job.driver.run(chain.program, pieces_of(MICROBATCHES)))


def check_ranks_that_run_other_steps(job: Rank) -> None:
    one, two = (
        Chain(job.rank, job.size, number=number, name=name)
        for number, name in ((61, "one"), (62, "two"))
    )
    chain = one if job.rank == 0 else two
    try:
        job.driver.run(chain.program, pieces_of(MICROBATCHES))
        raise AssertionError("they agree")
    except (SMDDPMismatch, StepAborted) as error:
        text = str(error)
    assert "runs step " in text, text
    _require_right(job, job.driver.run(one.program, pieces_of(MICROBATCHES)))


def check_a_rank_that_cannot_trace_tells_the_others(job: Rank) -> None:
    chain = Chain(job.rank, job.size, number=63)
    for do in (
        lambda: job.driver.agree("traces step f", b""),
        lambda: job.driver.run(chain.program, pieces_of(MICROBATCHES)),
    ):
        if job.rank == job.size - 1:
            time.sleep(0.1)  # the others wait already
            job.driver.refuse(ZeroDivisionError("in the user's layer"))
        else:
            text = raised(StepAborted, do)
            assert text.startswith(f"rank {job.size - 1} (partition"), text
            assert "ZeroDivisionError: in the user's layer" in text, text
        _require_right(job, job.driver.run(chain.program, pieces_of(MICROBATCHES)))


# --- threads and queues ------------------------------------------------------------------------


def check_an_interrupt_ends_a_step_on_another_thread(job: Rank) -> None:
    """As the watch of Ctrl-C does it, while Python's main thread waits in TensorFlow."""
    chain = Chain(job.rank, job.size, number=70)
    step = _step_in_a_function(job, chain)
    _require_right(job, step(tf.constant(1.0)))
    if job.rank == 1:
        job.group.barrier()  # rank 0's step is waiting
        text = raised(tf.errors.AbortedError, step, tf.constant(1.0))
    else:
        if job.rank == 0:
            timer = threading.Timer(0.3, job.driver.interrupt, ["interrupted by its user"])
            timer.start()
            threading.Timer(0.6, job.group.barrier).start()
        else:
            threading.Timer(0.6, job.group.barrier).start()
        text = raised(tf.errors.AbortedError, step, tf.constant(1.0))
    assert "StepAborted: rank 0 (partition 0" in text, text
    assert "KeyboardInterrupt: interrupted by its user" in text, text
    time.sleep(0.5)
    _require_right(job, step(tf.constant(1.0)))


def check_what_ctrl_c_left_of_a_program_that_is_gone_ends_with_the_job(job: Rank) -> None:
    name = "smp-driver-interrupted"
    bridges = Bridges(job.driver)
    chain = Chain(job.rank, job.size, number=81, name="interrupted")
    step = _step_in_a_function(dataclasses.replace(job, bridges=bridges), chain)
    _require_right(job, step(tf.constant(1.0)))
    with mock.patch.object(tf.queue.QueueBase, "close", side_effect=KeyboardInterrupt) as close:
        del step, chain
        for _ in range(3):
            gc.collect()
    assert close.called
    assert name in [each.name for each in threading.enumerate()]
    bridges.close()
    assert name not in [each.name for each in threading.enumerate()]


def check_a_program_that_is_gone_takes_its_thread_and_queues_along(job: Rank) -> None:
    def names() -> list[str]:
        return [each.name for each in threading.enumerate() if "smp-driver" in each.name]

    gc.collect()
    before = names()
    chain = Chain(job.rank, job.size, number=80, name="gone")
    step = _step_in_a_function(job, chain)
    _require_right(job, step(tf.constant(1.0)))
    (bridge,) = (each for each in job.bridges._bridges.values() if each.program is chain.program)
    queues = [bridge._requests.queue_ref, bridge._answers.queue_ref]
    are_alive = [weakref.ref(each) for each in (bridge, chain.program, chain)]
    _require_right(job, job.driver.run(chain.program, pieces_of(MICROBATCHES)))
    del bridge
    gc.collect()
    assert "smp-driver-gone" in names()
    del step, chain
    for _ in range(3):  # what one pass frees holds more
        gc.collect()
    assert [each() for each in are_alive] == [None] * 3
    assert names() == before
    for handle in queues:
        raised(tf.errors.NotFoundError, tf.raw_ops.QueueSizeV2, handle=handle)
