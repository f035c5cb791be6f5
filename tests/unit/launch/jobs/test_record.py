# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a job does, and what `describe` says of it (launch specification, section 7.4)."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed._common.errors import ConfigurationError, InternalError
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import LEGAL, Secondary, Status, status_of

NOW = dt.datetime(2026, 11, 27, 12, 0, 0, 123_000, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
REQUEST = {
    "TrainingJobName": "job-1",
    "RoleArn": "arn:aws:iam::000000000000:role/mine",
    "HyperParameters": {"epochs": "3"},
    "ResourceConfig": {"InstanceCount": 1, "InstanceType": "local", "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
}
ARN = "arn:aws:sagemaker:us-east-1:000000000000:training-job/job-1"
WAY = (Secondary.DOWNLOADING, Secondary.TRAINING, Secondary.UPLOADING, Secondary.COMPLETED)


def new() -> JobRecord:
    return JobRecord.new(REQUEST, {"Backend": "local"}, ARN, NOW)


def after(*way: Secondary, **told: Any) -> JobRecord:
    record = new()
    for number, secondary in enumerate(way, 1):
        record = record.moved(secondary, NOW + number * SECOND, **told)
    return record


def test_a_job_that_ends_well() -> None:
    response = after(*WAY).describe(NOW + 100 * SECOND)
    assert response["TrainingJobName"] == "job-1"
    assert response["TrainingJobArn"] == ARN
    assert (response["TrainingJobStatus"], response["SecondaryStatus"]) == ("Completed",) * 2
    transitions = response["SecondaryStatusTransitions"]
    assert [each["Status"] for each in transitions] == ["Starting", *WAY]
    for earlier, later in itertools.pairwise(transitions):
        assert earlier["EndTime"] == later["StartTime"]
    assert response["CreationTime"] == NOW
    assert response["TrainingStartTime"] == NOW + 2 * SECOND
    assert response["TrainingEndTime"] == NOW + 4 * SECOND
    assert response["TrainingTimeInSeconds"] == response["BillableTimeInSeconds"] == 2
    assert response["HyperParameters"] == {"epochs": "3"}
    assert response["Local"] == {"Backend": "local"}
    assert "FailureReason" not in response


def test_a_job_that_trains() -> None:
    response = after(*WAY[:2]).describe(NOW + 10 * SECOND)
    assert (response["TrainingJobStatus"], response["SecondaryStatus"]) == (
        "InProgress",
        "Training",
    )
    assert response["TrainingTimeInSeconds"] == 8
    assert "EndTime" not in response["SecondaryStatusTransitions"][-1]
    assert "TrainingEndTime" not in response


def test_a_job_that_failed_says_why_in_1024_characters() -> None:
    record = after(Secondary.FAILED, reason="AlgorithmError: " + "x" * 2000)
    assert record.status is Status.FAILED
    assert len(record.describe(NOW)["FailureReason"]) == 1024


def test_an_interrupted_job_starts_again() -> None:
    record = after(*WAY[:2], Secondary.INTERRUPTED, Secondary.STARTING, *WAY)
    assert record.status is Status.COMPLETED
    assert record.training_times()[0] == NOW + 2 * SECOND, "time counts from the first start"


def test_time_between_two_attempts_is_no_time_of_training() -> None:
    record = after(*WAY[:2], Secondary.INTERRUPTED, Secondary.STARTING, *WAY)
    began = [each.start for each in record.transitions if each.secondary is Secondary.TRAINING]
    first = record.transitions[3].start - began[0]
    last = record.transitions[-1].start - began[1]
    expected = round((first + last).total_seconds())
    assert record.training_seconds(NOW) == expected
    assert record.describe(NOW)["TrainingTimeInSeconds"] == expected


@pytest.mark.parametrize(
    "last", [Secondary.STOPPED, Secondary.MAX_RUNTIME_EXCEEDED, Secondary.MAX_WAIT_TIME_EXCEEDED]
)
def test_a_stopped_job(last: Secondary) -> None:
    record = after(*WAY[:2], Secondary.STOPPING, last)
    assert record.status is Status.STOPPED
    assert record.describe(NOW)["SecondaryStatus"] == str(last)


def test_nothing_follows_an_end_and_everything_else_has_an_end() -> None:
    for secondary in Secondary:
        assert bool(LEGAL[secondary]) is not status_of(secondary).is_terminal
    for secondary in Secondary:
        seen, new_ones = set(), {secondary}
        while new_ones:
            seen |= new_ones
            new_ones = {f for each in new_ones for f in LEGAL[each]} - seen
        assert any(status_of(each).is_terminal for each in seen)


@pytest.mark.parametrize(("now", "following"), [*itertools.product(Secondary, Secondary)])
def test_what_cannot_follow_is_a_defect(now: Secondary, following: Secondary) -> None:
    record = new()
    record = JobRecord(
        REQUEST, {}, ARN, NOW, (*record.transitions[:-1], type(record.transitions[0])(now, NOW))
    )
    if following in LEGAL[now]:
        assert record.moved(following, NOW).secondary is following
    else:
        with pytest.raises(InternalError, match=f"a job that is {now} was to become {following}"):
            record.moved(following, NOW)


def test_a_clock_that_was_set_back() -> None:
    record = new().moved(Secondary.DOWNLOADING, NOW + 10 * SECOND)
    record = record.moved(Secondary.TRAINING, NOW)
    assert record.transitions[1].end == record.transitions[2].start == NOW + 10 * SECOND
    assert record.describe(NOW - 100 * SECOND)["TrainingTimeInSeconds"] == 1


@given(st.lists(st.sampled_from(Secondary), max_size=8), st.text(), st.floats(allow_nan=False))
def test_what_is_written_is_read(way: list[Secondary], text: str, value: float) -> None:
    record = new()
    for secondary in way:
        if secondary in LEGAL[record.secondary]:
            record = record.moved(secondary, NOW + SECOND, message=text, reason=text)
    record = JobRecord(
        record.request,
        {"Note": text},
        record.arn,
        record.created,
        record.transitions,
        record.failure_reason,
        "file:///model.tar.gz",
        (("loss", value, NOW),),
    )
    assert JobRecord.of_json(json.loads(json.dumps(record.to_json()))) == record


def test_a_record_of_a_later_version() -> None:
    with pytest.raises(ConfigurationError, match="format 99, and this version knows up to 1"):
        JobRecord.of_json({**new().to_json(), "Format": 99})


def test_the_first_records_had_no_size() -> None:
    document = new().to_json()
    del document["Size"]
    assert JobRecord.of_json(document) == new()


@pytest.mark.parametrize("key", sorted(new().to_json().keys() - {"Size"}))
def test_a_record_with_a_part_missing_is_refused(key: str) -> None:
    document = new().to_json()
    del document[key]
    with pytest.raises(LookupError):
        JobRecord.of_json(document)
