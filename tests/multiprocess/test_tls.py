# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks talk TLS, and the certificates that are refused.

The certificates are made with the commands of docs/security.md, so that those are tested as well.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from engine_ranks import TIMEOUT_S, Heard, heard
from harness import run_ranks
from job_certificates import PAGE, make_authority, make_files, settings_of
from torch_ranks import smddp

WORLD_SIZE = 3
# Around the size of a TLS record, and one that does not fit into any buffer on the way.
COUNTS = (0, 1, 4095, 4096, 4097, 300_001, 6_000_000)

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="no openssl command to make certificates with"
)


def _make(folder: Path, valid_days: int = 30) -> dict[str, str]:
    """Make an authority and a certificate in `folder`, and return the settings for them."""
    return settings_of(make_files(make_authority(folder), valid_days=valid_days))


def _reduces(rank: int, world_size: int) -> None:
    from smdistributed import collectives

    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        for count in COUNTS:
            array = np.arange(count, dtype=np.float64) % 1000 + rank
            comm.all_reduce(array)
            expected = (np.arange(count) % 1000) * world_size + sum(range(world_size))
            assert np.array_equal(array, expected), count
        arrays = [np.full(10_000 * (i + 1), float(rank)) for i in range(20)]
        works = [comm.all_reduce(array, async_op=True) for array in arrays]
        for work, array in zip(works, arrays, strict=True):
            assert work is not None
            work.wait()
            assert (array == sum(range(world_size))).all()


def test_collectives_are_right_over_tls(tmp_path: Path) -> None:
    env = {"SMDDP_TRANSPORT": "tcp", "SMDDP_TOKEN": "t", **_make(tmp_path / "job")}
    run_ranks(_reduces, WORLD_SIZE, env=env, deadline_s=180)


def _joins(rank: int, world_size: int, settings: Sequence[Mapping[str, str]]) -> Heard | None:
    os.environ.update(settings[rank])

    def join() -> None:
        import torch
        import torch.distributed as dist

        with smddp(timeout_s=20.0):
            dist.all_reduce(torch.ones(3))

    return heard(join)


def _meets(rank: int, world_size: int, settings: Sequence[Mapping[str, str]]) -> Heard | None:
    os.environ.update(settings[rank])
    return heard(_reduces, rank, world_size)


def test_ranks_with_certificates_of_their_own_meet_and_reduce(tmp_path: Path) -> None:
    """Source: docs/security.md, "TLS": one certificate per host, or one for the whole job."""
    authority = make_authority(tmp_path / "job")
    settings = [settings_of(make_files(authority, f"host{rank}")) for rank in range(3)]
    told = run_ranks(
        _meets, 3, settings, env={"SMDDP_TRANSPORT": "tcp", "SMDDP_TOKEN": "t"}, deadline_s=180
    )
    assert told == [None] * 3


def test_a_rank_of_another_authority_is_refused_by_all_and_told(tmp_path: Path) -> None:
    ours, foreign = _make(tmp_path / "job"), _make(tmp_path / "foreign")
    told = run_ranks(_joins, 2, [ours, foreign], env={"SMDDP_TRANSPORT": "tcp"}, deadline_s=120)
    for each in told:
        assert each is not None
        assert each.type_name == "SMDDPPeerLost", each
    assert any("certificate" in str(each) and "SMDDP_TLS_CA" in str(each) for each in told), told


def test_a_rank_without_tls_is_named_to_all(tmp_path: Path) -> None:
    ours = _make(tmp_path / "job")
    told = run_ranks(_joins, 3, [ours, {}, ours], env={"SMDDP_TRANSPORT": "tcp"}, deadline_s=120)
    for each in told:
        assert each is not None
        assert each.type_name == "SMDDPConfigInvalid", each
        assert each.text.startswith("rank 1 (host ")
        assert "uses no TLS, the other ranks do" in each.text


def _error_with(settings: dict[str, str]) -> str:
    """What a rank that has these files is told before it talks to anybody."""
    (outcome,) = run_ranks(_makes_alone, 1, settings, deadline_s=120)
    assert isinstance(outcome, str)
    return outcome


def _makes_alone(rank: int, world_size: int, settings: Mapping[str, str]) -> str:
    from smdistributed._common.engine_options import EngineOptions
    from smdistributed._common.errors import ConfigurationError
    from smdistributed.collectives import _native

    files = settings["SMDDP_TLS_CERT"], settings["SMDDP_TLS_KEY"], settings["SMDDP_TLS_CA"]
    options = EngineOptions(transport="tcp", tls=files)
    with pytest.raises(ConfigurationError) as caught:
        _native.Communicator(0, 2, lambda key, value: [value], options)
    return str(caught.value)


def test_files_that_cannot_work_are_told_at_the_start(tmp_path: Path) -> None:
    ours, foreign = _make(tmp_path / "job"), _make(tmp_path / "foreign")
    expired = _make(tmp_path / "expired", valid_days=-1)
    cases = [
        (expired, "certificate has expired"),
        ({**ours, "SMDDP_TLS_CA": foreign["SMDDP_TLS_CA"]}, "is no valid certificate of"),
        ({**ours, "SMDDP_TLS_KEY": foreign["SMDDP_TLS_KEY"]}, "expected the key of SMDDP_TLS_CERT"),
        ({**ours, "SMDDP_TLS_CERT": str(tmp_path / "none.pem")}, "Correct the path"),
        ({**ours, "SMDDP_TLS_CA": str(PAGE)}, "expected certificates in PEM form"),
    ]
    for settings, text in cases:
        told = _error_with(settings)
        assert text in told, told
        assert "docs/security.md" in told
