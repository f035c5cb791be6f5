# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A job whose process in its cluster is lost: the follower has another one go on with it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.in_cluster import follower as followers
from smdistributed.launch.backends.in_cluster.submission import Submission, note_loss
from smdistributed.launch.backends.limits import Limits
from smdistributed.launch.courier.lines import line_of
from smdistributed.launch.courier.messages import Grown, Kept
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary
from tests.conformance.backends.test_backends import job_of

TRAINS = (Secondary.STARTING, Secondary.DOWNLOADING, Secondary.TRAINING)


class KilledError(BaseException):
    """Of the follower."""


class Cluster:
    """Runs one process after the other, as `lives` say.

    Args:
        job: its directory.
        lives: what each process does to the record; one that does not end the job is lost.
        how: why it is lost.
    """

    def __init__(
        self, job: JobDirectory, lives: Sequence[Sequence[Secondary]], how: str = "evicted"
    ) -> None:
        self._job = job
        self._lives = [*lives]
        self._how = how
        self._life: Sequence[Secondary] | None = None
        self._number = 0
        self.given: list[JobRecord] = []
        self.hooks: dict[str, Callable[[], None]] = {}

    def _reach(self, point: str) -> None:
        self.hooks.pop(point, lambda: None)()

    def start(self) -> None:
        if self._life is None:
            self._reach("starting")
            self._life = self._lives.pop(0)
            self._number += 1
            self.given.append(self._job.read())
            self._reach("started")

    def text(self) -> Any:
        assert self._life is not None, "nothing runs"
        record, messages = self.given[-1], [f"{self._number} begins\n"]
        told: list[Any] = [Grown("hosts/algo-1/log", 0, messages[0].encode())]
        if record.secondary is Secondary.INTERRUPTED:
            record = record.moved(Secondary.STARTING, now())
        for each in self._life:
            why = "InternalServerError: a host" if each is Secondary.INTERRUPTED else ""
            record = record if each is record.secondary else record.moved(each, now(), why)
            content = json.dumps(record.to_json()).encode()
            told.append(Kept("job", "job.json", 0, 0o600, 0, True, content))
        told.insert(2, Grown("hosts/algo-1/log", len(messages[0]), b"a line with no end"))
        for number, message in enumerate(told, 1):
            yield line_of(message, number) + "\n"
            self._reach("told")

    def why_lost(self, *, has_stopped: bool) -> str:
        return f"{self._how} {self._number}"

    def clear(self) -> None:
        self._reach("clearing")
        self._life = None
        self._reach("cleared")

    def stop(self) -> None: ...

    def how_it_ended(self) -> str:
        return "it has ended"

    def close(self) -> None: ...


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], JobDirectory]:
    monkeypatch.setattr(followers, "_AGAIN_S", 0.0)
    monkeypatch.setattr(followers, "note_from_now_on", lambda handler: None)
    monkeypatch.setattr(Limits, "pause_s", staticmethod(lambda retry: 0.0))
    home = Home(tmp_path / "home")
    home.make()

    def made(retries: int) -> JobDirectory:
        job: JobDirectory = job_of(home, "pass")
        record = job.read()
        strategy = {"RetryStrategy": {"MaximumRetryAttempts": retries}} if retries else {}
        job.write(dataclasses.replace(record, request={**record.request, **strategy}))
        return job

    return made


def follow(job: JobDirectory, cluster: Cluster) -> JobRecord:
    given: Any = cluster
    followers.Follower(job, given).run()
    return job.read()


def path_of(record: JobRecord) -> list[str]:
    return [str(each.secondary) for each in record.transitions]


def test_another_process_goes_on(make: Callable[[int], JobDirectory]) -> None:
    job = make(2)
    ends = (*TRAINS, Secondary.UPLOADING, Secondary.COMPLETED)
    cluster = Cluster(job, [TRAINS, TRAINS, ends])
    record = follow(job, cluster)
    trains = [str(each) for each in TRAINS]
    assert path_of(record) == [
        *(*trains, "Interrupted", *trains, "Interrupted"),
        *(*trains, "Uploading", "Completed"),
    ]
    told = [each.message for each in record.transitions if each.message]
    why = "InternalServerError: the job's process was taken away: evicted"
    assert told == [f"{why} 1", f"{why} 2"]
    assert [len(each.transitions) for each in cluster.given] == [1, 4, 8], "all that was before"
    # What each has told from its own beginning stands behind what was told before.
    half = "a line with no end"
    log = f"1 begins\n{half}\n2 begins\n{half}\n3 begins\n{half}"
    assert (job.path / "hosts/algo-1/log").read_text() == log


def test_without_retries_the_job_has_failed(make: Callable[[int], JobDirectory]) -> None:
    record = follow(job := make(0), Cluster(job, [TRAINS]))
    assert record.secondary is Secondary.FAILED
    assert record.failure_reason == "InternalServerError: the job's process is gone: it has ended"
    assert not (job.path / "submission.json").exists()


def test_a_script_that_fails_is_not_tried_again(make: Callable[[int], JobDirectory]) -> None:
    cluster = Cluster(job := make(3), [(*TRAINS, Secondary.FAILED)])
    assert path_of(follow(job, cluster)) == [*map(str, TRAINS), "Failed"]


def test_a_process_that_failed_by_itself_is_not_tried_again(
    make: Callable[[int], JobDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(job := make(3), [TRAINS])
    monkeypatch.setattr(cluster, "why_lost", lambda has_stopped: "")
    assert follow(job, cluster).secondary is Secondary.FAILED


@pytest.mark.parametrize("last", [(Secondary.STOPPING,), (Secondary.STOPPING, Secondary.STOPPED)])
def test_a_signal_that_nobody_here_has_sent_is_no_stop(
    make: Callable[[int], JobDirectory], last: Sequence[Secondary]
) -> None:
    """It was drained: it stopped the job, or was about to."""
    ends = (*TRAINS, Secondary.UPLOADING, Secondary.COMPLETED)
    record = follow(job := make(1), Cluster(job, [(*TRAINS, *last), ends]))
    trains = [str(each) for each in TRAINS]
    assert path_of(record) == [*trains, "Interrupted", *trains, "Uploading", "Completed"]


def test_attempts_of_the_process_count(make: Callable[[int], JobDirectory]) -> None:
    """It has lost a host, and is lost before it tries again: that is a second loss."""
    ends = (*TRAINS, Secondary.UPLOADING, Secondary.COMPLETED)
    job = make(1)
    record = follow(job, Cluster(job, [(*TRAINS, Secondary.INTERRUPTED), ends]))
    trains = [str(each) for each in TRAINS]
    assert path_of(record) == [*trains, "Interrupted", "Failed"]
    job.path.rename(job.path.with_name("before"))
    job = make(2)
    record = follow(job, Cluster(job, [(*TRAINS, Secondary.INTERRUPTED), ends]))
    lost = ["Interrupted", "Starting", "Interrupted"]
    assert path_of(record) == [*trains, *lost, *trains, "Uploading", "Completed"]


@pytest.mark.parametrize("point", ["told", "clearing", "cleared", "noted", "starting", "started"])
def test_a_follower_that_is_killed_leaves_it_to_the_next(
    make: Callable[[int], JobDirectory], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    job = make(1)
    ends = (*TRAINS, Secondary.UPLOADING, Secondary.COMPLETED)
    cluster = Cluster(job, [TRAINS, ends])

    def killed(*_: Any) -> Any:
        raise KilledError

    with monkeypatch.context() as patch:
        if point == "noted":  # and not written down what there is
            patch.setattr(followers, "end_lines", killed)
        elif point in ("starting", "started"):
            cluster.hooks["cleared"] = lambda: cluster.hooks.update({point: killed})
        else:
            cluster.hooks[point] = killed
        with pytest.raises(KilledError):
            follow(job, cluster)
    record = follow(job, cluster)
    trains = [str(each) for each in TRAINS]
    assert path_of(record) == [*trains, "Interrupted", *trains, "Uploading", "Completed"]
    half = "a line with no end"
    log = (job.path / "hosts/algo-1/log").read_text()
    assert log == f"1 begins\n{half}\n2 begins\n{half}"


@pytest.mark.parametrize("point", ["clearing", "cleared"])
def test_a_stop_wins(make: Callable[[int], JobDirectory], point: str) -> None:
    cluster = Cluster(job := make(1), [TRAINS])
    cluster.hooks[point] = lambda: job.ask_to_stop("enough")
    assert follow(job, cluster).secondary is Secondary.STOPPED


def test_a_cluster_that_refuses_to_try_again(make: Callable[[int], JobDirectory]) -> None:
    """Both are told: what was lost, and why nothing follows."""
    cluster = Cluster(job := make(1), [TRAINS])

    def refuse() -> None:
        raise BackendError("its pods are there still")

    cluster.hooks["clearing"] = refuse
    record = follow(job, cluster)
    assert record.failure_reason == (
        "InternalServerError: the job's process was taken away: evicted 1 It could not be tried"
        " again: its pods are there still"
    )


def test_a_cluster_that_is_away_for_a_moment_is_asked_again(
    make: Callable[[int], JobDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what the first process was lost for the cluster itself may suffer; and not for ever."""
    ends = (*TRAINS, Secondary.UPLOADING, Secondary.COMPLETED)

    def refuse() -> None:
        raise BackendError("it does not answer")

    cluster = Cluster(job := make(1), [TRAINS, ends])
    cluster.hooks["cleared"] = lambda: cluster.hooks.update(starting=refuse)
    assert follow(job, cluster).secondary is Secondary.COMPLETED
    job.path.rename(job.path.with_name("before"))
    monkeypatch.setattr(followers, "patience_s", lambda job: 0.0)
    cluster = Cluster(job := make(1), [TRAINS, ends])
    cluster.hooks["cleared"] = lambda: cluster.hooks.update(starting=refuse)
    reason = "evicted 1 It could not be tried again: it does not answer"
    assert follow(job, cluster).failure_reason.endswith(reason)


def test_a_job_that_nobody_followed_did_not_train_meanwhile(
    make: Callable[[int], JobDirectory],
) -> None:
    """Its pod may have been lost for hours: what it said last counts."""
    job = make(1)
    hours = dt.timedelta(hours=1)
    began = now() - 3 * hours
    record = dataclasses.replace(job.read(), created=began)
    record = dataclasses.replace(
        record, transitions=(dataclasses.replace(record.transitions[0], start=began),)
    )
    for each in TRAINS[1:]:
        record = record.moved(each, began)
    job.write(record)
    points = job.path / "hosts/algo-1/system_metrics.jsonl"
    points.parent.mkdir(parents=True)
    points.write_text(f'{{"time": {(began + hours).timestamp()}}}\n{{"time"')
    note_loss(job, "InternalServerError: evicted")
    assert job.read().training_seconds(now()) == 3600
    note_loss(job, "InternalServerError: evicted")  # once more
    assert path_of(job.read()).count("Interrupted") == 1
    assert Submission.of(job.path) == Submission()
    job.lock.release()
