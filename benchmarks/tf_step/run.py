# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Measures sums and training steps of TensorFlow beside its own collectives. See README.md.

Loop:  for ranks: for part (collectives, steps): start the ranks
         for round: for column, in an order that turns by one each round: measure
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "collectives"))

from adapters.floor import FloorProgram
from common import environment
from common.child_processes import figures_of_ranks, find_free_port
from common.command_line import add_names, add_turns, rank_counts
from common.result_files import ResultFile
from libraries import LibraryAbsent

HERE = Path(__file__).resolve().parent
PARTS = ("collectives", "steps")


def _run(ranks: int, part: str, options: argparse.Namespace) -> dict[str, Any]:
    ports = ",".join(str(find_free_port()) for _ in range(ranks))
    return figures_of_ranks(
        *(ranks, HERE / "rank.py", "--what", part, "--ports", ports, "--batch", options.batch),
        *("--rounds", options.rounds, "--turn-ms", options.turn_ms),
        *("--inter", options.inter, "--intra", options.intra),
        variables={"TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def floor_of(sizes: list[int]) -> dict[str, float]:
    """By bytes, milliseconds in which two processes sum that through shared memory, at least.

    Two pinned processes and nothing around it: `staged` of the collectives' floor.c, with the best
    segment size. Empty where there is no compiler or one processor only.
    """
    try:
        program = FloorProgram(max(sizes))
    except LibraryAbsent as reason:
        print(f"no floor: {reason}")
        return {}
    found = {str(size): round(program.staged_seconds(size, 9) * 1e3, 5) for size in sizes}
    program.stop()
    return found


def _print(ranks: int, what: str, record: dict[str, Any], reference: str) -> None:
    print(f"{ranks} ranks, {what}:")
    for name, figures in record["columns"].items():
        ratio = record[f"to_{reference}"][name]
        print(
            f"  {name:18} median {figures['median_ms']:9.3f} ms, p10-p90 {figures['p10_ms']:.3f}"
            f" - {figures['p90_ms']:.3f}; {ratio['median']:.3f} times {reference}"
            f" ({ratio['p10']:.3f} - {ratio['p90']:.3f})",
            flush=True,
        )


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="run.py",
        description=__doc__.splitlines()[0],
        epilog="Without options: 2 and 4 ranks, some 5 minutes.",
    )
    add_names(parser, "--parts", PARTS)
    parser.add_argument(
        "--ranks",
        type=rank_counts(2),
        default=[2, 4],
        metavar="N,...",
        help="numbers of ranks, from 2 to 8",
    )
    add_turns(parser, 15, 100)
    parser.add_argument("--batch", type=int, default=64, help="images of one rank's step")
    parser.add_argument("--inter", type=int, default=2, help="TensorFlow's threads for operations")
    parser.add_argument("--intra", type=int, default=1, help="its threads within an operation")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    return parser.parse_args(argv)


def main() -> int:
    """Measure what the command line asks for."""
    options = _parse(sys.argv[1:])
    file = ResultFile(HERE, options.out)
    content: dict[str, Any] = {
        "rounds": options.rounds,
        "turn_ms": options.turn_ms,
        "threads": {"inter": options.inter, "intra": options.intra},
        "environment": environment.describe(),
        "floor_ms": {},
        "collectives": [],
        "steps": [],
    }
    for ranks in options.ranks:
        for part in options.parts:
            answer = _run(ranks, part, options)
            environment.describe()["packages"].update(answer["versions"])
            content["operations"] = answer["operations"]
            if part == "steps":
                content["steps"].append({"ranks": ranks, **answer["found"]})
                _print(ranks, "steps", answer["found"], "compute")
                continue
            for record in answer["found"]:
                content["collectives"].append({"ranks": ranks, **record})
                _print(ranks, f"{record['bytes']} bytes", record, "smddp")
    if content["collectives"]:
        content["floor_ms"] = floor_of(sorted({each["bytes"] for each in content["collectives"]}))
    file.write(**content)
    print(f"results: {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
