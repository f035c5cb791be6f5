# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Whether Ray says that a driver is lost, and under which name it is asked for."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.ray import backend as backends
from smdistributed.launch.backends.ray.backend import RayCluster
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from tests.conformance.backends.test_backends import job_of


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDirectory:
    monkeypatch.setattr(backends, "_TICK_S", 0.0)
    monkeypatch.setattr(backends, "_GONE_S", 0.0)
    home = Home(tmp_path / "home")
    home.make()
    home.config.write_text('[ray]\naddress = "http://127.0.0.1:1"\n')
    found: JobDirectory = job_of(home, "pass")
    found.lock.release()
    return found


@pytest.mark.parametrize(
    ("said", "is_lost"),
    [
        ({"status": "RUNNING"}, False),
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, False),
        ({"status": "FAILED", "driver_exit_code": 1}, False),
        ({"status": "FAILED", "driver_exit_code": 127}, False),
        ({"status": "STOPPED", "driver_exit_code": -9}, False),
        ({"status": "FAILED", "driver_exit_code": None}, False),
        ({"status": "FAILED", "driver_exit_code": -9}, True),
        ({"status": "FAILED", "driver_exit_code": 137}, True),
        ({"status": "FAILED", "error_type": "JOB_SUPERVISOR_ACTOR_DIED"}, True),
        ({"status": "FAILED", "error_type": "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"}, False),
        (None, False),
    ],
)
def test_a_driver_is_lost_that_was_killed(
    job: JobDirectory, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any] | None, is_lost: bool
) -> None:
    cluster: Any = RayCluster(job)
    monkeypatch.setattr(cluster._api, "job", lambda submission_id: said)
    assert bool(cluster.why_lost(has_stopped=False)) is is_lost
    assert cluster.why_lost(has_stopped=True) == ""


def test_a_cluster_that_is_away_for_a_moment_is_asked_again(
    job: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = [BackendError("it does not answer"), {"status": "FAILED"}]
    answers[1] |= {"driver_exit_code": -9, "message": "killed"}
    cluster: Any = RayCluster(job)

    def known(submission_id: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(cluster._api, "job", known)
    cluster._id = "job-1"
    assert cluster.why_lost(has_stopped=False) == "of job-1 Ray says FAILED: killed"


@pytest.mark.parametrize(
    ("is_head", "words"),
    [
        (False, "Ray says its node is dead"),
        (True, "Ray says that its node is dead, the head, without which it begins no job"),
    ],
)
def test_a_driver_whose_node_is_dead_is_lost(
    job: JobDirectory, monkeypatch: pytest.MonkeyPatch, is_head: bool, words: str
) -> None:
    """The head's dashboard outlives its raylet, and calls the job running for ever."""
    cluster: Any = RayCluster(job)
    cluster._id = "job-1"
    said = {"status": "RUNNING", "driver_node_id": "abc"}
    monkeypatch.setattr(cluster._api, "job", lambda submission_id: said)
    monkeypatch.setattr(cluster._api, "log", lambda submission_id, node: io.BytesIO(b"last\n"))
    states = ["ALIVE", "DEAD"]

    def nodes(method: str, path: str) -> bytes:
        assert path.endswith("nodes?filter_keys=node_id&filter_predicates=%3D&filter_values=abc")
        row = {"node_id": "abc", "state": states.pop(0), "is_head_node": is_head}
        return json.dumps({"data": {"result": {"result": [row]}}}).encode()

    monkeypatch.setattr(cluster._api, "_asked", nodes)
    assert "".join(filter(None, cluster.text())) == "last\n" * 2
    assert not states
    assert cluster.why_lost(has_stopped=False) == ("" if is_head else f"of job-1 {words}")
    assert cluster.how_it_ended() == words


def test_one_name_is_submitted_until_ray_has_it(
    job: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer may be lost: two names could be two drivers. One that is lost has another name."""
    given: list[str] = []

    def submit(document: Mapping[str, Any]) -> None:
        given.append(document["submission_id"])
        if len(given) == 1:
            raise BackendError("it does not answer")

    def made() -> Any:
        cluster: Any = RayCluster(job)
        monkeypatch.setattr(cluster._api, "job", lambda submission_id: None)
        monkeypatch.setattr(cluster._api, "submit", submit)
        monkeypatch.setattr(cluster, "_sent_package", lambda: "gcs://x.zip")
        return cluster

    with pytest.raises(BackendError):
        made().start()
    made().start()
    made().start()  # it is known to be there
    assert len(given) == 2
    assert given[0] == given[1]
    made().clear()
    made().start()
    assert len(set(given)) == 2
    assert json.loads((job.path / "ray.json").read_text())["is_submitted"]
