# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who am I, as a table: the environment of each launcher, and what discovery makes of it.

Source: dataparallel specification, sections 3.2, 3.3 and 12.6.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest

from smdistributed._common.discovery import Membership
from smdistributed._common.discovery import discover as discover_anywhere
from smdistributed._common.errors import ConfigurationError


def discover(environ: Mapping[str, str], **injected: Any) -> Membership:
    """Discovery that sees nothing but its arguments, whatever machine the test runs on."""
    injected.setdefault("find_ray_context", lambda: None)
    injected.setdefault("read_resource_config", lambda: None)
    return discover_anywhere(environ, **injected)


TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29500",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "2",
    "PMIX_NAMESPACE": "prterun-node-17@1",
}
SRUN = {
    "SLURM_JOB_ID": "991",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "6",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4,2",
    "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_LAUNCH_NODE_IPADDR": "10.9.9.9",
}
SBATCH_BODY = {
    "SLURM_JOB_ID": "991",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_NNODES": "2",
}
SAGEMAKER = {
    "SM_HOSTS": '["algo-1","algo-2"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_RESOURCE_CONFIG": json.dumps(
        {
            "current_host": "algo-2",
            "hosts": ["algo-1", "algo-2"],
            "instance_groups": [
                {"instance_group_name": "homogeneousCluster", "hosts": ["algo-2", "algo-1"]}
            ],
        }
    ),
}


@dataclasses.dataclass
class Expected:
    """What a row of the table expects; `place` is rank, world, local rank and size, node, nodes."""

    source: str
    place: tuple[int | None, ...]
    master: str | None
    port: int | None = None
    overrules: bool = False
    num_warnings: int = 0


ROWS: dict[str, tuple[dict[str, str], Expected]] = {
    "nothing": ({}, Expected("none", (0, 1, 0, 1, 0, 1), "127.0.0.1")),
    "empty values": (
        {"RANK": "", "WORLD_SIZE": " "},
        Expected("none", (0, 1, 0, 1, 0, 1), "127.0.0.1"),
    ),
    "torchrun": (TORCHRUN, Expected("torch", (5, 8, 1, 4, 1, 2), "head", 29500)),
    "torch variables without hosts": (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "m", "MASTER_PORT": "9"},
        Expected("torch", (1, 2, None, None, None, None), "m", 9),
    ),
    "torch variables, one host": (
        {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
        Expected("torch", (1, 2, 1, 2, 0, 1), "127.0.0.1", 7777),
    ),
    "server address instead of master address": (
        {
            "RANK": "1",
            "WORLD_SIZE": "2",
            "SMDATAPARALLEL_SERVER_ADDR": "s",
            "SMDATAPARALLEL_SERVER_PORT": "7592",
        },
        Expected("torch", (1, 2, None, None, None, None), "s", 7592),
    ),
    "Open MPI": (OPENMPI, Expected("openmpi", (2, 4, 2, 4, 0, 1), "127.0.0.1")),
    "Open MPI over two hosts": (
        OPENMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "3"},
        Expected("openmpi", (2, 4, 2, 3, None, None), None),
    ),
    "MVAPICH": (
        {
            "MV2_COMM_WORLD_RANK": "1",
            "MV2_COMM_WORLD_SIZE": "2",
            "MV2_COMM_WORLD_LOCAL_RANK": "1",
            "MV2_COMM_WORLD_LOCAL_SIZE": "2",
        },
        Expected("mvapich", (1, 2, 1, 2, 0, 1), "127.0.0.1", 7777),
    ),
    "PMI": (
        {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
        Expected("pmi", (1, 2, 1, 2, 0, 1), "127.0.0.1", 7777),
    ),
    "PMI without local numbers": (
        {"PMI_RANK": "1", "PMI_SIZE": "2"},
        Expected("pmi", (1, 2, None, None, None, None), None, 7777),
    ),
    "PMIx rank without any size": (
        {"PMIX_RANK": "1"},
        Expected("none", (0, 1, 0, 1, 0, 1), "127.0.0.1"),
    ),
    "PMIx rank, size from Open MPI": (
        {"PMIX_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
        Expected("pmi", (1, 2, None, None, None, None), None, 7777),
    ),
    "srun --mpi=pmix": (
        SRUN | {"PMIX_RANK": "3"},
        Expected("pmi", (3, 6, 1, 2, 1, 2), "node07"),
    ),
    "srun": (SRUN, Expected("slurm", (3, 6, 1, 2, 1, 2), "node07")),
    "srun, cyclic: the local rank is not rank modulo size": (
        SRUN | {"SLURM_LOCALID": "1", "SLURM_PROCID": "2", "SLURM_STEP_TASKS_PER_NODE": "3(x2)"},
        Expected("slurm", (2, 6, 1, 3, 1, 2), "node07"),
    ),
    "srun with the older name of the size": (
        {name: text for name, text in SRUN.items() if name != "SLURM_NTASKS"}
        | {"SLURM_NPROCS": "6"},
        Expected("slurm", (3, 6, 1, 2, 1, 2), "node07"),
    ),
    "sbatch script body": (SBATCH_BODY, Expected("none", (0, 1, 0, 1, 0, 1), "127.0.0.1")),
    "salloc shell with an interactive step": (
        SBATCH_BODY | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},
        Expected("none", (0, 1, 0, 1, 0, 1), "127.0.0.1"),
    ),
    "a step of one task while the job has more": (
        SBATCH_BODY | {"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"},
        Expected("none", (0, 1, 0, 1, 0, 1), "127.0.0.1"),
    ),
    "mpirun inside a Slurm allocation, on its first host": (
        SBATCH_BODY | OPENMPI,
        Expected("openmpi", (2, 4, 2, 4, 0, 1), "127.0.0.1"),
    ),
    "mpirun inside a Slurm allocation, under a daemon that srun started": (
        SRUN
        | OPENMPI
        | {
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "2",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_NODEID": "0",
            "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
            "SLURM_LOCALID": "0",
        },
        Expected("openmpi", (2, 4, 0, 2, None, None), None, num_warnings=1),
    ),
    "torchrun inside srun, one task per host": (
        SRUN
        | TORCHRUN
        | {
            "SLURM_PROCID": "1",
            "SLURM_NTASKS": "2",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_LOCALID": "0",
            "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        },
        Expected("torch", (5, 8, 1, 4, 1, 2), "head", 29500, num_warnings=1),
    ),
    "RANK from SLURM_PROCID in the script: the rest comes from Slurm": (
        SRUN | {"RANK": "3", "WORLD_SIZE": "6"},
        Expected("torch", (3, 6, 1, 2, 1, 2), "node07"),
    ),
    "a pod operator's RANK per host, with mpirun inside": (
        OPENMPI | {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0", "MASTER_PORT": "23456"},
        Expected("openmpi", (2, 4, 2, 4, 0, 1), "pod-0", 23456, overrules=True, num_warnings=1),
    ),
    "RANK with LOCAL_RANK wins over mpirun": (
        OPENMPI | {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_PORT": "1"},
        Expected("torch", (1, 2, 1, None, None, None), None, 1, num_warnings=1),
    ),
    "smddprun's own export under mpirun": (
        OPENMPI | {"RANK": "2", "WORLD_SIZE": "4"},
        Expected("torch", (2, 4, 2, 4, 0, 1), "127.0.0.1"),
    ),
    "SageMaker, one process per host, in group order": (
        SAGEMAKER,
        Expected("sagemaker", (0, 2, 0, 1, 0, 2), "algo-2", 7777),
    ),
    "SageMaker without groups": (
        {"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"},
        Expected("sagemaker", (1, 2, 0, 1, 1, 2), "algo-1", 7777),
    ),
    "mpirun in SageMaker": (
        SAGEMAKER | OPENMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "3"},
        Expected("openmpi", (2, 4, 2, 3, 0, 2), "algo-2", 7777),
    ),
    # Its host's name need not resolve: in the versions before, ranks waited for it for minutes.
    "mpirun on one host of SageMaker": (
        OPENMPI | {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"},
        Expected("openmpi", (2, 4, 2, 4, 0, 1), "127.0.0.1", 7777),
    ),
    "mpirun on one of two hosts of SageMaker": (
        SAGEMAKER | OPENMPI,
        Expected("openmpi", (2, 4, 2, 4, 0, 1), "127.0.0.1", 7777),
    ),
    "one host of SageMaker, and a launcher that says nothing of hosts": (
        {"RANK": "1", "WORLD_SIZE": "2", "SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"},
        Expected("torch", (1, 2, None, None, 0, 1), "127.0.0.1", 7777),
    ),
    "a broken later source is left out": (
        TORCHRUN | {"OMPI_COMM_WORLD_RANK": "x", "OMPI_COMM_WORLD_SIZE": "2"},
        Expected("torch", (5, 8, 1, 4, 1, 2), "head", 29500, num_warnings=1),
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_table(row: str) -> None:
    environ, expected = ROWS[row]
    before = dict(environ)
    found = discover(environ)
    place = (
        found.rank,
        found.world_size,
        found.local_rank,
        found.local_world_size,
        found.node_rank,
        found.num_nodes,
    )
    assert (found.source, place) == (expected.source, expected.place)
    assert found.master_addr == expected.master
    if expected.port is not None or expected.source == "none":
        assert found.master_port == expected.port
    assert found.overrules_torch == expected.overrules
    assert len(found.warnings) == expected.num_warnings, found.warnings
    assert environ == before


@pytest.mark.parametrize(
    ("environ", "variable", "value"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK", "'one'"),
        ({"RANK": "0", "WORLD_SIZE": "2.0"}, "WORLD_SIZE", "'2.0'"),
        ({"RANK": "1_0", "WORLD_SIZE": "20"}, "RANK", "'1_0'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK", "2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK", "-1"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE", "0"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "2"}, "LOCAL_RANK", "2"),
        (TORCHRUN | {"LOCAL_RANK": "4"}, "LOCAL_RANK", "4"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE", "9"),
        (TORCHRUN | {"GROUP_RANK": "x"}, "GROUP_RANK", "'x'"),
        (TORCHRUN | {"MASTER_PORT": "http"}, "MASTER_PORT", "'http'"),
        (TORCHRUN | {"MASTER_PORT": "65536"}, "MASTER_PORT", "65536"),
        (OPENMPI | {"OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK", "4"),
        (OPENMPI | {"OMPI_COMM_WORLD_SIZE": ""} | {"PMIX_RANK": "a"}, "PMIX_RANK", "'a'"),
        ({"PMI_RANK": "9", "PMI_SIZE": "2"}, "PMI_RANK", "9"),
        (SRUN | {"SLURM_PROCID": "6"}, "SLURM_PROCID", "6"),
        (SRUN | {"SLURM_NODEID": "2"}, "SLURM_NODEID", "2"),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4("}, "SLURM_STEP_TASKS_PER_NODE", "'4('"),
        (SRUN | {"SLURM_STEP_NODELIST": "a[1"}, "SLURM_STEP_NODELIST", "'a[1'"),
        (SAGEMAKER | {"SM_CURRENT_HOST": "algo-9"}, "SM_CURRENT_HOST", "'algo-9'"),
        ({"SM_HOSTS": "algo-1", "SM_CURRENT_HOST": "algo-1"}, "SM_HOSTS", "'algo-1'"),
        ({"SM_HOSTS": "[]", "SM_CURRENT_HOST": "algo-1"}, "SM_HOSTS", "'[]'"),
    ],
)
def test_configuration_errors_name_variable_and_value(
    environ: dict[str, str], variable: str, value: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        discover(environ)
    assert f"{variable}={value}" in str(caught.value)


class LiveRay:
    """A Ray Train context as its workers see it."""

    def get_world_rank(self) -> int:
        return 3

    def get_world_size(self) -> int:
        return 4

    def get_local_rank(self) -> int:
        return 1

    def get_local_world_size(self) -> int:
        return 2

    def get_node_rank(self) -> int:
        return 1


def test_a_live_ray_context_counts_after_mpi_and_before_slurm() -> None:
    found = discover(SRUN, find_ray_context=LiveRay)
    assert (found.source, found.rank, found.world_size) == ("ray", 3, 4)
    assert (found.local_rank, found.local_world_size, found.node_rank) == (1, 2, 1)
    assert discover(OPENMPI, find_ray_context=LiveRay).source == "openmpi"


def test_the_resource_configuration_file_serves_without_variables() -> None:
    found = discover({}, read_resource_config=lambda: SAGEMAKER["SM_RESOURCE_CONFIG"])
    assert (found.source, found.rank, found.master_addr) == ("sagemaker", 0, "algo-2")


def test_only_the_distribution_group_counts() -> None:
    groups = [
        {"instance_group_name": "servers", "hosts": ["algo-3"]},
        {"instance_group_name": "workers", "hosts": ["algo-2", "algo-1"]},
    ]
    found = discover(
        {
            "SM_HOSTS": '["algo-1","algo-2","algo-3"]',
            "SM_CURRENT_HOST": "algo-1",
            "SM_RESOURCE_CONFIG": json.dumps({"instance_groups": groups}),
            "SM_DISTRIBUTION_INSTANCE_GROUPS": '["workers"]',
        }
    )
    assert (found.rank, found.world_size, found.master_addr) == (1, 2, "algo-2")


def test_mpi_over_several_hosts_asks_rank_0_only_if_nothing_else_tells() -> None:
    two_hosts = OPENMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}
    assert discover(two_hosts, broadcast_host=lambda: "zero").master_addr == "zero"
    assert discover(two_hosts | {"MASTER_ADDR": "m"}, broadcast_host=_fail).master_addr == "m"
    assert discover(OPENMPI, broadcast_host=_fail).master_addr == "127.0.0.1"


def _fail() -> str:
    raise AssertionError("must not be asked")


def test_no_rendezvous_host_is_an_error_only_when_it_is_needed() -> None:
    found = discover(OPENMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "3"})
    with pytest.raises(ConfigurationError, match=r"for 4 processes on .* hosts; set MASTER_ADDR"):
        found.require_master()
    assert discover(TORCHRUN).require_master() == ("head", 29500)


def test_the_derived_port_is_the_same_on_all_ranks_and_differs_between_jobs() -> None:
    ports = {
        discover(SRUN | {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank // 4)}).master_port
        for rank in range(6)
    }
    assert len(ports) == 1
    (port,) = ports
    assert port is not None
    assert 15000 <= port < 30000
    others = {
        discover(SRUN | {"SLURM_JOB_ID": "992"}).master_port,
        discover(SRUN | {"SLURM_STEP_ID": "1"}).master_port,
        discover(OPENMPI).master_port,
        discover(OPENMPI | {"PMIX_NAMESPACE": "prterun-node-18@1"}).master_port,
    }
    assert len(others | ports) == 5


def test_where_torchrun_itself_listens_at_the_given_port_ranks_meet_at_another() -> None:
    # Up to 2.0.0 rank 0 tried to listen there too, and a job without torch could not start.
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "job"}
    ports = [
        discover(TORCHRUN | agent | {"RANK": rank, "LOCAL_RANK": rank}).master_port
        for rank in ("0", "3")
    ]
    assert ports[0] == ports[1]
    assert ports[0] in range(15000, 30000)
    assert discover(TORCHRUN | agent | {"MASTER_PORT": "29501"}).master_port not in ports
    not_shared = {**agent, "TORCHELASTIC_USE_AGENT_STORE": "False"}
    assert discover(TORCHRUN | not_shared).master_port == 29500
