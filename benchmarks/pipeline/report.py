# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Writes `docs/benchmarks/pipeline.md` from one result file of `run.py`.

Usage: python benchmarks/pipeline/report.py [RESULT.json] [--docs FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import page_parts
from common.result_files import write_page

HERE = Path(__file__).resolve().parent
PAGE = "pipeline.md"
CAN_RUN = HERE / "results/can_run/torch-2.13.0.json"
# Median speed against 1F1B that is promised on 2 ranks, by shape; and share of the ideal.
TARGETS = {"gpt-4": 1.0, "gpt-8": 1.0, "tiny": 1.15}
SHAPES = {
    "gpt-4": "GPT, 4 blocks of width 256",
    "gpt-8": "GPT, 8 blocks of width 256",
    "gpt-16": "GPT, 16 blocks of width 256",
    "tiny": "tiny GPT, 4 blocks of width 64",
}


def steps_table(records: list[dict[str, Any]], cores: int) -> str:
    """Times of each column, ratios to ours, shares of the ideal."""
    lines = []
    for record in records:
        times, speed = record["median_ms"], record["speed_against"]
        target = TARGETS.get(record["shape"]) if record["ranks"] <= cores else None
        cells = [
            f"{speed[peer]['median']:.3f} ({speed[peer]['p10']:.2f} – {speed[peer]['p90']:.2f})"
            for peer in ("1f1b", "gpipe")
        ]
        if target is not None and record["microbatches"] >= 4:
            is_missed = speed["1f1b"]["median"] < target
            cells[0] = f"**{cells[0]}**" + (", missed" if is_missed else "")
        fits = record["ranks"] <= cores
        shares = record["share_of_ideal"]
        lines.append(
            [
                SHAPES[record["shape"]],
                str(record["ranks"]),
                str(record["microbatches"]),
                *(f"{times[name]:.1f}" for name in ("smp", "1f1b", "gpipe")),
                f"{times['ideal']:.1f}" if fits else "–",
                *cells,
                f"{shares['smp']:.2f} / {shares['1f1b']:.2f}" if fits else "–",
            ]
        )
    header = ["Model", "Ranks", "Microbatches", "smp, ms", "1F1B, ms", "GPipe, ms", "Ideal, ms"]
    header += ["1F1B / smp", "GPipe / smp", "Share of the ideal, smp / 1F1B"]
    return page_parts.table(header, lines)


def memory_table(records: list[dict[str, Any]]) -> str:
    """How much each rank's peak grows, by `active_microbatches`."""
    lines = [
        [str(found["active"]), *(f"{each / 1e6:.0f}" for each in found["grown_bytes"])]
        for found in records
    ]
    return page_parts.table(["`active_microbatches`", "Rank 0, MB", "Rank 1, MB"], lines)


def can_run_table(why_not: dict[str, dict[str, str]]) -> str:
    """Per architecture whether torch's pipelining runs it, traced and by hand, and what it says."""
    lines = []
    for name, ways in why_not.items():
        cells = [f"`{name}`"]
        for kind in ("traced", "by hand"):
            reasons = [reason for way, reason in ways.items() if way.startswith(kind)]
            cells.append(next((_brief(each) for each in reasons if each), "**yes**"))
        lines.append(cells)
    return page_parts.table(["Architecture", "Observed", "By hand, as a chain"], lines)


def _brief(reason: str) -> str:
    text = reason.removeprefix("AssertionError: wrong: ")
    if text != reason:
        return f"wrong: {text}"
    text = text.partition(": ")[2]
    return "no: " + (text if len(text) <= 70 else text[:70].rstrip() + " …").replace("|", "\\|")


def _can_run() -> str:
    content = json.loads(CAN_RUN.read_text())
    found = content["why_not"]
    counts = [
        sum(not any(r for w, r in ways.items() if w.startswith(kind)) for ways in found.values())
        for kind in ("traced", "by hand")
    ]
    return f"""
## What it can run

The architectures that the tests of `smp.DistributedModel` train, each with losses and gradients as
the whole model's: all {len(found)} here. torch.distributed.pipelining (torch {content["torch"]}),
two processes, four microbatches, runs {counts[0]} of them traced by its `pipeline()` and split in
the middle, and {counts[1]} as a chain of the model's children, cut in the middle by hand. GPipe and
1F1B run the same ones. Whoever writes each stage as a module of its own can run more by hand: a
chain is what comes for free.

{can_run_table(found)}
What it says is torch's own text. Run again by

    python benchmarks/pipeline/can_run.py --out {CAN_RUN.relative_to(HERE.parents[1])}
"""


def page(content: dict[str, Any]) -> str:
    """The text of the page."""
    cores = content["environment"]["cpus"]
    pipeline = content.get("pipeline", "interleaved")  # older results do not say
    parts = [
        f"""# Steps of a pipeline, beside torch.distributed.pipelining

<!-- Written by benchmarks/pipeline/report.py; edit that, not this page. -->

The same GPT, cut at the same blocks, over the same ranks and with the same microbatches: through
`smp.DistributedModel` with its {pipeline} schedule, and through torch's `Schedule1F1B` and
`ScheduleGPipe` over Gloo. All three take turns in one run, in the same processes, with one thread
each. A ratio of 1.05 means that theirs took 5 % longer than ours in the turn beside it.

The *ideal* is what no schedule of these stages can beat: a microbatch's way through all stages, and
the slowest stage's work for the others, measured in the same rounds with all ranks at work and no
messages. It counts the loss on the last stage.

{steps_table(content["steps"], cores)}
Medians over {content["rounds"]} turns, p10 – p90 of the ratios in brackets. Where there are more
ranks than the {cores} processors, stages wait for processors and not for each other: there is no
ideal. Measured on {content["date"]} with

    {content["command"]}
    python benchmarks/pipeline/report.py
""",
    ]
    if content["memory"]:
        parts.append(
            f"""
## Memory

How much a rank's peak grows over what it held before the first step: gradients, and what is kept
for backward passes ({SHAPES["gpt-8"]}, 16 microbatches, 2 ranks). Rank 0 keeps as many
microbatches as may be under way, if it comes to that; rank 1 goes back at once.

{memory_table(content["memory"])}"""
        )
    if "call_us" in content:
        small, large = (content["call_us"][size] for size in ("32", "262144"))
        parts.append(
            f"""
## A remote call

A call whose result is looked at before the next one, there and back, without gradients:
{small["median"]:.0f} µs for 32 bytes each way (best {small["best"]:.0f}),
{large["median"]:.0f} µs for 256 KiB (best {large["best"]:.0f}). Most of it is Python's, on
both ranks; a message between them takes a microsecond. Calls whose results are only passed on wait
for nobody ([architecture](../architecture.md)).
"""
        )
    parts.append(_can_run())
    return "".join(parts)


if __name__ == "__main__":
    write_page(HERE, __doc__.splitlines()[0], PAGE, page)
