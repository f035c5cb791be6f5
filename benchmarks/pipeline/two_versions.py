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
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.rounds import in_turn, ratio_figures
from models import SHAPES

HERE = Path(__file__).resolve().parent
_START_S = 120.0
_END_S = 30.0


class Job:
    """The ranks of one version, who wait to be told how many steps to take.

    Args:
        checkout: of that version: `.venv` has its tools, `src` the library.
        folder: where to put a socket.
    """

    def __init__(self, checkout: Path, folder: Path, options: argparse.Namespace) -> None:
        tools = checkout / ".venv" / "bin"
        if not (tools / "smddprun").exists():
            raise FileNotFoundError(
                f"{checkout} has no .venv/bin/smddprun; expected a checkout that has been built."
                " Run `make env` in it."
            )
        path = folder / f"{len(list(folder.iterdir()))}.socket"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen(1)
            listening.settimeout(_START_S)
            command = [tools / "smddprun", "-np", options.ranks, tools / "python", "-W", "ignore"]
            command += [HERE / "on_request.py", "--shape", options.shape, "--socket", path]
            command += ["--microbatches", options.microbatches]
            variables = {**os.environ, "PYTHONPATH": str(checkout / "src")}
            self._process = subprocess.Popen(
                [str(word) for word in command], env=variables, stdout=subprocess.DEVNULL
            )
            connection, _ = listening.accept()
        self._lines = connection.makefile("rw")
        found = Path(self._lines.readline().strip())
        if not found.is_relative_to(checkout / "src"):
            raise RuntimeError(f"{found} was measured; expected the library of {checkout}")

    def seconds_of_a_step(self, count: int) -> float:
        """On average, over `count` steps."""
        print(count, file=self._lines, flush=True)
        return float(self._lines.readline())

    def end(self) -> None:
        """Ends the ranks."""
        with contextlib.suppress(OSError):
            print(0, file=self._lines, flush=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._process.terminate()


@contextlib.contextmanager
def both_jobs(number: int, options: argparse.Namespace) -> Iterator[list[Job]]:
    """The ranks of both versions; which is started first changes from job to job."""
    jobs: dict[int, Job] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for version in in_turn((0, 1), number):
                checkout = options.checkouts[version].resolve()
                jobs[version] = Job(checkout, Path(folder), options)
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
            longest = max(job.seconds_of_a_step(2) for job in jobs)
            count = max(1, round(options.turn_ms / 1e3 / longest))
            turns: list[list[float]] = [[], []]
            for pair in range(options.pairs):
                for version in in_turn((0, 1), pair):
                    turns[version].append(jobs[version].seconds_of_a_step(count))
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
