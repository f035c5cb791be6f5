# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Do all ranks wrap the same model, in the same way?

Buckets are planned by each rank for itself, from the parameters in their order. If one rank's model
differs, gradients of different parameters would be added up. So ranks compare a digest when the
model is wrapped: 32 bytes each. Only if digests differ do they exchange what these stand for.

Source: dataparallel specification, section 5.2 (construction).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smdistributed.dataparallel.exceptions import SMDDPMismatch

__all__ = ["describe_layout", "describe_model", "first_difference", "require_agreement"]


def describe_model(
    module: nn.Module, ignored: Collection[str], options: Mapping[str, Any]
) -> list[str]:
    """Returns what must be equal on all ranks, one line for each option, parameter and buffer.

    Args:
        module: about to be wrapped.
        ignored: names of parameters and buffers that are left alone.
        options: arguments of the wrapper that must be equal.
    """
    parameters = [
        f"parameter {name}: {describe_layout(p)}, {'trained' if p.requires_grad else 'frozen'}"
        for name, p in module.named_parameters()
        if name not in ignored
    ]
    buffers = [
        f"buffer {name}: {describe_layout(b)}"
        for name, b in module.named_buffers()
        if name not in ignored
    ]
    return [*(f"{name}={value}" for name, value in options.items()), *parameters, *buffers]


def require_agreement(
    lines: Sequence[str],
    group: Any,
    device: torch.device,
    *,
    what: str,
    advice: str,
) -> None:
    """Raise on every rank unless all ranks passed the same lines. A collective of `group`.

    Args:
        lines: see `describe_model`.
        device: one whose tensors the group can move.
        what: says the error before the first difference: a clause without a stop.
        advice: says it after that: sentences with their stops.

    Raises:
        SMDDPMismatch: they differ; the text holds the first line that does, of every rank.
    """
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    mine = torch.tensor(list(digest), dtype=torch.uint8, device=device)
    digests = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(digests, mine, group)
    if all(other.tolist() == digests[0].tolist() for other in digests[1:]):
        return
    everyone: list[Any] = [None] * len(digests)
    dist.all_gather_object(everyone, list(lines), group)
    raise SMDDPMismatch(f"{what}. The first difference: {first_difference(everyone)}. {advice}")


def first_difference(lines_by_rank: Sequence[Sequence[str]]) -> str:
    """Returns who has what in the first place where the ranks' lines are not all equal."""
    for lines in itertools.zip_longest(*lines_by_rank, fillvalue="nothing more"):
        ranks: dict[str, list[int]] = {}
        for rank, line in enumerate(lines):
            ranks.setdefault(line, []).append(rank)
        if len(ranks) > 1:
            return "; ".join(
                f"rank{'s' if len(who) > 1 else ''} {', '.join(map(str, who))}: {line}"
                for line, who in ranks.items()
            )
    return "none"


def describe_layout(tensor: Tensor) -> str:
    """Dtype, shape, unusual strides and kind of device, in words."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    text = f"{dtype} {list(tensor.shape)}"
    if not tensor.is_contiguous():
        text += f" with strides {list(tensor.stride())}"
    return f"{text} on {tensor.device.type}"
