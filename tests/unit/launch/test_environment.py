# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What each process is told."""

import json
import socket
import sys
from pathlib import Path

import pytest

from smdistributed._common.discovery import discover
from smdistributed.launch import environment


def test_every_variable_of_the_contract_is_set_for_every_rank() -> None:
    stale = {
        "HOME": "/h",
        "MASTER_ADDR": "elsewhere",
        "LOCAL_RANK": "7",
        "GROUP_WORLD_SIZE": "9",
        "SMDATAPARALLEL_USE_HOMOGENEOUS": "1",
    }
    environments = environment.local_environments(stale, 2, 23456, cores=8)
    assert len(environments) == 2
    for rank, environ in enumerate(environments):
        assert environ.pop("SMDDP_RUN_ID")
        token = environ.pop("SMDDP_TOKEN")
        assert len(token) == 64
        assert environ == {
            "HOME": "/h",
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "2",
            "NODE_RANK": "0",
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "23456",
            "SMDATAPARALLEL_LOCAL_RANK": str(rank),
            "SMDATAPARALLEL_SERVER_ADDR": "127.0.0.1",
            "SMDATAPARALLEL_SERVER_PORT": "7592",
            "SMDATAPARALLEL_USE_SINGLENODE": "1",
            "SAGEMAKER_INSTANCE_TYPE": "local",
            "SMDDP_HOROVOD": "stand-in",
            "SM_FRAMEWORK_PARAMS": '{"sagemaker_distributed_dataparallel_enabled":true}',
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "4",
        }
        found = discover(environ, find_ray_context=lambda: None, read_resource_config=lambda: None)
        assert (found.rank, found.world_size, found.local_rank, found.num_nodes) == (
            rank,
            2,
            rank,
            1,
        )


def test_the_token_is_one_for_the_job_and_fresh_for_each_job() -> None:
    jobs = [environment.local_environments({}, 3, 1, cores=1) for _ in range(2)]
    tokens = [{environ["SMDDP_TOKEN"] for environ in job} for job in jobs]
    assert [len(one) for one in tokens] == [1, 1]
    assert not tokens[0] & tokens[1]


def test_the_run_id_is_one_for_the_job_and_never_that_of_another_job() -> None:
    stale = {"SMDDP_RUN_ID": "outer"}
    jobs = [environment.local_environments(stale, 3, 1, cores=1) for _ in range(2)]
    ids = [{environ["SMDDP_RUN_ID"] for environ in job} for job in jobs]
    assert [len(one) for one in ids] == [1, 1]
    assert len({"outer"} | ids[0] | ids[1]) == 3


def test_what_the_user_chose_stays() -> None:
    given = {"OMP_NUM_THREADS": "3", "SMDDP_TOKEN": "mine", "SAGEMAKER_INSTANCE_TYPE": "ml.x"}
    (environ,) = environment.local_environments(given, 1, 1, cores=8)
    assert environ.items() >= given.items()
    (environ,) = environment.local_environments({"SMDDP_TOKEN_FILE": "f"}, 1, 1, cores=8)
    assert "SMDDP_TOKEN" not in environ


def test_more_ranks_than_cores_get_one_thread_each() -> None:
    environments = environment.local_environments({}, 8, 1, cores=2)
    assert {environ["OMP_NUM_THREADS"] for environ in environments} == {"1"}


def test_exports() -> None:
    environ = environment.apply_exports({"A": "1", "B": "2"}, [("A", None), ("B", "3"), ("C", "")])
    assert environ == {"A": "1", "B": "3", "C": ""}


@pytest.mark.parametrize(
    ("parameters", "partitions"),
    [
        ('{"partitions": 2, "microbatches": 4}', 2),
        ('{"pipeline_parallel_degree": 3}', 3),
        ('{"pipeline_parallel_degree": 3, "partitions": 2}', 2),  # smp.init() will refuse both
        ('{"microbatches": 4}', None),
    ],
)
def test_parameters_of_model_parallelism_are_what_the_trainer_looks_for(
    parameters: str, partitions: int | None
) -> None:
    environ = {"SM_HP_MP_PARAMETERS": parameters}
    environ |= environment.model_parallel_variables(environ)
    assert json.loads(environ["SM_FRAMEWORK_PARAMS"]) == {"sagemaker_mpi_enabled": True}
    found = json.loads(environ["SM_HP_MP_PARAMETERS"])
    assert found.get("partitions") == partitions
    assert found.items() >= json.loads(parameters).items()
    ranks = environment.local_environments(environ, 2, 1, cores=1)
    assert {each["SM_FRAMEWORK_PARAMS"] for each in ranks} == {environ["SM_FRAMEWORK_PARAMS"]}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SM_HP_MP_PARAMETERS": ""},
        {"SM_HP_MP_PARAMETERS": "{"},
        {"SM_HP_MP_PARAMETERS": "[2]"},
        {"SM_HP_MP_PARAMETERS": '{"partitions": 2}', "SM_FRAMEWORK_PARAMS": "mine"},
    ],
)
def test_no_model_parallelism_and_flags_of_the_user_change_nothing(environ: dict[str, str]) -> None:
    assert environment.model_parallel_variables(environ) == {}


def test_a_script_runs_with_this_python_and_a_program_as_it_is() -> None:
    assert environment.full_command(["t.py", "-x"]) == [sys.executable, "t.py", "-x"]
    assert environment.full_command(["python", "t.py"]) == ["python", "t.py"]


def test_a_free_port_can_be_bound() -> None:
    with socket.create_server(("127.0.0.1", environment.free_port())) as server:
        assert server.getsockname()[1] > 1023


def test_a_free_port_is_none_that_outgoing_connections_get() -> None:
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    low, high = map(int, text.split())
    ports = {environment.free_port() for _ in range(20)}
    assert len(ports) > 10, "two jobs that start together rarely take the same"
    assert all(not low <= port <= high for port in ports)


def test_a_port_is_free_where_the_kernel_hands_out_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_ports_to_name", lambda: range(0))
    with socket.create_server(("127.0.0.1", environment.free_port())) as server:
        assert server.getsockname()[1] > 0


def test_names_of_this_host() -> None:
    for name in ("localhost", "127.0.0.1", socket.gethostname()):
        assert environment.names_this_host(name)
    for name in ("no.such.host.invalid", "192.0.2.1"):
        assert not environment.names_this_host(name)


@pytest.mark.parametrize(
    ("present", "variable", "count"),
    [
        ([], None, 0),
        ([], "0,1", 0),
        (["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], None, 2),
        (["nvidia0", "nvidia1"], "1", 1),
        (["nvidia0", "nvidia1"], "GPU-abc,GPU-def", 2),
        (["nvidia0", "nvidia1"], "", 0),
        (["nvidia0", "nvidia1"], "0,-1,1", 1),
    ],
)
def test_visible_accelerators(
    tmp_path: Path, present: list[str], variable: str | None, count: int
) -> None:
    for name in present:
        (tmp_path / name).touch()
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert environment.visible_accelerators(environ, tmp_path) == count


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
    ],
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], cores: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert environment._cgroup_cores(tmp_path) == cores


@pytest.mark.parametrize(
    ("np", "accelerators", "warns"),
    [(1, 0, False), (8, 0, False), (1, 1, False), (2, 1, True), (8, 8, False), (9, 8, True)],
)
def test_sharing_gpus_is_told(np: int, accelerators: int, warns: bool) -> None:
    warning = environment.sharing_warning(np, accelerators)
    assert (warning is not None) == warns
    if warning is not None:
        assert f"{np} processes share {accelerators} GPU(s)" in warning
        assert f"Use -np {accelerators}" in warning
