# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Measures pipelines of TensorFlow: overlap, costs, steps, replicas, memory. See README.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.child_processes import figures_of_ranks
from common.command_line import add_names, rank_counts
from common.result_files import ResultFile
from hybrid import HYBRID_CASES, hybrid_of, print_hybrid
from steps import ACTIVE, CASES, memory_of, print_steps, steps_of

HERE = Path(__file__).resolve().parent
ALONE = ("overlap", "empty", "first-call", "segment", "message")
BYTES = (64, 256 << 10, 1 << 20)  # between blocks of the GPT, in a microbatch: 256 KiB
PARTS = (*ALONE, "steps", "hybrid", "memory")


def cases_of(part: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Of a part without a GPT: how often it runs, and with which options of `rank.py`."""
    ranks, microbatches, rounds = options.ranks, options.microbatches, options.rounds
    common = {"ranks": ranks, "microbatches": microbatches, "rounds": rounds}
    return {
        "overlap": [{**common, "stage-ms": each} for each in options.stage_ms],
        "empty": [{**common, "rounds": 5 * rounds}],
        "first-call": [{**common, "microbatches": 32, "layers": each} for each in options.layers],
        "segment": [{"ranks": 1, "microbatches": 32, "rounds": 5 * rounds}],
        "message": [
            {"ranks": 2, "microbatches": 1, "rounds": 5 * rounds, "bytes": each} for each in BYTES
        ],
    }[part]


def _run(part: str, ranks: int, inter: int, **case: Any) -> dict[str, Any]:
    words = [word for name, value in case.items() for word in (f"--{name}", value)]
    return figures_of_ranks(
        *(ranks, HERE / "rank.py", "--part", part, "--inter", inter, *words),
        variables={"TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def _all_steps(options: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for shape in options.shapes:
        for ranks in (each for each in CASES[shape] if each in options.steps_ranks):
            for microbatches in options.steps_microbatches or CASES[shape][ranks]:
                found.append(steps_of(shape, ranks, microbatches, options))
                print_steps(found[-1])
    return found


def _all_hybrid(options: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for shape in (each for each in options.shapes if each in HYBRID_CASES):
        for microbatches in HYBRID_CASES[shape]:
            found.append(hybrid_of(shape, microbatches, options))
            print_hybrid(found[-1])
    return found


def _shown(found: dict[str, Any]) -> str:
    words = []
    for key, value in found.items():
        if isinstance(value, dict):
            value = f"{value['median']:.3g} ({value['least']:.3g} to {value['greatest']:.3g})"
        elif isinstance(value, float):
            value = f"{value:.3g}"
        words.append(f"{key} {value}")
    return ", ".join(words)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="run.py",
        description=__doc__.splitlines()[0],
        epilog="Without options all is measured, in some half an hour on an idle machine.",
    )
    add_names(parser, "--parts", PARTS)
    parser.add_argument("--ranks", type=int, default=2, help="partitions; one rank each")
    parser.add_argument("--rounds", type=int, default=11, help="steps, or turns, of each column")
    parser.add_argument("--microbatches", type=int, default=8, help="of overlap and empty")
    parser.add_argument(
        "--stage-ms",
        type=float,
        nargs="+",
        default=[10, 50],
        metavar="MS",
        help="of a stage of overlap, forward and backward together",
    )
    parser.add_argument(
        "--layers",
        type=int,
        nargs="+",
        default=[200, 1000],
        metavar="N",
        help="of the first call's model",
    )
    parser.add_argument("--inter", type=int, default=1, help="TensorFlow's threads for operations")
    add_names(parser, "--shapes", tuple(CASES))
    parser.add_argument(
        "--steps-ranks", type=rank_counts(2), default=[2, 4], metavar="N,...", help="of steps"
    )
    parser.add_argument(
        "--steps-microbatches", type=int, nargs="*", metavar="N", help="of steps; else all"
    )
    parser.add_argument("--turn-ms", type=float, default=300, help="of a turn of steps, about")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    return parser.parse_args(argv)


def main() -> int:
    """Measure what the command line asks for."""
    options = _parse(sys.argv[1:])
    file = ResultFile(HERE, options.out)
    results = []
    for part in (each for each in ALONE if each in options.parts):
        for case in cases_of(part, options):
            results.append(_run(part, inter=options.inter, **case))
            print(_shown(results[-1]), flush=True)
    content: dict[str, Any] = {"rounds": options.rounds, "results": results}
    content["steps"] = _all_steps(options) if "steps" in options.parts else []
    content["hybrid"] = _all_hybrid(options) if "hybrid" in options.parts else []
    content["memory"] = [memory_of(each) for each in ACTIVE if "memory" in options.parts]
    file.write(**content)
    print(f"results: {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
