# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which path the CUDA tensors of a group take: decided from what the ranks report, by all alike.

| What the ranks report | Path |
| --- | --- |
| no rank has a CUDA device | none: there can be no CUDA tensors |
| some have one, some do not | none: CUDA tensors are refused, with the ranks named |
| `SMDDP_TRANSPORT=staged` | staged |
| two ranks share a device | staged; an error if `nccl` is forced |
| some torch is built without NCCL | staged; an error if `nccl` is forced |
| otherwise | NCCL |

NCCL is the best there is where each rank has a device of its own, and refuses to start where two
ranks share one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Literal

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid

__all__ = ["Choice", "RankReport", "choose"]

_AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class RankReport:
    """What one rank tells the others about itself.

    Attributes:
        device: identity of the CUDA device this rank is going to use, equal on two ranks if and
            only if they share it; empty if it has none.
        has_nccl: whether its torch is built with NCCL.
        transport: its `SMDDP_TRANSPORT` for CUDA tensors: "auto", "nccl" or "staged".
    """

    device: str
    has_nccl: bool
    transport: str = _AUTO

    def encode(self) -> bytes:
        """For the exchange between the ranks."""
        return json.dumps(dataclasses.astuple(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> RankReport:
        """The inverse of `encode`."""
        return cls(*json.loads(data))


@dataclasses.dataclass(frozen=True)
class Choice:
    """The path, and the reason, as the end of a sentence."""

    path: Literal["none", "nccl", "staged"]
    reason: str


def choose(reports: Sequence[RankReport]) -> Choice:
    """The same answer on every rank.

    Args:
        reports: one for each rank of the group, by rank.

    Raises:
        SMDDPConfigInvalid: the ranks were told different transports, or one that cannot work.
    """
    transport = _agreed_transport(reports)
    without = [rank for rank, report in enumerate(reports) if not report.device]
    if len(without) == len(reports):
        return Choice("none", "no rank has a CUDA device")
    if without:
        return Choice("none", f"{_ranks(without)} no CUDA device")
    if transport == "staged":
        return Choice("staged", "SMDDP_TRANSPORT says so")
    obstacle = _obstacle_to_nccl(reports)
    if obstacle and transport == "nccl":
        raise SMDDPConfigInvalid(
            f"SMDDP_TRANSPORT forces nccl, but {obstacle}; expected a CUDA device for each rank,"
            " and NCCL in every torch. Start fewer processes, or unset SMDDP_TRANSPORT: then CUDA"
            " tensors pass through host memory."
        )
    if obstacle:
        return Choice("staged", obstacle)
    if transport == "nccl":
        return Choice("nccl", "SMDDP_TRANSPORT says so")
    return Choice("nccl", "each rank has a CUDA device of its own")


def _agreed_transport(reports: Sequence[RankReport]) -> str:
    for rank, report in enumerate(reports):
        if report.transport != reports[0].transport:
            raise SMDDPConfigInvalid(
                f"SMDDP_TRANSPORT asks for '{reports[0].transport}' for CUDA tensors on rank 0 and"
                f" for '{report.transport}' on rank {rank}; expected the same everywhere. Set it"
                " where all ranks inherit it, for example with smddprun -x SMDDP_TRANSPORT."
            )
    return reports[0].transport


def _obstacle_to_nccl(reports: Sequence[RankReport]) -> str:
    users: dict[str, list[int]] = {}
    for rank, report in enumerate(reports):
        users.setdefault(report.device, []).append(rank)
    for ranks in users.values():
        if len(ranks) > 1:
            return f"{_list(ranks)} share one CUDA device, which NCCL does not allow"
    lacking = [rank for rank, report in enumerate(reports) if not report.has_nccl]
    return f"the torch of {_list(lacking)} is built without NCCL" if lacking else ""


def _ranks(ranks: list[int]) -> str:
    return f"{_list(ranks)} {'has' if len(ranks) == 1 else 'have'}"


def _list(ranks: list[int]) -> str:
    """`rank 3`, or `ranks 0, 1, 2, ...`, short enough for a log line."""
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}"
