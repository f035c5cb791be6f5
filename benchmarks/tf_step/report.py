# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Writes `docs/benchmarks/tf_step.md` from one result file of `run.py`.

Usage: python benchmarks/tf_step/report.py [RESULT.json] [--docs FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import page_parts
from common.result_files import write_page

HERE = Path(__file__).resolve().parent
PAGE = "tf_step.md"
LARGE, SMALL = 25 << 20, 4
# What is aimed at between 2 processes.
LARGE_TIMES_FASTER = 10.0
SMALL_MS = 0.3
STEP_RATIO = 1.10

_SIZES = {4: "4 B", 4 << 10: "4 KiB", 256 << 10: "256 KiB", 4 << 20: "4 MiB", 25 << 20: "25 MiB"}
_STEPS = {
    "compute": "compute alone",
    "tape": "`DistributedGradientTape`",
    "group": "the same in a group of all ranks",
    "optimizer": "`DistributedOptimizer`",
    "strategy": "`MultiWorkerMirroredStrategy`",
}


def targets(content: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """What is aimed at, between 2 processes: name, target, what was found, whether it is met."""
    found = []
    for record in content["collectives"]:
        if record["ranks"] != 2:
            continue
        if record["bytes"] == LARGE:
            ratio = record["to_smddp"]["tensorflow"]
            found.append(
                (
                    "all_reduce of 25 MiB in `tf.function`, beside TensorFlow's",
                    f"≥ {LARGE_TIMES_FASTER:.0f} times as fast",
                    _spread(ratio),
                    ratio["median"] >= LARGE_TIMES_FASTER,
                )
            )
        elif record["bytes"] == SMALL:
            milliseconds = record["columns"]["smddp"]["median_ms"]
            found.append(
                (
                    "all_reduce of 4 B in `tf.function`",
                    f"≤ {SMALL_MS} ms",
                    f"{milliseconds:.3f} ms",
                    milliseconds <= SMALL_MS,
                )
            )
    for record in content["steps"]:
        if record["ranks"] == 2:
            ratio = record["to_compute"]["tape"]
            found.append(
                (
                    "step of the convnet, beside compute alone",
                    f"≤ {STEP_RATIO:.2f} times as long",
                    _spread(ratio),
                    ratio["median"] <= STEP_RATIO,
                )
            )
    return found


def _spread(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['p10']:.2f} – {ratio['p90']:.2f})"


def _time(figures: dict[str, float]) -> str:
    return (
        f"{page_parts.number(figures['median_ms'])}"
        f" ({page_parts.number(figures['p10_ms'])} – {page_parts.number(figures['p90_ms'])})"
    )


def collectives_table(records: list[dict[str, Any]], floor_ms: dict[str, float]) -> str:
    """Times of each column, and how much longer TensorFlow's take."""
    lines = []
    for record in records:
        columns, to_ours = record["columns"], record["to_smddp"]
        floor = floor_ms.get(str(record["bytes"])) if record["ranks"] == 2 else None
        names = ("smddp", "tensorflow", "strategy", "nothing", "smddp-eager", "tensorflow-eager")
        lines.append(
            [
                _SIZES[record["bytes"]],
                str(record["ranks"]),
                *(_time(columns[name]) for name in names),
                "–" if floor is None else f"{floor:.3g}",
                *(_spread(to_ours[name]) for name in ("group", "tensorflow", "strategy")),
            ]
        )
    header = ["Tensor", "Ranks", "smddp, ms", "TensorFlow, ms", "strategy, ms", "nothing, ms"]
    header += ["smddp eagerly, ms", "TensorFlow eagerly, ms", "Floor, ms"]
    header += ["in a group / smddp", "TensorFlow / smddp", "strategy / smddp"]
    return page_parts.table(header, lines)


def steps_table(records: list[dict[str, Any]]) -> str:
    """Times of a step, as multiples of compute alone."""
    lines = [
        [
            _STEPS[name],
            str(record["ranks"]),
            _time(figures),
            _spread(record["to_compute"][name]),
        ]
        for record in records
        for name, figures in record["columns"].items()
    ]
    return page_parts.table(["Step", "Ranks", "ms", "Times compute alone"], lines)


def page(content: dict[str, Any]) -> str:
    """The text of the page."""
    machine = content["environment"]
    lines = [
        [name, target, found, "yes" if is_met else "**no**"]
        for name, target, found, is_met in targets(content)
    ]
    parts = [
        f"""# TensorFlow: sums and training steps beside its own collectives

<!-- Written by benchmarks/tf_step/report.py; edit that, not this page. -->

{page_parts.table(["Between 2 processes", "Target", "Found", "Met"], lines, text_columns=2)}
Medians, p10 – p90 in brackets. Ratios are of turns that followed one another in one run, in the
same processes. Measured on {content["date"]} with

    {content["command"]}
    python benchmarks/tf_step/report.py

{page_parts.machine_words(machine)}, {page_parts.package_words(machine)}. TensorFlow has
{content["threads"]["inter"]} threads for operations and {content["threads"]["intra"]} within one,
in all columns; {content["rounds"]} rounds.
"""
    ]
    if content["collectives"]:
        parts.append(
            f"""
## Sums

{collectives_table(content["collectives"], content["floor_ms"])}
*smddp* is `oob_allreduce` in a `tf.function`, *TensorFlow* is `CollectiveReduceV2` as a ring,
*strategy* is `all_reduce` of the replica's context of `MultiWorkerMirroredStrategy`, which leads to
the same operation. *Nothing* is a function that negates the tensor: what it takes to call one at
all. The floor is one sum between two pinned processes through shared memory.
"""
        )
    if content["steps"]:
        batch = content["steps"][0]["batch"]
        parts.append(
            f"""
## Steps

The convnet of the documented MNIST script, 1.2 million weights, {batch} images on each rank.
*Compute alone* runs on all ranks at once, too.

{steps_table(content["steps"])}
With more ranks than the {machine["cpus"]} processors they wait for those as well.
"""
        )
    parts.append("\nMethod: [benchmarks/tf_step](../../benchmarks/tf_step/README.md).\n")
    return "".join(parts)


if __name__ == "__main__":
    write_page(HERE, __doc__.splitlines()[0], PAGE, page)
