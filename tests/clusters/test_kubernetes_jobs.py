# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs on the stand-in for Kubernetes: what goes wrong before there are pods, and who follows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled

from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.kubernetes import cluster as cluster_module
from smdistributed.launch.backends.kubernetes.backend import KubernetesBackend
from smdistributed.launch.backends.kubernetes.cluster import KubernetesCluster
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Status
from tests.clusters.kubernetes_api import Kubernetes
from tests.conformance.backends.test_backends import WAITS, job_of, of_kubernetes, wait_for_line


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.make()
    lines = [line.strip() for line in of_kubernetes(request).splitlines()]
    home.config.write_text("\n".join(['default_backend = "kubernetes"', *lines]))
    return home


def ended(job: JobDirectory) -> JobRecord:
    until = time.monotonic() + scaled(60)
    while not (record := KubernetesBackend().poll(job)).status.is_terminal:
        assert time.monotonic() < until, record
        time.sleep(0.1)
    return record


def test_a_job_that_has_no_objects_deletes_none(home: Home, kubernetes_cluster: Kubernetes) -> None:
    """A name that is empty would mean all jobs of the namespace."""
    job = job_of(home, "pass")
    before = len(kubernetes_cluster.requests)
    cluster = KubernetesCluster(job)
    cluster.stop()
    cluster.close()
    asked = kubernetes_cluster.requests[before:]
    assert not any(method == "DELETE" for method, _ in asked), asked
    job.lock.release()


def test_a_refused_job_fails_and_leaves_nothing(
    home: Home, kubernetes_cluster: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_cluster, "forbidden", {("create", "secrets")})
    job = job_of(home, "pass")
    KubernetesBackend().submit(job)
    record = ended(job)
    assert record.status is Status.FAILED
    assert "403" in record.failure_reason
    require_gone(kubernetes_cluster, job)


def test_who_follows_after_one_that_was_killed_early_begins_anew(
    home: Home, kubernetes_cluster: Kubernetes
) -> None:
    job = job_of(home, 'print("here", flush=True)')
    kept = {"name": "smd-job-00000000", "kind": "Job"}
    (job.path / "kubernetes.json").write_text(json.dumps(kept))
    KubernetesBackend().submit(job)
    assert ended(job).status is Status.COMPLETED
    require_gone(kubernetes_cluster, job)


def require_gone(cluster: Kubernetes, job: JobDirectory) -> None:
    name = json.loads((job.path / "kubernetes.json").read_text())["name"]
    until = time.monotonic() + scaled(30)
    while left := [each for each in cluster.store.names() if name in str(each[2:])]:
        assert time.monotonic() < until, left
        time.sleep(0.1)


def test_the_image_cannot_be_pulled(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told as the cluster says it; the minute of patience is shorter here."""
    monkeypatch.setattr(cluster_module, "_IMAGE_S", 0.2)
    job = job_of(home, "pass")
    cluster: Any = KubernetesCluster(job)
    stuck = {
        "metadata": {"name": "pod", "annotations": {}},
        "status": {
            "phase": "Pending",
            "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}],
        },
    }
    monkeypatch.setattr(cluster._api, "pods", lambda selector: [stuck])
    with pytest.raises(BackendError, match="pod pod cannot run: ImagePullBackOff"):
        for _ in cluster.text():
            pass
    job.lock.release()


def test_another_first_pod_is_not_taken_for_the_same_log(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins anew: what it tells would be mixed with what is known, also by a new follower."""
    job = job_of(home, "pass")
    phase = {"phase": "Pending"}
    pods = [{"metadata": {"name": "one", "annotations": {}}, "status": phase}]
    cluster: Any = KubernetesCluster(job)
    monkeypatch.setattr(cluster._api, "pods", lambda selector: pods)
    text = cluster.text()
    assert next(text) == ""
    pods[0] = {"metadata": {"name": "two", "annotations": {}}, "status": phase}
    assert not any(text)
    assert cluster.how_it_ended() == "Kubernetes says of pod one: pending."
    kept = json.loads((job.path / "kubernetes.json").read_text())
    assert kept["first"] == "one"
    job.lock.release()


def test_a_follower_that_was_started_anew_refuses_another_first_pod(
    home: Home, kubernetes_cluster: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read nothing yet; which pod the job's directory is of it knows by the file."""
    job = job_of(home, "pass")
    phase = {"phase": "Pending"}
    pods = [{"metadata": {"name": "one", "annotations": {}}, "status": phase}]
    earlier: Any = KubernetesCluster(job)
    monkeypatch.setattr(earlier._api, "pods", lambda selector: pods)
    earlier.start()
    text = earlier.text()
    assert next(text) == ""
    text.close()
    pods[0] = {"metadata": {"name": "two", "annotations": {}}, "status": {"phase": "Running"}}
    later: Any = KubernetesCluster(job)
    monkeypatch.setattr(later._api, "pods", lambda selector: pods)
    later.start()  # its Secret is there: nothing is made anew
    assert not list(later.text())
    assert later.why_lost(has_stopped=False) == "Kubernetes has pod one no more."
    later.close()
    job.lock.release()
    require_gone(kubernetes_cluster, job)


def test_a_job_that_was_deleted_is_not_asked_for_anew_by_a_later_follower(
    home: Home, kubernetes_cluster: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Secret goes at once, and its pods have their grace: two first pods would run."""
    job = job_of(home, "pass")
    pods = [{"metadata": {"name": "one", "annotations": {}}, "status": {"phase": "Pending"}}]
    earlier: Any = KubernetesCluster(job)
    monkeypatch.setattr(earlier._api, "pods", lambda selector: pods)
    earlier.start()
    text = earlier.text()
    assert next(text) == ""
    text.close()
    earlier.close()
    require_gone(kubernetes_cluster, job)
    before = len(kubernetes_cluster.requests)
    later: Any = KubernetesCluster(job)
    later.start()
    assert not list(later.text())
    assert later.how_it_ended() == "Kubernetes has no pod of it"
    asked = kubernetes_cluster.requests[before:]
    assert not any(method == "POST" for method, _ in asked), asked
    later.close()
    job.lock.release()


@pytest.mark.parametrize("following", ["a-later-one", "z-later-one"])
def test_why_the_first_pod_was_taken_away_is_known_beside_another_one(
    home: Home, kubernetes_cluster: Kubernetes, monkeypatch: pytest.MonkeyPatch, following: str
) -> None:
    """A list of pods is in the order of names, which are made by chance."""
    job = job_of(home, "pass")
    running = {"phase": "Running"}
    pods = [{"metadata": {"name": "one", "annotations": {}}, "status": {"phase": "Pending"}}]
    cluster: Any = KubernetesCluster(job)
    monkeypatch.setattr(
        cluster._api, "pods", lambda _: sorted(pods, key=lambda each: each["metadata"]["name"])
    )
    text = cluster.text()
    assert next(text) == ""
    why = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    pods[0] |= {"status": {"phase": "Failed", "conditions": [why]}}
    pods.append({"metadata": {"name": following, "annotations": {}}, "status": running})
    assert not list(filter(None, text))
    said = "Kubernetes says of pod one: taken away. PreemptionByScheduler"
    assert cluster.how_it_ended() == said
    job.lock.release()


def test_a_first_pod_in_the_place_of_another_one_ends_with_the_job(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hear no signal yet, and would train for all of its grace."""
    job = job_of(home, "pass")
    phase = {"phase": "Running"}
    notes = {"batch.kubernetes.io/job-completion-index": "1"}
    pods = [
        {"metadata": {"name": "one", "annotations": {}}, "status": phase},
        {"metadata": {"name": "two", "annotations": {}}, "status": phase},
        {"metadata": {"name": "three", "annotations": notes}, "status": phase},
    ]
    cluster: Any = KubernetesCluster(job)
    monkeypatch.setattr(cluster._api, "pods", lambda selector: pods)
    cluster._first = "one"
    ended: list[str] = []
    monkeypatch.setattr(
        cluster._objects, "end_pods", lambda pods, grace_s: ended.extend(each.name for each in pods)
    )
    cluster.close()
    assert ended == ["two"]
    job.lock.release()


@pytest.mark.slow
def test_a_drained_first_pod_is_no_stop(home: Home, kubernetes_cluster: Kubernetes) -> None:
    """It gets SIGTERM and its grace, as it would of stop(); nobody has asked for that here."""
    job = job_of(home, WAITS, hosts=2)
    backend = KubernetesBackend()
    backend.submit(job)
    wait_for_line(backend, job, "waiting")
    kept = json.loads((job.path / "kubernetes.json").read_text())
    kubernetes_cluster.nodes.evict("default", kept["first"], grace_s=60.0)
    record = ended(job)
    assert record.status is Status.FAILED
    assert record.failure_reason.startswith("InternalServerError")
    assert "low on resource: memory" in record.failure_reason
    require_gone(kubernetes_cluster, job)


@pytest.mark.slow
def test_a_job_that_is_deleted_by_hand_is_stopped(
    home: Home, kubernetes_cluster: Kubernetes
) -> None:
    job = job_of(home, WAITS)
    backend = KubernetesBackend()
    backend.submit(job)
    wait_for_line(backend, job, "waiting")
    cluster: Any = KubernetesCluster(job)
    cluster.start()
    cluster.close()
    assert ended(job).status is Status.STOPPED
    require_gone(kubernetes_cluster, job)
