# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What becomes of a job on hosts with SSH if something dies, or is silent.

Each time: it is known within 15 s and a little, the job goes on from its checkpoints if it may be
tried again, on another machine if one is gone, it ends with the numbers of a job that nobody has
disturbed, and nothing is left.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machine_speed import scaled

from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary, Status
from tests.clusters.ssh import SshHosts, ssh_hosts, why_not
from tests.conformance.backends.ssh_jobs import SshJobs

TRAINS = """
    import glob, json, os, time
    host = os.environ["SM_CURRENT_HOST"]
    state = {"step": 0, "loss": 1.0}
    files = glob.glob(f"/opt/ml/checkpoints/{host}-*.json")
    if files:
        state = json.load(open(max(files)))
        print("goes on from step", state["step"], flush=True)
    while state["step"] < 30:
        time.sleep(0.15)
        state = {"step": state["step"] + 1, "loss": state["loss"] * 0.9 + 0.001}
        if state["step"] % 5 == 0:
            path = f"/opt/ml/checkpoints/{host}-{state['step']:02}.json"
            with open(path + ".new", "w") as file:
                json.dump(state, file)
            os.rename(path + ".new", path)
        print(f"step {state['step']} loss {state['loss']:.9f}", flush=True)
    open(os.environ["SM_MODEL_DIR"] + "/" + host, "w").write(str(state["loss"]))
"""
CHECKPOINTS = {"CheckpointConfig": {"S3Uri": "s3://b/run", "LocalPath": "/opt/ml/checkpoints"}}
RETRIES = {"RetryStrategy": {"MaximumRetryAttempts": 2}}
UNDISTURBED = 1.0
for _ in range(30):
    UNDISTURBED = UNDISTURBED * 0.9 + 0.001

KNOWN_S = 15.0
_BAD = "host-1"


@pytest.fixture(scope="module")
def hosts() -> Iterator[SshHosts]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with ssh_hosts() as hosts:
        yield hosts


def kill_first(number: int, *words: str) -> Callable[[SshHosts], None]:
    """Of the processes of a machine that have these words, the first: others are its children."""

    def kill(hosts: SshHosts) -> None:
        os.kill(min(hosts.machines[_BAD].processes(*words)), number)

    return kill


def kill_client(hosts: SshHosts) -> None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes().split(b"\0")
            if command[0] == b"ssh" and {str(hosts.config).encode(), _BAD.encode()} <= set(command):
                os.kill(int(path.parent.name), signal.SIGKILL)


FAULTS = {
    "the agent is killed": (
        kill_first(signal.SIGKILL, "launch.agent.agent"),
        "the agent of host algo-2 (host-1) ended with status -9",
    ),
    "the client is killed": (kill_client, "the agent of host algo-2 (host-1) is lost"),
    "the agent is stopped": (
        kill_first(signal.SIGSTOP, "launch.agent.agent"),
        "the agent of host algo-2 gave no sign of life for 15 s",
    ),
    "the courier is killed": (
        kill_first(signal.SIGKILL, "launch.courier.host"),
        "the agent of host algo-2 (host-1) is lost: the connection ended with status",
    ),
    "the courier is stopped": (
        kill_first(signal.SIGSTOP, "launch.courier.host"),
        "the agent of host algo-2 (host-1) is lost: it gave no sign of life for 15 s",
    ),
    "the server's process is killed": (
        kill_first(signal.SIGKILL, "sshd: root@notty"),
        "the agent of host algo-2 (host-1) is lost: the connection ended with status 255",
    ),
}
QUICK = ("the client is killed",)


@pytest.mark.parametrize(
    "fault",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in FAULTS],
)
def test_a_job_goes_on_from_its_checkpoints(fault: str, hosts: SshHosts, tmp_path: Path) -> None:
    jobs = SshJobs(tmp_path, hosts)
    do, said = FAULTS[fault]
    job = jobs.started(TRAINS, **CHECKPOINTS, **RETRIES)
    jobs.wait_for_line(job, "step 22 ", 2)
    began = dt.datetime.now(dt.UTC)
    do(hosts)
    record = jobs.ended(job, 60)
    require_undisturbed(jobs, job, record)
    (lost,) = [each for each in record.transitions if each.secondary is Secondary.INTERRUPTED]
    assert lost.message.startswith(f"InternalServerError: {said}")
    assert (lost.start - began).total_seconds() < scaled(KNOWN_S + 5)
    jobs.require_nothing_left(seconds=45 if "stopped" in fault else 10)


def require_undisturbed(jobs: SshJobs, job: JobDirectory, record: JobRecord) -> None:
    assert record.secondary is Secondary.COMPLETED, record
    lines = jobs.lines(job)
    assert sum("goes on from step" in line for line in lines) == 2
    finals = [line for line in lines if line.startswith("step 30 ")]
    assert finals == [f"step 30 loss {UNDISTURBED:.9f}"] * 2
    assert [(name, value) for name, value, _ in record.metrics] == [
        ("loss", pytest.approx(UNDISTURBED, abs=1e-9))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["power_off", "silence"])
def test_a_job_goes_on_on_another_machine(how: str, tmp_path: Path) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with ssh_hosts(3) as hosts:
        jobs = SshJobs(tmp_path, hosts)
        job = jobs.started(TRAINS, **CHECKPOINTS, **RETRIES)
        jobs.wait_for_line(job, "step 22 ", 2)
        if how == "power_off":
            hosts.machines[_BAD].power_off()
        else:
            hosts.links[_BAD].silence()
        began = dt.datetime.now(dt.UTC)
        record = jobs.ended(job, 90)
        require_undisturbed(jobs, job, record)
        (lost,) = [each for each in record.transitions if each.secondary is Secondary.INTERRUPTED]
        assert "host algo-2 (host-1) is lost" in lost.message
        assert (lost.start - began).total_seconds() < scaled(KNOWN_S + 5)
        machines = [each["machine"] for each in job.events() if each["event"] == "host"]
        assert machines == ["host-0", "host-1", "host-0", "host-2"]
        jobs.require_nothing_left(
            hosts.names if how == "silence" else ["host-0", "host-2"], seconds=30
        )


@pytest.mark.slow
def test_a_script_that_fails_ends_all_hosts(hosts: SshHosts, tmp_path: Path) -> None:
    jobs = SshJobs(tmp_path, hosts)
    job = jobs.started(TRAINS)
    jobs.wait_for_line(job, "step 3 ", 2)
    machine = hosts.machines[_BAD]
    os.kill(max(machine.processes("train.py")), signal.SIGKILL)
    began = time.monotonic()
    record = jobs.ended(job)
    assert time.monotonic() - began < scaled(10)
    assert record.status is Status.FAILED
    assert "ExitCode 137" in record.failure_reason
    assert "rank 1 on algo-2" in record.failure_reason
    jobs.require_nothing_left()


@pytest.mark.slow
def test_the_job_s_process_is_killed(hosts: SshHosts, tmp_path: Path) -> None:
    jobs = SshJobs(tmp_path, hosts)
    job = jobs.started(TRAINS, **CHECKPOINTS)
    jobs.wait_for_line(job, "step 22 ", 2)
    os.kill(jobs.process_of(job), signal.SIGKILL)
    record = jobs.ended(job, 20)
    assert record.status is Status.FAILED
    assert record.failure_reason.startswith("InternalServerError: the process of the job")
    jobs.require_nothing_left(seconds=20)
    for kept in (jobs.home.buckets / "b/run").iterdir():
        json.loads(kept.read_text())  # whole
    job = jobs.started(TRAINS, name="again", **CHECKPOINTS)
    require_undisturbed(jobs, job, jobs.ended(job))


@pytest.mark.slow
def test_spot_instances_that_are_interrupted(hosts: SshHosts, tmp_path: Path) -> None:
    jobs = SshJobs(tmp_path, hosts)
    spot = {
        "EnableManagedSpotTraining": True,
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 3600},
    }
    job = jobs.started(TRAINS, **CHECKPOINTS, **spot)
    jobs.wait_for_line(job, "step 22 ", 2)
    job.ask_to_interrupt("the test says so")
    require_undisturbed(jobs, job, jobs.ended(job))
    jobs.require_nothing_left()


@pytest.mark.slow
def test_the_job_s_process_is_stopped_and_goes_on(hosts: SshHosts, tmp_path: Path) -> None:
    jobs = SshJobs(tmp_path, hosts)
    job = jobs.started(TRAINS.replace("< 30", "< 220"), **CHECKPOINTS, **RETRIES)
    jobs.wait_for_line(job, "step 12 ", 2)
    pid = jobs.process_of(job)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    while any(hosts.machines[name].processes("train.py") for name in hosts.names):
        assert time.monotonic() - began < scaled(KNOWN_S + 10)  # nobody hears of the ranks
        time.sleep(0.1)
    os.kill(pid, signal.SIGCONT)
    record = jobs.ended(job, 60)
    assert record.secondary is Secondary.COMPLETED
    (lost,) = [each for each in record.transitions if each.secondary is Secondary.INTERRUPTED]
    assert "is lost: " in lost.message
    jobs.require_nothing_left(seconds=20)


def test_what_a_machine_has_left_goes_with_the_next_job(hosts: SshHosts, tmp_path: Path) -> None:
    """One that was switched off cannot remove it, and nobody else did."""
    jobs = SshJobs(tmp_path, hosts)
    above = "~/.smdistributed/hosts"
    hosts.run(
        _BAD,
        f"mkdir -p {above}/{_BAD}-dead/data {above}/elsewhere-1; touch {above}/{_BAD}-dead/data/x",
    )
    try:
        assert jobs.ended(jobs.started("print('here')")).secondary is Secondary.COMPLETED
        assert hosts.run(_BAD, f"ls {above}") == "elsewhere-1\n"  # another machine's, perhaps
    finally:
        hosts.run(_BAD, f"rm -rf {above}")


@pytest.mark.slow
def test_a_machine_that_is_lost_with_its_results(hosts: SshHosts, tmp_path: Path) -> None:
    jobs = SshJobs(tmp_path, hosts)
    large = """
    with open(os.environ["SM_MODEL_DIR"] + "/large-" + host, "wb") as file:
        file.write(bytes(400 << 20))
"""
    job = jobs.started(TRAINS.rstrip() + large, **CHECKPOINTS, **RETRIES)
    brought = job.host("algo-2") / "brought.tar"
    jobs.wait(job, lambda _: brought.exists())
    kill_client(hosts)
    record = jobs.ended(job, 60)
    assert record.secondary is Secondary.COMPLETED, record
    (lost,) = [each for each in record.transitions if each.secondary is Secondary.INTERRUPTED]
    assert lost.message.startswith("InternalServerError: host-1 is lost: ")
    assert sum("goes on from step 30" in line for line in jobs.lines(job)) == 2
    assert not brought.exists()
    jobs.require_nothing_left()
