# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Writes `docs/benchmarks/optimizers.md` from one result file of `run.py`.

Usage: python benchmarks/optimizers/report.py [RESULT.json] [--docs FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import page_parts
from common.result_files import write_page

HERE = Path(__file__).resolve().parent
PAGE = "optimizers.md"
SETS = {"bert-base": "BERT-base", "small": "many small tensors"}


def rows(what: list[str], record: dict[str, Any]) -> list[list[str]]:
    """A row for each column of a record: times, ratio to ours, share of the floor."""
    found = []
    for name, milliseconds in record["median_ms"].items():
        spread = record["against"].get(name)
        ratio = "–" if spread is None else f"{spread['ratio']:.2f}"
        if spread is not None:
            ratio += f" ({spread['p10']:.2f} – {spread['p90']:.2f})"
        found.append(
            [
                *what,
                f"**{name}**" if spread is None else name,
                f"{milliseconds:.2f}",
                f"{record['best_ms'][name]:.2f}",
                ratio,
                f"{record['floor_ms']:.2f}",
                f"{record['share_of_floor'][name]:.2f}",
            ]
        )
    return found


def steps_table(records: list[dict[str, Any]]) -> str:
    """Of all sets and families."""
    lines = []
    for record in records:
        size = f"{record['elements'] / 1e6:.1f} M in {record['tensors']}"
        what = [f"{SETS[record['set']]}, {size}", record["family"]]
        lines += rows(what, record)
    header = ["Parameters", "Arithmetic", "Optimizer", "Median, ms", "Best, ms"]
    return page_parts.table([*header, "Theirs / ours", "Floor, ms", "Floor / median"], lines, 3)


def norms_table(records: list[dict[str, Any]]) -> str:
    """Of all shapes and dtypes."""
    lines = []
    for record in records:
        what = ["{} x {}".format(*record["shape"]), record["dtype"]]
        lines += rows(what, record)
    header = ["Rows x length", "dtype", "Module", "Median, ms", "Best, ms"]
    return page_parts.table([*header, "Theirs / ours", "Floor, ms", "Floor / median"], lines, 3)


def page(content: dict[str, Any]) -> str:
    """The text of the page."""
    speeds = [each["bandwidth_gb_s"] for each in (*content["steps"], *content["norms"])]
    machine = content["environment"]
    return f"""# Fused optimizers and layer norm

<!-- Written by benchmarks/optimizers/report.py; edit that, not this page. -->

Steps of `smp.optimizers` beside torch's optimizers, and beside the same arithmetic written plainly:
a loop over the parameters, an operation at a time. Columns of one arithmetic take turns in one run,
and their parameters are equal afterwards, up to rounding. A ratio of 2 means that theirs takes
twice as long as ours.

{steps_table(content["steps"])}
The floor is what a step must read and write at least, 28 bytes for each element of Adam, 32 of LAMB
and 24 of NovoGrad, at the bandwidth that plain operations on large tensors reached in the same
rounds ({min(speeds):.0f} to {max(speeds):.0f} GB/s here). The last column can exceed 1 where the
cache, or several streams at once, move more than those.

FusedAdam runs the kernel of torch's fused one: their ratio is 1 but for what Python does. LAMB and
NovoGrad have no such kernel. Ours run torch's operations for lists over pieces of tensors that stay
in cache; LAMB's update of moments is torch's kernel of Adam.

## Layer norm

Forward and backward. On a CPU `FusedLayerNorm` is torch's kernel.

{norms_table(content["norms"])}
Medians over {content["rounds"]} turns, ratios of medians with p10 – p90 of the rounds' ratios in
brackets; {content["device"]}, threads: {content["threads"]}, torch {content["torch"]};
{page_parts.machine_words(machine)}. Measured on {content["date"]} with

    {content["command"]}
    python benchmarks/optimizers/report.py

On a GPU (`--device cuda`) the floor over the median is the share of its memory bandwidth. The
optimizers have not run on one yet.
"""


if __name__ == "__main__":
    write_page(HERE, __doc__.splitlines()[0], PAGE, page)
