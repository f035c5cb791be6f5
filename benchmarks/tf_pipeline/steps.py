# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of a GPT over a pipeline beside one process, in turns; and memory by `active_microbatches`.

Loop:  for case (shape, ranks, microbatches): start three jobs
         for round: for job, in an order that turns by one each round: measure
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from common.child_processes import figures_of_ranks
from common.on_request import JobOnRequest
from common.rounds import in_turn, ratio_figures

HERE = Path(__file__).resolve().parent
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
# By shape: on how many ranks, with how many microbatches.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "gpt-4": ((2, 4), (1, 2, 4, 8, 16, 32)),
    "gpt-8": ((2, 4), (8,)),
    "tiny": ((2, 4), (1, 2, 4, 8, 16, 32)),
}
MEMORY_SHAPE, MEMORY_MICROBATCHES, ACTIVE = "gpt-8", 16, (2, 4, 8, 16)
_COLUMNS = ("smp", "one thread", "threads")


def steps_of(shape: str, ranks: int, microbatches: int, options: argparse.Namespace) -> Any:
    """The record of one case: times, and ratios of turns that followed one another."""
    case = ("--shape", shape, "--microbatches", microbatches)
    threads = {"smp": 1, "one thread": 1, "threads": ranks}
    turns: dict[str, list[float]] = {name: [] for name in (*_COLUMNS, "ideal")}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        jobs: dict[str, JobOnRequest] = {}
        for name in _COLUMNS:
            jobs[name] = JobOnRequest(
                *(ranks if name == "smp" else 1, HERE / "training.py", *case),
                *("--threads", threads[name]),
                folder=folder,
                variables=QUIET,
            )
            stack.callback(jobs[name].end)
        greetings = {name: json.loads(job.greeting) for name, job in jobs.items()}
        longest = max(job.ask("step", 1) for job in jobs.values())
        count = max(1, round(options.turn_ms / 1e3 / longest))
        for number in range(options.rounds):
            for name in in_turn(_COLUMNS, number):
                turns[name].append(jobs[name].ask("step", count))
            turns["ideal"].append(jobs["smp"].ask("ideal", max(1, count * microbatches // 2)))
    return {
        "shape": shape,
        "ranks": ranks,
        "microbatches": microbatches,
        "losses": {name: each["loss"] for name, each in greetings.items()},
        "first_s": round(greetings["smp"]["first_s"], 2),
        "median_ms": {name: round(median(each) * 1e3, 3) for name, each in turns.items()},
        "best_ms": {name: round(min(each) * 1e3, 3) for name, each in turns.items()},
        "speed_against": {
            name: ratio_figures(
                theirs / ours for ours, theirs in zip(turns["smp"], turns[name], strict=True)
            )
            for name in (*_COLUMNS[1:], "ideal")
        },
    }


def print_steps(record: dict[str, Any]) -> None:
    """A line."""
    times, ratios = record["median_ms"], record["speed_against"]
    print(
        f"{record['shape']:>6} {record['ranks']} ranks {record['microbatches']:>2} microbatches:"
        f" smp {times['smp']:7.1f} ms, one thread {times['one thread']:7.1f}"
        f" ({ratios['one thread']['median']:.2f} x), {record['ranks']} threads"
        f" {times['threads']:7.1f} ({ratios['threads']['median']:.2f} x), ideal"
        f" {times['ideal']:7.1f} (of it {ratios['ideal']['median']:.2f}); first call"
        f" {record['first_s']:.1f} s",
        flush=True,
    )


def memory_of(active: int) -> dict[str, Any]:
    """What each rank holds at the peak of a step."""
    found = figures_of_ranks(
        *(2, HERE / "training.py", "--memory", "--shape", MEMORY_SHAPE, "--active", active),
        *("--microbatches", MEMORY_MICROBATCHES),
        variables=QUIET,
    )
    held = ", ".join(f"{each / 1e6:.0f}" for each in found["held_bytes"])
    print(f"at most {active} active: held {held} MB (rank 0, rank 1)", flush=True)
    return found
