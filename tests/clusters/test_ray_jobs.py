# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs on a real Ray: what ends them, who knows when, and that nothing of them is left."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled

from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.ray.backend import RayBackend
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary, Status
from tests.clusters.machine import Machine
from tests.clusters.ray import Ray, ray, why_not
from tests.conformance.backends.test_backends import job_of, lines_of, of_ray, wait_for_line

WAITS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("told to end", flush=True), sys.exit(0)))
print("waiting", flush=True)
time.sleep(100)
"""

# Counts, keeps how far it is now and then, and says from where it goes on.
COUNTS = """
import os, pathlib, time
kept, rank = pathlib.Path("/opt/ml/checkpoints"), os.environ["RANK"]
begin = max((int(each.suffix[1:]) for each in kept.glob(f"rank-{rank}.*")), default=0)
print(f"begins at {begin}", flush=True)
for step in range(begin, 80):
    if step and step % 10 == 0:
        (kept / f"rank-{rank}.{step}").touch()
    time.sleep(0.1)
print(f"loss {step + 1}.0", flush=True)
"""
SAVED_S = 4.5
"""Checkpoints of steps before that are in the store."""


def home_of(cluster: Ray, tmp_path: Path, **more: object) -> Home:
    home = Home(tmp_path / "home")
    home.make()
    request: Any = type("", (), {"getfixturevalue": lambda self, name: cluster})()
    lines = [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    settings = "\n".join(line.strip() for line in of_ray(request).splitlines())
    home.config.write_text("\n".join(['default_backend = "ray"', settings, *lines]))
    return home


@pytest.fixture
def home(ray_cluster: Ray, tmp_path: Path) -> Iterator[Home]:
    """On the worker's cluster; each test leaves it empty."""
    yield home_of(ray_cluster, tmp_path)
    require_empty(ray_cluster)


@pytest.fixture
def own_cluster() -> Iterator[Ray]:
    """One that a test may break."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with ray(2) as cluster:
        yield cluster


def require_empty(cluster: Ray) -> None:
    """No courier, agent or rank is left on its nodes, and no placement group and actor."""
    until = time.monotonic() + scaled(20)
    while True:
        left: list[object] = [
            pid for node in cluster.machines.values() for pid in node.processes("smdistributed")
        ]
        for what, over in (("placement_groups", "REMOVED"), ("actors", "DEAD")):
            with urllib.request.urlopen(f"{cluster.address}/api/v0/{what}") as answer:
                found = json.load(answer)["data"]["result"]["result"]
            left += [each for each in found if each["state"] != over]
        if not left:
            return
        assert time.monotonic() < until, left
        time.sleep(0.2)


def ended(job: JobDirectory, seconds: float = 90.0) -> JobRecord:
    return wait(job, lambda record: record.status.is_terminal, seconds)


def wait(job: JobDirectory, holds: Callable[[JobRecord], bool], seconds: float = 60.0) -> JobRecord:
    backend = RayBackend()
    until = time.monotonic() + scaled(seconds)
    while not holds(record := backend.poll(job)):
        assert time.monotonic() < until, (record, (job.path / "job.log").read_text())
        time.sleep(0.1)
    return record


def changed(job: JobDirectory, **request: Any) -> None:
    """The request has more; of a job that was not submitted yet."""
    document = json.loads((job.path / "job.json").read_text())
    document["Request"] |= request
    (job.path / "job.json").write_text(json.dumps(document))


def counting(home: Home, **request: Any) -> JobDirectory:
    job = job_of(home, COUNTS, hosts=2)
    kept = {"S3Uri": "s3://b/kept", "LocalPath": "/opt/ml/checkpoints"}
    changed(job, CheckpointConfig=kept, **request)
    return job


def node_of(cluster: Ray, job: JobDirectory, host: str) -> str:
    """Where a host is, in the last attempt: the machine's name."""
    found = [each for each in job.events() if each["event"] == "host" and each["host"] == host]
    (name,) = [name for name, link in cluster.links.items() if link.address == found[-1]["address"]]
    return name


def kill(node: Machine, words: str, number: int = signal.SIGKILL) -> None:
    pids = node.processes(words)
    assert pids, (node, words)
    for pid in pids:
        os.kill(pid, number)


def require_resumed(job: JobDirectory, record: JobRecord) -> None:
    """It went on from a checkpoint, and ends as one that was never disturbed."""
    assert record.secondary is Secondary.COMPLETED, record
    assert Secondary.INTERRUPTED in [each.secondary for each in record.transitions]
    begins = [line for line in lines_of(RayBackend(), job) if "begins at" in line]
    assert len(begins) == 4, begins
    assert all(not line.endswith("begins at 0") for line in begins[2:]), begins
    assert {(name, value) for name, value, _ in record.metrics} == {("loss", 80.0)}


# --- what the cluster is asked for ----------------------------------------------------------------


@pytest.mark.slow
def test_more_than_the_cluster_has_is_refused_in_words(ray_cluster: Ray, tmp_path: Path) -> None:
    home = home_of(ray_cluster, tmp_path, cpus_per_host=99)
    job = job_of(home, WAITS)
    RayBackend().submit(job)
    record = ended(job)
    assert record.status is Status.FAILED
    assert "asks for 1 hosts with {'CPU': 99.0} each" in record.failure_reason
    require_empty(ray_cluster)


@pytest.mark.slow
def test_hosts_share_nodes_where_there_are_too_few(home: Home) -> None:
    job = job_of(home, 'print("here", flush=True)', hosts=3)
    RayBackend().submit(job)
    assert ended(job).status is Status.COMPLETED
    assert [each["hosts"] for each in job.events() if each["event"] == "hosts-share-nodes"] == [3]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://127.0.0.1:1", "cannot be reached: .*Connection refused.*curl"),
        ("http://nowhere.invalid:8265", "cannot be reached: .*curl"),
        ("127.0.0.1:8265", "expected a URL such as http://head:8265"),
    ],
)
def test_an_address_that_does_not_answer(tmp_path: Path, address: str, said: str) -> None:
    home = Home(tmp_path / "home")
    home.make()
    home.config.write_text(f'default_backend = "ray"\n[ray]\naddress = "{address}"\n')
    job = job_of(home, WAITS)
    began = time.monotonic()
    with pytest.raises((BackendError, ValueError), match=said):
        RayBackend().submit(job)
    assert time.monotonic() - began < scaled(10)
    assert RayBackend().poll(job).status is Status.FAILED


@pytest.mark.slow
def test_a_python_that_is_not_there(ray_cluster: Ray, tmp_path: Path) -> None:
    home = home_of(ray_cluster, tmp_path)
    home.config.write_text(home.config.read_text().replace("python =", 'python = "nowhere" #'))
    job = job_of(home, WAITS)
    RayBackend().submit(job)
    record = ended(job)
    assert "'nowhere' of the cluster cannot run it" in record.failure_reason


@pytest.mark.slow
def test_a_python_with_another_version_of_ray(ray_cluster: Ray, tmp_path: Path) -> None:
    other = ray_cluster.folder / "there" / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import ray; ray.__version__ = '2.1.0'")
    (other / "python").write_text(
        f'#!/bin/sh\nPYTHONPATH=/run/smd/other exec {sys.executable} "$@"\n'
    )
    (other / "python").chmod(0o755)
    home = home_of(ray_cluster, tmp_path)
    settings = home.config.read_text().replace("python =", 'python = "/run/smd/other/python" #')
    home.config.write_text(settings)
    job = job_of(home, WAITS)
    RayBackend().submit(job)
    record = ended(job)
    own = importlib.metadata.version("ray")
    for text in ("python under [ray] of config.toml", f"Ray: {own}", "Ray: 2.1.0"):
        assert text in record.failure_reason
    require_empty(ray_cluster)


# --- what is asked of a job -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_on_spot_instances_is_interrupted_and_goes_on(home: Home) -> None:
    job = counting(home, EnableManagedSpotTraining=True)
    backend = RayBackend()
    backend.submit(job)
    wait_for_line(backend, job, "begins at 0")
    time.sleep(SAVED_S)
    job.ask_to_interrupt("the test says so")
    require_resumed(job, ended(job))


@pytest.mark.slow
def test_jobs_of_one_name_of_two_users_are_two(
    ray_cluster: Ray, home: Home, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    backend = RayBackend()
    jobs = [job_of(home, WAITS), job_of(home_of(ray_cluster, tmp_path / "other"), WAITS)]
    for job in jobs:
        changed(job, EnableManagedSpotTraining=True)
        backend.submit(job)
        wait_for_line(backend, job, "waiting")
    jobs[0].ask_to_interrupt("the test says so")
    wait(jobs[0], lambda each: Secondary.INTERRUPTED in [t.secondary for t in each.transitions])
    assert backend.poll(jobs[1]).secondary is Secondary.TRAINING
    for job in jobs:
        backend.stop(job, "the test says so")
    for job in jobs:
        assert ended(job).secondary is Secondary.STOPPED


@pytest.mark.slow
def test_max_run_is_kept_in_the_cluster(home: Home) -> None:
    job = job_of(home, WAITS, hosts=2)
    changed(job, StoppingCondition={"MaxRuntimeInSeconds": 2})
    RayBackend().submit(job)
    record = ended(job)
    assert record.secondary is Secondary.MAX_RUNTIME_EXCEEDED
    assert sum("told to end" in line for line in lines_of(RayBackend(), job)) == 2


# --- what dies ------------------------------------------------------------------------------------


def test_a_job_outlives_who_follows_it(home: Home) -> None:
    """Another follower reads all again, and nothing is there twice."""
    job = job_of(home, "import time\nfor n in range(40): print(n, flush=True); time.sleep(0.1)")
    backend = RayBackend()
    backend.submit(job)
    wait_for_line(backend, job, "stdout>:5")
    (follower,) = [
        pid
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
        if f"in_cluster.follower\0{job.path}" in command_of(pid)
    ]
    os.kill(follower, signal.SIGKILL)
    record = ended(job)
    assert record.status is Status.COMPLETED
    lines = [line.rpartition(">:")[2] for line in lines_of(backend, job)]
    assert lines == [str(number) for number in range(40)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.mark.slow
@pytest.mark.parametrize("words", ["courier.host", "agent.agent", "ray::_Actor"])
def test_a_host_that_is_killed_is_known_and_the_job_goes_on(
    ray_cluster: Ray, home: Home, words: str
) -> None:
    job = counting(home, RetryStrategy={"MaximumRetryAttempts": 1})
    backend = RayBackend()
    backend.submit(job)
    wait_for_line(backend, job, "begins at 0")
    time.sleep(SAVED_S)
    killed = time.monotonic()
    kill(ray_cluster.machines[node_of(ray_cluster, job, "algo-2")], words)
    wait(job, lambda each: Secondary.INTERRUPTED in [t.secondary for t in each.transitions])
    assert time.monotonic() - killed < scaled(15)
    require_resumed(job, ended(job))


@pytest.mark.slow
def test_a_node_whose_raylet_dies(own_cluster: Ray, tmp_path: Path) -> None:
    """The job needs both: it goes on when the node is back."""
    home = home_of(own_cluster, tmp_path)
    job = counting(home, RetryStrategy={"MaximumRetryAttempts": 3})
    backend = RayBackend()
    backend.submit(job)
    wait_for_line(backend, job, "begins at 0")
    time.sleep(SAVED_S)
    killed = time.monotonic()
    own_cluster.kill_raylet("host-1")
    wait(job, lambda each: Secondary.INTERRUPTED in [t.secondary for t in each.transitions])
    assert time.monotonic() - killed < scaled(15)
    own_cluster.start_node("host-1").wait()
    require_resumed(job, ended(job))
    require_empty(own_cluster)


@pytest.mark.slow
def test_a_node_of_which_nothing_is_heard(own_cluster: Ray, tmp_path: Path) -> None:
    home = home_of(own_cluster, tmp_path)
    job = job_of(home, WAITS, hosts=2)
    backend = RayBackend()
    backend.submit(job)
    wait_for_line(backend, job, "waiting")
    own_cluster.links["host-1"].silence()
    silent = time.monotonic()
    record = ended(job)
    assert time.monotonic() - silent < scaled(25)
    assert record.status is Status.FAILED
    assert "InternalServerError" in record.failure_reason
    assert own_cluster.links["host-1"].address in record.failure_reason
    until = time.monotonic() + scaled(30)
    while own_cluster.machines["host-1"].processes("train.py"):  # its courier hears nothing either
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.mark.slow
def test_a_driver_that_is_killed_fails_the_job(ray_cluster: Ray, home: Home) -> None:
    job = job_of(home, WAITS, hosts=2)
    backend = RayBackend()
    backend.submit(job)
    wait_for_line(backend, job, "waiting")
    for node in ray_cluster.machines.values():
        if node.processes("ray.driver"):
            kill(node, "ray.driver")
    record = ended(job)
    assert record.status is Status.FAILED
    assert "the job's process is gone: Ray says FAILED" in record.failure_reason


@pytest.mark.slow
def test_a_driver_that_is_killed_is_followed_by_another_one(ray_cluster: Ray, home: Home) -> None:
    job = counting(home, RetryStrategy={"MaximumRetryAttempts": 1})
    backend = RayBackend()
    backend.submit(job)
    wait_for_line(backend, job, "begins at 0")
    time.sleep(SAVED_S)
    first = json.loads((job.path / "ray.json").read_text())["submission_id"]
    for node in ray_cluster.machines.values():
        if node.processes("ray.driver"):
            kill(node, "ray.driver")
    record = ended(job)
    require_resumed(job, record)
    (told,) = [each.message for each in record.transitions if each.message]
    why = f"InternalServerError: the job's process was taken away: of {first} Ray says FAILED"
    assert told.startswith(why)
    assert json.loads((job.path / "ray.json").read_text())["submission_id"] != first


@pytest.mark.slow
def test_a_head_whose_raylet_dies(own_cluster: Ray, tmp_path: Path) -> None:
    """Its dashboard lives, and calls the job running for ever. No other job can begin there."""
    home = home_of(own_cluster, tmp_path)
    job = counting(home, RetryStrategy={"MaximumRetryAttempts": 1})
    backend = RayBackend()
    backend.submit(job)
    wait_for_line(backend, job, "begins at 0")
    killed = time.monotonic()
    own_cluster.kill_raylet("host-0")
    record = ended(job)
    assert time.monotonic() - killed < scaled(40)
    assert record.status is Status.FAILED
    assert "its node is dead, the head" in record.failure_reason


@pytest.mark.slow
def test_a_head_that_is_gone(own_cluster: Ray, tmp_path: Path) -> None:
    home = home_of(own_cluster, tmp_path)
    job = job_of(home, WAITS)
    backend = RayBackend()
    backend.submit(job)
    wait_for_line(backend, job, "waiting")
    own_cluster.machines["host-0"].power_off()
    backend.stop(job, "it is gone anyway")
    record = ended(job, 60)
    assert record.secondary is Secondary.FAILED, "nobody knows whether it has stopped"
    assert "did not answer for 15 s" in record.failure_reason
    assert "ray job status" in record.failure_reason
