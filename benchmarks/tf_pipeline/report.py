# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Writes `docs/benchmarks/tf_pipeline.md` from one result file of `run.py`.

Usage: python benchmarks/tf_pipeline/report.py [RESULT.json] [--docs FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import page_parts
from common.result_files import write_page

HERE = Path(__file__).resolve().parent
PAGE = "tf_pipeline.md"
SHAPES = {
    "gpt-4": "GPT, 4 blocks of width 256",
    "gpt-8": "GPT, 8 blocks of width 256",
    "tiny": "tiny GPT, 4 blocks of width 64",
}


def steps_table(records: list[dict[str, Any]], cores: int) -> str:
    """Times of each column, ratios to ours, shares of the ideal."""
    lines = []
    for record in records:
        times, speed = record["median_ms"], record["speed_against"]
        fits = record["ranks"] <= cores
        lines.append(
            [
                SHAPES[record["shape"]],
                str(record["ranks"]),
                str(record["microbatches"]),
                *(f"{times[name]:.1f}" for name in ("smp", "one thread", "threads")),
                f"{times['ideal']:.1f}" if fits else "–",
                *(_ratio(speed[name]) for name in ("one thread", "threads")),
                _ratio(speed["ideal"]) if fits else "–",
                f"{record['first_s']:.1f}",
            ]
        )
    header = ["Model", "Ranks", "Microbatches", "smp, ms", "1 thread, ms", "N threads, ms"]
    header += ["Ideal, ms", "1 thread / smp", "N threads / smp", "Ideal / smp", "First call, s"]
    return page_parts.table(header, lines)


def hybrid_table(records: list[dict[str, Any]]) -> str:
    """Two replicas of two partitions, the pipeline alone, and what the exchange takes."""
    lines = []
    for record in records:
        times = record["median_ms"]
        lines.append(
            [
                SHAPES[record["shape"]],
                str(record["microbatches"]),
                *(f"{times[name]:.1f}" for name in ("replicas", "pipeline", "without")),
                f"{times['exchange']:.2f}",
                *(_ratio(record[f"time_against_{name}"]) for name in ("pipeline", "without")),
            ]
        )
    header = ["Model", "Microbatches of a replica", "2 x 2, ms", "Pipeline alone, ms"]
    header += ["Without exchange, ms", "Exchange alone, ms", "2 x 2 / pipeline", "2 x 2 / without"]
    return page_parts.table(header, lines)


def _ratio(figures: dict[str, float]) -> str:
    return f"{figures['median']:.2f} ({figures['p10']:.2f} – {figures['p90']:.2f})"


def parts_table(records: list[dict[str, Any]]) -> str:
    """What does not train a GPT."""
    lines = []
    for found in records:
        for key, value in found.items():
            if isinstance(value, dict):
                spread = f"{value['least']:.3g} – {value['greatest']:.3g}"
                lines.append([found["part"], key, f"{value['median']:.3g}", spread])
            elif isinstance(value, float):
                lines.append([found["part"], key, f"{value:.3g}", ""])
    return page_parts.table(["Part", "What", "Median", "Least – greatest"], lines, 2)


def page(content: dict[str, Any]) -> str:
    """The text of the page."""
    machine = content["environment"]
    text = f"""# Pipelines of TensorFlow, beside one process

<!-- Written by benchmarks/tf_pipeline/report.py; edit that, not this page. -->

The same GPT, forward and backward: cut between blocks and run through `smp.step` over some ranks
with one thread each; and by plain Keras in one process, the whole batch at once, with one thread
and with as many threads as there are ranks. These jobs take turns in one run. A ratio of 1.50 means
that the other took half as long again as ours in the turn beside it.

The *ideal* is what no schedule of these stages can beat: a microbatch's way through all stages, and
the slowest stage's work for the others, measured in the same rounds with all ranks at work and no
messages.

No other library runs a pipeline of a TensorFlow model over processes, so there is no other peer.

{steps_table(content["steps"], machine["cpus"])}
Medians over {content["rounds"]} turns, p10 – p90 of the ratios in brackets. Where there are more
ranks than the {machine["cpus"]} processors, stages wait for processors and not for each other:
there is no ideal.
"""
    if content["results"]:
        text += f"""
## A step, taken apart

{parts_table(content["results"])}"""
    if content.get("hybrid"):
        text += f"""
## Replicas

Two replicas of two partitions beside one pipeline of two ranks, which has the same two processors,
the same global batch, and microbatches of the same size. The replicas end a step with the mean of
their gradients (`hvd.allreduce`). Beside that the step without this exchange, and the exchange
without a step.

{hybrid_table(content["hybrid"])}"""
    if content["memory"]:
        lines = [
            [
                str(found["active"]),
                *(f"{each / 1e6:.0f}" for each in found["held_bytes"]),
                *(str(each) for each in found["held_microbatches"]),
            ]
            for found in content["memory"]
        ]
        header = ["`active_microbatches`", "Rank 0, MB", "Rank 1, MB"]
        header += ["Rank 0, microbatches", "Rank 1, microbatches"]
        text += f"""
## Memory

What is held for backward passes at the peak of a step, as it is counted where it is kept
({SHAPES["gpt-8"]}, 16 microbatches, 2 ranks). The last rank runs each microbatch backward at once.

{page_parts.table(header, lines)}"""
    return f"""{text}
Measured on {content["date"]} with {page_parts.machine_words(machine)}, by

    {content["command"]}
    python benchmarks/tf_pipeline/report.py
"""


if __name__ == "__main__":
    write_page(HERE, __doc__.splitlines()[0], PAGE, page)
