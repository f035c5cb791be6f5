# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs on a real Slurm: what ends them, who knows when, and that nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled

from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.slurm.backend import SlurmBackend
from smdistributed.launch.backends.slurm.files import SlurmFiles
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary, Status
from tests.clusters.machine import Machine
from tests.clusters.slurm import Slurm, slurm, why_not
from tests.conformance.backends.test_backends import job_of, lines_of

WAITS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("told to end", flush=True), sys.exit(0)))
print("waiting", flush=True)
time.sleep(60)
"""

# Counts in a checkpoint how far it is, and says from where it goes on.
COUNTS = """
import os, pathlib, sys, time
kept = pathlib.Path(os.environ["SM_MODEL_DIR"]).parent / "checkpoints" / os.environ["RANK"]
begin = int(kept.read_text()) if kept.exists() else 0
print(f"begins at {begin}", flush=True)
for step in range(begin, 20):
    kept.parent.mkdir(exist_ok=True)
    kept.with_suffix(".new").write_text(str(step + 1))
    os.replace(kept.with_suffix(".new"), kept)
    time.sleep(0.1)
print("loss 20.0", flush=True)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.make()
    return home


@pytest.fixture
def cluster(slurm_cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """The worker's; each test leaves it empty."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.conf))
    yield slurm_cluster
    require_empty(slurm_cluster)


@pytest.fixture
def own_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """One that a test may break."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with slurm(3, lines="PartitionName=low Nodes=n1 MaxTime=1 State=UP") as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        yield cluster


def require_empty(cluster: Slurm) -> None:
    """No job is left, and no process on its nodes but Slurm's own."""
    until = time.monotonic() + scaled(20)
    while True:
        left = [
            (name, pid)
            for name, node in cluster.nodes.items()
            for pid in node.processes()
            if "slurmd" not in command_of(pid)
        ]
        if not left and not cluster.jobs():
            return
        assert time.monotonic() < until, (left, [command_of(pid) for _, pid in left])
        time.sleep(0.05)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "slurmd gone"


def wait(
    job: JobDirectory, holds: Callable[[JobRecord], bool], seconds: float = 60.0
) -> tuple[JobRecord, float]:
    """Polls as one who waits does. Returns: the record; and when it was so."""
    backend = SlurmBackend()
    until = time.monotonic() + scaled(seconds)
    while not holds(record := backend.poll(job)):
        assert time.monotonic() < until, (record, logs_of(job))
        time.sleep(0.1)
    return record, time.monotonic()


def wait_for_both(backend: SlurmBackend, job: JobDirectory, text: str) -> None:
    """Until the ranks of both hosts have printed it."""
    until = time.monotonic() + scaled(60)
    while sum(text in line for line in lines_of(backend, job)) < 2:
        assert time.monotonic() < until, logs_of(job)
        time.sleep(0.05)


def has_ended(record: JobRecord) -> bool:
    return record.status.is_terminal


def logs_of(job: JobDirectory) -> str:
    files = [*job.path.rglob("*.log"), *job.path.rglob("log")]
    return "\n".join(f"{each}: {each.read_text(errors='replace')}" for each in files)


def changed(job: JobDirectory, **request: Any) -> None:
    """The request has more; of a job that was not submitted yet."""
    document = json.loads((job.path / "job.json").read_text())
    document["Request"] |= request
    (job.path / "job.json").write_text(json.dumps(document))


def node_of(cluster: Slurm, job: JobDirectory, host: str) -> Machine:
    """Where a host is, in the last attempt."""
    found = [each for each in job.events() if each["event"] == "host" and each["host"] == host]
    return cluster.nodes[found[-1]["node"]]


def kill(node: Machine, words: str, number: int = signal.SIGKILL) -> None:
    """Those whose parents are of another command: not the guardian of an agent."""
    pids = node.processes(words)
    assert pids, (node, words)
    for pid in pids:
        if parent_of(pid) not in pids:
            os.kill(pid, number)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def of_attempts(record: JobRecord) -> list[Secondary]:
    return [each.secondary for each in record.transitions]


# --- by Slurm's commands -----------------------------------------------------------------------


def test_a_job_that_somebody_cancels_is_stopped(cluster: Slurm, home: Home) -> None:
    job = job_of(home, WAITS, hosts=2)
    backend = SlurmBackend()
    backend.submit(job)
    wait_for_both(backend, job, "waiting")
    cluster.run("scancel", str(SlurmFiles(job).number()))
    record, _ = wait(job, has_ended)
    assert record.secondary is Secondary.STOPPED
    assert sum("told to end" in line for line in lines_of(backend, job)) == 2


def test_a_job_that_waits_for_nodes_is_stopped_at_once(cluster: Slurm, home: Home) -> None:
    number = cluster.run(
        *("sbatch", "--parsable", "--exclusive", "-N2", "-o/dev/null", "--wrap", "sleep 100")
    ).strip()
    job = job_of(home, WAITS, hosts=2)
    backend = SlurmBackend()
    backend.submit(job)
    record = backend.poll(job)
    assert record.secondary is Secondary.STARTING
    backend.stop(job, "not now")
    record, _ = wait(job, has_ended, 10)
    assert record.secondary is Secondary.STOPPED
    backend.clean(job)
    assert [each["job_id"] for each in cluster.jobs()] == [int(number)]  # another's
    cluster.run("scancel", number)


@pytest.mark.parametrize(
    ("hosts", "settings", "reason"),
    [(5, "", "PartitionNodeLimit"), (1, "[slurm]\ncpus_per_node = 30", "PartitionConfig")],
)
def test_a_job_that_asks_for_too_much_fails(cluster, home, hosts, settings, reason) -> None:
    home.config.write_text(settings)
    job = job_of(home, WAITS, hosts=hosts)
    SlurmBackend().submit(job)
    record, _ = wait(job, has_ended, 15)
    assert record.status is Status.FAILED
    assert f"Slurm can never run this job: {reason}" in record.failure_reason
    assert "scontrol show partition all" in record.failure_reason


@pytest.mark.slow
def test_max_run_is_ours(cluster: Slurm, home: Home) -> None:
    job = job_of(home, WAITS, hosts=2)
    changed(job, StoppingCondition={"MaxRuntimeInSeconds": 2})
    backend = SlurmBackend()
    backend.submit(job)
    record, _ = wait(job, has_ended)
    assert record.secondary is Secondary.MAX_RUNTIME_EXCEEDED
    assert sum("told to end" in line for line in lines_of(backend, job)) == 2


def test_variables_of_a_site_do_not_matter(
    cluster: Slurm, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SBATCH_EXPORT", "SLURM_EXPORT_ENV"):
        monkeypatch.setenv(name, "NONE")
    monkeypatch.setenv("MINE", 'it\'s $here; "yes"')
    job = job_of(home, "import os; print('told', os.environ['MINE'])", hosts=2)
    backend = SlurmBackend()
    backend.submit(job)
    record, _ = wait(job, has_ended)
    assert record.secondary is Secondary.COMPLETED, (record, logs_of(job))
    assert sum('told it\'s $here; "yes"' in line for line in lines_of(backend, job)) == 2


# --- what is refused at once -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('partition = "nosuch"', "invalid partition specified: nosuch"),
        ("gpus_per_node = 3", "Invalid generic resource"),
        ('options = ["--nosuch"]', "unrecognized option"),
    ],
)
def test_what_slurm_refuses_is_said_at_once(cluster, home, settings, said) -> None:
    home.config.write_text(f"[slurm]\n{settings}\n")
    job = job_of(home, WAITS)
    with pytest.raises(BackendError, match=r"scontrol ping; sinfo") as refused:
        SlurmBackend().submit(job)
    assert said in str(refused.value)
    record = SlurmBackend().poll(job)
    assert record.status is Status.FAILED
    assert said in record.failure_reason


def test_without_slurms_commands_it_is_said_at_once(home, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="sbatch was not found on PATH"):
        SlurmBackend().submit(job_of(home, WAITS))


def test_smd_ends_with_status_3(home, tmp_path) -> None:
    (tmp_path / "train.py").write_text("")
    done = subprocess.run(
        [*(sys.executable, "-m", "smdistributed.smd.main"), "run", "--backend=slurm", "train.py"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path), "SMD_HOME": str(home.root), "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert "sbatch was not found on PATH" in done.stderr


def test_a_controller_that_is_down_is_known_within_ten_seconds(
    own_cluster: Slurm, home: Home
) -> None:
    own_cluster.controller.power_off()
    begin = time.monotonic()
    with pytest.raises(BackendError, match="scontrol ping"):
        SlurmBackend().submit(job_of(home, WAITS))
    assert time.monotonic() - begin < scaled(10)


@pytest.mark.parametrize("node", [pytest.param("n1", marks=pytest.mark.slow), "n2"])
def test_a_node_that_does_not_see_the_jobs_is_named(
    own_cluster: Slurm, home: Home, node: str
) -> None:
    hide = ["mount", "-t", "tmpfs", "none", str(home.root)]
    subprocess.run(own_cluster.nodes[node].command(hide), check=True)
    job = job_of(home, WAITS, hosts=2)
    SlurmBackend().submit(job)
    record, _ = wait(job, has_ended, 30)
    assert record.status is Status.FAILED
    assert "InternalServerError" in record.failure_reason
    for text in ("all nodes", "share", str(job.path)):
        assert text in record.failure_reason
    require_empty(own_cluster)


# --- what dies ---------------------------------------------------------------------------------


FAULTS: dict[str, Callable[[Machine], None]] = {
    "agent": lambda node: kill(node, "launch.agent.agent"),
    "stopped-agent": lambda node: kill(node, "launch.agent.agent", signal.SIGSTOP),
    "task": lambda node: kill(node, "slurm.node"),
    "node": lambda node: node.power_off(),
}


@pytest.mark.parametrize(
    "fault", ["agent", *(pytest.param(each, marks=pytest.mark.slow) for each in (*FAULTS,)[1:])]
)
def test_a_lost_host_fails_the_job_in_time(own_cluster: Slurm, home: Home, fault: str) -> None:
    job = job_of(home, WAITS, hosts=2)
    backend = SlurmBackend()
    backend.submit(job)
    wait_for_both(backend, job, "waiting")
    begin = time.monotonic()
    FAULTS[fault](node_of(own_cluster, job, "algo-2"))
    record, ended = wait(job, has_ended)
    assert record.status is Status.FAILED
    assert record.failure_reason.startswith("InternalServerError: the agent of host algo-2")
    print(fault, ended - begin, record.failure_reason)
    assert ended - begin < scaled(25)
    if fault != "node":  # for that one Slurm waits
        require_empty(own_cluster)


@pytest.mark.slow
def test_a_host_without_the_daemon_of_its_step_is_tried_again(
    own_cluster: Slurm, home: Home
) -> None:
    """SIGKILL of slurmstepd: nobody would reach its tasks any more."""
    job = job_of(home, COUNTS.replace("0.1", "0.5"), hosts=2)
    changed(
        job,
        RetryStrategy={"MaximumRetryAttempts": 1},
        CheckpointConfig={"S3Uri": "s3://b/kept", "LocalPath": "/opt/ml/checkpoints"},
    )
    backend = SlurmBackend()
    backend.submit(job)
    wait_for_both(backend, job, "begins")
    time.sleep(1)
    begin = time.monotonic()
    kill(node_of(own_cluster, job, "algo-2"), "slurmstepd")
    record, known = wait(job, lambda record: record.secondary is Secondary.INTERRUPTED)
    assert known - begin < scaled(15)
    assert "what keeps it on its machine is gone" in record.transitions[-1].message
    record, _ = wait(job, has_ended)
    assert record.status is Status.COMPLETED, (record, logs_of(job))
    assert [value for _, value, _ in record.metrics] == [20.0]
    assert not all("begins at 0" in line for line in lines_of(backend, job) if "begins" in line)
    require_empty(own_cluster)


@pytest.mark.slow
def test_a_job_process_that_dies_ends_the_job(own_cluster: Slurm, home: Home) -> None:
    job = job_of(home, WAITS, hosts=2)
    backend = SlurmBackend()
    backend.submit(job)
    wait_for_both(backend, job, "waiting")
    node = node_of(own_cluster, job, "algo-1")
    kill(node, "slurm.runner")
    record, _ = wait(job, has_ended)
    assert record.status is Status.FAILED
    assert "the job's process is gone. Slurm says" in record.failure_reason
    require_empty(own_cluster)


@pytest.mark.slow
def test_a_job_whose_process_is_stopped_ends(own_cluster: Slurm, home: Home) -> None:
    job = job_of(home, WAITS, hosts=2)
    backend = SlurmBackend()
    backend.submit(job)
    wait_for_both(backend, job, "waiting")
    kill(node_of(own_cluster, job, "algo-1"), "slurm.runner", signal.SIGSTOP)
    record, _ = wait(job, has_ended)
    assert record.status is Status.FAILED
    assert "gave no sign of life" in record.failure_reason
    require_empty(own_cluster)


@pytest.mark.slow
def test_a_job_whose_first_node_is_gone_ends(own_cluster: Slurm, home: Home) -> None:
    job = job_of(home, WAITS, hosts=2)
    backend = SlurmBackend()
    backend.submit(job)
    wait_for_both(backend, job, "waiting")
    begin = time.monotonic()
    node_of(own_cluster, job, "algo-1").power_off()
    record, ended = wait(job, has_ended)
    assert record.status is Status.FAILED
    assert "gave no sign of life" in record.failure_reason
    assert ended - begin < scaled(25)


# --- and goes on -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_lost_host_is_tried_again(cluster: Slurm, home: Home) -> None:
    job = job_of(home, COUNTS, hosts=2)
    changed(
        job,
        RetryStrategy={"MaximumRetryAttempts": 1},
        CheckpointConfig={"S3Uri": "s3://b/kept", "LocalPath": "/opt/ml/checkpoints"},
    )
    backend = SlurmBackend()
    backend.submit(job)
    wait_for_both(backend, job, "begins")
    time.sleep(1)
    kill(node_of(cluster, job, "algo-2"), "launch.agent.agent")
    record, _ = wait(job, has_ended)
    assert record.status is Status.COMPLETED, (record, logs_of(job))
    assert of_attempts(record).count(Secondary.STARTING) == 2
    assert [value for _, value, _ in record.metrics] == [20.0]
    assert not all("begins at 0" in line for line in lines_of(backend, job) if "begins" in line)


SPOT = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200},
}


@pytest.mark.slow  # 30 s: Slurm must find out for itself that the node is down
@pytest.mark.parametrize("asked", [{"RetryStrategy": {"MaximumRetryAttempts": 1}}, SPOT])
def test_a_lost_node_is_replaced_by_another(home, monkeypatch, asked) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with slurm(3, slurmd_timeout_s=5) as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        job = job_of(home, COUNTS, hosts=2)
        changed(
            job,
            **asked,
            CheckpointConfig={"S3Uri": "s3://b/kept", "LocalPath": "/opt/ml/checkpoints"},
        )
        backend = SlurmBackend()
        backend.submit(job)
        wait_for_both(backend, job, "begins")
        lost = node_of(cluster, job, "algo-2")
        time.sleep(1)
        lost.power_off()
        record, _ = wait(job, has_ended, 120)
        assert record.status is Status.COMPLETED, (record, logs_of(job))
        assert lost not in [node_of(cluster, job, host) for host in ("algo-1", "algo-2")]
        assert [value for _, value, _ in record.metrics] == [20.0]


def test_a_requeued_job_goes_on(cluster: Slurm, home: Home) -> None:
    job = job_of(home, COUNTS, hosts=2)
    changed(
        job,
        **SPOT,
        CheckpointConfig={"S3Uri": "s3://b/kept", "LocalPath": "/opt/ml/checkpoints"},
    )
    backend = SlurmBackend()
    backend.submit(job)
    wait_for_both(backend, job, "begins")
    time.sleep(1)
    cluster.run("scontrol", "requeue", str(SlurmFiles(job).number()))
    record, _ = wait(job, lambda record: record.secondary is Secondary.INTERRUPTED)
    record, _ = wait(job, has_ended)
    assert record.status is Status.COMPLETED, (record, logs_of(job))
    assert of_attempts(record) == [
        *("Starting", "Downloading", "Training", "Interrupted"),
        *("Starting", "Downloading", "Training", "Uploading", "Completed"),
    ]
    assert [value for _, value, _ in record.metrics] == [20.0]
    assert not all("begins at 0" in line for line in lines_of(backend, job) if "begins" in line)
