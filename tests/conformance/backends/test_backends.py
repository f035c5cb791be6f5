# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What every backend of jobs has to do (launch specification, section 11).

A new backend is one more entry of `BACKENDS`, with what its settings say. Nothing here looks at how
a backend does it: jobs are asked for by their documents, and looked at through the five verbs and
the job's directory.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.backend import Backend
from smdistributed.launch.backends.engines import Backends
from smdistributed.launch.data.settings import Settings
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory, create_job
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary, Status


def of_this_machine(request: pytest.FixtureRequest) -> str:
    return ""


def of_ssh(request: pytest.FixtureRequest) -> str:
    hosts = request.getfixturevalue("two_ssh_hosts")
    return f"""
        [ssh]
        hosts = {json.dumps(list(hosts.names))}
        python = "{sys.executable}"
        command = ["ssh", "-F", "{hosts.config}"]
    """


def of_slurm(request: pytest.FixtureRequest) -> str:
    cluster = request.getfixturevalue("slurm_cluster")
    request.getfixturevalue("monkeypatch").setenv("SLURM_CONF", str(cluster.conf))
    return ""


def of_ray(request: pytest.FixtureRequest) -> str:
    cluster = request.getfixturevalue("ray_cluster")
    return f"""
        [ray]
        address = "{cluster.address}"
        python = "{sys.executable}"
    """


def of_kubernetes(request: pytest.FixtureRequest) -> str:
    cluster = request.getfixturevalue("kubernetes_cluster")
    request.getfixturevalue("monkeypatch").setenv("KUBECONFIG", str(cluster.kubeconfig))
    return f"""
        [kubernetes]
        image = "train:1"
        python = "{sys.executable}"
    """


BACKENDS: dict[str, Callable[[pytest.FixtureRequest], str]] = {
    "local": of_this_machine,
    "ssh": of_ssh,
    "slurm": of_slurm,
    "ray": of_ray,
    "kubernetes": of_kubernetes,
}

SOON_S = 30.0

TELLS = """
import json, os, sys
told = {name: os.environ[name] for name in ("SM_HOSTS", "SM_CURRENT_HOST", "RANK", "WORLD_SIZE")}
print("told " + json.dumps(told))
print("to stderr", file=sys.stderr)
open(os.path.join(os.environ["SM_MODEL_DIR"], os.environ["SM_CURRENT_HOST"]), "w").write("x")
"""

WAITS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("told to end", flush=True), sys.exit(0)))
print("waiting", flush=True)
time.sleep(100)
"""

# As the process of a job, whose record has ended already.
LAST_LINES = """
import fcntl, os, sys, time
lock = open(os.path.join(sys.argv[1], "lock"), "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("writes", flush=True)
for number in range(50):
    open(os.path.join(sys.argv[1], f"last-{number}"), "w").close()
    time.sleep(0.01)
"""


_SAMPLE = (
    "test_submit_returns_at_once_and_the_job_ends_well",
    "test_stop_tells_the_script_and_saves_what_there_is",
)
SAMPLES = {"ray": _SAMPLE, "kubernetes": _SAMPLE}
"""Of backends whose jobs take seconds to begin: other tests run with `--run-slow`."""


@pytest.fixture(params=BACKENDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """With the settings of a backend."""
    sample = SAMPLES.get(request.param)
    is_wanted = not sample or request.function.__name__ in sample
    if not is_wanted and not request.config.getoption("--run-slow"):
        pytest.skip("a job of this backend takes seconds to begin; run with --run-slow")
    home = Home(tmp_path / "home")
    home.make()
    settings = textwrap.dedent(BACKENDS[request.param](request))
    home.config.write_text(f'default_backend = "{request.param}"\n{settings}')
    return home


@pytest.fixture
def backend(home: Home) -> Backend:
    return made(home)


def made(home: Home) -> Backend:
    return Backends(lambda: Settings.of(home).default_backend)


def job_of(home: Home, script: str, *, hosts: int = 1, ranks: int = 1, name: str = "job") -> Any:
    """A job as its document asks for it; this process has its lock."""
    sources = home.buckets / "b" / f"{name}.tar.gz"
    sources.parent.mkdir(parents=True, exist_ok=True)
    script_file = home.root / "train.py"
    script_file.write_text(textwrap.dedent(script))
    with tarfile.open(sources, "w:gz") as tar:
        tar.add(script_file, "train.py")
    hyperparameters = {
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": f"s3://b/{name}.tar.gz",
        "sagemaker_mpi_enabled": True,
        "sagemaker_mpi_num_of_processes_per_host": ranks,
        "text": "x y $(z)",
    }
    request = {
        "TrainingJobName": name,
        "AlgorithmSpecification": {
            "TrainingInputMode": "File",
            "MetricDefinitions": [{"Name": "loss", "Regex": "loss ([0-9.]+)"}],
        },
        "HyperParameters": {key: json.dumps(value) for key, value in hyperparameters.items()},
        "RoleArn": "arn:aws:iam::000000000000:role/mine",
        "OutputDataConfig": {"S3OutputPath": "s3://b/out"},
        "ResourceConfig": {"InstanceType": "local", "InstanceCount": hosts, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    }
    now = dt.datetime.now(dt.UTC)
    arn = f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{name}"
    local = {"Backend": Settings.of(home).default_backend}
    return create_job(home, [name], lambda _: JobRecord.new(request, local, arn, now))


def ended(backend: Backend, job: JobDirectory) -> JobRecord:
    return wait_for(backend, job, lambda record: record.status.is_terminal)


def wait_for(backend: Backend, job: JobDirectory, holds: Callable[[JobRecord], bool]) -> JobRecord:
    until = time.monotonic() + scaled(SOON_S)
    while not holds(record := backend.poll(job)):
        assert time.monotonic() < until, record
        time.sleep(0.05)
    return record


def lines_of(backend: Backend, job: JobDirectory, **of: Any) -> list[str]:
    return [line.text.decode() for line in backend.logs(job, **of).new()]


def wait_for_line(backend: Backend, job: JobDirectory, text: str) -> None:
    wait_for(backend, job, lambda _: any(text in line for line in lines_of(backend, job)))


def test_submit_returns_at_once_and_the_job_ends_well(backend: Backend, home: Home) -> None:
    job = job_of(home, TELLS, hosts=2, ranks=2)
    backend.submit(job)
    assert not backend.poll(job).status.is_terminal
    record = ended(backend, job)
    assert record.secondary is Secondary.COMPLETED
    path = [each.secondary for each in record.transitions]
    assert path == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert record.model_artifacts == "s3://b/out/job/output/model.tar.gz"
    with tarfile.open(home.buckets / "b/out/job/output/model.tar.gz") as tar:
        assert sorted(tar.getnames()) == ["algo-1", "algo-2"]


def test_each_rank_is_told_who_it_is(backend: Backend, home: Home) -> None:
    job = job_of(home, TELLS, hosts=2, ranks=2)
    backend.submit(job)
    ended(backend, job)
    told = [line.partition("told ")[2] for line in lines_of(backend, job) if "told " in line]
    found = sorted((each["RANK"], each["SM_CURRENT_HOST"]) for each in map(json.loads, told))
    assert found == [("0", "algo-1"), ("1", "algo-1"), ("2", "algo-2"), ("3", "algo-2")]
    assert {json.loads(each)["WORLD_SIZE"] for each in told} == {"4"}
    assert {json.loads(each)["SM_HOSTS"] for each in told} == {'["algo-1","algo-2"]'}


def test_logs_are_of_a_host_or_a_rank(backend: Backend, home: Home) -> None:
    job = job_of(home, TELLS, hosts=2, ranks=2)
    backend.submit(job)
    ended(backend, job)
    assert len(lines_of(backend, job)) == 8
    assert {line.split("<")[0] for line in lines_of(backend, job, host="algo-2")} == {
        "[1,mpirank:2,algo-2]",
        "[1,mpirank:3,algo-2]",
    }
    assert len(lines_of(backend, job, rank=1)) == 2
    log = backend.logs(job)
    assert len(list(log.new())) == 8
    assert list(log.new()) == []  # each line once


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import sys; sys.exit(7 if RANK == 1 else 0)", "ExitCode 7"),
        ("if RANK == 3: raise ValueError('no such digit')", "ValueError: no such digit"),
        ("if RANK == 2: os.kill(os.getpid(), 9)", "SIGKILL"),
    ],
)
def test_the_status_of_a_rank_that_fails_is_known(backend, home, script, said) -> None:
    begin = "import os, time\nRANK = int(os.environ['RANK'])\n"
    wait = "\nif RANK == 0: time.sleep(100)\n"
    rank = next(number for number in (1, 2, 3) if f"RANK == {number}" in script)
    job = job_of(home, begin + script + wait, hosts=2, ranks=2)
    backend.submit(job)
    record = ended(backend, job)
    assert record.status is Status.FAILED
    assert record.failure_reason.startswith("AlgorithmError: ExecuteUserScriptError:")
    assert said in record.failure_reason
    assert f"rank {rank} on algo-{rank // 2 + 1}" in record.failure_reason


def test_data_that_are_missing_fail_the_job(backend: Backend, home: Home) -> None:
    job = job_of(home, TELLS)
    (home.buckets / "b" / "job.tar.gz").unlink()
    backend.submit(job)
    record = ended(backend, job)
    assert record.status is Status.FAILED
    assert "job.tar.gz" in record.failure_reason


def test_stop_tells_the_script_and_saves_what_there_is(backend: Backend, home: Home) -> None:
    job = job_of(home, WAITS, hosts=2)
    backend.submit(job)
    wait_for_line(backend, job, "waiting")
    backend.stop(job, "the test says so")
    backend.stop(job, "once more")
    record = ended(backend, job)
    assert record.secondary is Secondary.STOPPED
    assert sum("told to end" in line for line in lines_of(backend, job)) == 2
    backend.stop(job, "it has ended")
    assert backend.poll(job) == record


def test_stop_at_once(backend: Backend, home: Home) -> None:
    job = job_of(home, WAITS)
    backend.submit(job)
    backend.stop(job, "at once")
    assert ended(backend, job).secondary is Secondary.STOPPED


def test_another_process_may_look_and_stop(backend: Backend, home: Home) -> None:
    """What is known of a job is in its directory, and not in the object that has started it."""
    job = job_of(home, WAITS)
    backend.submit(job)
    other, there = made(home), JobDirectory(job.path)
    wait_for_line(other, there, "waiting")
    other.stop(there, "from elsewhere")
    assert ended(other, there).secondary is Secondary.STOPPED


def test_clean_takes_away_what_has_ended(backend: Backend, home: Home) -> None:
    job = job_of(home, TELLS)
    backend.submit(job)
    ended(backend, job)
    backend.clean(job)
    assert not job.path.exists()
    assert (home.buckets / "b/out/job/output/model.tar.gz").is_file()
    with pytest.raises(ConfigurationError, match="has no record"):
        backend.clean(job)


def test_clean_waits_for_last_lines(backend: Backend, home: Home) -> None:
    job = job_of(home, TELLS)
    backend.submit(job)
    ended(backend, job)
    while not job.lock.acquire():  # its process goes
        time.sleep(0.01)
    job.lock.release()
    with subprocess.Popen(
        [sys.executable, "-c", LAST_LINES, str(job.path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writes\n"
        backend.clean(job)
        assert process.wait() == 0
    assert not job.path.exists()


def test_clean_leaves_what_goes_on(backend: Backend, home: Home) -> None:
    job = job_of(home, WAITS)
    backend.submit(job)
    with pytest.raises(ConfigurationError, match="expected one that has ended"):
        backend.clean(job)
    assert job.path.is_dir()
    backend.stop(job, "the end of the test")
    ended(backend, job)


def test_jobs_do_not_disturb_one_another(backend: Backend, home: Home) -> None:
    jobs = [job_of(home, TELLS, ranks=2, name=f"job-{number}") for number in range(3)]
    for job in jobs:
        backend.submit(job)
    for job in jobs:
        assert ended(backend, job).status is Status.COMPLETED
        assert len(lines_of(backend, job)) == 4
    shutil.rmtree(jobs[0].path)
    assert backend.poll(jobs[1]).status is Status.COMPLETED
