# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is reported is kept, in order and in bounded memory; and costs nothing while off."""

import os
import threading
import time

import pytest

from smdistributed.dataparallel import trace
from smdistributed.dataparallel.trace.recorder import Recorder


@pytest.fixture
def recorder() -> Recorder:
    recorder = Recorder()
    recorder.start()
    return recorder


def test_a_span_has_name_track_times_and_details(recorder: Recorder) -> None:
    before_ns = time.monotonic_ns()
    with recorder.span("bucket 3", track="fill", bytes=4) as span:
        span.args["parameters"] = 2
    [event], dropped = recorder.stop()
    assert (event.name, event.track, event.thread) == ("bucket 3", "fill", "MainThread")
    assert before_ns <= event.started_ns <= event.finished_ns <= time.monotonic_ns()
    assert event.args == {"bytes": 4, "parameters": 2}
    assert dropped == 0


def test_begin_and_end_make_the_same_as_a_span(recorder: Recorder) -> None:
    opened = recorder.begin("bucket", "fill", bytes=4)
    recorder.end(opened, ready=True)
    [event], _ = recorder.stop()
    assert (event.name, event.track, event.args) == ("bucket", "fill", {"bytes": 4, "ready": True})


def test_a_span_that_raises_is_kept_and_says_so(recorder: Recorder) -> None:
    with pytest.raises(KeyError), recorder.span("x", "wait"):
        raise KeyError("gone")
    [event], _ = recorder.stop()
    assert event.args == {"error": "KeyError"}


def test_the_first_events_are_kept_and_the_others_counted() -> None:
    recorder = Recorder()
    recorder.start(capacity=3)
    for number in range(5):
        recorder.end(recorder.begin(str(number), "t"))
    events, dropped = recorder.stop()
    assert [event.name for event in events] == ["0", "1", "2"]
    assert dropped == 2


def test_nothing_is_kept_while_off() -> None:
    recorder = Recorder()
    with recorder.span("x", "t") as span:
        span.args["y"] = 1
    recorder.end(recorder.begin("x", "t"))
    recorder.start()
    assert recorder.stop() == ([], 0)


def test_a_span_that_outlives_the_recording_is_left_out(recorder: Recorder) -> None:
    with recorder.span("x", "t"):
        opened = recorder.begin("y", "t")
        recorder.stop()
    recorder.end(opened)
    recorder.start()
    assert recorder.stop() == ([], 0)


def test_threads_report_side_by_side(recorder: Recorder) -> None:
    def report() -> None:
        for _ in range(1000):
            with recorder.span("x", "t"):
                pass

    threads = [threading.Thread(target=report, name=f"t{n}") for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events, dropped = recorder.stop()
    assert len(events) == 4000
    assert dropped == 0
    assert {event.thread for event in events} == {"t0", "t1", "t2", "t3"}


def test_the_functions_of_the_package_use_the_one_recorder() -> None:
    assert not trace.recorder.is_recording
    trace.recorder.start()
    try:
        assert trace.recorder.is_recording
        with trace.span("a", "fill"):
            trace.end(trace.begin("b", "fill"))
    finally:
        events, _ = trace.recorder.stop()
    assert [event.name for event in events] == ["b", "a"]
    assert not trace.recorder.is_recording


def test_a_forked_child_does_not_record() -> None:
    trace.recorder.start()
    try:
        child = os.fork()
        if child == 0:
            os._exit(1 if trace.recorder.is_recording else 0)
        _, status = os.waitpid(child, 0)
    finally:
        trace.recorder.stop()
    assert os.waitstatus_to_exitcode(status) == 0
