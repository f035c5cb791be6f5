# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One model, run in one process and over several numbers of partitions, and judged.

Equal means, in float32: each loss on each rank, and each tensor after the last step, differ by
`TOLERANCE` of their largest element at most. Sums in another order round otherwise, and
BatchNormalization of few values makes that grow. So what differs by more is run again in float64,
where it must be `TOLERANCE_64`: a wrong gradient is as wrong there as in float32.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping, Sequence

import numpy as np
from harness import RankOutcome
from tensorflow_harness import run_tensorflow_ranks

from tests.keras_models.registry import Row
from tests.keras_models.trained import Trained

__all__ = ["Keras", "Result", "compare", "differences"]

DEADLINE_S = 240.0  # on an idle machine
TOLERANCE = 1e-5
TOLERANCE_64 = 1e-7
_SMALLEST = 1e-3  # elements count as no smaller: where a gradient is zero there is rounding alone
_RANKS = "tests.keras_models.ranks"


class Keras(enum.Enum):
    """Which Keras `tf.keras` is."""

    THREE = "Keras 3"
    LEGACY = "tf-keras"


@dataclasses.dataclass(frozen=True)
class Result:
    """How a model went.

    Attributes:
        verdict: "equal"; "equal in float64", where float32 differs by more than rounding may;
            "refused", by an error that the row expects; "error", "hang" or "wrong".
        reason: what differs, or the error.
        shares: of the bytes of variables, by rank, by number of partitions.
        difference: the largest, in float32.
        difference_64: the same in float64, if that was needed.
        is_expected: whether the verdict is what the row asks for.
        detail: all that is known, for who mends it.
    """

    row: Row
    keras: Keras
    verdict: str
    reason: str = ""
    shares: Mapping[int, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    difference: float = 0.0
    difference_64: float | None = None
    is_expected: bool = False
    detail: str = ""


def compare(row: Row, keras: Keras, partitions: Sequence[int]) -> Result:
    """Trains it in one process, and with each number of partitions.

    Raises:
        harness.RanksFailed: in one process.
    """
    in_float32 = _compare(row, keras, partitions, "float32", TOLERANCE)
    if in_float32.verdict != "wrong":
        return in_float32
    in_float64 = _compare(row, keras, partitions, "float64", TOLERANCE_64)
    if in_float64.verdict != "equal":
        return in_float64
    return dataclasses.replace(
        in_float64,
        verdict="equal in float64",
        reason=in_float32.reason,
        difference=in_float32.difference,
        difference_64=in_float64.difference,
    )


def _compare(
    row: Row, keras: Keras, partitions: Sequence[int], precision: str, tolerance: float
) -> Result:
    env = {"TF_USE_LEGACY_KERAS": "1"} if keras is Keras.LEGACY else {}
    (whole,) = run_tensorflow_ranks(
        f"{_RANKS}:train_whole", 1, row.name, precision, env=env, deadline_s=DEADLINE_S
    )
    shares: dict[int, tuple[float, ...]] = {}
    wrong: list[str] = []
    largest = 0.0
    for count in partitions:
        outcomes = run_tensorflow_ranks(
            f"{_RANKS}:train_in_a_pipeline",
            count,
            row.name,
            precision,
            env=env,
            deadline_s=DEADLINE_S,
            check=False,
        )
        if not all(outcome.ok for outcome in outcomes):
            return _judge_failure(row, keras, outcomes)
        parts: list[Trained] = [outcome.value for outcome in outcomes]
        found, difference = differences(whole, parts, tolerance)
        wrong += [f"{count} partitions: {each}" for each in found]
        largest = max(largest, difference)
        shares[count] = tuple(part.held_bytes / whole.held_bytes for part in parts)
    return Result(
        row,
        keras,
        "wrong" if wrong else "equal",
        wrong[0] if wrong else "",
        shares,
        largest,
        is_expected=not wrong and not row.refused,
        detail="\n".join(wrong),
    )


def differences(
    whole: Trained, parts: Sequence[Trained], tolerance: float
) -> tuple[list[str], float]:
    """What is not as in one process, and the largest difference, relative to tensors' largest."""
    wrong = []
    if len(set(whole.losses)) == 1 or not any(whole.moved.values()):
        wrong.append("nothing was learned, so nothing was shown")
    largest = 0.0
    for rank, part in enumerate(parts):
        if len(part.names) != len(whole.names):
            wrong.append(f"rank {rank} has {len(part.names)} variables of {len(whole.names)}")
        difference = _difference(np.array(whole.losses), np.array(part.losses))
        largest = max(largest, difference)
        if not difference <= tolerance:
            wrong.append(f"losses of rank {rank} are {part.losses}, not {whole.losses}")
    held = [place for part in parts for place in part.values]
    if sorted(held) != sorted(whole.values):
        wrong.append(f"the ranks hold {len(held)} variables; expected {len(whole.values)}")
    for rank, part in enumerate(parts):
        for place in part.values.keys() & whole.values.keys():
            difference = _difference(whole.values[place], part.values[place])
            largest = max(largest, difference)
            if not difference <= tolerance:
                wrong.append(
                    f"{whole.names[place]} of rank {rank} differs by {difference:.0e};"
                    f" it has moved by {whole.moved[place]:.0e}"
                )
    return wrong, largest


def _difference(one: np.ndarray, other: np.ndarray) -> float:
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if one.size == 0:
        return 0.0
    if one.dtype.kind not in "f":
        return 0.0 if (one == other).all() else float("inf")
    apart = np.abs(one.astype("f8") - other.astype("f8")).max()
    return float(apart / max(np.abs(one).max(), _SMALLEST))


def _judge_failure(row: Row, keras: Keras, outcomes: Sequence[RankOutcome]) -> Result:
    detail = "\n".join(
        f"rank {outcome.rank}: exit code {outcome.exit_code}\n{outcome.output}\n{outcome.stacks}"
        for outcome in outcomes
    )
    if any(outcome.exit_code is None for outcome in outcomes):
        return Result(row, keras, "hang", "a rank had to be killed", detail=detail)
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if not errors:
        codes = ", ".join(str(outcome.exit_code) for outcome in outcomes)
        return Result(row, keras, "error", f"the ranks' exit codes are {codes}", detail=detail)
    text = f"{errors[0].type_name}: {' '.join(errors[0].message.split())}"
    is_expected = bool(row.refused and re.search(row.refused, text))
    return Result(
        row,
        keras,
        "refused" if is_expected else "error",
        text,
        is_expected=is_expected,
        detail=detail,
    )
