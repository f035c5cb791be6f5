# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which jobs can go on, and as what."""

from __future__ import annotations

import datetime as dt

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.resuming import names_after, require_resumable, resumed
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary

NOW = dt.datetime(2026, 11, 27, 14, 30, 42, 13000, tzinfo=dt.UTC)
REQUEST = {
    "TrainingJobName": "mine-2026-11-27-10-00-00-001",
    "ResourceConfig": {},
    "HyperParameters": {"lr": "0.1", "sagemaker_job_name": '"mine-2026-11-27-10-00-00-001"'},
    "CheckpointConfig": {"S3Uri": "s3://kept/run"},
}


def ended(*way: Secondary, reason: str = "") -> JobRecord:
    local = {"Backend": "local", "debug_rank": 1, "terminal": "/dev/pts/7"}
    record = JobRecord.new(REQUEST, local, "arn:x/mine", NOW)
    for each in way:
        record = record.moved(each, NOW, reason=reason)
    return record


@pytest.mark.parametrize(
    "record",
    [
        ended(Secondary.FAILED, reason="InternalServerError: the process of the job is gone"),
        ended(Secondary.STOPPING, Secondary.STOPPED),
        ended(Secondary.STOPPING, Secondary.MAX_RUNTIME_EXCEEDED),
        ended(Secondary.STOPPING, Secondary.MAX_WAIT_TIME_EXCEEDED),
    ],
)
def test_what_was_stopped_or_lost_goes_on(record: JobRecord) -> None:
    require_resumable(record)
    following = resumed(record, "other", "arn:x/other", NOW)
    assert following.secondary is Secondary.STARTING
    assert following.request == {
        **REQUEST,
        "TrainingJobName": "other",
        "HyperParameters": {"lr": "0.1", "sagemaker_job_name": '"other"'},
    }
    assert following.local == {"Backend": "local", "ResumedFrom": "mine-2026-11-27-10-00-00-001"}
    assert record.request == REQUEST, "the earlier one is as it was"


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (ended(), "is Starting; expected one that has ended"),
        (ended(Secondary.STOPPING), "is Stopping; expected one that has ended"),
        (ended(Secondary.FAILED, reason="AlgorithmError: x"), "failed by itself.*AlgorithmError"),
        (ended(Secondary.FAILED, reason="ClientError: x"), "failed by itself"),
        (
            ended(
                Secondary.DOWNLOADING, Secondary.TRAINING, Secondary.UPLOADING, Secondary.COMPLETED
            ),
            "is Completed",
        ),
    ],
)
def test_other_jobs_do_not(record: JobRecord, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        require_resumable(record)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("mine-2026-11-27-10-00-00-001", "mine-2026-11-27-14-30-42-013"),
        ("mine", "mine-2026-11-27-14-30-42-013"),
    ],
)
def test_names_of_jobs_that_go_on(name: str, first: str) -> None:
    assert names_after(name, NOW)[0] == first
