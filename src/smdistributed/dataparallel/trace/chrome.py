# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What was recorded, as events of Chrome's trace format, which Perfetto opens; and back.

A rank is a process of the format. Its rows, called threads there, from top to bottom:

    step, fill, wait, ...       what the Python side reported
    all_reduce, ... (per group) operations of the engine, while they ran; inside them the part in
                                which they waited for other ranks
    queued (per group)          operations between submission and start
    sends and receives          point to point
    in flight (bytes)           a counter: submitted and not yet complete

Times in the format are microseconds; three decimals keep our nanoseconds. They count from the
file's origin, because a double has no room for nanoseconds since the host was started.

Source: the "Trace Event Format" document of Chromium; docs/tracing.md for the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Final

from smdistributed.dataparallel.trace.model import POINT_TO_POINT, Operation, RankInfo
from smdistributed.dataparallel.trace.recorder import PythonEvent

__all__ = [
    "Event",
    "assign_lanes",
    "bus_bandwidth",
    "document_events",
    "format_bytes",
    "is_operation",
    "read_operations",
    "to_nanoseconds",
]

Event = dict[str, Any]

# Shorter waits and queue times are in the operation's details, but are no span of their own.
_SHORTEST_SPAN_NS: Final = 1000

_FIRST_ROWS: Final = ("step", "fill", "wait")
_DTYPES: Final = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "complex64": "c64",
    "complex128": "c128",
}
_CROSSINGS: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
_OPERATION: Final = "operation"  # category of the events that `read_operations` reads


@dataclasses.dataclass(frozen=True)
class _Span:
    name: str
    category: str
    started_ns: int
    finished_ns: int
    args: dict[str, Any]


def document_events(
    info: RankInfo, spans: Sequence[PythonEvent], operations: Sequence[Operation]
) -> list[Event]:
    """Returns a rank's events, rows named and ordered.

    Args:
        info: the rank; its `origin_ns` becomes time 0.
        spans: what the Python side reported.
        operations: what the engine did, in any order.
    """
    rows = _Rows(info)
    for track in _python_rows(spans):
        rows.add(track, [_python_span(event) for event in spans if event.track == track])
    collectives = [op for op in operations if op.kind not in POINT_TO_POINT]
    for group in dict.fromkeys(op.group for op in collectives):
        mine = [op for op in collectives if op.group == group]
        label = _group_label(info, group)
        rows.add(f"collectives{label}", [s for op in mine for s in _operation_spans(info, op)])
        rows.add(f"queued{label}", _queue_spans(mine))
    messages = [op for op in operations if op.kind in POINT_TO_POINT]
    rows.add("sends and receives", [s for op in messages for s in _operation_spans(info, op)])
    return [*rows.events, *_bytes_in_flight(info, operations)]


def assign_lanes(spans: Iterable[tuple[int, int]]) -> list[int]:
    """Puts spans into as few lanes as a greedy walk finds, so that in a lane they nest or follow.

    A viewer draws a row as a stack: it misreads spans that overlap without one holding the other.

    Args:
        spans: (started, finished) pairs.

    Returns:
        The lane, from 0, of each span, in the given order. Of spans that start together the longest
        comes first, so it holds the others.
    """
    spans = list(spans)
    lanes: list[list[int]] = []  # per lane the ends of the spans that are open, innermost last
    result = [0] * len(spans)
    order = sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1]))
    for index in order:
        started, finished = spans[index]
        for lane, ends in enumerate(lanes):
            while ends and ends[-1] <= started:
                ends.pop()
            if not ends or finished <= ends[-1]:
                ends.append(finished)
                result[index] = lane
                break
        else:
            result[index] = len(lanes)
            lanes.append([finished])
    return result


def format_bytes(num_bytes: int) -> str:
    """Returns a size as people write it: `25.0 MiB`, `4 KiB`, `8 B`."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= unit:
            text = f"{num_bytes / unit:.1f}"
            return f"{text.removesuffix('.0') if unit == 2**10 else text} {name}"
    return f"{num_bytes} B"


def bus_bandwidth(operation: Operation, group_size: int | None) -> float | None:
    """Returns the bus bandwidth of a collective in GB/s, or None for what has none.

    With n ranks each byte of an `all_reduce` must cross between ranks 2(n-1)/n times, whatever the
    algorithm; half as often in its two halves. So the figure can be compared between numbers of
    ranks, and with the speed of memory or network. The time includes waiting for other ranks after
    the start here.
    """
    duration_ns = operation.finished_ns - operation.started_ns
    crossings = _CROSSINGS.get(operation.kind)
    if crossings is None or not group_size or group_size < 2 or duration_ns <= 0:
        return None
    return crossings * (group_size - 1) / group_size * operation.num_bytes / duration_ns


def is_operation(event: Event) -> bool:
    """Whether the event is an operation of the engine, not a part of one or something else."""
    return event.get("cat") == _OPERATION


def read_operations(events: Iterable[Event], origin_ns: int) -> list[Operation]:
    """Returns the operations that `document_events` made events of.

    Raises:
        KeyError, TypeError, ValueError: an event is not as it was written.
    """
    operations = []
    for event in events:
        if not is_operation(event):
            continue
        args = event["args"]
        started_ns = origin_ns + to_nanoseconds(event["ts"])
        operations.append(
            Operation(
                group=args["group"],
                sequence=args["sequence"],
                kind=args["kind"],
                dtype=args["dtype"],
                reduce_op=args["reduce op"],
                num_bytes=args["bytes"],
                algorithm=args["algorithm"],
                queued_ns=started_ns - to_nanoseconds(args["queued_us"]),
                started_ns=started_ns,
                arrived_ns=(
                    started_ns + to_nanoseconds(args["waited_us"])
                    if args["waited_us"] is not None
                    else 0
                ),
                finished_ns=started_ns + to_nanoseconds(event["dur"]),
                driver=args["driver"],
                error=args.get("error", ""),
            )
        )
    return operations


class _Rows:
    """Collects events and gives every row, and every lane of it, a number and a name."""

    def __init__(self, info: RankInfo) -> None:
        self._info = info
        # A row whose number is that of the process would be marked as its main thread.
        self._next = info.world_size + 1
        self.events: list[Event] = [
            self._metadata("process_name", 0, name=info.title),
            self._metadata("process_sort_index", 0, sort_index=info.rank),
        ]

    def add(self, name: str, spans: Sequence[_Span]) -> None:
        if not spans:
            return
        lanes = assign_lanes((span.started_ns, span.finished_ns) for span in spans)
        for lane in range(max(lanes) + 1):
            row = self._next + lane
            title = name if lane == 0 else f"{name}, {lane + 1}"
            self.events.append(self._metadata("thread_name", row, name=title))
            self.events.append(self._metadata("thread_sort_index", row, sort_index=row))
        self.events += [
            self._event(span, self._next + lane)
            for span, lane in sorted(
                zip(spans, lanes, strict=True),
                key=lambda pair: (pair[0].started_ns, -pair[0].finished_ns),
            )
        ]
        self._next += max(lanes) + 1

    def _metadata(self, what: str, row: int, **args: Any) -> Event:
        return {"ph": "M", "name": what, "pid": self._info.rank, "tid": row, "args": args}

    def _event(self, span: _Span, row: int) -> Event:
        event: Event = {
            "ph": "X",
            "name": span.name,
            "cat": span.category,
            "pid": self._info.rank,
            "tid": row,
            "ts": (span.started_ns - self._info.origin_ns) / 1000,
            "dur": (span.finished_ns - span.started_ns) / 1000,
            "args": span.args,
        }
        if span.finished_ns == span.started_ns and span.category != _OPERATION:
            del event["dur"]
            event |= {"ph": "i", "s": "t"}
        return event


def _python_rows(spans: Sequence[PythonEvent]) -> list[str]:
    tracks = {event.track for event in spans}
    return [t for t in _FIRST_ROWS if t in tracks] + sorted(tracks.difference(_FIRST_ROWS))


def _python_span(event: PythonEvent) -> _Span:
    args = {**event.args, "thread": event.thread}
    return _Span(event.name, event.track, event.started_ns, event.finished_ns, args)


def _group_label(info: RankInfo, group: str) -> str:
    ranks = info.ranks_of(group)
    if ranks is None:
        return f", group {group}"
    if ranks == list(range(info.world_size)):
        return ""
    return f", ranks {' '.join(map(str, ranks))}"


def _operation_spans(info: RankInfo, operation: Operation) -> list[_Span]:
    """The operation, the part of it that waited for other ranks, and its error."""
    ranks = info.ranks_of(operation.group)
    args: dict[str, Any] = {
        "group": operation.group,
        "sequence": operation.sequence,
        "kind": operation.kind,
        "bytes": operation.num_bytes,
        "dtype": operation.dtype,
        "reduce op": operation.reduce_op,
        "algorithm": operation.algorithm,
        "driver": operation.driver,
        "queued_us": (operation.started_ns - operation.queued_ns) / 1000,
        "waited_us": operation.waited_ns / 1000 if operation.arrived_ns else None,
    }
    bandwidth = bus_bandwidth(operation, len(ranks) if ranks else None)
    if bandwidth:
        args["bus GB/s"] = round(bandwidth, 3)
    words = [operation.kind]
    if operation.num_bytes:
        words += [
            format_bytes(operation.num_bytes),
            _DTYPES.get(operation.dtype, operation.dtype),
        ]
    name = " ".join(word for word in words if word)
    started_ns, finished_ns = operation.started_ns, operation.finished_ns
    if operation.error:
        args["error"] = operation.error
    spans = [_Span(name, _OPERATION, started_ns, finished_ns, args)]
    if operation.waited_ns >= _SHORTEST_SPAN_NS:
        until_ns = min(operation.arrived_ns, finished_ns)
        spans.append(_Span("wait for other ranks", "peers", started_ns, until_ns, {}))
    if operation.error:
        mark = {"error": operation.error}
        spans.append(_Span(f"{operation.kind} failed", "error", finished_ns, finished_ns, mark))
    return spans


def _queue_spans(operations: Sequence[Operation]) -> list[_Span]:
    return [
        _Span(
            f"{op.kind} {format_bytes(op.num_bytes)} queued",
            "queue",
            op.queued_ns,
            op.started_ns,
            {"sequence": op.sequence},
        )
        for op in operations
        if op.started_ns - op.queued_ns >= _SHORTEST_SPAN_NS
    ]


def _bytes_in_flight(info: RankInfo, operations: Sequence[Operation]) -> list[Event]:
    changes = [(op.queued_ns, op.num_bytes) for op in operations if op.num_bytes]
    changes += [(op.finished_ns, -op.num_bytes) for op in operations if op.num_bytes]
    in_flight = 0
    levels: dict[int, int] = {}  # the last level at each moment
    for moment_ns, change in sorted(changes):
        in_flight += change
        levels[moment_ns] = in_flight
    return [
        {
            "ph": "C",
            "name": "in flight",
            "pid": info.rank,
            "ts": (moment_ns - info.origin_ns) / 1000,
            "args": {"bytes": level},
        }
        for moment_ns, level in levels.items()
    ]


def to_nanoseconds(microseconds: float) -> int:
    """Returns a time of the format exactly as it was before it was written."""
    return round(microseconds * 1000)
