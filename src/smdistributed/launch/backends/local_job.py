# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The process of a job on this machine: `python -m ...backends.local_job FOLDER LOCK`.

    plan       what each host's agent is to do
    agents     one for each host, in a session of its own: they outlive this process
    watch      until all have ended; has them end together when one fails, or somebody says stop
    end        artifacts and record

Nobody waits for this process: who has started the job may be gone, and reads the job's directory.
LOCK is the descriptor of the job's lock, which who has made the job took: somebody has it always.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from smdistributed._common.errors import SmdistributedError
from smdistributed.launch.agent.ending import end_job, first_failure, host_directories, now
from smdistributed.launch.agent.mounts import MOUNTED, Step, available_step, wrapped
from smdistributed.launch.agent.placement import make_views
from smdistributed.launch.agent.plan import End, HostDirectory, Phase, Plan, Report
from smdistributed.launch.contract.files import channel_config
from smdistributed.launch.contract.hyperparameters import Hyperparameters, decode
from smdistributed.launch.contract.processes import is_distributed, processes_per_host
from smdistributed.launch.contract.resources import (
    HOMOGENEOUS,
    InstanceGroup,
    Resources,
    host_names,
)
from smdistributed.launch.data.sources import sources_of
from smdistributed.launch.environment import LOOPBACK, free_port, visible_accelerators
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.files import write_whole
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary
from smdistributed.launch.storage import local_path

__all__ = ["LocalJob", "main", "plans_of"]

_POLL_S = 0.05
_STOP_GRACE_S = 120.0
_FAILURE_GRACE_S = 5.0
_END_S = 10.0
# For the last checkpoints, after the ranks have ended.
_SAVE_S = 300.0
_MPI_OPTIONS = (
    "sagemaker_mpi_custom_mpi_options",
    "sagemaker_distributed_dataparallel_custom_mpi_options",
)
# What runs scripts in Amazon's containers.
_MODULES = {
    "pytorch": "sagemaker_pytorch_container.training:main",
    "tensorflow": "sagemaker_tensorflow_container.training:main",
}


def plans_of(record: JobRecord, home: Home) -> list[Plan]:
    """What the agent of each host is to do.

    Args:
        record: of the job.
        home: where the store lies.

    Raises:
        ConfigurationError: the request cannot be met on this machine.
    """
    request = record.request
    groups = _groups(request["ResourceConfig"])
    members = [(host, group.name) for group in groups for host in group.hosts]
    hosts = [host for host, _ in members]
    texts: dict[str, str] = dict(request.get("HyperParameters", {}))
    hyperparameters = Hyperparameters.of(decode(texts))
    framework = hyperparameters.framework
    mode = request["AlgorithmSpecification"].get("TrainingInputMode", "File")
    channels = {each["ChannelName"]: each for each in request.get("InputDataConfig", [])}
    data = {name: sources_of(each, mode, members, home) for name, each in channels.items()}
    archive = str(hyperparameters.job.get("sagemaker_submit_directory", ""))
    kind = record.local.get("BaseFramework") or record.local.get("Framework")
    module = _MODULES.get(str(kind), "")
    environment = {
        **({"SM_FRAMEWORK_MODULE": module} if module else {}),
        **_exported(framework),
        **request.get("Environment", {}),
    }
    kept = request.get("CheckpointConfig", {})
    num_gpus = visible_accelerators({**os.environ, **environment})
    if num_gpus >= len(hosts):  # each host has its share (`agent`)
        num_gpus //= len(hosts)
    port = free_port()
    return [
        Plan(
            host=host,
            index=index,
            num_hosts=len(hosts),
            processes=processes_per_host(framework, groups[0].instance_type, num_gpus),
            is_distributed=is_distributed(framework),
            master_address=LOOPBACK,
            master_port=port,
            resources=Resources(host, groups, network_interface="lo").to_json(),
            hyperparameters=texts,
            channels={
                name: channel_config(each, mode)
                for name, each in channels.items()
                if host in data[name]
            },
            sources={name: vars(each[host]) for name, each in data.items() if host in each},
            archive=str(local_path(archive, home)) if archive else "",
            environment=environment,
            metrics=list(request["AlgorithmSpecification"].get("MetricDefinitions", [])),
            checkpoints=str(local_path(kept["S3Uri"], home)) if kept else "",
            checkpoints_here=kept.get("LocalPath") or "/opt/ml/checkpoints",
            intermediate=_intermediate(hyperparameters, record.name, home),
        )
        for index, host in enumerate(hosts)
    ]


def _exported(framework: Mapping[str, Any]) -> dict[str, str]:
    """Variables of `custom_mpi_options`, split at spaces as Amazon's containers split them.

    `-x NAME=VALUE`, and `--NCCL_DEBUG LEVEL`. `-x NAME` hands on what is there, as all is here.
    """
    words = [
        word for name in _MPI_OPTIONS for word in str(framework.get(name) or "").strip('"').split()
    ]
    found = {}
    for word, following in itertools.pairwise([*words, ""]):
        name, is_set, value = following.partition("=")
        if word == "-x" and is_set:
            found[name] = value
        elif word == "--NCCL_DEBUG":
            found["NCCL_DEBUG"] = following
    return found


def _intermediate(hyperparameters: Hyperparameters, name: str, home: Home) -> str:
    """Where intermediate output goes; empty if the request does not say."""
    uri = hyperparameters.job.get("sagemaker_s3_output")
    if not uri:
        return ""
    return str(local_path(f"{str(uri).rstrip('/')}/{name}/output/intermediate", home))


def _groups(config: dict[str, Any]) -> tuple[InstanceGroup, ...]:
    asked = config.get("InstanceGroups") or [
        {
            "InstanceGroupName": HOMOGENEOUS,
            "InstanceType": config["InstanceType"],
            "InstanceCount": config["InstanceCount"],
        }
    ]
    groups: list[InstanceGroup] = []
    first = 1
    for each in asked:
        names = host_names(each["InstanceCount"], first)
        groups.append(InstanceGroup(each["InstanceGroupName"], each["InstanceType"], names))
        first += len(names)
    return tuple(groups)


class LocalJob:
    """Of one job.

    Args:
        job: its directory.
    """

    def __init__(self, job: JobDirectory) -> None:
        self._job = job
        self._home = Home(job.path.parent.parent)
        self._agents: list[tuple[HostDirectory, subprocess.Popen[bytes]]] = []
        self._stopped: Secondary | None = None
        self._failure = ""
        self._is_ending = False
        self._signal = 0
        self._end_by: float | None = None

    def run(self) -> None:
        """Does all of it."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note_signal)
        try:
            record = self._job.read()
            self._move(Secondary.DOWNLOADING)
            plans = plans_of(record, self._home)
            write_whole(self._job.path / "token", secrets.token_hex(32).encode())
            step, why = available_step(self._job.path)
            self._job.note("opt-ml", now(), step=step.name, why=why)
            for plan in plans:
                self._start(plan, step)
            self._watch(record.request["StoppingCondition"]["MaxRuntimeInSeconds"])
        except SmdistributedError as error:
            self._failure = self._failure or f"ClientError: {error}"
        except Exception as error:
            what = f"InternalServerError: {type(error).__name__}: {error}"
            self._failure = self._failure or what
        finally:
            self._end_agents()
        end_job(self._job, self._hosts(), self._failure, self._stopped)
        self._job.lock.release()

    def _hosts(self) -> Sequence[HostDirectory]:
        return host_directories(self._job)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    def _move(self, following: Secondary) -> None:
        self._job.write(self._job.read().moved(following, now()))
        self._job.note("state", now(), state=str(following))

    def _start(self, plan: Plan, step: Step) -> None:
        host = HostDirectory(self._job.host(plan.host))
        host.write_plan(plan)
        host.ml.mkdir(mode=0o700, exist_ok=True)
        make_views(host.views, plan.data())
        host.lock.acquire()
        lock = host.lock.descriptor
        command = [sys.executable, "-P", "-m", "smdistributed.launch.agent.agent"]
        command += [str(host.path), str(lock)]
        environ = {**os.environ, **({} if step is Step.NONE else {MOUNTED: "1"})}
        with (host.path / "agent.log").open("ab") as output:
            process = subprocess.Popen(
                wrapped(step, host.ml, command, host.views),
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(lock,),
            )
        host.lock.hand_over()
        self._agents.append((host, process))

    def _watch(self, max_run_s: float) -> None:
        began: float | None = None
        while True:
            have_ended = [process.poll() is not None for _, process in self._agents]
            reports = [host.read_report() for host, _ in self._agents]
            if began is None and all(_is_training(each) for each in reports):
                with contextlib.suppress(OSError):  # a full disk: again, when there is room
                    if not self._is_ending:
                        self._move(Secondary.TRAINING)
                    began = time.monotonic()
            reason = self._job.stop_reason()
            if self._signal:
                reason = f"signal {signal.Signals(self._signal).name}"
            if reason is None or self._is_ending:
                self._look_for_failures(reports, have_ended)
            if all(have_ended):
                return
            if self._end_by is not None and time.monotonic() > self._end_by:
                return  # an agent does not end: what is left of it is killed
            if not self._is_ending:
                if reason is not None:
                    self._stop(Secondary.STOPPED, reason)
                elif began is not None and time.monotonic() - began > max_run_s:
                    self._stop(
                        Secondary.MAX_RUNTIME_EXCEEDED, f"it has run for {max_run_s:g} s, max_run"
                    )
            time.sleep(_POLL_S)

    def _look_for_failures(
        self, reports: Sequence[Report | None], have_ended: Sequence[bool]
    ) -> None:
        if self._stopped is not None:
            return
        self._failure = first_failure(reports) or self._failure
        for (host, process), report, has_ended in zip(
            self._agents, reports, have_ended, strict=True
        ):
            if has_ended and (report is None or report.phase is not Phase.ENDED):
                self._failure = self._failure or (
                    f"InternalServerError: the agent of host {host.name} ended with status"
                    f" {process.returncode} (-n: signal n) before its ranks; see"
                    f" {host.path / 'agent.log'}."
                )
        has_failed_rank = any(
            rank.returncode for report in reports if report is not None for rank in report.ranks
        )
        if (self._failure or has_failed_rank) and not self._is_ending:
            self._end(End("a rank of the job has failed", _FAILURE_GRACE_S))

    def _stop(self, called: Secondary, reason: str) -> None:
        self._stopped = called
        self._move(Secondary.STOPPING)
        self._job.note("stopping", now(), reason=reason)
        self._end(End(reason, _STOP_GRACE_S))

    def _end(self, end: End) -> None:
        self._is_ending = True
        self._end_by = time.monotonic() + end.grace_s + _SAVE_S
        try:
            self._agents[0][0].ask_to_end(end)
        except OSError:  # the disk is full, or the directory is gone
            for _, process in self._agents:
                if process.poll() is None:
                    process.terminate()

    def _end_agents(self) -> None:
        """None is left, however this process came here."""
        if any(process.poll() is None for _, process in self._agents):
            with contextlib.suppress(OSError):  # the directory may be gone
                self._agents[0][0].ask_to_end(End("the job's process ends", 0.0))
        for _, process in self._agents:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()  # its guardian ends the ranks
                process.wait()


def _is_training(report: Report | None) -> bool:
    """Whether its ranks run, or have run."""
    return report is not None and (report.phase is Phase.TRAINING or bool(report.ranks))


def main() -> int:
    """Runs the job of the directory that is the argument."""
    job = JobDirectory(Path(sys.argv[1]))
    job.lock.adopt(int(sys.argv[2]))
    LocalJob(job).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
