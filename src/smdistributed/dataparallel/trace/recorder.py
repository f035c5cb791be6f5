# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Holds what the Python side reports while a recording runs, in bounded memory.

One recorder per process, as there is one timeline. Reporting is one `append` to a list, which needs
no lock. The first events are kept and later ones counted, as in the engine's trace: what there is
has no holes, and two halves of different times would explain nothing. Times are those of
CLOCK_MONOTONIC, which the engine uses too.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from types import TracebackType
from typing import Any, Final, NamedTuple

__all__ = [
    "CAPACITY",
    "Open",
    "PythonEvent",
    "Recorder",
    "begin",
    "end",
    "recorder",
    "span",
]

# Events kept per rank; of the engine's operations as many. Some 20 MB if all are there.
CAPACITY: Final = 65536


class PythonEvent(NamedTuple):
    """Something that the Python side reported.

    Attributes:
        name: what the viewer writes on it.
        track: the row it stands in.
        thread: name of the thread that reported it.
        started_ns, finished_ns: CLOCK_MONOTONIC.
        args: details, shown when it is clicked on; values must be JSON's.
    """

    name: str
    track: str
    thread: str
    started_ns: int
    finished_ns: int
    args: dict[str, Any]


class Open(NamedTuple):
    """A span that has begun; what `begin` returns and `end` takes."""

    name: str
    track: str
    started_ns: int
    args: dict[str, Any]


class Recorder:
    """Collects events between `start` and `stop`.

    Attributes:
        is_recording: whether events are kept. Reading it is all that a call site has to pay when
            nothing is recorded.

    Thread rule: any thread may report at any time; `start` and `stop` are called by one at a time.
    """

    def __init__(self) -> None:
        self.is_recording = False
        self._events: list[PythonEvent] = []
        self._capacity = 0
        self._reported = itertools.count()  # next() is atomic, an addition is not

    def start(self, capacity: int = CAPACITY) -> None:
        """Forget what there is and record from now on, up to `capacity` events."""
        self._events = []
        self._capacity = capacity
        self._reported = itertools.count()
        self.is_recording = True

    def stop(self) -> tuple[list[PythonEvent], int]:
        """Stop recording. Returns the events in the order they ended, and how many were dropped."""
        self.is_recording = False
        events, self._events = self._events, []
        return events, max(0, next(self._reported) - len(events))

    def span(self, name: str, track: str, **args: Any) -> Span | _NoSpan:
        """Context manager: what happens inside becomes one span of `track`.

        Args:
            name: what the viewer writes on it; short, and the same for things to be compared.
            track: the row it stands in: "fill", "wait", "step", or one of your own.
            args: details, numbers or text. Inside the `with`, `span.args` can be added to.
        """
        if not self.is_recording:
            return _NO_SPAN
        return Span(self, name, track, args)

    def begin(self, name: str, track: str, **args: Any) -> Open | None:
        """As `span`, where a `with` does not fit; give the result to `end`."""
        if not self.is_recording:
            return None
        return Open(name, track, time.monotonic_ns(), args)

    def end(self, opened: Open | None, **args: Any) -> None:
        """End what `begin` began; None, from before the recording started, is accepted."""
        if opened is None or not self.is_recording:
            return
        self._keep(opened.name, opened.track, opened.started_ns, {**opened.args, **args})

    def _keep(self, name: str, track: str, started_ns: int, args: dict[str, Any]) -> None:
        finished_ns = time.monotonic_ns()
        next(self._reported)
        if len(self._events) < self._capacity:
            thread = threading.current_thread().name
            self._events.append(PythonEvent(name, track, thread, started_ns, finished_ns, args))

    def _forget_after_fork(self) -> None:
        # The child, a data loader's worker as a rule, is no rank and writes no trace.
        self.is_recording = False
        self._events = []


class Span:
    """A span under way; see `Recorder.span`. `args` may be added to until it ends."""

    __slots__ = ("_name", "_recorder", "_started_ns", "_track", "args")

    def __init__(self, owner: Recorder, name: str, track: str, args: dict[str, Any]) -> None:
        self._recorder = owner
        self._name = name
        self._track = track
        self.args = args

    def __enter__(self) -> Span:
        self._started_ns = time.monotonic_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._recorder.is_recording:
            if kind is not None:
                self.args["error"] = kind.__name__
            self._recorder._keep(self._name, self._track, self._started_ns, self.args)


class _NoSpan:
    """Stands in for `Span` when nothing is recorded; one object serves all."""

    __slots__ = ()

    @property
    def args(self) -> dict[str, Any]:
        return {}

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_NO_SPAN: Final = _NoSpan()

recorder: Final = Recorder()
os.register_at_fork(after_in_child=recorder._forget_after_fork)

span = recorder.span
begin = recorder.begin
end = recorder.end
