# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The values of metrics that a job has shown so far, as its hosts have written them down.

Source: launch specification, section 8.2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Point", "averages", "points_of"]


class Point(NamedTuple):
    """One value.

    Attributes:
        time: when it was printed: seconds since 1970.
        host: whose rank has printed it, such as `algo-1`.
        name: of the metric.
        value: of the metric; finite.
    """

    time: float
    host: str
    name: str
    value: float


def points_of(directory: Path, file: str = "metrics.jsonl") -> list[Point]:
    """All of a job, by time; those of one moment in the order of hosts and lines.

    Args:
        directory: of the job. It may be running: a line that is not complete is left out.
        file: of each host, with a point on a line.
    """
    points = []
    for path in sorted((directory / "hosts").glob(f"*/{file}")):
        for line in path.read_bytes().splitlines():
            try:
                found = json.loads(line)
                time, value = float(found["time"]), float(found["value"])
                points.append(Point(time, path.parent.name, str(found["name"]), value))
            except (ValueError, LookupError, TypeError):
                continue  # its writer was killed
    return sorted(points, key=lambda point: point.time)


def averages(points: Sequence[Point], period: int) -> list[tuple[float, float]]:
    """The mean of each period that has values, as CloudWatch says it.

    Args:
        points: of one metric, in any order.
        period: in seconds. Periods begin at whole multiples of it since 1970.

    Returns: the begin of each, in seconds from the begin of the first one, and the mean.
    """
    values: dict[int, list[float]] = {}
    for point in points:
        values.setdefault(int(point.time // period), []).append(point.value)
    first = min(values, default=0)
    return [
        (float((number - first) * period), sum(found) / len(found))
        for number, found in sorted(values.items())
    ]
