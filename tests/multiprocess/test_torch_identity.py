# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who am I, where do we meet, and whose rank is that? Over torch's own `init_process_group`."""

from __future__ import annotations

import os
from pathlib import Path

from harness import run_ranks
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
