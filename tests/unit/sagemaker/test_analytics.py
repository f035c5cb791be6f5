# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`TrainingJobAnalytics` (launch specification, section 8.2)."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import create_job
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.sagemaker.analytics import TrainingJobAnalytics
from smdistributed.sagemaker.session import Session

NOW = dt.datetime(2026, 11, 27, 12, 0, tzinfo=dt.UTC)
REQUEST: dict[str, Any] = {
    "TrainingJobName": "job-1",
    "ResourceConfig": {"InstanceCount": 1, "InstanceType": "local"},
    "AlgorithmSpecification": {
        "MetricDefinitions": [{"Name": name, "Regex": "(.)"} for name in ("loss", "acc")]
    },
}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(home=Home(tmp_path / "home"))
    job = create_job(session.home, ["job-1"], lambda name: JobRecord.new(REQUEST, {}, "arn:x", NOW))
    yield session
    job.lock.release()


def show(session: Session, *values: tuple[float, str, float]) -> None:
    folder = session.home.jobs / "job-1" / "hosts" / "algo-1"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        for seconds, name, value in values:
            point = {"time": NOW.timestamp() + seconds, "name": name, "value": value}
            file.write(json.dumps(point) + "\n")


def analytics(session: Session, **given: Any) -> TrainingJobAnalytics:
    return TrainingJobAnalytics("job-1", sagemaker_session=session, **given)


def test_a_metric_that_is_named_twice_has_its_rows_once(session: Session) -> None:
    REQUEST["AlgorithmSpecification"]["MetricDefinitions"].append({"Name": "loss", "Regex": "(x)"})
    try:
        job = create_job(
            session.home, ["job-2"], lambda name: JobRecord.new(REQUEST, {}, "arn:x", NOW)
        )
    finally:
        REQUEST["AlgorithmSpecification"]["MetricDefinitions"].pop()
    show(session, (0, "loss", 1.0), (0, "acc", 3.0))
    (job.path / "hosts").symlink_to(session.home.jobs / "job-1" / "hosts")
    for name, names in (("job-2", None), ("job-1", ["loss", "acc", "loss"])):
        table = TrainingJobAnalytics(name, names, session)
        assert table.rows() == [(0.0, "loss", 1.0), (0.0, "acc", 3.0)]
    job.lock.release()


class _Frame:
    """What pandas is asked for."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = {name: list(values) for name, values in columns.items()}


@pytest.fixture
def pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    standing_in = types.ModuleType("pandas")
    standing_in.DataFrame = _Frame  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", standing_in)


@pytest.mark.usefixtures("pandas")
def test_the_table_has_a_row_for_each_period_of_each_metric(session: Session) -> None:
    show(session, (70, "acc", 5.0), (1, "loss", 1.0), (59, "loss", 3.0), (61, "loss", 4.0))
    found = analytics(session)
    assert found.name == "job-1"
    assert found.dataframe().columns == {
        "timestamp": [0.0, 60.0, 0.0],
        "metric_name": ["loss", "loss", "acc"],
        "value": [2.0, 4.0, 5.0],
    }
    assert repr(found) == "<sagemaker.TrainingJobAnalytics for job-1>"


@pytest.mark.usefixtures("pandas")
def test_the_table_is_read_once_unless_it_is_to_be_refreshed(session: Session) -> None:
    show(session, (1, "loss", 1.0))
    found = analytics(session, metric_names=["loss"])
    first = found.dataframe()
    show(session, (121, "loss", 2.0))
    assert found.dataframe() is first
    assert len(found.dataframe(force_refresh=True).columns["value"]) == 2
    assert len(found.points()) == 2


@pytest.mark.usefixtures("pandas")
def test_a_metric_without_values_is_a_warning(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("smdistributed").addHandler(caplog.handler)
    try:
        assert analytics(session).dataframe().columns == {}
    finally:
        logging.getLogger("smdistributed").removeHandler(caplog.handler)
    for name in ("loss", "acc"):
        assert f"No metrics called {name} found" in caplog.text


def test_what_counts_can_be_chosen(session: Session) -> None:
    show(session, (1, "loss", 1.0), (10, "loss", 2.0), (20, "loss", 3.0), (20, "acc", 4.0))
    begin, end = (NOW + dt.timedelta(seconds=seconds) for seconds in (10, 20))
    chosen = analytics(session, metric_names=["loss"], start_time=begin, end_time=end)
    assert chosen.rows() == [(0.0, "loss", 2.0)]
    in_utc = analytics(session, metric_names=["loss"], start_time=begin.replace(tzinfo=None))
    assert [point.value for point in in_utc.points()] == [2.0, 3.0]
    shorter = analytics(session, metric_names=["loss"], period=10)
    assert shorter.rows() == [(0.0, "loss", 1.0), (10.0, "loss", 2.0), (20.0, "loss", 3.0)]


def test_a_table_is_written_without_pandas(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    show(session, (1, "loss", 0.1), (61, "loss", 4.0))
    found = analytics(session, metric_names=["loss"])
    found.export_csv(str(tmp_path / "a.csv"))
    text = ",timestamp,metric_name,value\n0,0.0,loss,0.1\n1,60.0,loss,4.0\n"
    assert (tmp_path / "a.csv").read_text() == text
    with pytest.raises(ModuleNotFoundError, match="Install it: pip install pandas"):
        found.dataframe()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"period": 0}, "period is 0"),
        ({"start_time": "now"}, "start_time is 'now'; expected datetime"),
        ({"metric_names": "loss"}, "metric_names is 'loss'; expected a list"),
    ],
)
def test_arguments_that_cannot_work(session: Session, given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        analytics(session, **given)


def test_a_job_that_is_not_there(session: Session) -> None:
    with pytest.raises(ConfigurationError, match="could not find"):
        TrainingJobAnalytics("other", sagemaker_session=session)
