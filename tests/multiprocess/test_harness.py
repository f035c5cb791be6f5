# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the harness says of ranks that end in ways in which no rank should."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest
from harness import RanksFailed, run_ranks


def _ends(rank: int, world_size: int) -> None:
    if rank == 1:
        os._exit(0)


def test_a_rank_that_ends_before_its_function_has_failed() -> None:
    """Until 2026 it had not: its status is 0, and most functions return None."""
    with pytest.raises(RanksFailed, match="rank 1 ended with exit code 0, before its function"):
        run_ranks(_ends, 2)


class _Opaque:
    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> NoReturn:
    raise ValueError("nobody can make one of these")


def _takes(rank: int, world_size: int, argument: object) -> None:
    pass


def test_what_a_rank_says_before_its_function_is_shown() -> None:
    with pytest.raises(RanksFailed, match="ValueError: nobody can make one of these"):
        run_ranks(_takes, 1, _Opaque())


def _threads(rank: int, world_size: int) -> int:
    import torch

    return torch.get_num_threads()


def test_a_variable_that_a_library_reads_when_it_is_loaded_acts() -> None:
    assert run_ranks(_threads, 1) == [1]
    assert run_ranks(_threads, 1, env={"OMP_NUM_THREADS": "2"}) == [2]


def _own_numbers(rank: int, world_size: int) -> list[float]:
    import random

    import numpy as np
    import torch

    return [random.random(), np.random.random(), torch.rand(()).item(), hash("a name")]


def test_ranks_have_random_numbers_of_their_own() -> None:
    """Without a seed of the test's: weights are equal only if something has made them so."""
    zero, one, two = run_ranks(_own_numbers, 3)
    assert not {*zero} & {*one}
    assert not {*zero[:3]} & {*two[:3]}


def _writes_at_exit(rank: int, world_size: int, path: str) -> None:
    atexit.register(Path(path).write_text, "written")


@pytest.mark.parametrize("kind", ["preloaded", pytest.param("real", marks=pytest.mark.fresh)])
def test_what_is_to_happen_at_exit_happens(kind: str, tmp_path: Path) -> None:
    run_ranks(_writes_at_exit, 1, str(tmp_path / kind))
    assert (tmp_path / kind).read_text() == "written"
