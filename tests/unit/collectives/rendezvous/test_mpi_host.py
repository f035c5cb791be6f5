# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The host of rank 0 through MPI, with a stand-in for mpi4py."""

import socket
import sys
import types

import pytest

from smdistributed.collectives.rendezvous.mpi_host import host_of_rank_zero


class _World:
    def __init__(self, rank: int, size: int, sent: bytes = b"") -> None:
        self._rank, self._size, self._sent = rank, size, sent

    def Get_rank(self) -> int:  # noqa: N802 -- MPI's names
        return self._rank

    def Get_size(self) -> int:  # noqa: N802
        return self._size

    def Bcast(self, buffer: bytearray, root: int) -> None:  # noqa: N802
        assert root == 0
        if self._rank != root:
            buffer[: len(self._sent)] = self._sent


def _install(monkeypatch: pytest.MonkeyPatch, world: _World | None) -> None:
    package = types.ModuleType("mpi4py")
    if world is not None:
        package.MPI = types.SimpleNamespace(COMM_WORLD=world)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mpi4py", package)


def test_rank_0_tells_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, _World(0, 4))
    assert host_of_rank_zero() == socket.gethostname()


def test_other_ranks_hear_the_name_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, _World(3, 4, b"first-host"))
    assert host_of_rank_zero() == "first-host"


def test_an_mpi_that_did_not_launch_us_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, _World(0, 1))
    assert host_of_rank_zero() is None


def test_without_mpi4py_nobody_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, None)
    assert host_of_rank_zero() is None
