# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a follower hands on to a cluster that does not answer at once, and takes of its log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.in_cluster import follower as followers
from smdistributed.launch.backends.in_cluster.cluster import patience_s
from smdistributed.launch.courier.lines import line_of
from smdistributed.launch.courier.messages import Grown
from smdistributed.launch.data.stores.store import StoreError
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.states import Secondary
from tests.conformance.backends.test_backends import job_of

TIMES = 3


class Cluster:
    """Hears nothing at first.

    Args:
        deaf: how many times it is told in vain.
        after: what happens once it has heard, or never will.
    """

    def __init__(
        self, deaf: int, after: Callable[[], Iterator[str | None]] = lambda: iter(())
    ) -> None:
        self._deaf = deaf
        self._after = after
        self.heard: list[str] = []

    def _tell(self, what: str) -> None:
        self._deaf -= 1
        if self._deaf >= 0:
            raise BackendError("it does not answer")
        self.heard.append(what)

    def start(self) -> None: ...

    def text(self) -> Iterator[str | None]:
        for _ in range(TIMES + 1):
            yield ""
        yield from self._after()

    def stop(self) -> None:
        self._tell("stop")

    def interrupt(self, reason: str) -> None:
        self._tell(f"interrupt: {reason}")

    def why_lost(self, *, has_stopped: bool) -> str:
        return ""

    def clear(self) -> None: ...

    def how_it_ended(self) -> str:
        return "it has ended"

    def close(self) -> None: ...


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDirectory:
    monkeypatch.setattr(followers, "_AGAIN_S", 0.0)
    monkeypatch.setattr(followers, "note_from_now_on", lambda handler: None)
    home = Home(tmp_path / "home")
    home.make()
    found: JobDirectory = job_of(home, "pass")
    return found


def followed(job: JobDirectory, cluster: Cluster) -> Any:
    given: Any = cluster
    followers.Follower(job, given).run()
    return job.read()


def test_a_stop_that_was_not_heard_is_told_again(job: JobDirectory) -> None:
    job.ask_to_stop("enough")
    cluster = Cluster(TIMES)
    assert followed(job, cluster).secondary is Secondary.STOPPED
    assert cluster.heard == ["stop"]


def test_an_interruption_that_was_not_heard_is_told_again(job: JobDirectory) -> None:
    job.ask_to_interrupt("the machine goes")
    cluster = Cluster(TIMES)
    followed(job, cluster)
    assert cluster.heard == ["interrupt: the machine goes"]
    assert job.interruption() is None


def test_a_stop_that_nobody_has_heard_is_no_stop(job: JobDirectory) -> None:
    """The job may go on there: to call it stopped would hide that."""

    def gone() -> Iterator[str | None]:
        raise BackendError("InternalServerError: it may go on there")
        yield ""

    job.ask_to_stop("enough")
    record = followed(job, Cluster(1000, gone))
    assert record.secondary is Secondary.FAILED
    assert record.failure_reason == "InternalServerError: it may go on there"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigurationError("no such data"), "ClientError"),
        (StoreError("no such data"), "ClientError"),
        (StoreError("no such data", is_passing=True), "InternalServerError"),
    ],
)
def test_what_a_job_needs_and_is_not_here(job, error: Exception, kind: str) -> None:
    cluster: Any = Cluster(0)

    def start() -> None:
        raise error

    cluster.start = start
    record = followed(job, cluster)
    assert record.failure_reason == f"{kind}: no such data"
    assert [each.secondary for each in record.transitions] == ["Starting", "Downloading", "Failed"]


def test_who_stops_a_job_does_not_wait_for_minutes(job: JobDirectory) -> None:
    assert patience_s(job) == 300
    job.ask_to_stop("enough")
    assert patience_s(job) == 15
    job.lock.release()


def events(*numbers: int) -> str:
    """Lines that tell of as many events, each with its number."""
    return "".join(
        line_of(Grown("events.jsonl", 2 * (number - 1), f"{number}\n".encode()), number) + "\n"
        for number in numbers
    )


def test_a_log_that_is_read_again_is_taken_once(job: JobDirectory) -> None:
    """Also where it breaks off within a line."""

    def log() -> Iterator[str | None]:
        yield None
        yield events(1, 2, 3)[:-20]
        yield None
        yield events(1, 2, 3, 4)

    followed(job, Cluster(0, log))
    text = (job.path / "events.jsonl").read_text()
    assert text.startswith("1\n2\n3\n4\n{"), text


def test_a_log_that_was_rotated_goes_on_if_nothing_is_missing(job: JobDirectory) -> None:
    def log() -> Iterator[str | None]:
        yield events(1, 2, 3)
        yield None
        yield f"ted of a line\n{events(3, 4)}"

    followed(job, Cluster(0, log))
    text = (job.path / "events.jsonl").read_text()
    assert text.startswith("1\n2\n3\n4\n{"), text


def test_lines_that_are_missing_are_told(job: JobDirectory) -> None:
    def log() -> Iterator[str | None]:
        yield events(1, 2)
        yield None
        yield events(5, 6)

    record = followed(job, Cluster(0, log))
    assert record.secondary is Secondary.FAILED
    assert "lines 3 to 4 are missing: its log was rotated" in record.failure_reason


def test_a_damaged_line_counts_for_nothing_if_it_comes_again(job: JobDirectory) -> None:
    """Of a disk that was full for a while, or of somebody else's text within the line."""

    def log() -> Iterator[str | None]:
        yield f"{events(1, 2)}\n{events(3)[:-9]}\n{events(3)[:20]}torn\n\n{events(3, 4)}"

    followed(job, Cluster(0, log))
    text = (job.path / "events.jsonl").read_text()
    assert text.startswith("1\n2\n3\n4\n{"), text


def test_a_damaged_line_that_does_not_come_again_is_told(job: JobDirectory) -> None:
    def log() -> Iterator[str | None]:
        yield f"{events(1, 2)}\n{events(3)[:20]}torn\n{events(4)}"

    record = followed(job, Cluster(0, log))
    assert record.secondary is Secondary.FAILED
    assert "lines 3 to 3 are missing: a line is damaged" in record.failure_reason
