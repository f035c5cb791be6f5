# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Measures sums and training steps of TensorFlow beside its own collectives. See README.md.

Loop:  for ranks: for part (collectives, steps): start the ranks
         for round: for column, in an order that turns by one each round: measure
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "collectives"))

from adapters.floor import SEGMENTS_KIB, FloorProgram
from common import child_processes, environment, list_options, result_files
from libraries import LibraryAbsent

SCHEMA_VERSION = 1
HERE = Path(__file__).resolve().parent
DEADLINE_S = 600.0
PARTS = ("collectives", "steps")


def _run(ranks: int, part: str, options: argparse.Namespace) -> dict[str, Any]:
    """What the ranks of one part have found.

    Raises:
        RuntimeError: they failed; with what they printed.
    """
    ports = ",".join(str(child_processes.find_free_port()) for _ in range(ranks))
    words = [Path(sys.executable).parent / "smddprun", "-np", ranks, sys.executable, "-W", "ignore"]
    words += [HERE / "rank.py", "--what", part, "--ports", ports, "--rounds", options.rounds]
    words += ["--turn-ms", options.turn_ms, "--batch", options.batch]
    words += ["--inter", options.inter, "--intra", options.intra]
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    for line in done.stdout.splitlines():
        start = line.find('{"found"')
        if start >= 0:
            found: dict[str, Any] = json.loads(line[start:])
            return found
    raise RuntimeError(f"no figures came of {ranks} ranks, {part}:\n{done.stderr[-3000:]}")


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
    found = {}
    for size in sizes:
        seconds = min(
            median(program.ask(f"run staged {kib} {size} 1 9")["seconds"]) for kib in SEGMENTS_KIB
        )
        found[str(size)] = round(seconds * 1e3, 5)
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
    parser.add_argument(
        "--parts",
        type=list_options.names(PARTS),
        default=list(PARTS),
        metavar="NAME,...",
        help=f"of {', '.join(PARTS)}",
    )
    parser.add_argument(
        "--ranks",
        type=list_options.rank_counts(2),
        default=[2, 4],
        metavar="N,...",
        help="numbers of ranks, from 2 to 8",
    )
    parser.add_argument("--rounds", type=int, default=15, help="turns of each column")
    parser.add_argument("--turn-ms", type=float, default=100, help="time of one turn, about")
    parser.add_argument("--batch", type=int, default=64, help="images of one rank's step")
    parser.add_argument("--inter", type=int, default=2, help="TensorFlow's threads for operations")
    parser.add_argument("--intra", type=int, default=1, help="its threads within an operation")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    arguments = parser.parse_args(argv)
    arguments.out = arguments.out or result_files.default_path(HERE, "full")
    return arguments


def main() -> int:
    """Measure what the command line asks for."""
    options = _parse(sys.argv[1:])
    content: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "benchmark": "tf_step",
        "date": date.today().isoformat(),
        "command": result_files.published_command(HERE, sys.argv[1:]),
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
            content["environment"]["packages"].update(answer["versions"])
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
    result_files.write(options.out, json.dumps(content, indent=1) + "\n")
    print(f"results: {options.out.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
