# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What each host of a job is told to do, by the request."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.agent.plan import Plan
from smdistributed.launch.backends import this_machine
from smdistributed.launch.backends.hosts import Machine
from smdistributed.launch.backends.plans import environment_of, hosts_of, plans_of
from smdistributed.launch.backends.this_machine import ThisMachine
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.record import JobRecord


def record(hyperparameters: dict[str, str], hosts: int = 2, **local: Any) -> JobRecord:
    request = {
        "TrainingJobName": "job-1",
        "HyperParameters": hyperparameters,
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "ResourceConfig": {"InstanceCount": hosts, "InstanceType": "ml.p4d.24xlarge"},
    }
    return JobRecord.new(request, local, "arn", dt.datetime.now(dt.UTC))


def plans(record: JobRecord, tmp_path: Path) -> list[Plan]:
    hosts = ThisMachine(JobDirectory(tmp_path / "jobs" / "job-1"))
    machines = hosts.reach(hosts_of(record), environment_of(record), lambda: False)
    return plans_of(record, Home(tmp_path), machines)


MPI = {"sagemaker_mpi_enabled": "true"}


@pytest.mark.parametrize(
    ("hyperparameters", "num_gpus", "processes"),
    [
        ({}, 8, 1),
        (MPI, 8, 4),  # two hosts share them
        (MPI, 1, 1),
        (MPI, 0, 8),  # as the instance type says
        ({**MPI, "sagemaker_mpi_num_of_processes_per_host": "3"}, 8, 3),
    ],
)
def test_processes_on_each_host(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    hyperparameters: dict[str, str],
    num_gpus: int,
    processes: int,
) -> None:
    monkeypatch.setattr(this_machine, "visible_accelerators", lambda _: num_gpus)
    made = plans(record(hyperparameters), tmp_path)
    assert [plan.processes for plan in made] == [processes] * 2
    assert [plan.host for plan in made] == ["algo-1", "algo-2"]
    assert [plan.index for plan in made] == [0, 1]
    assert len({plan.master_port for plan in made}) == 1
    assert [plan.resources["current_host"] for plan in made] == ["algo-1", "algo-2"]


def test_hosts_that_are_machines_of_their_own(tmp_path: Path) -> None:
    machines = [
        Machine("10.0.0.1", "eth1", 8, (7001, 7002)),
        Machine("10.0.0.2", "eth0", 4, (7001, 7003)),
    ]
    given = record({MIRRORED: "true"})
    first, second = plans_of(given, Home(tmp_path), machines)
    assert [each.master_address for each in (first, second)] == ["10.0.0.1"] * 2
    assert [each.master_port for each in (first, second)] == [7001] * 2
    assert second.addresses == {"algo-1": "10.0.0.1", "algo-2": "10.0.0.2"}
    assert second.tf_workers == ["10.0.0.1:7002", "10.0.0.2:7003"]
    assert (second.machine_index, second.machine_hosts) == (0, 1)
    names = [each.resources["network_interface_name"] for each in (first, second)]
    assert names == ["eth1", "eth0"]
    ranks = [each.processes for each in plans_of(record(MPI), Home(tmp_path), machines)]
    assert ranks == [4, 4], "each rank has a GPU, on the smaller machine too"


def test_a_rank_that_is_debugged_is_one_of_the_job(tmp_path: Path) -> None:
    local = {"debug_rank": 1, "terminal": "/dev/pts/7"}
    first, _ = plans(record({}, 2, **local), tmp_path)
    assert (first.debug_rank, first.terminal) == (1, "/dev/pts/7")
    assert first.environment == {"SMDDP_TIMEOUT_SECONDS": "31536000", "SMDDP_STALL_SECONDS": "0"}
    with pytest.raises(ConfigurationError, match="rank 1 is to be debugged, and the job has 1"):
        plans(record({}, 1, **local), tmp_path)


MIRRORED = "sagemaker_multi_worker_mirrored_strategy_enabled"


def test_workers_of_tensorflow_have_ports_of_their_own(tmp_path: Path) -> None:
    """Sections 4.2 and 7.3: all hosts are workers, one process each."""
    made = plans(record({MIRRORED: "true", **MPI}, 3), tmp_path)
    assert [plan.processes for plan in made] == [1, 1, 1]
    assert not any(plan.is_distributed for plan in made), "the strategy wins over mpi"
    workers = made[0].tf_workers
    assert [plan.tf_workers for plan in made] == [workers] * 3
    assert all(re.fullmatch(r"127\.0\.0\.1:[0-9]+", each) for each in workers)
    ports = {*workers, f"127.0.0.1:{made[0].master_port}"}
    assert len(ports) == 4
    assert plans(record(MPI), tmp_path)[0].tf_workers == []


@pytest.mark.parametrize("asked", ["0", "-1", '"two"', "1.5", "true", "5000"])
def test_a_number_of_processes_that_cannot_be(tmp_path: Path, asked: str) -> None:
    hyperparameters = {**MPI, "sagemaker_mpi_num_of_processes_per_host": asked}
    with pytest.raises(ConfigurationError, match="processes_per_host is"):
        plans(record(hyperparameters), tmp_path)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-x A=1 -x B=x=y", {"A": "1", "B": "x=y"}),
        ("--NCCL_DEBUG WARN", {"NCCL_DEBUG": "WARN"}),
        ("-x A=1-x B=2", {"A": "1-x"}),
        ("-x PATH --verbose", {}),
        ("", {}),
    ],
)
def test_options_of_mpi(tmp_path: Path, options: str, expected: dict[str, str]) -> None:
    hyperparameters = {**MPI, "sagemaker_mpi_custom_mpi_options": f'"{options}"'}
    assert plans(record(hyperparameters), tmp_path)[0].environment == expected


@pytest.mark.parametrize(
    ("local", "module"),
    [
        ({"Framework": "pytorch"}, "sagemaker_pytorch_container.training:main"),
        ({"Framework": "tensorflow"}, "sagemaker_tensorflow_container.training:main"),
        (
            {"Framework": "huggingface", "BaseFramework": "tensorflow"},
            "sagemaker_tensorflow_container.training:main",
        ),
        ({}, None),
    ],
)
def test_the_framework_is_told(tmp_path: Path, local: dict[str, str], module: str | None) -> None:
    (plan,) = plans(record({}, 1, **local), tmp_path)
    assert plan.environment.get("SM_FRAMEWORK_MODULE") == module
