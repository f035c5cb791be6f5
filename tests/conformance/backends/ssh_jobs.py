# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs on hosts with SSH, and what is left of them on both ends."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from machine_speed import scaled

from smdistributed.launch.backends.engines import Backends
from smdistributed.launch.data.settings import Settings
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory, create_job
from smdistributed.launch.jobs.record import JobRecord
from tests.clusters.ssh import SshHosts


class SshJobs:
    """Of one home directory on this machine.

    Args:
        folder: for it.
        hosts: machines that run.
        names: of those that the settings have; None: all.
        more: lines of the table `ssh` of the settings.
    """

    def __init__(
        self, folder: Path, hosts: SshHosts, names: Sequence[str] | None = None, more: str = ""
    ) -> None:
        self.hosts = hosts
        self.home = Home(folder / "home")
        self.home.make()
        self.home.config.write_text(
            textwrap.dedent(
                f"""
                default_backend = "ssh"
                [ssh]
                hosts = {json.dumps(list(hosts.names if names is None else names))}
                python = {json.dumps(sys.executable)}
                command = ["ssh", "-F", "{hosts.config}"]
                """
            )
            + more
        )
        self.backend = Backends(lambda: Settings.of(self.home).default_backend)

    def create(self, script: str, hosts: int = 2, name: str = "job", **request: Any) -> Any:
        """A job whose lock this process has.

        Args:
            script: of each host's single process.
            hosts: how many.
            name: of the job.
            request: more of its document, or other than the least.
        """
        sources = self.home.buckets / "b" / f"{name}.tar.gz"
        sources.parent.mkdir(parents=True, exist_ok=True)
        file = self.home.root / f"{name}.py"
        file.write_text(textwrap.dedent(script))
        with tarfile.open(sources, "w:gz") as tar:
            tar.add(file, "train.py")
        hyperparameters = {
            "sagemaker_program": "train.py",
            "sagemaker_submit_directory": f"s3://b/{name}.tar.gz",
        }
        document = {
            "TrainingJobName": name,
            "AlgorithmSpecification": {
                "TrainingInputMode": "File",
                "MetricDefinitions": [{"Name": "loss", "Regex": "loss ([0-9.]+)"}],
            },
            "HyperParameters": {key: json.dumps(each) for key, each in hyperparameters.items()},
            "RoleArn": "arn:aws:iam::000000000000:role/mine",
            "OutputDataConfig": {"S3OutputPath": "s3://b/out"},
            "ResourceConfig": {
                "InstanceType": "local",
                "InstanceCount": hosts,
                "VolumeSizeInGB": 1,
            },
            "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
            **request,
        }
        arn = f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{name}"
        local = {"Backend": "ssh"}
        now = dt.datetime.now(dt.UTC)
        return create_job(self.home, [name], lambda _: JobRecord.new(document, local, arn, now))

    def started(self, script: str, hosts: int = 2, name: str = "job", **request: Any) -> Any:
        """As `create`; it was submitted."""
        job = self.create(script, hosts, name, **request)
        self.backend.submit(job)
        return job

    def wait(
        self, job: JobDirectory, holds: Callable[[JobRecord], bool], seconds: float = 30
    ) -> JobRecord:
        """Waits until something holds of the job's record."""
        until = time.monotonic() + scaled(seconds)
        while not holds(record := self.backend.poll(job)):
            assert time.monotonic() < until, (record, self.lines(job)[-10:])
            time.sleep(0.05)
        return record

    def ended(self, job: JobDirectory, seconds: float = 30) -> JobRecord:
        """Waits for its end."""
        return self.wait(job, lambda record: record.status.is_terminal, seconds)

    def lines(self, job: JobDirectory) -> list[str]:
        """That its ranks have printed."""
        return [line.text.decode(errors="replace") for line in self.backend.logs(job).new()]

    def wait_for_line(self, job: JobDirectory, text: str, count: int = 1) -> None:
        """Waits until some ranks have printed it."""
        self.wait(job, lambda _: sum(text in line for line in self.lines(job)) >= count)

    def model(self, job: JobDirectory) -> Path:
        """The archive of its model."""
        return self.home.buckets / "b/out" / job.name / "output/model.tar.gz"

    def process_of(self, job: JobDirectory) -> int:
        """The number of the job's own process."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if {os.fsencode(job.path), b"smdistributed.launch.backends.runner"} <= set(words):
                    return int(path.parent.name)
        raise AssertionError(f"{job.name} has no process")

    def left(self, names: Sequence[str] | None = None) -> list[str]:
        """What is left of jobs on machines and here, but for the job's directory."""
        found = [f"here: {command}" for command in _here(str(self.hosts.config))]
        for name in self.hosts.names if names is None else names:
            machine = self.hosts.machines[name]
            for pid in machine.processes("smdistributed"):
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                    found.append(f"{name}: {command.decode(errors='replace')}")
            root = Path(f"/proc/{machine.pid}/root")
            hosts = root / str(Path.home()).lstrip("/") / ".smdistributed" / "hosts"
            with contextlib.suppress(FileNotFoundError):
                folders = [each for each in os.listdir(hosts) if not each.startswith(".")]
                found += [f"{name}: {each}" for each in folders]
            mounts = Path(f"/proc/{machine.pid}/mounts").read_text()
            found += [f"{name}: {each}" for each in mounts.splitlines() if "/opt/ml" in each]
        return found

    def require_nothing_left(self, names: Sequence[str] | None = None, seconds: float = 10) -> None:
        """Waits until nothing is."""
        until = time.monotonic() + scaled(seconds)
        while left := self.left(names):
            assert time.monotonic() < until, left
            time.sleep(0.1)


def _here(*words: str) -> list[str]:
    """Commands of clients on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if command.startswith("ssh ") and all(each in command for each in words):
                found.append(command)
    return found
