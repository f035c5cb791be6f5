# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of a job: what was asked for, and what has become of it so far.

A record is a value. Each change makes a new one, which `directory.JobDirectory` writes. Times are
in UTC; in files they are ISO 8601 with milliseconds.

Source: launch specification, section 7.4.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.jobs.states import Secondary, Status, require_legal, status_of

__all__ = ["FORMAT", "MOST_REASON", "JobRecord", "Transition"]

FORMAT = 1
"""Of files; a file with a greater one was written by a later version."""

MOST_REASON = 1024
"""Characters of a `FailureReason`."""


@dataclasses.dataclass(frozen=True)
class Transition:
    """What the job did, from when to when.

    Attributes:
        secondary: it did this.
        start, end: in UTC; end is None if it still does.
        message: for people.
    """

    secondary: Secondary
    start: dt.datetime
    end: dt.datetime | None = None
    message: str = ""


@dataclasses.dataclass(frozen=True)
class JobRecord:
    """Of one job.

    Attributes:
        request: as of `CreateTrainingJob`, complete.
        local: what that has no words for: our own settings.
        arn: of the job.
        transitions: what it has done, the last one goes on.
        created: when.
        failure_reason: why it failed, at most 1024 characters; empty if it has not.
        model_artifacts: the URI of the model; empty if there is none.
        metrics: the last value of each: name, value, and when.
        size: bytes that its directory had at its end; 0 before.
    """

    request: Mapping[str, Any]
    local: Mapping[str, Any]
    arn: str
    created: dt.datetime
    transitions: tuple[Transition, ...]
    failure_reason: str = ""
    model_artifacts: str = ""
    metrics: tuple[tuple[str, float, dt.datetime], ...] = ()
    size: int = 0

    @classmethod
    def new(
        cls, request: Mapping[str, Any], local: Mapping[str, Any], arn: str, now: dt.datetime
    ) -> JobRecord:
        """Of a job that begins now."""
        return cls(request, local, arn, now, (Transition(Secondary.STARTING, now),))

    @property
    def name(self) -> str:
        """Of the job."""
        return str(self.request["TrainingJobName"])

    @property
    def secondary(self) -> Secondary:
        """What it does."""
        return self.transitions[-1].secondary

    @property
    def status(self) -> Status:
        """How it stands."""
        return status_of(self.secondary)

    def moved(
        self, following: Secondary, now: dt.datetime, message: str = "", reason: str = ""
    ) -> JobRecord:
        """The record when the job does something else.

        Args:
            following: what it does from now on.
            now: in UTC. A clock that was set back does not make a transition end before it began.
            message: for people.
            reason: why it failed; what is too long is cut.

        Raises:
            InternalError: that cannot follow.
        """
        require_legal(self.secondary, following)
        last = self.transitions[-1]
        now = max(now, last.start)
        is_over = status_of(following).is_terminal
        return dataclasses.replace(
            self,
            transitions=(
                *self.transitions[:-1],
                dataclasses.replace(last, end=now),
                Transition(following, now, now if is_over else None, message),
            ),
            failure_reason=reason[:MOST_REASON] or self.failure_reason,
        )

    def with_end(
        self,
        model_artifacts: str,
        metrics: Iterable[tuple[str, float, dt.datetime]],
        size: int = 0,
    ) -> JobRecord:
        """The record with what is there in the end."""
        return dataclasses.replace(
            self, model_artifacts=model_artifacts, metrics=tuple(metrics), size=size
        )

    def training_times(self) -> tuple[dt.datetime | None, dt.datetime | None]:
        """When it began to train, and when it was over; None where it has not."""
        began = next(
            (each.start for each in self.transitions if each.secondary is Secondary.TRAINING), None
        )
        return began, self.transitions[-1].end if self.status.is_terminal else None

    def training_seconds(self, now: dt.datetime) -> int:
        """Of all attempts: each from the begin of its training to an interruption, or the end.

        Args:
            now: in UTC; the end, if the job has none yet.
        """
        total = dt.timedelta()
        began: dt.datetime | None = None
        for each in self.transitions:
            if each.secondary is Secondary.TRAINING:
                began = each.start
            elif each.secondary is Secondary.INTERRUPTED and began is not None:
                total += each.start - began
                began = None
        if began is not None:
            total += (self.training_times()[1] or now) - began
        return max(1, round(total.total_seconds()))  # as the service

    def describe(self, now: dt.datetime) -> dict[str, Any]:
        """The response of `DescribeTrainingJob`; what is not known yet is left out.

        `Local` is ours: what a response has no words for, such as the version of the framework.
        """
        began, ended = self.training_times()
        response: dict[str, Any] = {
            **self.request,
            "TrainingJobArn": self.arn,
            "TrainingJobStatus": str(self.status),
            "SecondaryStatus": str(self.secondary),
            "CreationTime": self.created,
            "LastModifiedTime": max(self.transitions[-1].start, self.created),
            "SecondaryStatusTransitions": [_described(each) for each in self.transitions],
            "Local": dict(self.local),
        }
        if self.failure_reason:
            response["FailureReason"] = self.failure_reason
        if self.model_artifacts:
            response["ModelArtifacts"] = {"S3ModelArtifacts": self.model_artifacts}
        if began is not None:
            response["TrainingStartTime"] = began
            seconds = self.training_seconds(now)
            response["TrainingTimeInSeconds"] = response["BillableTimeInSeconds"] = seconds
        if ended is not None:
            response["TrainingEndTime"] = ended
        if self.metrics:
            response["FinalMetricDataList"] = [
                {"MetricName": name, "Value": value, "Timestamp": time}
                for name, value, time in self.metrics
            ]
        return response

    def to_json(self) -> dict[str, Any]:
        """What stands in `job.json`."""
        return {
            "Format": FORMAT,
            "Request": dict(self.request),
            "Local": dict(self.local),
            "Arn": self.arn,
            "Created": _text_of(self.created),
            "Transitions": [
                {
                    "Status": str(each.secondary),
                    "Start": _text_of(each.start),
                    "End": None if each.end is None else _text_of(each.end),
                    "Message": each.message,
                }
                for each in self.transitions
            ],
            "FailureReason": self.failure_reason,
            "ModelArtifacts": self.model_artifacts,
            "Metrics": [[name, value, _text_of(time)] for name, value, time in self.metrics],
            "Size": self.size,
        }

    @classmethod
    def of_json(cls, document: Any) -> JobRecord:
        """Reads what stands in `job.json`.

        Raises:
            ConfigurationError: it was written by a later version.
            LookupError, TypeError, ValueError: it is no such file.
        """
        if document["Format"] > FORMAT:
            raise ConfigurationError(
                f"it has format {document['Format']}, and this version knows up to {FORMAT}; a"
                " later version wrote it. Use that one."
            )
        transitions = tuple(
            Transition(
                Secondary(each["Status"]),
                _time_of(each["Start"]),
                None if each["End"] is None else _time_of(each["End"]),
                str(each["Message"]),
            )
            for each in document["Transitions"]
        )
        if not transitions:
            raise ValueError("it has no transitions")
        request = dict(document["Request"])
        for key in ("TrainingJobName", "ResourceConfig"):
            request[key]  # or it is no request
        return cls(
            request,
            dict(document["Local"]),
            str(document["Arn"]),
            _time_of(document["Created"]),
            transitions,
            str(document["FailureReason"]),
            str(document["ModelArtifacts"]),
            tuple(
                (str(name), float(value), _time_of(time))
                for name, value, time in document["Metrics"]
            ),
            int(document.get("Size", 0)),  # the first records had none
        )


def _described(transition: Transition) -> dict[str, Any]:
    response = {
        "Status": str(transition.secondary),
        "StartTime": transition.start,
        "StatusMessage": transition.message,
    }
    if transition.end is not None:
        response["EndTime"] = transition.end
    return response


def _text_of(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).isoformat(timespec="milliseconds")


def _time_of(text: str) -> dt.datetime:
    time = dt.datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return time
