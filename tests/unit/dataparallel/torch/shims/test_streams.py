# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Events and streams of a machine that has none."""

import itertools
import time

import pytest

from smdistributed.dataparallel.torch.shims.streams import HostEvent, HostStream


def test_time_passes_between_events() -> None:
    stream = HostStream(0, priority=-1)
    first = stream.record_event(HostEvent(enable_timing=True))
    second = stream.record_event(HostEvent(True))
    assert first.elapsed_time(second) >= 0
    assert second.elapsed_time(first) == -first.elapsed_time(second)


def test_the_time_between_events_is_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_ns = itertools.count(5_000_000_000, 2_500_000)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(clock_ns))
    start, end = HostEvent(True), HostEvent(True)
    start.record()
    end.record()
    assert start.elapsed_time(end) == 2.5
    assert end.elapsed_time(start) == -2.5


def test_recording_again_moves_the_moment() -> None:
    start, end = HostEvent(True), HostEvent(True)
    start.record()
    end.record()
    before = start.elapsed_time(end)
    end.record()
    assert start.elapsed_time(end) > before


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        (HostEvent(), HostEvent(True), "the first event was made without enable_timing=True"),
        (HostEvent(True), HostEvent(True), "the first event was not recorded.*call record"),
    ],
)
def test_events_without_a_time(start: HostEvent, end: HostEvent, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        start.elapsed_time(end)


def test_everything_has_been_done_already() -> None:
    stream, event = HostStream(), HostEvent()
    event.wait(stream)
    stream.wait_event(event)
    stream.wait_stream(HostStream())
    with stream as entered:
        assert entered is stream
    assert stream.query()
    assert event.query()
