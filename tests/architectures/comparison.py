# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One architecture, run both ways and judged.

Equal means: a loss differs by `ROUNDINGS` roundings of float32 at most; a tensor of the state
dictionary by as many of its largest element, plus `OF_MOVEMENT` of the farthest that the steps have
moved one of its elements, plus `ABSOLUTE`; tokens are the same. Sums in another order, of a weight
that is used more than once, need that; what a wrong gradient changes is a part of the movement.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import torch
from harness import RankOutcome, run_ranks
from preloaded import Preload
from torch import Tensor

from tests.architectures.ranks import Trained
from tests.architectures.registry import Architecture

DEADLINE_S = 60.0  # on an idle machine
OF_MOVEMENT = 1e-4
ROUNDINGS = 8
ABSOLUTE = 1e-10  # of gradients that are zero but for rounding, such as those of biases of keys
_EPSILON = 2.0**-24
_RANKS = "tests.architectures.ranks"
# How an error of the library names the module that it is about.
_NAMES_A_MODULE = re.compile(r"\bmain(/\w+)+")


@dataclasses.dataclass(frozen=True)
class Result:
    """How an architecture went.

    Attributes:
        verdict: "equal"; "refused", by an error of the library that names a module; "error", which
            is any other; "wrong"; "hang", when a rank had to be killed.
        reason: what differs, or the error, or of what is equal the library's warnings.
        shares: of the bytes of parameters, by rank; empty unless all ranks have ended well.
        difference: the largest of the state dictionary, relative to the larger of 1 and the value.
        is_expected: whether the verdict, and the text of an error, are what the row asks for.
        detail: all that is known, for who mends it.
    """

    architecture: Architecture
    verdict: str
    reason: str = ""
    shares: tuple[float, ...] = ()
    difference: float = 0.0
    is_expected: bool = False
    detail: str = ""


def compare(architecture: Architecture, num_ranks: int = 2) -> Result:
    """Trains it both ways."""
    name = architecture.name
    wholes = run_ranks(
        f"{_RANKS}:train_whole", 1, name, deadline_s=DEADLINE_S, preload=Preload.TRAINERS
    )
    outcomes = run_ranks(
        f"{_RANKS}:train_in_a_pipeline",
        num_ranks,
        name,
        deadline_s=DEADLINE_S,
        preload=Preload.TRAINERS,
        check=False,
    )
    if all(outcome.ok for outcome in outcomes):
        return _judge(architecture, wholes[0], [outcome.value for outcome in outcomes])
    return _judge_failure(architecture, outcomes)


def _judge(architecture: Architecture, whole: Trained, parts: Sequence[Trained]) -> Result:
    shares = tuple(part.held_bytes / whole.held_bytes for part in parts)
    wrong = differences(whole, parts)
    if min(shares) == 0:
        wrong.append("a rank holds no parameters")
    warnings = dict.fromkeys(text for part in parts for text in part.warnings)
    return Result(
        architecture,
        "wrong" if wrong else "equal",
        wrong[0] if wrong else " ".join(warnings),
        shares,
        _largest_difference(whole.state, parts[0].state),
        not wrong and not architecture.refused,
        "\n".join(wrong),
    )


def _judge_failure(architecture: Architecture, outcomes: Sequence[RankOutcome]) -> Result:
    detail = "\n".join(
        f"rank {outcome.rank}: exit code {outcome.exit_code}\n{outcome.output}\n{outcome.stacks}"
        for outcome in outcomes
    )
    if any(outcome.exit_code is None for outcome in outcomes):
        return Result(architecture, "hang", "a rank had to be killed", detail=detail)
    error = outcomes[0].error
    if error is None:
        codes = ", ".join(str(outcome.exit_code) for outcome in outcomes)
        return Result(architecture, "error", f"the ranks' exit codes are {codes}", detail=detail)
    is_ours = "SMPError" in (error.type_name, *error.base_names)
    is_refusal = is_ours and _NAMES_A_MODULE.search(error.message) is not None
    is_expected = bool(architecture.refused) and re.search(architecture.refused, error.message)
    return Result(
        architecture,
        "refused" if is_refusal else "error",
        f"{error.type_name}: {_one_line(error.message)}",
        is_expected=is_refusal and bool(is_expected),
        detail=detail,
    )


def _one_line(message: str) -> str:
    """Without what follows an empty line: other ranks' stacks."""
    return " ".join(message.split("\n\n")[0].split())


def differences(whole: Trained, parts: Sequence[Trained]) -> list[str]:
    """What is not equal, in words."""
    wrong = []
    for rank, trained in enumerate(parts):
        for step, (loss, wanted) in enumerate(zip(trained.losses, whole.losses, strict=True), 1):
            if not math.isclose(loss, wanted, rel_tol=ROUNDINGS * _EPSILON):
                wrong.append(f"loss of step {step} on rank {rank} is {loss:.9g}, not {wanted:.9g}")
        if not _are_equal(trained.generated, whole.generated):
            wrong.append(f"rank {rank} generates {trained.generated}, not {whole.generated}")
    if whole.losses[-1] == whole.losses[0]:
        wrong.append("nothing was learned")
    return wrong + state_differences(whole.state, parts[0].state, whole.moved)


def _are_equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


def state_differences(
    wanted: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    moved: Mapping[str, float],
) -> list[str]:
    """Of two state dictionaries, what is not equal, in words."""
    if wanted.keys() != found.keys():
        return [f"the state dictionaries differ in {sorted(wanted.keys() ^ found.keys())}"]
    wrong = []
    for name, tensor in wanted.items():
        other = found[name]
        if other.shape != tensor.shape or other.dtype != tensor.dtype:
            wrong.append(
                f"{name} is {tuple(other.shape)} {other.dtype}; "
                f"expected {tuple(tensor.shape)} {tensor.dtype}"
            )
            continue
        tensor, other = tensor.double(), other.double()
        bound = OF_MOVEMENT * moved.get(name, 0.0) + ROUNDINGS * _EPSILON * _largest(tensor)
        bound += ABSOLUTE
        difference = _largest(other - tensor)
        if not difference <= bound or not bool(torch.isfinite(tensor).all()):
            wrong.append(f"{name} differs by {difference:.3g}; expected at most {bound:.3g}")
    return wrong


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _largest_difference(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> float:
    pairs = [(wanted[name].double(), found[name].double()) for name in wanted.keys() & found.keys()]
    return max(
        (_largest((b - a) / a.abs().clamp(min=1.0)) for a, b in pairs if a.shape == b.shape),
        default=0.0,
    )
