# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What people and sites do around a job on a real Slurm: variables, options, holds, suspension."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from machine_speed import scaled

from smdistributed.launch.backends.slurm.backend import SlurmBackend
from smdistributed.launch.backends.slurm.files import SlurmFiles
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.states import Secondary, Status
from tests.clusters.slurm import Slurm, slurm, why_not
from tests.clusters.test_slurm import (
    COUNTS,
    SPOT,
    WAITS,
    changed,
    cluster,
    has_ended,
    home,
    kill,
    logs_of,
    node_of,
    own_cluster,
    require_empty,
    wait,
    wait_for_both,
)
from tests.conformance.backends.test_backends import job_of, lines_of

__all__ = ["cluster", "home", "own_cluster"]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "variables",
    [
        {"SBATCH_ARRAY_INX": "0-2"},
        {"SBATCH_WAIT": "1"},
        {"SBATCH_INPUT": "/nowhere/at/all", "SBATCH_ERROR": "/nowhere/at/all"},
        {"SBATCH_REQUEUE": "1", "SBATCH_TIMELIMIT": "1", "SBATCH_OUTPUT": "/nowhere/at/all"},
        {"SBATCH_JOB_NAME": "its name", "SBATCH_DEBUG": "1", "SBATCH_OPEN_MODE": "truncate"},
        {"SBATCH_MEM_PER_CPU": "100", "SBATCH_EXCLUSIVE": "user", "SBATCH_OVERCOMMIT": "1"},
        {"SBATCH_DISTRIBUTION": "cyclic", "SBATCH_HINT": "nomultithread"},
        {"SBATCH_GET_USER_ENV": "1"},
        {"SRUN_CPUS_PER_TASK": "64", "SRUN_EXPORT_ENV": "NONE", "SRUN_CONTAINER": "/nowhere"},
        {
            "SLURM_JOB_ID": "1",
            "SLURM_NTASKS": "7",
            "SLURM_NNODES": "5",
            "SLURM_NODEID": "3",
            "SLURM_MEM_PER_CPU": "9",
            "SLURM_CPUS_PER_TASK": "64",
            "SLURM_STEP_ID": "2",
            "SLURM_RESTART_COUNT": "3",
            "SLURM_HINT": "compute_bound",
            "SLURM_OVERLAP": "0",
        },
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_variables_of_commands_do_not_matter(
    cluster: Slurm, home: Home, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in {**variables, "MINE": "mine"}.items():
        monkeypatch.setenv(name, value)
    job = job_of(home, "import os; print('told', os.environ['MINE'])", hosts=2)
    backend = SlurmBackend()
    backend.submit(job)
    assert len(cluster.jobs()) == 1
    record, _ = wait(job, has_ended)
    assert record.secondary is Secondary.COMPLETED, (record, logs_of(job))
    assert sum("told mine" in line for line in lines_of(backend, job)) == 2


@pytest.mark.parametrize(
    "variables",
    [
        {"SCANCEL_STATE": "SUSPENDED", "SCANCEL_NAME": "other", "SCANCEL_USER": "nobody"},
        {"SCANCEL_INTERACTIVE": "1", "SCANCEL_PARTITION": "nosuch"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_variables_do_not_keep_a_job_from_being_stopped(
    cluster: Slurm, home: Home, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    number = cluster.run(
        *("sbatch", "--parsable", "--exclusive", "-N2", "-o/dev/null", "--wrap", "sleep 100")
    ).strip()
    job = job_of(home, WAITS, hosts=2)
    backend = SlurmBackend()
    backend.submit(job)
    assert backend.poll(job).secondary is Secondary.STARTING
    backend.stop(job, "not now")
    record, _ = wait(job, has_ended, 10)
    assert record.secondary is Secondary.STOPPED
    for name in variables:
        monkeypatch.delenv(name)
    assert [each["job_id"] for each in cluster.jobs()] == [int(number)]
    cluster.run("scancel", number)


@pytest.mark.parametrize(
    "option",
    [
        "--hint=nomultithread",
        "--distribution=block:cyclic",
        "--ntasks-per-core=1",
        "--threads-per-core=1",
        "--mem-bind=local",
        "--wait-all-nodes=1",
        "--partition=all,low",
        "--comment=of Reason=BadConstraints JobState=COMPLETED Restarts=many",
        "--signal=USR1@60",
        "--spread-job",
    ],
)
def test_options_of_people(own_cluster: Slurm, home: Home, option: str) -> None:
    home.config.write_text(f'[slurm]\noptions = ["{option}"]\n')
    job = job_of(home, "print('told')", hosts=2)
    backend = SlurmBackend()
    backend.submit(job)
    record, _ = wait(job, has_ended)
    assert record.secondary is Secondary.COMPLETED, (record, logs_of(job))
    require_empty(own_cluster)


def test_one_of_several_partitions_may_be_too_small(own_cluster: Slurm, home: Home) -> None:
    """While it waits for the large one, Slurm's reason is that of the small one now and then."""
    home.config.write_text('[slurm]\npartition = "all,low"\n')
    other = own_cluster.run(
        *("sbatch", "--parsable", "--exclusive", "-N3", "-o/dev/null", "--wrap", "sleep 100")
    ).strip()
    job = job_of(home, "print('here')")
    backend = SlurmBackend()
    backend.submit(job)
    number = str(SlurmFiles(job).number())
    until = time.monotonic() + scaled(60)
    while "Reason=PartitionTimeLimit" not in own_cluster.run("scontrol", "show", "job", number):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert SlurmBackend().poll(job).secondary is Secondary.STARTING
    own_cluster.run("scancel", other)
    assert wait(job, has_ended)[0].status is Status.COMPLETED
    require_empty(own_cluster)


def test_a_home_with_a_name_of_all_kinds(
    cluster: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "it's 100%j, Reason=BadConstraints Restarts=many; JobState=FAILED")
    home.make()
    backend = SlurmBackend()
    job = job_of(home, WAITS, hosts=2)
    backend.submit(job)
    wait_for_both(backend, job, "waiting")
    SlurmFiles(job).alive.unlink()  # so that Slurm is asked
    assert backend.poll(job).secondary is Secondary.TRAINING
    backend.stop(job, "it is enough")
    record, _ = wait(job, has_ended)
    assert record.secondary is Secondary.STOPPED, (record, logs_of(job))
    assert SlurmFiles(job).log.exists()


# --- holds and suspension ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "reason"), [("uhold", "JobHeldUser"), ("hold", "JobHeldAdmin")]
)
def test_a_job_that_is_held_says_so(
    cluster: Slurm, home: Home, caplog: pytest.LogCaptureFixture, command: str, reason: str
) -> None:
    other = cluster.run(
        *("sbatch", "--parsable", "--exclusive", "-N2", "-o/dev/null", "--wrap", "sleep 100")
    ).strip()
    job = job_of(home, "print('here')", hosts=2)
    backend = SlurmBackend()
    backend.submit(job)
    number = str(SlurmFiles(job).number())
    cluster.run("scontrol", command, number)
    cluster.run("scancel", other)
    with caplog.at_level(logging.WARNING, "smdistributed"):
        until = time.monotonic() + 5
        while time.monotonic() < until:
            assert backend.poll(job).secondary is Secondary.STARTING
            time.sleep(0.1)
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 1, said
    assert reason in said[0]
    assert f"scontrol release {number}" in said[0]
    cluster.run("scontrol", "release", number)
    assert wait(job, has_ended)[0].status is Status.COMPLETED


def test_a_job_that_is_suspended_goes_on(
    cluster: Slurm, home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    job = job_of(home, COUNTS.replace("0.1", "0.3"), hosts=2)
    backend = SlurmBackend()
    backend.submit(job)
    wait_for_both(backend, job, "begins")
    number = str(SlurmFiles(job).number())
    cluster.run("scontrol", "suspend", number)
    with caplog.at_level(logging.WARNING, "smdistributed"):
        until = time.monotonic() + 25
        while time.monotonic() < until:
            assert backend.poll(job).secondary is Secondary.TRAINING
            time.sleep(0.1)
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 1, said
    assert f"scontrol resume {number}" in said[0]
    cluster.run("scontrol", "resume", number)
    until = time.monotonic() + scaled(60)
    while not (record := backend.poll(job)).status.is_terminal:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert record.status is Status.COMPLETED, (record, logs_of(job))


def test_a_job_that_is_suspended_can_be_stopped(cluster: Slurm, home: Home) -> None:
    job = job_of(home, WAITS, hosts=2)
    backend = SlurmBackend()
    backend.submit(job)
    wait_for_both(backend, job, "waiting")
    cluster.run("scontrol", "suspend", str(SlurmFiles(job).number()))
    backend.stop(job, "it is enough")
    begin = time.monotonic()
    record, ended = wait(job, has_ended)
    assert record.secondary is Secondary.STOPPED, (record, logs_of(job))
    assert ended - begin < scaled(30)


@pytest.mark.parametrize("retries", [0, 1])
def test_a_prolog_that_fails(home: Home, monkeypatch: pytest.MonkeyPatch, retries: int) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with slurm(1, lines="Prolog=/bin/false") as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        job = job_of(home, WAITS)
        changed(job, RetryStrategy={"MaximumRetryAttempts": retries})
        SlurmBackend().submit(job)
        record, _ = wait(job, has_ended, 20)
        assert record.status is Status.FAILED
        assert record.failure_reason.startswith("InternalServerError: Slurm could not begin its")
        require_empty(cluster)


# --- its daemons -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_spot", [False, True])
def test_a_job_process_without_the_daemon_of_its_step(
    own_cluster: Slurm, home: Home, is_spot: bool
) -> None:
    job = job_of(home, COUNTS.replace("0.1", "0.5"), hosts=2)
    kept = {"S3Uri": "s3://b/kept", "LocalPath": "/opt/ml/checkpoints"}
    changed(job, **(SPOT if is_spot else {}), CheckpointConfig=kept)
    backend = SlurmBackend()
    backend.submit(job)
    wait_for_both(backend, job, "begins")
    time.sleep(1)
    node = node_of(own_cluster, job, "algo-1")
    begin = time.monotonic()
    kill(node, ".batch]", signal.SIGKILL)
    known: Callable[[object], bool] = lambda record: (  # noqa: E731
        record.status.is_terminal or record.secondary is Secondary.INTERRUPTED
    )
    record, when = wait(job, known)
    print(when - begin, record.failure_reason, record.transitions[-1].message)
    assert when - begin < scaled(25)
    if is_spot:
        record, _ = wait(job, has_ended, 120)
        assert record.status is Status.COMPLETED, (record, logs_of(job))
        assert [value for _, value, _ in record.metrics] == [20.0]
    else:
        assert record.status is Status.FAILED
        assert "slurmstepd, is gone" in record.failure_reason
    require_empty(own_cluster)
