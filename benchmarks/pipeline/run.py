# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Measures steps of a pipeline beside torch.distributed.pipelining. See README.md.

Loop:  for case (shape, ranks, microbatches): start the ranks
         for round: for column, in an order that turns by one each round: measure
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import environment, list_options, result_files

from smdistributed.modelparallel.decide.schedules import SCHEDULES

SCHEMA_VERSION = 1
HERE = Path(__file__).resolve().parent
DEADLINE_S = 600.0
# By shape: on how many ranks, with how many microbatches; 1F1B wants one for each rank at least.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "gpt-4": ((2, 4), (2, 4, 8, 16)),
    "gpt-8": ((2, 4), (4, 8)),
    "gpt-16": ((2,), (4,)),
    "tiny": ((2, 4), (4, 8, 16)),
}
PEERS = ("1f1b", "gpipe")
PARTS = ("steps", "memory", "calls")
MEMORY_SHAPE, MEMORY_MICROBATCHES = "gpt-8", 16
ACTIVE = (2, 4, 8, 16)


def _run(ranks: int, *options: object) -> dict[str, Any]:
    """What the ranks of one case have found.

    Raises:
        RuntimeError: they failed; with what they printed.
    """
    command = ["smddprun", "-np", ranks, sys.executable, "-W", "ignore", HERE / "rank.py", *options]
    done = subprocess.run(
        [str(Path(sys.executable).parent / "smddprun"), *map(str, command[1:])],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    for line in done.stdout.splitlines():
        start = line.find("{")
        if start >= 0:
            found: dict[str, Any] = json.loads(line[start:])
            return found
    raise RuntimeError(f"no figures came of {' '.join(map(str, options))}:\n{done.stderr[-2000:]}")


def _spread(ratios: list[float]) -> dict[str, float]:
    cuts = quantiles(ratios, n=10) if len(ratios) > 1 else ratios * 9
    return {
        "median": round(median(ratios), 3),
        "p10": round(cuts[0], 3),
        "p90": round(cuts[-1], 3),
    }


def steps_of(shape: str, ranks: int, microbatches: int, options: argparse.Namespace) -> Any:
    """The record of one case: times, and ratios of turns that followed one another."""
    found = _run(
        ranks,
        *("--what", "steps", "--shape", shape, "--microbatches", microbatches),
        *("--pipeline", options.pipeline),
        *("--rounds", options.rounds, "--turn-ms", options.turn_ms),
    )
    turns = found["turns"]
    ratios = {
        peer: _spread(
            [theirs / ours for ours, theirs in zip(turns["smp"], turns[peer], strict=True)]
        )
        for peer in PEERS
    }
    ideal = {
        name: round(median(turns["ideal"]) / median(turns[name]), 3) for name in ("smp", *PEERS)
    }
    return {
        "shape": shape,
        "ranks": ranks,
        "microbatches": microbatches,
        "losses": found["losses"],
        "median_ms": {name: round(median(each) * 1e3, 3) for name, each in turns.items()},
        "best_ms": {name: round(min(each) * 1e3, 3) for name, each in turns.items()},
        "speed_against": ratios,
        "share_of_ideal": ideal,
    }


def _print_steps(record: dict[str, Any]) -> None:
    times, ratios = record["median_ms"], record["speed_against"]
    print(
        f"{record['shape']:>7} {record['ranks']} ranks {record['microbatches']:>2} microbatches:"
        f" smp {times['smp']:8.1f} ms, 1F1B {times['1f1b']:8.1f}, GPipe {times['gpipe']:8.1f},"
        f" ideal {times['ideal']:8.1f}; 1F1B/smp {ratios['1f1b']['median']:.3f}"
        f" ({ratios['1f1b']['p10']:.2f}-{ratios['1f1b']['p90']:.2f}),"
        f" of the ideal: smp {record['share_of_ideal']['smp']:.2f},"
        f" 1F1B {record['share_of_ideal']['1f1b']:.2f}",
        flush=True,
    )


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shapes",
        type=list_options.names(tuple(CASES)),
        default=list(CASES),
        metavar="NAME,...",
        help=f"of {', '.join(CASES)}",
    )
    parser.add_argument(
        "--ranks", type=list_options.rank_counts(2), default=[2, 4], metavar="N,...", help="of 2, 4"
    )
    parser.add_argument(
        "--pipeline", choices=tuple(SCHEDULES), default="interleaved", help="our schedule of steps"
    )
    parser.add_argument("--rounds", type=int, default=15, help="turns of each column")
    parser.add_argument("--turn-ms", type=float, default=400, help="time of one turn, about")
    parser.add_argument(
        "--parts",
        type=list_options.names(PARTS),
        default=list(PARTS),
        metavar="NAME,...",
        help=f"of {', '.join(PARTS)}",
    )
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    arguments = parser.parse_args(argv)
    arguments.out = arguments.out or result_files.default_path(HERE, "full")
    return arguments


def main() -> int:
    """Measure what the command line asks for; the exit status is 0 if all of it was measured."""
    options = _parse(sys.argv[1:])
    content: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "benchmark": "pipeline",
        "date": date.today().isoformat(),
        "command": result_files.published_command(HERE, sys.argv[1:]),
        "rounds": options.rounds,
        "turn_ms": options.turn_ms,
        "pipeline": options.pipeline,
        "environment": environment.describe(),
        "steps": [],
        "memory": [],
    }
    for shape in options.shapes if "steps" in options.parts else ():
        rank_counts, microbatch_counts = CASES[shape]
        for ranks in (each for each in rank_counts if each in options.ranks):
            for microbatches in (each for each in microbatch_counts if each >= ranks):
                content["steps"].append(steps_of(shape, ranks, microbatches, options))
                _print_steps(content["steps"][-1])
    if "memory" in options.parts:
        for active in ACTIVE:
            case = ("--shape", MEMORY_SHAPE, "--microbatches", MEMORY_MICROBATCHES)
            found = _run(2, "--what", "memory", *case, "--active", active)
            content["memory"].append(found)
            grown = ", ".join(f"{each / 1e6:.0f}" for each in found["grown_bytes"])
            print(
                f"peak grown with at most {active} active: {grown} MB (rank 0, rank 1)", flush=True
            )
    if "calls" in options.parts:
        calls = _run(2, "--what", "calls", "--rounds", options.rounds)["call_s"]
        content["call_us"] = {
            size: {"median": round(median(found) * 1e6, 1), "best": round(min(found) * 1e6, 1)}
            for size, found in calls.items()
        }
        print(f"a call there and back, us, by bytes each way: {content['call_us']}")
    result_files.write(options.out, json.dumps(content, indent=1) + "\n")
    print(f"results: {options.out.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
