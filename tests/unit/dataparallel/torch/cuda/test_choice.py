# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which path CUDA tensors take, as a table of what the ranks report."""

from __future__ import annotations

import pytest

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.torch.cuda.choice import RankReport, choose


def _reports(devices: str, *, nccl: str | None = None, transport: str = "auto") -> list[RankReport]:
    """One rank per letter: its device, `-` for none; `nccl` marks with `n` who is built with it."""
    nccl = nccl if nccl is not None else "n" * len(devices)
    return [
        RankReport("" if device == "-" else device, has == "n", transport)
        for device, has in zip(devices, nccl, strict=True)
    ]


@pytest.mark.parametrize(
    ("reports", "path", "reason"),
    [
        # No GPU anywhere: whatever was forced, there is nothing to decide.
        (_reports("-"), "none", "no rank has a CUDA device"),
        (_reports("---"), "none", "no rank has a CUDA device"),
        (_reports("--", transport="nccl"), "none", "no rank has a CUDA device"),
        # Some have one.
        (_reports("a-"), "none", "rank 1 has no CUDA device"),
        (_reports("-ab-"), "none", "ranks 0, 3 have no CUDA device"),
        (_reports("a-", transport="staged"), "none", "rank 1 has no CUDA device"),
        # A device each.
        (_reports("a"), "nccl", "each rank has a CUDA device of its own"),
        (_reports("abcd"), "nccl", "each rank has a CUDA device of its own"),
        (_reports("abcd", transport="nccl"), "nccl", "SMDDP_TRANSPORT says so"),
        (_reports("abcd", transport="staged"), "staged", "SMDDP_TRANSPORT says so"),
        # Shared devices.
        (_reports("aa"), "staged", "ranks 0, 1 share one CUDA device, which NCCL does not allow"),
        (
            _reports("abab"),
            "staged",
            "ranks 0, 2 share one CUDA device, which NCCL does not allow",
        ),
        (_reports("aa", transport="staged"), "staged", "SMDDP_TRANSPORT says so"),
        # No NCCL.
        (_reports("ab", nccl="--"), "staged", "the torch of ranks 0, 1 is built without NCCL"),
        (_reports("ab", nccl="n-"), "staged", "the torch of rank 1 is built without NCCL"),
        (_reports("a", nccl="-"), "staged", "the torch of rank 0 is built without NCCL"),
    ],
)
def test_table(reports: list[RankReport], path: str, reason: str) -> None:
    choice = choose(reports)
    assert (choice.path, choice.reason) == (path, reason)


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        (_reports("aab", transport="nccl"), "ranks 0, 1 share one CUDA device"),
        (_reports("ab", nccl="-n", transport="nccl"), "torch of rank 0 is built without NCCL"),
    ],
)
def test_a_forced_nccl_that_cannot_work_says_why_and_what_to_do(
    reports: list[RankReport], why: str
) -> None:
    with pytest.raises(SMDDPConfigInvalid, match=why) as caught:
        choose(reports)
    assert "unset SMDDP_TRANSPORT" in str(caught.value)


def test_ranks_that_were_told_different_transports() -> None:
    reports = [*_reports("ab"), RankReport("c", True, "staged")]
    with pytest.raises(SMDDPConfigInvalid, match=r"'auto' .* on rank 0 .* 'staged' on rank 2"):
        choose(reports)


def test_long_lists_of_ranks_stay_short() -> None:
    assert choose(_reports("-" * 20 + "a")).reason == (
        "ranks 0, 1, 2, 3, 4, 5, 6, 7, ... have no CUDA device"
    )


def test_reports_travel_as_bytes() -> None:
    report = RankReport("GPU-1234", False, "staged")
    assert RankReport.decode(report.encode()) == report
