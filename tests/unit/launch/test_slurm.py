# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is made of Slurm's words (launch specification, section 11). A real one: tests/clusters."""

from __future__ import annotations

import datetime as dt
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.limits import Limits
from smdistributed.launch.backends.slurm import backend as slurm_backend
from smdistributed.launch.backends.slurm import commands
from smdistributed.launch.backends.slurm.backend import SlurmBackend
from smdistributed.launch.backends.slurm.commands import SlurmJob, State
from smdistributed.launch.backends.slurm.files import SlurmFiles
from smdistributed.launch.backends.slurm.options import SlurmOptions
from smdistributed.launch.data.settings import Settings
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory, create_job
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary, Status

# As Slurm 22.05 prints it on one line, but for some fields without news.
RUNNING = (
    "JobId=2 JobName=job UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901758 Nice=0"
    " Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=1"
    " BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:02 TimeLimit=02:00:00 TimeMin=N/A"
    " EndTime=2026-11-29T03:07:38 Deadline=N/A PreemptEligibleTime=2026-11-29T01:07:38"
    " PreemptTime=None SuspendTime=None Partition=all AllocNode:Sid=vm:1 ReqNodeList=(null)"
    " ExcNodeList=(null) NodeList=n[1-2] BatchHost=n1 NumNodes=2 NumCPUs=8 NumTasks=2"
    " Command=/home/x/job dir=JobState=FAILED StdErr=/dev/null\n"
)


def test_what_slurm_says_of_a_job() -> None:
    known = SlurmJob.of_text("2", RUNNING)
    assert known.state is State.RUNNING
    assert (known.said, known.restarts, known.nodes) == ("RUNNING", 1, "n[1-2]")
    assert (known.partition, known.reason, known.exit_code) == ("all", "None", "0:0")
    assert not known.is_preempted


def test_paths_of_people_say_nothing_of_a_job() -> None:
    text = RUNNING.replace("/job dir", "/job Restarts=many Reason=BadConstraints dir")
    assert SlurmJob.of_text("2", text) == SlurmJob.of_text("2", RUNNING)


@pytest.mark.parametrize(
    ("said", "state", "is_over"),
    [
        ("PENDING", State.PENDING, False),
        ("COMPLETING", State.RUNNING, False),
        ("SUSPENDED", State.SUSPENDED, False),
        ("NODE_FAIL", State.NODE_LOST, True),
        ("OUT_OF_MEMORY", State.OUT_OF_MEMORY, True),
        ("DEADLINE", State.TIMEOUT, True),
        ("COMPLETED", State.OVER, True),
    ],
)
def test_states(said: str, state: State, is_over: bool) -> None:
    text = RUNNING.replace("JobState=RUNNING", f"JobState={said}", 1)
    known = SlurmJob.of_text("2", text.replace("PreemptTime=None", "PreemptTime=2026-11-29T01:00"))
    assert known.state is state
    assert known.state.is_over is is_over
    assert known.is_preempted


def test_a_state_that_nobody_knows_is_said() -> None:
    with pytest.raises(BackendError, match=r"'DREAMING'.*expected a state of Slurm's"):
        SlurmJob.of_text("2", RUNNING.replace("JobState=RUNNING", "JobState=DREAMING", 1))


def program(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_job_that_slurm_has_forgotten(tmp_path, monkeypatch) -> None:
    says = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    for name in ("scontrol", "scancel"):
        program(tmp_path / "bin", name, says, monkeypatch)
    assert commands.look_at("7").state is State.UNKNOWN
    commands.cancel("7")  # it has ended


def test_an_answer_that_does_not_come_is_said_in_time(tmp_path, monkeypatch) -> None:
    program(tmp_path / "bin", "scancel", "exec sleep 100", monkeypatch)
    with pytest.raises(BackendError, match=r"no answer for 0.2 s.*scontrol ping; sinfo"):
        commands.cancel("7", most_s=0.2)


@pytest.mark.parametrize(
    "variable", ["SLURM_JOB_ID", "SBATCH_WAIT", "SBATCH_ARRAY_INX", "SCANCEL_STATE", "SRUN_DEBUG"]
)
def test_no_option_comes_from_variables(tmp_path, monkeypatch, variable) -> None:
    program(tmp_path / "bin", "sbatch", f'echo "${{{variable}:-7}};$SLURM_CONF"', monkeypatch)
    monkeypatch.setenv(variable, "99")
    monkeypatch.setenv("SLURM_CONF", "here")
    assert commands.submit([], "script", []) == "7"
    program(tmp_path / "bin", "sbatch", "echo Submitted", monkeypatch)
    with pytest.raises(BackendError, match="expected the number of a job"):
        commands.submit([], "script", [])


# --- options -----------------------------------------------------------------------------------


def options_of(tmp_path: Path, text: str) -> SlurmOptions:
    (tmp_path / "config.toml").write_text(f"[slurm]\n{text}")
    return SlurmOptions.of(Settings.of(Home(tmp_path)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("partitions = 'gpu'", "expected one of the keys partition"),
        ("partition = 3", "expected a text"),
        ("gpus_per_node = true", "expected a whole number from 1"),
        ("options = '--x'", "expected a list of options"),
        ("options = ['x']", "expected a list of options"),
        ("options = ['--nodes=3']", "none of those that this library gives itself"),
        ("options = ['-N3']", "none of those that this library gives itself"),
        ("options = ['--arr=0-3']", "none of those that this library gives itself"),
        ("options = ['--clusters=b']", "none of those that this library gives itself"),
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"slurm\.\w+ in .*{expected}"):
        options_of(tmp_path, text)


def test_options_of_a_job(tmp_path: Path) -> None:
    log = tmp_path / "100%j"
    limits = Limits(retries=0, max_run_s=90)
    whole = options_of(tmp_path, "").of_job("name", 2, limits, log)
    assert {"--exclusive", "--mem=0", "--nodes=2", "--no-requeue", "--time=62"} <= set(whole)
    assert f"--output={tmp_path}/100%%j" in whole
    some = options_of(tmp_path, "gpus_per_node = 2\noptions = ['--constraint=ib']")
    found = some.of_job("name", 2, Limits(retries=1, max_run_s=90), log)
    assert {"--gpus-per-node=2", "--requeue"} <= set(found)
    assert "--exclusive" not in found
    assert found[-1] == "--constraint=ib"


def test_a_path_that_slurm_would_change_is_refused(tmp_path: Path) -> None:
    options = options_of(tmp_path, "options = ['--nodelist=n1']")
    with pytest.raises(ConfigurationError, match=r"has a backslash .* Set SMD_HOME"):
        options.of_job("name", 1, Limits(retries=0, max_run_s=90), tmp_path / "a\\b" / "job.log")


# --- what becomes of jobs ----------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDirectory:
    """One that Slurm has, and whose process gives no sign of life."""
    monkeypatch.setattr(slurm_backend, "_SEEN_S", 0.0)
    request = {
        "TrainingJobName": "job",
        "OutputDataConfig": {"S3OutputPath": "s3://b/out"},
        "ResourceConfig": {"InstanceType": "local", "InstanceCount": 2},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 600},
        "EnableManagedSpotTraining": True,
    }
    now = dt.datetime.now(dt.UTC)
    home = Home(tmp_path / "home")
    made = create_job(home, ["job"], lambda _: JobRecord.new(request, {}, "", now))
    made.lock.release()
    SlurmFiles(made).write_number("7")
    return made


class Slurm:
    """What it says, and what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **of_job: Any) -> None:
        self.of_job = of_job
        self.cancelled: list[str] = []
        monkeypatch.setattr(commands, "look_at", lambda number: SlurmJob(number, **self.of_job))
        monkeypatch.setattr(commands, "cancel", lambda number, *_: self.cancelled.append(number))
        monkeypatch.setattr(commands, "most_nodes", lambda partition: 2)


@pytest.mark.parametrize(
    ("state", "said", "secondary", "reason"),
    [
        (State.CANCELLED, "CANCELLED", Secondary.STOPPED, ""),
        (State.TIMEOUT, "TIMEOUT", Secondary.MAX_RUNTIME_EXCEEDED, ""),
        (State.OUT_OF_MEMORY, "OUT_OF_MEMORY", Secondary.FAILED, "ExitCode 137"),
        (State.NODE_LOST, "NODE_FAIL", Secondary.FAILED, "InternalServerError: .* NODE_FAIL"),
        (State.UNKNOWN, "", Secondary.FAILED, "InternalServerError: .* unknown"),
        (State.OVER, "FAILED", Secondary.FAILED, "expected .*/jobs/job to be there on each node"),
    ],
)
def test_jobs_that_slurm_has_ended(job, monkeypatch, state, said, secondary, reason) -> None:
    Slurm(monkeypatch, state=state, said=said)
    record = SlurmBackend().poll(job)
    assert record.secondary is secondary
    assert record.status.is_terminal
    assert re.search(reason, record.failure_reason)


@pytest.mark.parametrize(
    ("reason", "hosts", "is_over"),
    [
        ("Resources", 2, False),
        ("AssocMaxJobsLimit", 2, False),
        ("PartitionNodeLimit", 2, False),  # nodes are down for a while
        ("PartitionNodeLimit", 3, True),
        ("PartitionTimeLimit", 2, True),
    ],
)
def test_jobs_that_wait(job, monkeypatch, reason, hosts, is_over) -> None:
    record = job.read()
    request = {**record.request, "ResourceConfig": {"InstanceType": "local"}}
    request["ResourceConfig"]["InstanceCount"] = hosts
    job.write(JobRecord.new(request, {}, "", record.created))
    slurm = Slurm(monkeypatch, state=State.PENDING, reason=reason, partition="all")
    record = SlurmBackend().poll(job)
    assert (record.status is Status.FAILED) is is_over
    assert slurm.cancelled == ["7"] * is_over
    if is_over:
        assert reason in record.failure_reason


@pytest.mark.parametrize(
    "known",
    [
        {"state": State.PENDING, "said": "PENDING", "reason": "launch_failed_requeued_held"},
        {"state": State.CANCELLED, "said": "CANCELLED", "nodes": "n1", "exit_code": "0:0"},
    ],
)
def test_a_job_that_slurm_could_not_begin_was_stopped_by_nobody(job, monkeypatch, known) -> None:
    Slurm(monkeypatch, **known)
    record = SlurmBackend().poll(job)
    assert record.status is Status.FAILED
    assert "Slurm could not begin its job 7" in record.failure_reason


def test_what_one_of_several_partitions_says_is_no_end(job, monkeypatch, caplog) -> None:
    Slurm(monkeypatch, state=State.PENDING, reason="PartitionTimeLimit", partition="all,low")
    backend = SlurmBackend()
    with caplog.at_level(logging.WARNING, "smdistributed"):
        for _ in range(2):
            backend.poll(job)
            backend._watched[str(job.path)].asked_at = float("-inf")
    assert not backend.poll(job).status.is_terminal
    (said,) = [each.getMessage() for each in caplog.records]
    assert "PartitionTimeLimit; so it is in one of the partitions all,low" in said


def test_most_nodes_of_several_partitions(tmp_path, monkeypatch) -> None:
    of_a, of_b = "MaxNodes=2 TotalNodes=9", "MaxNodes=UNLIMITED TotalNodes=5"
    says = f'case "$4" in a) echo {of_a};; b) echo {of_b};; esac'
    program(tmp_path / "bin", "scontrol", says, monkeypatch)
    assert commands.most_nodes("a") == 2
    assert commands.most_nodes("a,b") == 5
    assert commands.most_nodes("a,c") is None


def test_a_job_that_waits_again_was_interrupted(job, monkeypatch) -> None:
    now = dt.datetime.now(dt.UTC)
    for secondary in (Secondary.DOWNLOADING, Secondary.TRAINING):
        job.write(job.read().moved(secondary, now))
    Slurm(monkeypatch, state=State.PENDING, said="PENDING", reason="BeginTime", restarts=1)
    assert SlurmBackend().poll(job).secondary is Secondary.INTERRUPTED


def test_a_job_waits_no_longer_than_max_wait(job, monkeypatch) -> None:
    record = job.read()
    job.write(JobRecord.new(record.request, {}, "", record.created - dt.timedelta(seconds=601)))
    slurm = Slurm(monkeypatch, state=State.PENDING, reason="Resources")
    assert SlurmBackend().poll(job).secondary is Secondary.MAX_WAIT_TIME_EXCEEDED
    assert slurm.cancelled == ["7"]


def test_slurm_that_does_not_answer_is_no_news_of_a_job(job, monkeypatch) -> None:
    def no_answer(number: str) -> SlurmJob:
        raise BackendError("no answer")

    monkeypatch.setattr(commands, "look_at", no_answer)
    assert SlurmBackend().poll(job).secondary is Secondary.STARTING


def test_a_job_that_was_never_submitted_ends(job, monkeypatch) -> None:
    (job.path / "slurm.json").unlink()
    assert SlurmBackend().poll(job).secondary is Secondary.STARTING  # it is about to be
    monkeypatch.setattr(slurm_backend, "_UNSUBMITTED_S", 0.0)
    record = SlurmBackend().poll(job)
    assert "was never given to Slurm" in record.failure_reason
