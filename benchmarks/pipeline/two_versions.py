# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Compares steps of two versions of this project, each in a checkout that has been built.

    python benchmarks/pipeline/two_versions.py ../before . --shape tiny --microbatches 4

Ranks of both versions are started, and take turns: steps of one, then of the other, for as long as
the two run under the same conditions. Ratios are of turns that followed one another; above 1: the
second version is faster.

Loop:  for job: start the ranks of both versions
         for pair: a turn of each; which comes first changes from pair to pair
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.on_request import JobOnRequest
from common.rounds import in_turn, ratio_figures
from models import SHAPES

HERE = Path(__file__).resolve().parent


def start(checkout: Path, folder: Path, options: argparse.Namespace) -> JobOnRequest:
    """The ranks of one version: `.venv` of its checkout has its tools, `src` the library."""
    tools, library = checkout / ".venv" / "bin", checkout / "src"
    if not (tools / "smddprun").exists():
        raise FileNotFoundError(
            f"{checkout} has no .venv/bin/smddprun; expected a checkout that has been built."
            " Run `make env` in it."
        )
    job = JobOnRequest(
        *(options.ranks, HERE / "on_request.py", "--shape", options.shape),
        *("--microbatches", options.microbatches),
        folder=folder,
        tools=tools,
        variables={"PYTHONPATH": str(library)},
    )
    if not Path(job.greeting).is_relative_to(library):
        job.end()
        raise RuntimeError(f"{job.greeting} would be measured; expected the library of {checkout}")
    return job


@contextlib.contextmanager
def both_jobs(number: int, options: argparse.Namespace) -> Iterator[list[JobOnRequest]]:
    """The ranks of both versions; which is started first changes from job to job."""
    jobs: dict[int, JobOnRequest] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for version in in_turn((0, 1), number):
                checkout = options.checkouts[version].resolve()
                jobs[version] = start(checkout, Path(folder), options)
            yield [jobs[0], jobs[1]]
        finally:
            for job in jobs.values():
                job.end()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT", help="before, after")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=4, help="how often ranks are started")
    parser.add_argument("--pairs", type=int, default=40, help="turns of each version in a job")
    parser.add_argument("--turn-ms", type=float, default=50)
    return parser.parse_args()


def main() -> None:
    """Prints a line for each job, and one for all."""
    options = _parse()
    ratios: list[float] = []
    for number in range(options.jobs):
        with both_jobs(number, options) as jobs:
            longest = max(job.ask("step", 2) for job in jobs)
            count = max(1, round(options.turn_ms / 1e3 / longest))
            turns: list[list[float]] = [[], []]
            for pair in range(options.pairs):
                for version in in_turn((0, 1), pair):
                    turns[version].append(jobs[version].ask("step", count))
        found = [before / after for before, after in zip(*turns, strict=True)]
        ratios += found
        times = ", ".join(f"{median(each) * 1e3:.3f} ms" for each in turns)
        print(f"job {number}: {times}; before/after {median(found):.3f}", flush=True)
    figures = ratio_figures(ratios)
    print(
        f"{options.shape}, {options.ranks} ranks, {options.microbatches} microbatches,"
        f" {len(ratios)} pairs: before/after {figures['median']:.3f}"
        f" ({figures['p10']:.2f}-{figures['p90']:.2f})"
    )


if __name__ == "__main__":
    main()
