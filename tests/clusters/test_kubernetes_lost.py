# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs on the stand-in for Kubernetes that lose their first pod: they go on from checkpoints."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled

from smdistributed.launch.backends.kubernetes.backend import KubernetesBackend
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary, Status
from tests.clusters.kubernetes_api import Kubernetes, kubernetes, why_not
from tests.conformance.backends.test_backends import job_of, lines_of, of_kubernetes

STEPS = 60
# Its loss is that of the step. It keeps how far it is, and says from where it goes on.
COUNTS = f"""
import os, pathlib, time
kept, rank = pathlib.Path("/opt/ml/checkpoints"), os.environ["RANK"]
begin = max((int(each.suffix[1:]) for each in kept.glob(f"rank-{{rank}}.*")), default=0)
print(f"begins at {{begin}}", flush=True)
for step in range(begin, {STEPS}):
    if step and step % 10 == 0:
        (kept / f"rank-{{rank}}.{{step}}").touch()
    print(f"loss {{step}}.0", flush=True)
    time.sleep(0.1)
"""
SAVED_S = 4.0
"""The checkpoint of step 10, at least, is here before that."""


@pytest.fixture
def cluster() -> Iterator[Kubernetes]:
    """One that a test may break: a job of two pods, and two nodes more."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with kubernetes(nodes=4) as cluster:
        yield cluster


@pytest.fixture
def home(cluster: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    found = Home(tmp_path / "home")
    found.make()
    given: Any = {"monkeypatch": monkeypatch, "kubernetes_cluster": cluster}
    request: Any = type("", (), {"getfixturevalue": lambda self, name: given[name]})()
    lines = [line.strip() for line in of_kubernetes(request).splitlines()]
    found.config.write_text("\n".join(['default_backend = "kubernetes"', *lines]))
    return found


def counting(home: Home, retries: int, **more: Any) -> JobDirectory:
    job: JobDirectory = job_of(home, COUNTS, hosts=2)
    document = json.loads((job.path / "job.json").read_text())
    kept = {"S3Uri": "s3://b/kept", "LocalPath": "/opt/ml/checkpoints"}
    document["Request"] |= {"CheckpointConfig": kept, **more}
    if retries:
        document["Request"]["RetryStrategy"] = {"MaximumRetryAttempts": retries}
    (job.path / "job.json").write_text(json.dumps(document))
    KubernetesBackend().submit(job)
    return job


def wait(job: JobDirectory, holds: Callable[[JobRecord], bool], seconds: float = 60.0) -> JobRecord:
    backend = KubernetesBackend()
    until = time.monotonic() + scaled(seconds)
    while not holds(record := backend.poll(job)):
        assert time.monotonic() < until, (record, (job.path / "job.log").read_text())
        time.sleep(0.1)
    return record


def ended(job: JobDirectory) -> JobRecord:
    return wait(job, lambda record: record.status.is_terminal, 90)


def num_lost(record: JobRecord) -> int:
    return [each.secondary for each in record.transitions].count(Secondary.INTERRUPTED)


def first_pod(job: JobDirectory) -> str:
    kept = json.loads((job.path / "kubernetes.json").read_text())
    return str(kept["first"])


def has_saved(job: JobDirectory, attempt: int = 1) -> None:
    """Waits until an attempt has trained for a while."""
    wait(job, lambda _: len(begins(job)) == 2 * attempt)
    time.sleep(SAVED_S)


def begins(job: JobDirectory) -> list[int]:
    lines = [each.rpartition("begins at ") for each in lines_of(KubernetesBackend(), job)]
    return [int(step) for _, found, step in lines if found]


def require_resumed(job: JobDirectory, record: JobRecord, losses: int = 1) -> None:
    """It went on from checkpoints, and ends as one that was never disturbed."""
    assert record.secondary is Secondary.COMPLETED, record
    assert num_lost(record) == losses
    found = begins(job)
    assert len(found) == 2 * (losses + 1), found
    assert found[:2] == [0, 0]
    for before, after in zip(found[::2], found[2::2], strict=False):
        assert after > before, found
    points = [
        json.loads(line)["value"]
        for line in (job.path / "hosts/algo-1/metrics.jsonl").read_text().splitlines()
    ]
    joined: list[int] = []
    for step in map(int, points):  # an attempt goes on with the step of its checkpoint
        joined = [*joined[:step], step]
    assert joined == list(range(STEPS)), points
    assert {(name, value) for name, value, _ in record.metrics} == {("loss", STEPS - 1.0)}
    names = [each["event"] for each in job.events()]
    assert names.count("host") == 2 * (losses + 1)


def require_gone(cluster: Kubernetes) -> None:
    until = time.monotonic() + scaled(30)
    while left := cluster.store.names():
        assert time.monotonic() < until, left
        time.sleep(0.1)


def evicted(cluster: Kubernetes, pod: str) -> None:
    cluster.nodes.evict("default", pod)


def drained(cluster: Kubernetes, pod: str) -> None:
    """The job's process hears SIGTERM, and stops the job in its grace."""
    cluster.nodes.evict("default", pod, grace_s=60.0)


def deleted(cluster: Kubernetes, pod: str) -> None:
    from tests.clusters.kubernetes_store import PODS

    cluster.controllers.delete(PODS, "default", pod, {"gracePeriodSeconds": 0})


def killed(cluster: Kubernetes, pod: str) -> None:
    os.kill(cluster.nodes.process_of("default", pod), signal.SIGKILL)


def lost(cluster: Kubernetes, pod: str) -> None:
    """With its node; the cluster says so later."""
    cluster.nodes.power_off("default", pod)
    time.sleep(2.0)
    cluster.nodes.give_up("default", pod)


@pytest.mark.slow
@pytest.mark.parametrize("how", [evicted, drained, deleted, killed, lost])
def test_a_job_that_loses_its_first_pod_goes_on_from_its_checkpoint(
    cluster: Kubernetes, home: Home, how: Callable[[Kubernetes, str], None]
) -> None:
    job = counting(home, 1)
    has_saved(job)
    how(cluster, first_pod(job))
    record = ended(job)
    require_resumed(job, record)
    (told,) = [each for each in record.transitions if each.secondary is Secondary.INTERRUPTED]
    assert told.message.startswith("InternalServerError: the job's process was taken away: ")
    path = [str(each.secondary) for each in record.transitions]
    attempt = ["Starting", "Downloading", "Training"]
    assert path == [*attempt, "Interrupted", *attempt, "Uploading", "Completed"]
    require_gone(cluster)


@pytest.mark.slow
def test_a_job_is_tried_again_as_often_as_it_says(cluster: Kubernetes, home: Home) -> None:
    """The second loss is one too many; who followed first was killed as the first one was known."""
    job = counting(home, 1)
    has_saved(job)
    first = first_pod(job)
    evicted(cluster, first)
    until = time.monotonic() + scaled(30)
    while not (job.path / "submission.json").exists():
        assert time.monotonic() < until
        time.sleep(0.005)
    os.kill(follower_of(job), signal.SIGKILL)
    wait(job, lambda record: num_lost(record) == 1)
    wait(job, lambda record: len(begins(job)) == 4)
    second = first_pod(job)
    evicted(cluster, second)
    record = ended(job)
    assert record.status is Status.FAILED
    assert num_lost(record) == 1
    reason = f"InternalServerError: the job's process is gone: Kubernetes says of pod {second}:"
    assert record.failure_reason.startswith(reason)
    assert "low on resource: memory" in record.failure_reason
    require_gone(cluster)


def follower_of(job: JobDirectory) -> int:
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"in_cluster.follower\0{job.path}" in command:
            return int(pid)
    raise AssertionError("nobody follows the job")


@pytest.mark.slow
def test_a_stop_ends_a_job_that_is_tried_again(cluster: Kubernetes, home: Home) -> None:
    job = counting(home, 3)
    has_saved(job)
    cluster.nodes.why_unschedulable = "no room"
    evicted(cluster, first_pod(job))
    wait(job, lambda record: record.secondary is Secondary.INTERRUPTED)
    KubernetesBackend().stop(job, "enough")
    record = ended(job)
    assert record.secondary is Secondary.STOPPED
    assert num_lost(record) == 1
    require_gone(cluster)
