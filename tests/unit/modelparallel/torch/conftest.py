# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A process of its own for each test, as far as `smp.init()` can tell: no launcher, no group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

import smdistributed.modelparallel.torch as smp

_LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
    "SM_HOSTS",
    "SM_HP_MP_PARAMETERS",
)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Before: a process that no launcher started. Afterwards: as if nothing had happened."""
    for name in _LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    smp.reset()
    yield
    smp.reset()
    if dist.is_initialized():
        dist.destroy_process_group()
