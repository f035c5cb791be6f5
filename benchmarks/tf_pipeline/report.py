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
# What is aimed at, on 2 ranks with 8 microbatches.
SPEED = 1.55  # of the GPT of 4 blocks, against one process with one thread
OF_IDEAL = 0.92
OF_IDEAL_OF_STAGES = 0.95  # of 50 ms
STAGE_MS = 50
FIRST_S = {200: 10.0, 1000: 30.0}  # by layers, with 32 microbatches
REPLICAS = 1.10  # of two pipelines, against one


def targets(content: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """What is aimed at: name, target, what was found, whether it is met."""
    found = []

    def aim_at(name: str, ratio: dict[str, float], least: float) -> None:
        found.append((name, f"≥ {least:.2f}", _ratio(ratio), ratio["median"] >= least))

    for record in content["steps"]:
        if (record["ranks"], record["microbatches"]) != (2, 8) or record["shape"] == "tiny":
            continue
        name, speed = SHAPES[record["shape"]], record["speed_against"]
        if record["shape"] == "gpt-4":
            aim_at(f"{name}: 1 thread / smp", speed["one thread"], SPEED)
        if "ideal" in speed:
            aim_at(f"{name}: ideal / smp", speed["ideal"], OF_IDEAL)
    for record in _of("overlap", content):
        if record["asked_ms"] == STAGE_MS:
            ratio = record["of_ideal"]
            is_met = ratio["median"] >= OF_IDEAL_OF_STAGES
            name = f"stages of {STAGE_MS} ms: ideal / smp"
            found.append((name, f"≥ {OF_IDEAL_OF_STAGES:.2f}", _spread(ratio, ".2f"), is_met))
    for record in _of("first-call", content):
        most = FIRST_S.get(record["layers"])
        if most is not None:
            name = f"first call of {record['layers']} layers, {record['microbatches']} microbatches"
            seconds = record["first_s"]
            found.append((name, f"≤ {most:.0f} s", f"{seconds:.1f} s", seconds <= most))
    for record in content["hybrid"]:
        if record["shape"] == "gpt-4":
            ratio, name = record["time_against_pipeline"], SHAPES[record["shape"]]
            is_met = ratio["median"] <= REPLICAS
            found.append((f"{name}: 2 x 2 / pipeline", f"≤ {REPLICAS:.2f}", _ratio(ratio), is_met))
    return found


def targets_table(content: dict[str, Any]) -> str:
    """With what is missed in bold; nothing where nothing of it was measured."""
    lines = [
        [name, target, value, "yes" if is_met else "**no**"]
        for name, target, value, is_met in targets(content)
    ]
    return page_parts.table(["Aim", "Target", "Found", "Met"], lines) if lines else ""


def _of(part: str, content: dict[str, Any]) -> list[dict[str, Any]]:
    return [found for found in content["results"] if found["part"] == part]


def steps_table(records: list[dict[str, Any]]) -> str:
    """Times of each column, ratios to ours, shares of the ideal."""
    lines = []
    for record in records:
        times, speed = record["median_ms"], record["speed_against"]
        fits = "ideal" in times
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


def bounds_table(records: list[dict[str, Any]]) -> str:
    """The factors that lead from one process to the ideal."""
    lines = []
    for record in (each for each in records if each["bounds"]):
        ranks, microbatches = record["ranks"], record["microbatches"]
        bounds = record["bounds"]
        lines.append(
            [
                SHAPES[record["shape"]],
                str(ranks),
                str(microbatches),
                f"{ranks * microbatches / (microbatches + ranks - 1):.2f}",
                *(_ratio(bounds[name]) for name in ("stages", "together", "batch", "of_ideal")),
            ]
        )
    header = ["Model", "Ranks", "Microbatches", "Equal stages", "Stages", "Together", "Batch"]
    return page_parts.table([*header, "1 thread / ideal"], lines)


def overlap_table(records: list[dict[str, Any]]) -> str:
    """Steps over stages that take equally long."""
    lines = [
        [
            f"{found['stage_ms']:.1f}",
            f"{found['ideal_ms']:.0f}",
            f"{found['step_ms']['median']:.0f}",
            _spread(found["of_ideal"], ".2f"),
        ]
        for found in records
    ]
    return page_parts.table(["A stage, ms", "Ideal, ms", "Step, ms", "Ideal / step"], lines, 0)


def costs_table(content: dict[str, Any]) -> str:
    """What an empty step, a segment and a message take."""
    lines = []
    for found in _of("empty", content):
        over = f"{found['ranks']} ranks, {found['microbatches']} microbatches"
        lines.append([f"an empty step over {over}", _microseconds(found["step_ms"])])
        lines.append(["the same, called in a `tf.function`", _microseconds(found["in_graph_ms"])])
    lines += [
        ["a backward segment and its gradient", _microseconds(found["segment_ms"])]
        for found in _of("segment", content)
    ]
    for found in _of("message", content):
        size = _size(found["bytes"])
        lines.append([f"a segment and its message of {size}", _microseconds(found["hop_ms"])])
    return page_parts.table(["What", "µs"], lines)


def first_call_table(records: list[dict[str, Any]]) -> str:
    """How long the first call takes, by layers."""
    lines = [
        [
            str(found["layers"]),
            str(found["microbatches"]),
            f"{found['first_s']:.1f}",
            str(found["bodies"]),
            _spread(found["later_ms"], ".0f"),
        ]
        for found in records
    ]
    header = ["Layers", "Microbatches", "First call, s", "Traces", "Later calls, ms"]
    return page_parts.table(header, lines, 0)


def memory_table(records: list[dict[str, Any]]) -> str:
    """What is held, and how resident memory grows, by `active_microbatches`."""
    header = ["`active_microbatches`"]
    for what in ("Held, MB", "Of microbatches", "Grown, MB", "Peak, MB"):
        header += [f"{what}: rank {rank}" for rank in range(2)]
    lines = [
        [
            str(found["active"]),
            *_megabytes(found["held_bytes"]),
            *(str(each) for each in found["held_microbatches"]),
            *_megabytes(found["grown_bytes"]),
            *_megabytes(found["peak_bytes"]),
        ]
        for found in records
    ]
    return page_parts.table(header, lines, 0)


def _spread(figures: dict[str, float], digits: str) -> str:
    middle, least, greatest = (
        format(figures[name], digits) for name in ("median", "least", "greatest")
    )
    return f"{middle} ({least} – {greatest})"


def _microseconds(figures: dict[str, float]) -> str:
    return _spread({name: each * 1e3 for name, each in figures.items()}, ".0f")


def _megabytes(sizes: list[int]) -> list[str]:
    return [f"{each / 1e6:.0f}" for each in sizes]


def _size(num_bytes: int) -> str:
    return f"{num_bytes} B" if num_bytes < 1 << 10 else f"{num_bytes >> 10} KiB"


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

{targets_table(content)}
## Steps

{steps_table(content["steps"])}
Medians over {content["rounds"]} turns, p10 – p90 of the ratios in brackets. Where there are more
ranks than the {machine["cpus"]} processors, stages wait for processors and not for each other:
there is no ideal.

## Why the ideal is not {machine["cpus"]} times as fast

One process takes as many times the ideal as the product of three measured factors says:

- *Stages*: it takes microbatch after microbatch, and so do the stages, each while the others do
  nothing; their times give the ideal. *Equal stages* is what this were if all stages took equally
  long, and one process exactly as long as all of them. The last stage has the head and the loss, so
  it is the slowest.
- *Together*: a stage while the others do nothing, against the same stage while all are at work, as
  they are in a step. Below 1, the ranks take from each other what they share: memory, its caches,
  or the speed of the processors.
- *Batch*: one process with the whole batch at once, as it is measured above, against microbatch
  after microbatch. Below 1, large batches are to its advantage, and above, its cache is too small
  for them.

{bounds_table(content["steps"])}"""
    if overlaps := _of("overlap", content):
        text += f"""
## Overlap

Steps of {overlaps[0]["microbatches"]} microbatches over {overlaps[0]["ranks"]} stages that take
equally long, forward and backward together, and send 384 KiB. In brackets the least and the
greatest of the turns.

{overlap_table(overlaps)}"""
    if _of("empty", content) or _of("segment", content) or _of("message", content):
        text += f"""
## What a step costs

A segment is what a rank runs at a stretch for one microbatch; here it computes next to nothing.
What a backward one takes, and adding up its gradient, is the difference between steps on one rank
with a backward pass and without. What a segment takes with its message is the difference between
steps of one microbatch that go between two ranks more often and less often: the receiver waits for
it meanwhile. In a step with many microbatches it seldom does. Between blocks of width 256 a message
has 256 KiB. Medians, least – greatest.

{costs_table(content)}"""
    if calls := _of("first-call", content):
        text += f"""
## The first call

It traces, decides, cuts and runs. {calls[0]["ranks"]} ranks, dense layers of width 32.

{first_call_table(calls)}"""
    if content["hybrid"]:
        text += f"""
## Replicas

Two replicas of two partitions beside one pipeline of two ranks, which has the same two processors,
the same global batch, and microbatches of the same size. The replicas end a step with the mean of
their gradients (`hvd.allreduce`). Beside that the step without this exchange, and the exchange
without a step.

{hybrid_table(content["hybrid"])}"""
    if content["memory"]:
        text += f"""
## Memory

What is held for backward passes at the peak of a step, as it is counted where it is kept, and of
how many microbatches; the most resident memory of a rank in a step, TensorFlow itself included; and
by how much that is more than before the first call, so with the variables, the functions, the
gradients and what lives in one segment alone ({SHAPES["gpt-8"]}, 16 microbatches, 2 ranks). What
only the first call takes is not in it. The last rank runs each microbatch backward at once.

{memory_table(content["memory"])}"""
    return f"""{text}
Measured on {content["date"]} with {page_parts.machine_words(machine)}, by

    {content["command"]}
    python benchmarks/tf_pipeline/report.py
"""


if __name__ == "__main__":
    write_page(HERE, __doc__.splitlines()[0], PAGE, page)
