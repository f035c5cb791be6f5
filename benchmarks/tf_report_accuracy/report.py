# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Writes `docs/benchmarks/tf_report_accuracy.md` from one result file of `run.py`.

Usage: python benchmarks/tf_report_accuracy/report.py [RESULT.json] [--docs FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import page_parts
from common.result_files import write_page

HERE = Path(__file__).resolve().parent
PAGE = "tf_report_accuracy.md"
KINDS = ("planned", "median", "expected", "measured")
# What is aimed at: a difference to what was measured, as a share of that.
AIM = 0.1


def bubble_table(records: list[dict[str, Any]]) -> str:
    """Bubbles, and what is held."""
    lines = []
    for record in records:
        bubble, held = record["bubble"], record["held"]
        off = (bubble["expected"] - bubble["measured"]) * 100
        lines.append(
            [
                record["shape"],
                str(record["microbatches"]),
                record["model"],
                str(record["rank"]),
                *(f"{bubble[kind]:.1%}".replace("%", " %") for kind in KINDS),
                f"{off:+.1f}",
                *(f"{held[kind] / 1e6:.1f}" for kind in ("planned", "expected", "measured")),
            ]
        )
    header = ["Shape", "Microbatches", "Model, pipeline", "Rank"]
    header += ["Planned", "By medians", "Expected", "Measured", "Off, points"]
    header += ["Held, planned, MB", "Expected, MB", "Measured, MB"]
    return page_parts.table(header, lines, 3)


def summary(records: list[dict[str, Any]]) -> str:
    """How many are within what is aimed at."""
    lines = []
    for kind, words in (
        ("expected", "Expected, with the times of each turn"),
        ("median", "With one time for all turns of a segment"),
        ("planned", "Planned, in one process beforehand"),
    ):
        pairs = [(each["bubble"][kind], each["bubble"]["measured"]) for each in records]
        near = sum(abs(told - found) <= AIM * found for told, found in pairs)
        most = max(abs(told - found) for told, found in pairs)
        lines.append([words, f"{near} of {len(pairs)}", f"{most * 100:.1f}"])
    header = ["Bubble", f"Within {AIM:.0%}".replace("%", " %"), "Furthest off, points"]
    exact = sum(each["held"]["expected"] == each["held"]["measured"] for each in records)
    text = page_parts.table(header, lines)
    return f"{text}\nWhat is held is as expected, to the byte, in {exact} of {len(records)}.\n"


def page(content: dict[str, Any]) -> str:
    """The text of the page."""
    machine, records = content["environment"], content["results"]
    return f"""# How well reports of TensorFlow's pipelines predict

<!-- Written by benchmarks/tf_report_accuracy/report.py; edit that, not this page. -->

GPTs on two ranks: cut in the middle of their blocks; with three quarters of them on rank 0; and one
whose head is its embedding, on rank 0, so that a microbatch goes there, to rank 1 and back in each
direction. For each rank the [bubble](../pipeline_report.md#tensorflow): as `smp.plan()` has it
beforehand in one process; as the lists that ran lead to, *by medians* with one time for all turns
of a segment, and as `smp.report()` *expects* it, with the times of each turn; and as measured.
What messages take is in the last one alone. *Held* is the most that a rank keeps of microbatches at
a time.

{summary(records)}
{bubble_table(records)}
Medians of {content["steps"]} steps. A plan has the times of a rank that computes alone; where two
ranks share caches and memory, both compute more slowly, and not equally. The load of the machine
was {content["load"]} when this began: near 0 is alone; far above the number of processors the steps
had to wait for these, and only *expected* and *measured*, which are of the same steps, compare.

Measured on {content["date"]} with {page_parts.machine_words(machine)}, by

    {content["command"]}
    python benchmarks/tf_report_accuracy/report.py
"""


if __name__ == "__main__":
    write_page(HERE, __doc__.splitlines()[0], PAGE, page)
