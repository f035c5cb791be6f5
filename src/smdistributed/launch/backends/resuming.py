# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A job that goes on where an earlier one ended: the same request, under a new name.

Nothing follows the end of a job, so it is a new one. It goes on from the checkpoints of the earlier
one, as both have the same `checkpoint_s3_uri`.

Source: launch specification, sections 6.3 and 7.4.
"""

from __future__ import annotations

import datetime as dt
import re

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.contract.hyperparameters import encode
from smdistributed.launch.jobs.names import later_names
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Status

__all__ = ["names_after", "require_resumable", "resumed"]

_JOB_NAME = "sagemaker_job_name"
_OF_A_TERMINAL = ("debug_rank", "terminal")
_STAMP = re.compile(r"-\d{4}(-\d\d){5}-\d{3}$")


def require_resumable(record: JobRecord) -> None:
    """Refuses a job that goes on still, has done its work, or whose script has failed.

    Raises:
        ConfigurationError: says which, and what to do.
    """
    status, name = record.status, record.name
    if not status.is_terminal:
        raise ConfigurationError(
            f"job {name!r} is {record.secondary}; expected one that has ended, to be resumed. Wait"
            " for it, or stop it."
        )
    if status is Status.COMPLETED:
        raise ConfigurationError(
            f"job {name!r} is Completed; expected one that was stopped, or whose processes were"
            " lost. attach() and fit() train once more."
        )
    if status is Status.FAILED and not record.failure_reason.startswith("InternalServerError"):
        raise ConfigurationError(
            f"job {name!r} has failed by itself, and would again: {record.failure_reason:.300}."
            " Expected one that was stopped, or whose processes were lost. Correct what failed, and"
            " call fit() with the same checkpoint_s3_uri."
        )


def resumed(record: JobRecord, name: str, arn: str, now: dt.datetime) -> JobRecord:
    """The record of the job that goes on.

    Args:
        record: of the job that has ended.
        name, arn: of the new one.
        now: in UTC.
    """
    texts = dict(record.request.get("HyperParameters", {}))
    if _JOB_NAME in texts:
        texts.update(encode({_JOB_NAME: name}))
    request = {**record.request, "TrainingJobName": name, "HyperParameters": texts}
    local = {key: value for key, value in record.local.items() if key not in _OF_A_TERMINAL}
    return JobRecord.new(request, {**local, "ResumedFrom": record.name}, arn, now)


def names_after(name: str, now: dt.datetime) -> list[str]:
    """Names for it, to be tried in this order: as the earlier one's, with the time of now."""
    return later_names(_STAMP.sub("", name), now)
