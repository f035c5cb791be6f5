# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who am I, where do we meet, and whose rank is that? Over torch's own `init_process_group`."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from harness import run_ranks
from machine_speed import scaled
from torch_ranks import raised, smddp

_LAUNCHERS_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def _forget_the_launcher() -> None:
    for name in _LAUNCHERS_VARIABLES:
        os.environ.pop(name, None)


# ---- local rank ----------------------------------------------------------------------------------


def _numbered_by_arguments(rank: int, world_size: int, folder: str) -> list[tuple[int, int]]:
    import smdistributed.dataparallel.torch as package
    import smdistributed.dataparallel.torch.distributed as legacy

    _forget_the_launcher()
    os.environ["LOCAL_RANK"] = "7"  # of somebody else: without RANK it says nothing of this rank
    found = []
    with smddp(init_method=f"file://{folder}/one", rank=rank, world_size=world_size):
        found.append((package.get_local_rank(), package.get_local_size()))
        assert legacy.get_local_rank() == package.get_local_rank()
    # Two hosts, as each rank's variables say.
    os.environ["SM_CURRENT_HOST"] = f"host-{rank % 2}"
    with smddp(init_method=f"file://{folder}/two", rank=rank, world_size=world_size):
        found.append((package.get_local_rank(), package.get_local_size()))
    return found


def test_local_rank_and_size_are_right_where_rank_and_size_are_arguments(tmp_path: Path) -> None:
    # In the versions before, the local rank was 0 on every rank then.
    assert run_ranks(_numbered_by_arguments, 3, str(tmp_path)) == [
        [(0, 3), (0, 2)],
        [(1, 3), (0, 1)],
        [(2, 3), (1, 2)],
    ]


def _over_gloo(rank: int, world_size: int, folder: str) -> tuple[str, str]:
    import smdistributed.dataparallel.torch as package

    _forget_the_launcher()
    with smddp("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=world_size):
        name, text, _ = raised(package.get_local_rank)
        os.environ["LOCAL_RANK"] = str(rank)
        assert package.get_local_rank() == rank
        return name, text


def test_a_group_that_does_not_know_its_hosts_says_so(tmp_path: Path) -> None:
    for name, text in run_ranks(_over_gloo, 2, str(tmp_path)):
        assert name == "SMDDPConfigInvalid"
        assert "LOCAL_RANK is not set" in text
        assert "make the group with backend 'smddp'" in text


# ---- where ranks meet ----------------------------------------------------------------------------


def _at_no_address(rank: int, world_size: int) -> list[str]:
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend
    from smdistributed._common import host_names

    host_names._LIMIT_S = 0.2
    os.environ["MASTER_ADDR"] = "algo-1.invalid"
    texts = [raised(dist.init_process_group, "smddp")]
    place = "tcp://algo-1.invalid:7777"
    texts.append(raised(dist.init_process_group, "smddp", place, rank=rank, world_size=2))
    # Only the numbers of ranks are left, as a starter of one's own may give them.
    for name in ("MASTER_ADDR", "SMDATAPARALLEL_SERVER_ADDR", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    texts.append(raised(dist.init_process_group, "smddp"))
    assert {name for name, _, _ in texts} == {"SMDDPConfigInvalid"}
    assert not dist.is_initialized()
    return [text for _, text, _ in texts]


def test_an_address_that_does_not_resolve_is_one_clear_error() -> None:
    for variable, argument, missing in run_ranks(_at_no_address, 2):
        assert "MASTER_ADDR='algo-1.invalid' does not resolve" in variable
        assert "'algo-1.invalid' does not resolve" in argument
        assert "cannot find the rendezvous host for 2 processes" in missing


def _in_a_container(rank: int, world_size: int) -> tuple[str, float]:
    """As Open MPI starts ranks in one container, whose name has no address."""
    port = os.environ["MASTER_PORT"]
    for name in (*_LAUNCHERS_VARIABLES, "MASTER_ADDR"):
        del os.environ[name]
    os.environ.update(
        OMPI_COMM_WORLD_RANK=str(rank),
        OMPI_COMM_WORLD_SIZE="2",
        OMPI_COMM_WORLD_LOCAL_RANK=str(rank),
        OMPI_COMM_WORLD_LOCAL_SIZE="2",
        SM_HOSTS='["algo-1.invalid"]',
        SM_CURRENT_HOST="algo-1.invalid",
    )
    with smddp():
        x = torch.ones(3)
        dist.all_reduce(x)
        assert os.environ["MASTER_PORT"] == port
        return os.environ["MASTER_ADDR"], x[0].item()


def test_ranks_of_one_host_need_no_name() -> None:
    assert run_ranks(_in_a_container, 2) == [("127.0.0.1", 2.0)] * 2


# ---- two jobs at one port ------------------------------------------------------------------------


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + scaled(30)
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def _with_a_stranger(rank: int, world_size: int, folder: str, jobs: list[str]) -> Any:
    """Rank 1 of the job `jobs[2]` comes to the store of the job of ranks 0 and 1, before rank 1."""
    is_stranger = rank == 2
    os.environ.update(
        RANK=str(1 if is_stranger else rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", LOCAL_RANK="0"
    )
    os.environ.pop("SMDDP_RUN_ID")
    if jobs[rank]:
        os.environ["TORCHELASTIC_RUN_ID"] = jobs[rank]
    refused = Path(folder) / "refused"
    if is_stranger:
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

        error = raised(dist.init_process_group, "smddp")
        refused.touch()
        return error[:2]
    if rank == 1:
        _wait_for(refused)
    with smddp():
        x = torch.ones(3) * (rank + 1)
        dist.all_reduce(x)
        return x[0].item()


def test_a_rank_of_another_job_is_refused_by_name_and_does_no_harm(tmp_path: Path) -> None:
    *sums, (name, text) = run_ranks(_with_a_stranger, 3, str(tmp_path), ["mine", "mine", "other"])
    assert sums == [3.0, 3.0]
    assert name == "SMDDPConfigInvalid"
    assert "rank 1 belongs to the job TORCHELASTIC_RUN_ID=other" in text
    assert "belongs to the job TORCHELASTIC_RUN_ID=mine" in text
    assert "give each a port of its own" in text


def _without_rank_0(rank: int, world_size: int, folder: str) -> tuple[str, str]:
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

    if rank == 0:
        return "", ""
    place = f"file://{folder}/store"
    patience = timedelta(seconds=0.5)
    init = dist.init_process_group
    name, text, _ = raised(init, "smddp", place, patience, world_size=2, rank=1)
    return name, text


def test_a_rank_0_that_does_not_come_is_named(tmp_path: Path) -> None:
    _, (name, text) = run_ranks(_without_rank_0, 2, str(tmp_path))
    assert name == "SMDDPTimeoutError"
    assert "rank 0 did not come" in text


def _without_rank_2(rank: int, world_size: int) -> str:
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

    if rank == 2:
        return ""
    # Rank 0 serves the store, and waits there until all have connected.
    patience = timedelta(seconds=0.5 if rank else scaled(3.0))
    return raised(dist.init_process_group, "smddp", timeout=patience)[1]


def test_rank_0_is_not_missed_where_it_waits_for_another() -> None:
    # In 2.0.0 before its release rank 1 said that ranks 0 and 2 had not come.
    _, text, _ = run_ranks(_without_rank_2, 3)
    assert "ranks [2] of 3 did not come, and rank 0 has not spoken" in text


def _one_of_two_jobs(rank: int, world_size: int, folder: str) -> float | str:
    job, rank_in_job = divmod(rank, 2)
    os.environ.update(
        RANK=str(rank_in_job),
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        LOCAL_RANK=str(rank_in_job),
        SMDDP_RUN_ID=f"job {job}",
    )
    result: float | str
    try:
        with smddp(timeout_s=scaled(10)):
            x = torch.full((3,), 10.0**job)
            dist.all_reduce(x)
            result = x[0].item()
            Path(folder, str(rank)).touch()
            for other in range(world_size):  # rank 0 serves the store
                _wait_for(Path(folder, str(other)))
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    Path(folder, str(rank)).touch()
    return result


def test_two_jobs_at_one_port_get_their_own_sums_or_errors(tmp_path: Path) -> None:
    results = run_ranks(_one_of_two_jobs, 4, str(tmp_path))
    sums = [results[:2], results[2:]]
    assert sums[0] == [2.0, 2.0] or sums[1] == [20.0, 20.0]
    for job, right in zip(sums, (2.0, 20.0), strict=True):
        for result in job:
            assert result == right or isinstance(result, str)


def _nameless(rank: int, world_size: int) -> None:
    del os.environ["SMDDP_RUN_ID"]
    with smddp():
        dist.barrier()


def test_a_job_without_identity_is_told_once() -> None:
    outcomes = run_ranks(_nameless, 2, check=False)
    assert [outcome.ok for outcome in outcomes] == [True, True], outcomes
    told = [outcome.output.count("nothing tells which job this rank") for outcome in outcomes]
    assert told == [1, 0]
