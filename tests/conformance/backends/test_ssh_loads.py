# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Much data, many files, full disks and stops, on hosts with SSH."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled

from smdistributed.launch.jobs.states import Secondary, Status
from tests.clusters.ssh import SshHosts
from tests.conformance.backends.ssh_jobs import SshJobs

WAITS = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: (print("told to end", flush=True), sys.exit(0)))
    print("waiting", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def jobs(two_ssh_hosts: SshHosts, tmp_path: Path) -> Iterator[SshJobs]:
    made = SshJobs(tmp_path, two_ssh_hosts)
    yield made
    made.require_nothing_left(seconds=30)


def channel(uri: str, name: str = "train") -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated"}
    return {"InputDataConfig": [{"ChannelName": name, "DataSource": {"S3DataSource": source}}]}


def most_memory(pid: int) -> int:
    """In bytes, of a process that lives; 0 if it does not."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) << 10 if found else 0
    return 0


def test_stop_while_it_connects(jobs: SshJobs) -> None:
    job = jobs.started(WAITS)
    jobs.backend.stop(job, "the test says so")
    assert jobs.ended(job).secondary is Secondary.STOPPED


def test_stop_while_data_are_copied(jobs: SshJobs) -> None:
    """They are half a minute's worth."""
    data = jobs.home.buckets / "b" / "train"
    data.mkdir(parents=True)
    with (data / "large").open("wb") as file:
        file.truncate(3 << 30)
    job = jobs.started(WAITS, **channel("s3://b/train/"))
    jobs.wait(job, lambda record: record.secondary is Secondary.DOWNLOADING)
    began = time.monotonic()
    jobs.backend.stop(job, "the test says so")
    record = jobs.ended(job)
    assert record.secondary is Secondary.STOPPED
    assert time.monotonic() - began < scaled(10)
    assert not any(each.secondary is Secondary.TRAINING for each in record.transitions)


@pytest.mark.slow
def test_max_run_is_over(jobs: SshJobs) -> None:
    job = jobs.started(WAITS, StoppingCondition={"MaxRuntimeInSeconds": 1})
    record = jobs.ended(job)
    assert record.secondary is Secondary.MAX_RUNTIME_EXCEEDED
    assert sum("told to end" in line for line in jobs.lines(job)) == 2


@pytest.mark.slow
def test_many_small_files_and_two_jobs_at_once(jobs: SshJobs) -> None:
    data = jobs.home.buckets / "b" / "train"
    for number in range(3000):
        path = data / f"{number % 30}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
    sums = """
        import os, pathlib
        found = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"]).rglob("*")
        files = [each for each in found if each.is_file()]
        print("sum", len(files), sum(int(each.read_text()) for each in files))
    """
    started = [jobs.started(sums, name=name, **channel("s3://b/train/")) for name in ("a", "b")]
    for job in started:
        assert jobs.ended(job, 60).secondary is Secondary.COMPLETED
        assert jobs.lines(job) == ["sum 3000 4498500"] * 2


def test_logs_of_all_kinds(jobs: SshJobs) -> None:
    job = jobs.started(
        """
        import os, sys
        out = sys.stdout.buffer
        out.write(bytes(range(256)) * 10 + b"\\n")
        out.write(b"x" * (3 << 20))
        out.write(b"end of a line without end")
        out.flush()
        sys.stderr.write("no end of line")
        """,
        hosts=1,
    )
    assert jobs.ended(job).secondary is Secondary.COMPLETED
    text = "".join(jobs.lines(job))
    assert text.count("x") >= 3 << 20
    assert "end of a line without end" in text
    assert "no end of line" in text


@pytest.mark.slow
def test_a_rank_that_prints_without_end_can_be_stopped(jobs: SshJobs) -> None:
    """What it prints was told for ever, and nothing was heard any more."""
    job = jobs.started(
        """
        import sys
        print("begins", flush=True)
        line = b"x" * 999 + b"\\n"
        while True:
            sys.stdout.buffer.write(line * 1000)
        """,
        hosts=1,
    )
    jobs.wait_for_line(job, "begins")
    pid = jobs.process_of(job)
    before = most_memory(pid)
    time.sleep(8)
    assert most_memory(pid) - before < 64 << 20
    for name in jobs.hosts.names:
        for courier in jobs.hosts.machines[name].processes("launch.courier.host"):
            assert most_memory(courier) < 128 << 20
    began = time.monotonic()
    jobs.backend.stop(job, "the test says so")
    assert jobs.ended(job, 60).secondary is Secondary.STOPPED
    assert time.monotonic() - began < scaled(30)
    assert (job.host("algo-1") / "log").stat().st_size > 10 << 20


@pytest.mark.slow
def test_the_memory_of_both_ends_does_not_grow_with_a_checkpoint(jobs: SshJobs) -> None:
    size = 1 << 30
    job = jobs.started(
        f"""
        import os, time
        with open("/opt/ml/checkpoints/new", "wb") as file:
            for _ in range({size >> 20}):
                file.write(os.urandom(1 << 20))
        os.rename("/opt/ml/checkpoints/new", "/opt/ml/checkpoints/large")
        with open("/opt/ml/model/large", "wb") as file:
            file.truncate({size})
        print("saved", flush=True)
        time.sleep(3)
        """,
        hosts=1,
        CheckpointConfig={"S3Uri": "s3://b/run", "LocalPath": "/opt/ml/checkpoints"},
    )
    most: dict[str, int] = {"here": 0, "there": 0}
    here = jobs.process_of(job)
    while not jobs.backend.poll(job).status.is_terminal:
        most["here"] = max(most["here"], most_memory(here))
        for pid in jobs.hosts.machines["host-0"].processes("launch.courier.host"):
            most["there"] = max(most["there"], most_memory(pid))
        time.sleep(0.1)
    assert jobs.backend.poll(job).secondary is Secondary.COMPLETED, jobs.backend.poll(job)
    assert (jobs.home.buckets / "b/run/large").stat().st_size == size
    assert jobs.model(job).is_file()
    assert max(most.values()) < 160 << 20, most


@contextlib.contextmanager
def small_disk(path: Path, size: str, prefix: list[str] | None = None) -> Iterator[None]:
    """A folder that has room for so much."""
    prefix = prefix or []
    subprocess.run([*prefix, "mkdir", "-p", str(path)], check=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(path)]
    subprocess.run([*prefix, *mount], check=True)
    try:
        yield
    finally:
        subprocess.run([*prefix, "umount", "-l", str(path)], check=True)


def test_no_room_for_the_data_on_a_host(two_ssh_hosts: SshHosts, tmp_path: Path) -> None:
    jobs = SshJobs(tmp_path, two_ssh_hosts)
    data = jobs.home.buckets / "b" / "train"
    data.mkdir(parents=True)
    (data / "large").write_bytes(bytes(40 << 20))
    folder = Path.home() / ".smdistributed"
    with small_disk(folder, "8m", two_ssh_hosts.machines["host-1"].command([])):
        job = jobs.started(
            WAITS, RetryStrategy={"MaximumRetryAttempts": 2}, **channel("s3://b/train/")
        )
        record = jobs.ended(job)
        assert record.status is Status.FAILED
        assert record.failure_reason.startswith(
            "ClientError: what the host needs cannot be written"
        )
        assert "host-1" in record.failure_reason
        assert "No space left" in record.failure_reason
        jobs.require_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["model", "checkpoints"])
def test_no_room_for_results_here(where: str, two_ssh_hosts: SshHosts, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    full = tmp_path / "home" / ("jobs" if where == "model" else "buckets/b/run")
    with small_disk(full, "8m"):
        jobs = SshJobs(tmp_path, two_ssh_hosts)
        job = jobs.started(
            f"""
            import time
            with open("/opt/ml/{where}/large", "wb") as file:
                file.write(bytes(40 << 20))
            time.sleep(3)
            """,
            RetryStrategy={"MaximumRetryAttempts": 2},
            CheckpointConfig={"S3Uri": "s3://b/run", "LocalPath": "/opt/ml/checkpoints"},
        )
        record = jobs.ended(job)
        assert record.status is Status.FAILED
        assert record.failure_reason.startswith("ClientError: ")
        assert "No space left" in record.failure_reason
        assert not any(each.secondary is Secondary.INTERRUPTED for each in record.transitions)
        if where == "checkpoints":
            assert any("could not be copied to" in line for line in jobs.lines(job))
            assert os.listdir(full) == []
        jobs.require_nothing_left()
