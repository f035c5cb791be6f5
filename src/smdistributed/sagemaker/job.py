# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A job as its estimator shows it: described, followed, waited for, stopped.

Source: launch specification, sections 2.2, 3.1, 8.1 and 9.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed._common.log import get_logger
from smdistributed.launch.jobs.logs import JobLog
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Status
from smdistributed.sagemaker.exceptions import CapacityError, UnexpectedStatusException
from smdistributed.sagemaker.session import Session

__all__ = ["LogFollower", "TrainingJob", "prints_logs"]

_log = get_logger()
_POLL_S = 0.1
# By the number of the host, on a terminal.
_COLOURS = (34, 35, 32, 36, 33)
_LOGS = ("All", "Training", "Rules", "None")


def prints_logs(logs: str | bool | Sequence[str]) -> bool:
    """Whether `logs` of fit() asks for what the script prints.

    Raises:
        ValueError: it is none of the values that are known.
    """
    if isinstance(logs, bool):
        return logs
    asked = [logs] if isinstance(logs, str) else list(logs)
    for each in asked:
        if each not in _LOGS:
            raise ValueError(
                f"logs is {logs!r}; expected {', '.join(map(repr, _LOGS))}, a list of them, True or"
                " False."
            )
    return "All" in asked or "Training" in asked


class LogFollower:
    """Prints what the hosts of a job log, as far as it has not been printed.

    Args:
        log: of the job.
        as_json: a line of JSON for each, with its time and its host.
    """

    def __init__(self, log: JobLog, *, as_json: bool = False) -> None:
        self._log = log
        self._as_json = as_json

    def print_new(self) -> None:
        """Prints lines that have come since."""
        encoding = sys.stdout.encoding or "utf-8"
        for line in self._log.new():
            text = line.text.decode(errors="replace").encode(encoding, "replace").decode(encoding)
            if self._as_json:
                host = f"algo-{line.host}"
                print(json.dumps({"time": line.time.decode(), "host": host, "text": text}))
                continue
            print(_coloured(text, line.host) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def _coloured(text: str, host: int) -> str:
    return f"\x1b[{_COLOURS[host % len(_COLOURS)]}m{text}\x1b[0m"


class TrainingJob:
    """One job.

    Args:
        session: that knows it.
        name: of the job.

    Attributes:
        name, job_name: of the job.
    """

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self.name = self.job_name = name

    def describe(self) -> dict[str, Any]:
        """The response of `DescribeTrainingJob`."""
        return self._session.describe_training_job(self.name)

    def stop(self) -> None:
        """Has the job stop; returns at once."""
        self._session.stop_training_job(self.name)

    def rule_job_summary(self) -> list[dict[str, Any]]:
        """Of debugger rules, which run on Amazon's service alone: none."""
        return []

    def resume(self) -> TrainingJob:
        """Has the job go on, which was stopped or whose processes were lost: as a new job.

        Raises:
            ConfigurationError: it is none that can go on; says why.
        """
        return TrainingJob(self._session, self._session.resume_training_job(self.name))

    def follow(self, logs: str | bool | Sequence[str] = "All") -> None:
        """Waits as `wait()` does; Ctrl-C stops the job."""
        if prints_logs(logs):
            print(f"Training job {self.name}, in {self._session.job(self.name).path}", flush=True)
        try:
            self.wait(logs)
        except KeyboardInterrupt:
            _log.warning("interrupted: the job %s is stopped", self.name)
            try:
                self.stop()
            except ConfigurationError as error:
                _log.warning("%s", error)
            raise

    def wait(self, logs: str | bool | Sequence[str] = "All") -> None:
        """Waits until the job has ended.

        Args:
            logs: as of `fit()`.

        Raises:
            UnexpectedStatusException: the job has failed; says why.
        """
        prints = prints_logs(logs)
        job = self._session.job(self.name)
        follower = LogFollower(self._session.backend.logs(job))
        while True:
            record = self._session.backend.poll(job)
            if prints:
                follower.print_new()
            if record.status.is_terminal:
                break
            time.sleep(_POLL_S)
        if prints:
            follower.print_new()
        self._conclude(record, prints)

    def _conclude(self, record: JobRecord, prints: bool) -> None:
        if record.status is Status.FAILED:
            reason = record.failure_reason
            kind = CapacityError if "CapacityError" in reason else UnexpectedStatusException
            raise kind(
                f"Error for Training job {self.name}: Failed. Reason: {reason}",
                allowed_statuses=["Completed", "Stopped"],
                actual_status="Failed",
            )
        if record.status is Status.STOPPED:
            _log.warning(
                "training job %s has ended as Stopped (%s): it was stopped, or its time was over,"
                " and may have done a part of its work only.",
                self.name,
                record.secondary,
            )
        job = self._session.job(self.name)
        for event in job.events():
            if event.get("event") == "clash":
                _log.warning(
                    "several hosts have written %s into %s; what the first of them has is kept",
                    ", ".join(event["names"][:5]),
                    event["archive"],
                )
            if event.get("event") == "no-saved-model":
                _log.warning(
                    "the model of training job %s has no SavedModel in a folder whose name is a"
                    ' number, so deploy() will not find one; expected such as SM_MODEL_DIR + "/1"',
                    self.name,
                )
        if record.status is Status.COMPLETED and not record.model_artifacts:
            _log.warning(
                "training job %s has made no model: nothing was in SM_MODEL_DIR (/opt/ml/model)",
                self.name,
            )
        if prints:
            began, ended = record.training_times()
            if began is not None and ended is not None:
                count = _num_instances(record) * record.training_seconds(ended)
                print(f"Training seconds: {count}\nBillable seconds: {count}")
                if count and record.request.get("EnableManagedSpotTraining"):
                    print("Managed Spot Training savings: 0.0%")  # nobody is billed


def _num_instances(record: JobRecord) -> int:
    config = record.request["ResourceConfig"]
    groups = config.get("InstanceGroups")
    return sum(each["InstanceCount"] for each in groups) if groups else int(config["InstanceCount"])
