# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The process of a job on this machine: `python -m ...backends.local_job FOLDER LOCK`.

    plan       what each host's agent is to do
    agents     one for each host, in a session of its own: they outlive this process
    watch      until all have ended; has them end together when one fails, or somebody says stop
    again      after a failure of the agents, not of the script: as often as the request says; and
               after an interruption, of a job on spot instances
    end        artifacts and record

Nobody waits for this process: who has started the job may be gone, and reads the job's directory.
LOCK is the descriptor of the job's lock, which who has made the job took: somebody has it always.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from smdistributed._common.errors import ConfigurationError, SmdistributedError
from smdistributed.launch.agent.ending import end_job, host_directories, now
from smdistributed.launch.agent.mounts import available_step
from smdistributed.launch.agent.plan import End, Plan
from smdistributed.launch.agent.strays import end_strays
from smdistributed.launch.backends.attempt import Attempt
from smdistributed.launch.backends.limits import Limits
from smdistributed.launch.backends.signals import note_from_now_on
from smdistributed.launch.contract.files import channel_config
from smdistributed.launch.contract.hyperparameters import Hyperparameters, decode
from smdistributed.launch.contract.processes import (
    MIRRORED,
    is_distributed,
    processes_per_host,
)
from smdistributed.launch.contract.resources import (
    HOMOGENEOUS,
    InstanceGroup,
    Resources,
    host_names,
)
from smdistributed.launch.data.sources import sources_of
from smdistributed.launch.debugging import WITHOUT_LIMIT
from smdistributed.launch.environment import LOOPBACK, free_port, visible_accelerators
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.files import write_whole
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary
from smdistributed.launch.orphans import adopt_orphans
from smdistributed.launch.storage import local_path

__all__ = ["LocalJob", "main", "plans_of"]

_POLL_S = 0.05
_STOP_GRACE_S = 120.0
_SPOT_PAUSE_S = 1.0
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
    debug_rank = record.local.get("debug_rank")
    environment = {
        **({"SM_FRAMEWORK_MODULE": module} if module else {}),
        **_exported(framework),
        **({} if debug_rank is None else WITHOUT_LIMIT),
        **request.get("Environment", {}),
    }
    kept = request.get("CheckpointConfig", {})
    num_gpus = visible_accelerators({**os.environ, **environment})
    if num_gpus >= len(hosts):  # each host has its share (`agent`)
        num_gpus //= len(hosts)
    processes = processes_per_host(framework, groups[0].instance_type, num_gpus)
    if debug_rank is not None and debug_rank >= processes * len(hosts):
        raise ConfigurationError(
            f"rank {debug_rank} is to be debugged, and the job has {processes * len(hosts)};"
            " expected one of them, counted from 0."
        )
    # Hosts share the address, so each needs a port of its own in the place of 8890.
    port, *ports = _free_ports(1 + (len(hosts) if framework.get(MIRRORED) is True else 0))
    return [
        Plan(
            host=host,
            index=index,
            num_hosts=len(hosts),
            processes=processes,
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
            tf_workers=[f"{LOOPBACK}:{each}" for each in ports],
            cpu_shim=record.local.get("cpu_shim", True),
            emulate_gpus=record.local.get("emulate_gpus", False),
            debug_rank=debug_rank,
            terminal=record.local.get("terminal", ""),
        )
        for index, host in enumerate(hosts)
    ]


def _free_ports(count: int) -> list[int]:
    """Each one another."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


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
        self._stopped: Secondary | None = None
        self._failure = ""
        self._signal = 0
        self._limits: Limits | None = None
        self._num_attempts = 0
        self._num_retries = 0
        self._interruption = ""
        self._created_s = time.monotonic()  # about: this process starts at once
        self._began: float | None = None  # this one, to train
        self._trained_before_s = 0.0

    def run(self) -> None:
        """Does all of it."""
        note_from_now_on(self._note_signal)
        adopt_orphans()  # what the ranks of an agent leave behind that was killed
        self._try()
        while self._is_tried_again():
            self._try()
        end_job(self._job, host_directories(self._job), self._failure, self._stopped)
        self._job.lock.release()

    def _try(self) -> None:
        """One attempt, from the plans to the end of its agents."""
        attempt = Attempt(self._job)
        self._num_attempts += 1
        self._interruption = ""
        failure = ""
        try:
            record = self._job.read()
            self._limits = Limits.of(record.request)
            self._move(Secondary.DOWNLOADING)
            plans = plans_of(record, self._home)
            write_whole(self._job.path / "token", secrets.token_hex(32).encode())
            step, why = available_step(self._job.path)
            self._job.note("opt-ml", now(), step=step.name, why=why)
            for plan in plans:
                attempt.start(dataclasses.replace(plan, attempt=self._num_attempts), step)
            self._watch(attempt)
        except SmdistributedError as error:
            failure = f"ClientError: {error}"
        except Exception as error:
            failure = f"InternalServerError: {type(error).__name__}: {error}"
        finally:
            self._trained_before_s, self._began = self._trained_s(), None
            attempt.close()
            end_strays()
        self._failure = attempt.failure or failure

    def _is_tried_again(self) -> bool:
        """Whether another attempt follows; the job is Starting then, after a pause.

        What failed was a process of ours, and not the script; or its hosts were taken away.
        """
        if self._stopped is not None or self._limits is None:
            return False
        pause_s, message = _SPOT_PAUSE_S, self._interruption
        if not message:
            if not self._failure.startswith("InternalServerError"):
                return False
            if self._num_retries >= self._limits.retries:
                return False
            self._num_retries += 1
            pause_s, message = self._limits.pause_s(self._num_retries), self._failure
        try:
            self._move(Secondary.INTERRUPTED, message)
            until = time.monotonic() + pause_s
            while (end := self._end_of_time()) is None and time.monotonic() < until:
                time.sleep(_POLL_S)
            if end is not None:
                self._failure = ""
                self._note_stop(*end)
                return False
            self._job.forget_interruption()
            self._move(Secondary.STARTING)
        except (OSError, SmdistributedError):  # the disk is full, or the directory is gone
            return False
        return True

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    def _move(self, following: Secondary, message: str = "") -> None:
        self._job.write(self._job.read().moved(following, now(), message))
        self._job.note("state", now(), state=str(following))

    def _watch(self, attempt: Attempt) -> None:
        """Until all agents have ended; has them end together when one fails, or time is over."""
        assert self._limits is not None
        while True:
            attempt.look()
            if self._began is None and attempt.is_training:
                with contextlib.suppress(OSError):  # a full disk: again, when there is room
                    if not attempt.is_ending:
                        self._move(Secondary.TRAINING)
                    self._began = time.monotonic()
            end = self._end_of_time()
            is_told = self._stopped is not None or bool(self._interruption)
            if not is_told and (end is None or attempt.is_ending or attempt.is_over):
                attempt.judge()
            if attempt.is_over:
                return
            if not attempt.is_ending:
                if end is not None:
                    self._note_stop(*end)
                    attempt.end(End(end[1], _STOP_GRACE_S))
                elif self._limits.is_spot and (reason := self._job.interruption()) is not None:
                    self._interruption = reason or "interrupted"
                    self._job.note("interrupted", now(), reason=reason)
                    attempt.end(End(reason, _STOP_GRACE_S))
            time.sleep(_POLL_S)

    def _end_of_time(self) -> tuple[Secondary, str] | None:
        """What the job is called from now on, and why, if it is to stop."""
        assert self._limits is not None
        reason = self._stop_reason()
        if reason is not None:
            return Secondary.STOPPED, reason
        if self._trained_s() > self._limits.max_run_s:
            why = f"it has run for {self._limits.max_run_s:g} s, max_run"
            return Secondary.MAX_RUNTIME_EXCEEDED, why
        most = self._limits.max_wait_s
        if most is not None and time.monotonic() - self._created_s > most:
            return Secondary.MAX_WAIT_TIME_EXCEEDED, f"it was there for {most:g} s, max_wait"
        return None

    def _trained_s(self) -> float:
        """Seconds of training, in all attempts."""
        now_s = time.monotonic()
        return self._trained_before_s + (0.0 if self._began is None else now_s - self._began)

    def _stop_reason(self) -> str | None:
        """Why the job is to stop; None if nobody has asked."""
        if self._signal:
            return f"signal {signal.Signals(self._signal).name}"
        return self._job.stop_reason()

    def _note_stop(self, called: Secondary, reason: str) -> None:
        self._stopped = called
        self._move(Secondary.STOPPING)
        self._job.note("stopping", now(), reason=reason)


def main() -> int:
    """Runs the job of the directory that is the argument."""
    job = JobDirectory(Path(sys.argv[1]))
    job.lock.adopt(int(sys.argv[2]))
    LocalJob(job).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
