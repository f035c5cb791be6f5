# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a recorder keeps, on a clock that a test winds."""

from __future__ import annotations

from typing import Any, cast

import torch

from smdistributed.modelparallel.decide.schedules.schedule import Phase, Task
from smdistributed.modelparallel.messages.channel import Channel
from smdistributed.modelparallel.report.records import Sent, Stretch
from smdistributed.modelparallel.torch.pipeline.loop.activity import Activity
from smdistributed.modelparallel.torch.pipeline.loop.recorder import Recorder
from smdistributed.modelparallel.torch.pipeline.messages.messages import End
from smdistributed.modelparallel.torch.pipeline.messages.router import Router


class Clock:
    """Goes on by one whenever it is read."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


class Watcher:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def begin_step(self) -> None:
        self.seen.append("begin")

    def resume(self, activity: Activity) -> None:
        self.seen.append(str(activity.task))

    def pause(self) -> None:
        self.seen.append("pause")

    def end_step(self) -> None:
        self.seen.append("end")

    def close(self) -> None:
        self.seen.append("close")


def _name(number: int) -> str:
    return f"module {number}"


def test_stretches_messages_and_what_was_called() -> None:
    recorder = Recorder(4, clock=Clock())
    activity, other = Activity(Task(Phase.FORWARD, 3), 0), Activity(Task(Phase.BACKWARD, 1), 0)
    recorder.begin_step(2)  # 1
    called: list[int] = []
    recorder.called(activity, called)
    recorder.resume(activity)  # 2
    called += [5, 6, 5]
    activity.turn_back()  # in the middle of a stretch, which stays what it was
    recorder.pause()  # 3
    recorder.pause()  # nothing runs
    recorder.sent(1, "Call", 100)  # 4
    recorder.sent(1, "Call", 11)  # 5
    recorder.resume(other)  # 6
    recorder.pause()  # 7
    recorder.resume(activity)  # 8
    recorder.pause()  # 9
    recorder.end_step(_name)  # 10
    (step,) = recorder.steps
    assert step.stretches == (
        Stretch("F", 3, 2, 3, "module 5 ... module 6"),
        Stretch("B", 1, 6, 7, ""),
        Stretch("B", 3, 8, 9, "module 5 ... module 6"),
    )
    assert step.sent == (Sent(1, "Call", 2, 111),)
    assert (step.begin_ns, step.told_ns, step.end_ns) == (1, 5, 10)


def test_a_message_is_recorded_before_anybody_can_have_it() -> None:
    clock = Clock()
    recorder = Recorder(4, clock=clock)
    came: list[int] = []

    class AtOnce:
        """The receiver is there before the sender goes on."""

        def post_message(self, rank: int, header: bytes, segments: Any) -> None:
            came.append(clock())

    router = Router(0, 2, cast(Channel, AtOnce()), torch.device("cpu"), 1.0)
    router.recorder = recorder
    recorder.begin_step(1)
    router.post(1, End(True, [], b""))
    recorder.end_step(_name)
    assert recorder.steps[0].told_ns < came[0] < recorder.steps[0].end_ns


def test_the_last_steps_are_kept_and_failed_ones_are_not() -> None:
    recorder = Recorder(2, clock=Clock())
    recorder.skip_step()
    for number in range(2, 7):
        recorder.begin_step(4)
        recorder.resume(Activity(Task(Phase.FORWARD, number), 0))
        recorder.pause()
        if number != 5:  # failed
            recorder.end_step(_name)
    assert [step.number for step in recorder.steps] == [4, 6]
    assert [[each.microbatch for each in step.stretches] for step in recorder.steps] == [[4], [6]]


def test_a_closer_look_at_the_first_step_that_does_not_fail() -> None:
    watcher = Watcher()
    recorder = Recorder(9, lambda number: watcher if number == 0 else None, Clock())
    recorder.begin_step(1)
    recorder.begin_step(1)  # the one before has failed
    recorder.resume(Activity(Task(Phase.FORWARD, 0), 0))
    recorder.pause()
    recorder.end_step(_name)
    recorder.begin_step(1)
    recorder.end_step(_name)
    assert watcher.seen == ["begin", "close", "begin", "F0", "pause", "end"]
