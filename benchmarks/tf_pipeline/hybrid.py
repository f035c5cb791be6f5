# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Two replicas of a pipeline beside the pipeline alone, with the same global batch, in turns.

Both have the same processors, and microbatches of the same size: one replica has half of them.

Loop:  for case (shape, microbatches of a replica): start two jobs
         for round: for column, in an order that turns by one each round: measure
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from common.on_request import JobOnRequest
from common.rounds import in_turn, ratio_figures

HERE = Path(__file__).resolve().parent
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
PARTITIONS = REPLICAS = 2
CORES = 2
# By shape: microbatches of a replica.
HYBRID_CASES: dict[str, tuple[int, ...]] = {"gpt-4": (8,), "tiny": (4,)}
# Which job is asked for what.
_COLUMNS = {
    "pipeline": ("pipeline", "step"),
    "replicas": ("replicas", "step"),
    "without": ("replicas", "without"),
    "exchange": ("replicas", "exchange"),
}


def hybrid_of(shape: str, microbatches: int, options: argparse.Namespace) -> dict[str, Any]:
    """The record of one case: times, and ratios of turns that followed one another."""
    of_jobs = {
        "pipeline": (PARTITIONS, 1, microbatches * REPLICAS),
        "replicas": (PARTITIONS * REPLICAS, REPLICAS, microbatches),
    }
    turns: dict[str, list[float]] = {name: [] for name in _COLUMNS}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        jobs: dict[str, JobOnRequest] = {}
        for name, (ranks, replicas, each) in of_jobs.items():
            jobs[name] = JobOnRequest(
                *(ranks, HERE / "training.py", "--shape", shape, "--microbatches", each),
                *("--replicas", replicas, "--cores", CORES),
                folder=folder,
                variables=QUIET,
            )
            stack.callback(jobs[name].end)
        losses = {name: json.loads(job.greeting)["loss"] for name, job in jobs.items()}
        longest = max(job.ask("step", 1) for job in jobs.values())
        count = max(1, round(options.turn_ms / 1e3 / longest))
        for number in range(options.rounds):
            for name in in_turn(tuple(_COLUMNS), number):
                job, what = _COLUMNS[name]
                turns[name].append(jobs[job].ask(what, count))
    return {
        "shape": shape,
        "microbatches": microbatches,
        "losses": losses,
        "median_ms": {name: round(median(each) * 1e3, 3) for name, each in turns.items()},
        "best_ms": {name: round(min(each) * 1e3, 3) for name, each in turns.items()},
        "time_against_pipeline": _ratios(turns["replicas"], turns["pipeline"]),
        "time_against_without": _ratios(turns["replicas"], turns["without"]),
        "exchange_of_step": _ratios(turns["exchange"], turns["replicas"]),
    }


def _ratios(ones: list[float], others: list[float]) -> dict[str, float]:
    return ratio_figures(one / other for one, other in zip(ones, others, strict=True))


def print_hybrid(record: dict[str, Any]) -> None:
    """A line."""
    times = record["median_ms"]
    print(
        f"{record['shape']:>6} 2 x 2, {record['microbatches']:>2} microbatches of each replica:"
        f" {times['replicas']:7.1f} ms, the pipeline alone {times['pipeline']:7.1f}"
        f" ({record['time_against_pipeline']['median']:.2f} x its time), without the exchange"
        f" {times['without']:7.1f} ({record['time_against_without']['median']:.2f} x), the exchange"
        f" alone {times['exchange']:6.2f} ({record['exchange_of_step']['median']:.1%} of a step)",
        flush=True,
    )
