# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.init()` in one process; several are in tests/multiprocess/modelparallel."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from machine_speed import scaled
from torch._C._distributed_c10d import HashStore

import smdistributed.modelparallel.torch as smp
from smdistributed._common.discovery import Membership
from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.job.agreement import check_equal, comparable
from smdistributed.modelparallel.torch.job import initialization, process_groups

pytestmark = pytest.mark.usefixtures("alone")

PARAMETERS = "SM_HP_MP_PARAMETERS"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """What the library logs, from a level on."""
    with caplog.at_level(logging.DEBUG, logger="smdistributed"):
        yield lambda level=logging.INFO: [
            record.getMessage() for record in caplog.records if record.levelno >= level
        ]


def test_without_a_launcher_it_is_a_job_of_one_rank() -> None:
    smp.init()
    assert (smp.rank(), smp.size(), smp.local_rank(), smp.local_size()) == (0, 1, 0, 1)
    assert (smp.pp_size(), smp.tp_size(), smp.dp_size(), smp.num_microbatches()) == (1, 1, 1, 1)
    assert dist.is_initialized()
    assert dist.get_backend() == "smddp"
    tensor = torch.ones(3)
    for kind in GroupKind:
        assert smp.state.process_group(kind) is smp.get_world_process_group()
        dist.all_reduce(tensor, group=smp.state.process_group(kind))
    assert torch.equal(tensor, torch.ones(3))
    assert smp.state.device.type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_objects_in_a_job_of_one_rank() -> None:
    smp.init()
    value = {"a": [1]}
    [copy] = smp.allgather(value, smp.WORLD)
    assert copy == value
    assert copy is not value
    smp.broadcast(value, smp.WORLD)
    smp.barrier()
    smp.pp_barrier()
    with pytest.raises(TypeError, match="rank 0 sends no object: an object of type function"):
        smp.allgather(lambda: 0, smp.WORLD)


def test_the_first_call_counts_and_later_ones_warn(lines: Any) -> None:
    smp.init({"microbatches": 4})
    assert not lines(logging.WARNING)
    smp.init({"microbatches": 2})
    smp.init()
    assert smp.num_microbatches() == 4
    first, second = lines(logging.WARNING)
    assert "initialized already, ignoring this call and its configuration {'microbatches': 2}" in (
        first
    )
    assert "initialized already, ignoring this call. " in second


def test_the_launchers_parameters_go_first_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PARAMETERS, '{"microbatches": 8, "partitions": 1}')
    smp.init({"microbatches": 2, "optimize": "speed"})
    assert (smp.state.cfg.microbatches, smp.state.cfg.optimize) == (8, "speed")
    assert smp.state.cfg.partitions == 1


def test_the_parameters_are_logged(lines: Any) -> None:
    smp.init({"microbatches": 8, "of_the_script": "x"})
    said = lines()
    start = said.index("Configuration parameters:")
    assert "  microbatches: 8" in said[start:]
    assert "  active_microbatches: 3" in said[start:], "the effective value"
    assert "  of_the_script: x" in said[start:]


def test_what_the_user_should_know_is_a_warning(lines: Any) -> None:
    smp.init({"of_the_script": "x", "fp16_params": True})
    warnings = lines(logging.WARNING)
    assert any("of_the_script is no parameter of this library" in line for line in warnings)
    assert any("fp16_params is deprecated" in line for line in warnings)


def test_parameters_that_cannot_work_leave_nothing_behind() -> None:
    with pytest.raises(ConfigError, match="1 processes cannot hold pipeline_parallel_degree 2"):
        smp.init({"pipeline_parallel_degree": 2})
    with pytest.raises(ConfigError, match="microbatches is 0; it must be a positive integer"):
        smp.init({"microbatches": 0})
    assert not smp.is_initialized()
    assert not dist.is_initialized()
    smp.init()
    assert smp.is_initialized()


def test_reset_ends_what_init_made_and_init_works_again() -> None:
    smp.reset()
    for _ in range(3):
        smp.init()
        smp.barrier()
        smp.reset()
        assert not smp.is_initialized()
        assert not dist.is_initialized()
    smp.init()
    smp.shutdown()
    assert not dist.is_initialized()


def alone_with(backend: str) -> None:
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)


@pytest.mark.parametrize("backend", ["gloo", "smddp"])
def test_a_default_group_that_exists_is_used_and_left(backend: str) -> None:
    alone_with(backend)
    world = dist.group.WORLD
    smp.init()
    assert smp.get_world_process_group() is world
    assert (smp.state.message_group is world) == (backend == "smddp")
    assert smp.state.message_group.name() == "smddp"
    smp.reset()
    assert dist.group.WORLD is world
    smp.init({"microbatches": 2})
    assert smp.allgather(3, smp.WORLD) == [3]


def test_a_default_group_without_cpu_tensors_gets_one_for_messages_beside_it() -> None:
    alone_with("cuda:gloo")
    smp.init()
    assert smp.get_world_process_group() is dist.group.WORLD
    assert smp.state.message_group is not dist.group.WORLD
    assert dist.get_backend(smp.state.message_group) == "cpu:smddp"
    assert smp.allgather(torch.ones(3), smp.WORLD)[0].tolist() == [1, 1, 1]
    smp.barrier()


def test_after_the_user_has_ended_the_groups_reset_still_works() -> None:
    for own in (True, False):
        if own:
            alone_with("gloo")
        smp.init()
        dist.destroy_process_group()
        assert smp.rank() == 0
        smp.reset()
        assert not smp.is_initialized()


def membership(world_size: int, source: str = "torch", rank: int = 0) -> Membership:
    return Membership(rank, world_size, None, None, None, None, "127.0.0.1", 1, source)


def test_a_default_group_of_other_ranks_is_refused() -> None:
    alone_with("gloo")
    with pytest.raises(ConfigError, match=r"has 1 ranks, and this job has 4 processes; .*leave it"):
        process_groups.check_adoptable(membership(4))
    process_groups.check_adoptable(membership(1))
    process_groups.check_adoptable(membership(4, "sagemaker"))  # counts hosts
    process_groups.check_adoptable(membership(4, "none"))


@pytest.mark.parametrize(
    ("asked", "has_cuda", "expected"),
    [
        ("auto", True, "smddp"),
        ("auto", False, "smddp"),
        ("smddp", False, "smddp"),
        ("gloo", True, "gloo"),
        ("nccl", True, "cpu:smddp,cuda:nccl"),
        ("nccl", False, "smddp"),
    ],
)
def test_backends(
    asked: str, has_cuda: bool, expected: str, monkeypatch: pytest.MonkeyPatch, lines: Any
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: has_cuda)
    config = Config.parse({"ddp": True, "ddp_dist_backend": asked}, {})
    assert process_groups._backend(config, membership(4)) == expected
    assert process_groups._backend(config, membership(4, rank=1)) == expected
    warnings = lines(logging.WARNING)
    if asked == "nccl" and not has_cuda:
        [line] = warnings  # of rank 0 alone
        assert "there is no CUDA device here" in line
    else:
        assert warnings == []


def test_parameters_must_be_the_same_on_all_ranks() -> None:
    def of(**parameters: Any) -> dict[str, str]:
        return comparable(Config.parse(parameters, {}))

    same = of(microbatches=4)
    check_equal([same, of(microbatches=4, partition_file="a", other=1), same])
    with pytest.raises(ConfigError, match="microbatches is 2 on rank 2, and 4 on rank 0; expected"):
        check_equal([same, same, of(microbatches=2)])


@pytest.mark.parametrize(("visible", "local_rank", "index"), [(8, 3, 3), (1, 3, 0), (2, 3, 1)])
def test_the_device_is_the_gpu_of_the_local_rank(
    visible: int, local_rank: int, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    assert initialization._device(local_rank) == torch.device("cuda", index)


def test_a_forked_child_leaves_nothing_at_its_exit() -> None:
    smp.init()
    child = os.fork()
    if child == 0:
        initialization._leave_at_exit()
        os._exit(0 if smp.is_initialized() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    initialization._leave_at_exit()
    assert not smp.is_initialized()


def test_after_an_error_nothing_waits_at_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    smp.init()
    monkeypatch.setattr(sys, "last_value", RuntimeError("gone"), raising=False)
    initialization._leave_at_exit()
    assert smp.is_initialized()


_IMPORT = """
import sys
import smdistributed.modelparallel.torch as smp
import torch.distributed as dist
assert not dist.is_initialized() and not smp.is_initialized()
assert not {"transformers", "tensorflow", "keras"} & sys.modules.keys()
import importlib
for name in ("state_mod", "core", "utils", "exceptions"):
    importlib.import_module("smdistributed.modelparallel.torch." + name)
from smdistributed.modelparallel.test.torch.utils import dump_model, verify
import smdistributed.modelparallel.backend.exceptions
"""


def test_the_import_prints_nothing_makes_no_group_and_loads_no_trainer() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _IMPORT],
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


_FRAMEWORK = """
import os
import smdistributed.modelparallel.torch
print(os.environ["SM_FRAMEWORK_PARAMS"], os.environ["LOCAL_RANK"])
"""


def test_the_import_tells_trainers_of_a_launched_job_that_it_is_model_parallel() -> None:
    environ = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    environ |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _FRAMEWORK],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        env={**os.environ, **environ},
    )
    assert done.stdout == '{"sagemaker_mpi_enabled": true} 0\n', done.stderr
