# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Measures steps of a pipeline beside torch.distributed.pipelining. See README.md.

Loop:  for case (shape, ranks, microbatches): start the ranks
         for round: for column, in an order that turns by one each round: measure
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.child_processes import figures_of_ranks
from common.command_line import add_names, add_turns, rank_counts
from common.result_files import ResultFile
from common.rounds import ratio_figures

from smdistributed.modelparallel.decide.schedules import SCHEDULES

HERE = Path(__file__).resolve().parent
# By shape: on how many ranks, with how many microbatches; 1F1B wants one for each rank at least.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "gpt-4": ((2, 4), (2, 4, 8, 16)),
    "gpt-8": ((2, 4), (4, 8, 16)),
    "gpt-16": ((2,), (4,)),
    "tiny": ((2, 4), (4, 8, 16)),
}
PEERS = ("1f1b", "gpipe")
PARTS = ("steps", "memory", "calls")
MEMORY_SHAPE, MEMORY_MICROBATCHES = "gpt-8", 16
ACTIVE = (2, 4, 8, 16)


def _run(ranks: int, *options: object) -> dict[str, Any]:
    return figures_of_ranks(ranks, HERE / "rank.py", *options)


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
        peer: ratio_figures(
            theirs / ours for ours, theirs in zip(turns["smp"], turns[peer], strict=True)
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
    add_names(parser, "--shapes", tuple(CASES))
    parser.add_argument(
        "--ranks", type=rank_counts(2), default=[2, 4], metavar="N,...", help="of 2, 4"
    )
    parser.add_argument(
        "--pipeline", choices=tuple(SCHEDULES), default="interleaved", help="our schedule of steps"
    )
    add_turns(parser, 15, 400)
    add_names(parser, "--parts", PARTS)
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    return parser.parse_args(argv)


def main() -> int:
    """Measure what the command line asks for; the exit status is 0 if all of it was measured."""
    options = _parse(sys.argv[1:])
    file = ResultFile(HERE, options.out)
    content: dict[str, Any] = {
        "rounds": options.rounds,
        "turn_ms": options.turn_ms,
        "pipeline": options.pipeline,
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
    file.write(**content)
    print(f"results: {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
