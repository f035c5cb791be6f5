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
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from common.child_processes import figures_of_ranks
from common.on_request import JobOnRequest
from common.rounds import in_turn, ratio_figures

HERE = Path(__file__).resolve().parent
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
# By shape and ranks: with how many microbatches. More ranks than processors: few tell all.
CASES: dict[str, dict[int, tuple[int, ...]]] = {
    "gpt-4": {2: (1, 2, 4, 8, 16, 32), 4: (8, 32)},
    "gpt-8": {2: (8, 16), 4: (8,)},
    "tiny": {2: (1, 4, 8, 32), 4: (8,)},
}
MEMORY_SHAPE, MEMORY_MICROBATCHES, ACTIVE = "gpt-8", 16, (2, 4, 8, 16)
_COLUMNS = ("smp", "one thread", "threads")
# What the ideal is made of: stages, all at work or one after the other; one process that takes
# microbatch after microbatch. With the job that is asked for it.
_BOUNDS = {"ideal": "smp", "alone": "smp", "pieces": "one thread"}


def steps_of(shape: str, ranks: int, microbatches: int, options: argparse.Namespace) -> Any:
    """The record of one case: times, and ratios of turns that followed one another.

    There is no ideal where stages wait for processors.
    """
    case = ("--shape", shape, "--microbatches", microbatches)
    threads = {"smp": 1, "one thread": 1, "threads": ranks}
    bounds = _BOUNDS if ranks <= len(os.sched_getaffinity(0)) else {}
    turns: dict[str, list[float]] = {name: [] for name in (*_COLUMNS, *bounds)}
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
            for name, job in bounds.items():
                turns[name].append(jobs[job].ask(name, max(1, count * microbatches // 2)))
    return {
        "shape": shape,
        "ranks": ranks,
        "microbatches": microbatches,
        "losses": {name: each["loss"] for name, each in greetings.items()},
        "first_s": round(greetings["smp"]["first_s"], 2),
        "median_ms": {name: round(median(each) * 1e3, 3) for name, each in turns.items()},
        "best_ms": {name: round(min(each) * 1e3, 3) for name, each in turns.items()},
        "speed_against": {
            name: ratios(turns[name], turns["smp"])
            for name in ("one thread", "threads", "ideal")
            if name in turns
        },
        "bounds": bounds_of(turns) if bounds else {},
    }


def ratios(ones: list[float], others: list[float]) -> dict[str, float]:
    """Of turns of the same round."""
    return ratio_figures(one / other for one, other in zip(ones, others, strict=True))


def bounds_of(turns: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    """Why one process with one thread takes that many times the ideal: three factors.

    `stages`: by how much stages that follow one another on processors of their own shorten what one
    process does microbatch by microbatch. `together`: what of it is left when all ranks are at work
    at once. `batch`: what one process takes for the whole batch, against microbatch by microbatch.
    Their product is `of_ideal`.
    """
    return {
        "stages": ratios(turns["pieces"], turns["alone"]),
        "together": ratios(turns["alone"], turns["ideal"]),
        "batch": ratios(turns["one thread"], turns["pieces"]),
        "of_ideal": ratios(turns["one thread"], turns["ideal"]),
    }


def print_steps(record: dict[str, Any]) -> None:
    """A line."""
    times, speed = record["median_ms"], record["speed_against"]
    ideal = ""
    if record["bounds"]:
        parts = ", ".join(f"{name} {each['median']:.2f}" for name, each in record["bounds"].items())
        ideal = f", ideal {times['ideal']:7.1f} (of it {speed['ideal']['median']:.2f}; {parts})"
    print(
        f"{record['shape']:>6} {record['ranks']} ranks {record['microbatches']:>2} microbatches:"
        f" smp {times['smp']:7.1f} ms, one thread {times['one thread']:7.1f}"
        f" ({speed['one thread']['median']:.2f} x), {record['ranks']} threads"
        f" {times['threads']:7.1f} ({speed['threads']['median']:.2f} x){ideal}; first call"
        f" {record['first_s']:.1f} s",
        flush=True,
    )


def memory_of(active: int) -> dict[str, Any]:
    """What each rank holds at the peak of a step, as counted, and by how much its memory grows."""
    found = figures_of_ranks(
        *(2, HERE / "training.py", "--memory", "--shape", MEMORY_SHAPE, "--active", active),
        *("--microbatches", MEMORY_MICROBATCHES),
        variables=QUIET,
    )
    held, grown, peak = (
        ", ".join(f"{each / 1e6:.0f}" for each in found[key])
        for key in ("held_bytes", "grown_bytes", "peak_bytes")
    )
    print(
        f"at most {active} active: held {held} MB (rank 0, rank 1), grown {grown}, peak {peak}",
        flush=True,
    )
    return found
