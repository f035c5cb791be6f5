# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The curves of a job: its metrics as a table.

Source: launch specification, section 8.2.
"""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smdistributed._common.log import get_logger
from smdistributed.launch.points import Point, averages, points_of
from smdistributed.sagemaker.arguments import require_whole, typed
from smdistributed.sagemaker.serializers import load_package
from smdistributed.sagemaker.session import Session

__all__ = ["TrainingJobAnalytics"]

_log = get_logger()

_COLUMNS = ("timestamp", "metric_name", "value")


class TrainingJobAnalytics:
    """Metrics of a training job, while it runs or afterwards.

    Args:
        training_job_name: of the job.
        metric_names: which ones, in this order; None: all that the job defines.
        sagemaker_session: knows the job; None: this machine's.
        start_time, end_time: values from the first and before the second one count: times with a
            zone, or in UTC; None: of the whole job.
        period: seconds over which values are averaged; None: 60.

    Raises:
        ConfigurationError: (a ValueError) there is no such job.
        ValueError: a time or the period is none.
    """

    CLOUDWATCH_NAMESPACE = "/aws/sagemaker/TrainingJobs"

    def __init__(
        self,
        training_job_name: str,
        metric_names: Sequence[str] | None = None,
        sagemaker_session: Session | None = None,
        start_time: dt.datetime | None = None,
        end_time: dt.datetime | None = None,
        period: int | None = None,
    ) -> None:
        session = typed("sagemaker_session", sagemaker_session, Session) or Session()
        typed("metric_names", metric_names, Sequence)
        require_whole("period", period)
        self._start = _seconds("start_time", start_time)
        self._end = _seconds("end_time", end_time)
        self._period = period or 60
        self._name = training_job_name
        self._job = session.job(training_job_name)
        # Two definitions may have one name: its values are one series then.
        self._metric_names = list(dict.fromkeys(metric_names or self._defined()))
        self.clear_cache()

    @property
    def name(self) -> str:
        """Of the job."""
        return self._name

    def __repr__(self) -> str:
        return f"<sagemaker.TrainingJobAnalytics for {self.name}>"

    def clear_cache(self) -> None:
        """Forgets what has been read; it is read again when it is asked for."""
        self._rows: list[tuple[float, str, float]] | None = None
        self._frame: Any = None

    def points(self) -> list[Point]:
        """The single values, as they are now: when, on which host, of which metric, what."""
        return [
            point
            for point in points_of(self._job.path)
            if point.name in self._metric_names
            and (self._start is None or self._start <= point.time)
            and (self._end is None or point.time < self._end)
        ]

    def rows(self, force_refresh: bool = False) -> list[tuple[float, str, float]]:
        """The table without pandas: seconds from the metric's first period, its name, the mean.

        A metric without values has no rows, and is a warning.

        Args:
            force_refresh: read them again; else they are those of the first call.
        """
        if force_refresh:
            self.clear_cache()
        if self._rows is None:
            self._rows = self._read()
        return list(self._rows)

    def dataframe(self, force_refresh: bool = False) -> Any:
        """The rows as a `pandas.DataFrame` with the columns timestamp, metric_name and value.

        Args:
            force_refresh: read them again; else they are those of the first call.

        Raises:
            ModuleNotFoundError: pandas is not installed; says how to install it.
        """
        pandas = load_package("pandas", self)
        if force_refresh:
            self.clear_cache()
        if self._frame is None:
            columns = zip(*self.rows(), strict=True) if self.rows() else ()
            self._frame = pandas.DataFrame(dict(zip(_COLUMNS, columns, strict=False)))
        return self._frame

    def export_csv(self, filename: str) -> None:
        """Writes the rows to a file, as `DataFrame.to_csv` does, but without pandas.

        Args:
            filename: of the file, which is replaced if it is there.
        """
        rows = self.rows()
        with Path(filename).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("", *(_COLUMNS if rows else ())))
            writer.writerows((number, *row) for number, row in enumerate(rows))

    def _read(self) -> list[tuple[float, str, float]]:
        points = self.points()
        rows = []
        for name in self._metric_names:
            found = averages([point for point in points if point.name == name], self._period)
            if not found:
                _log.warning("No metrics called %s found in the job %s", name, self.name)
            rows += [(when, name, value) for when, value in found]
        return rows

    def _defined(self) -> list[str]:
        algorithm = self._job.read().request["AlgorithmSpecification"]
        return [each["Name"] for each in algorithm.get("MetricDefinitions", ())]


def _seconds(name: str, time: dt.datetime | None) -> float | None:
    """Since 1970."""
    typed(name, time, dt.datetime)
    if time is None:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=dt.UTC)).timestamp()
