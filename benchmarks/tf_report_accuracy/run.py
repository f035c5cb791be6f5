# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Measures how well plans and reports of TensorFlow's pipelines predict. See README.md."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.child_processes import figures_of_ranks
from common.command_line import add_names
from common.result_files import ResultFile

HERE = Path(__file__).resolve().parent
SHAPES = ("gpt-4", "gpt-8")
RANKS = 2


def _records(shape: str, microbatches: int, steps: int) -> list[dict[str, Any]]:
    """By model, pipeline and rank."""
    options = ("--shape", shape, "--microbatches", microbatches, "--steps", steps)
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    plans = figures_of_ranks(1, HERE / "rank.py", *options, variables=quiet)
    reports = figures_of_ranks(RANKS, HERE / "rank.py", *options, variables=quiet)
    records = []
    for name, found in reports.items():
        planned = plans[name]
        for rank in range(RANKS):
            record: dict[str, Any] = {"shape": shape, "microbatches": microbatches}
            record |= {"model": name, "rank": rank}
            record["step_ms"] = {
                kind: round(each * 1e3, 3)
                for kind, each in {"planned": planned["step_s"], **found["step_s"]}.items()
            }
            for what in ("bubble", "held"):
                kinds = {"planned": planned[what], **found[what]}
                record[what] = {kind: round(each[rank], 5) for kind, each in kinds.items()}
            records.append(record)
            _print(record)
    return records


def _print(record: dict[str, Any]) -> None:
    bubble = ", ".join(f"{kind} {each:.1%}" for kind, each in record["bubble"].items())
    held = ", ".join(f"{kind} {each / 1e6:.1f}" for kind, each in record["held"].items())
    print(
        f"{record['shape']} {record['microbatches']} {record['model']}, rank {record['rank']}:"
        f" bubble {bubble}; held, MB {held}",
        flush=True,
    )


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="run.py",
        description=__doc__.splitlines()[0],
        epilog="Without options all is measured; some 4 minutes on an idle machine.",
    )
    add_names(parser, "--shapes", SHAPES)
    parser.add_argument("--microbatches", type=int, nargs="+", default=[4, 8], metavar="N")
    parser.add_argument("--steps", type=int, default=9, help="recorded, at most 16")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    file = ResultFile(HERE, options.out)
    load = round(os.getloadavg()[0], 1)  # of others, when this begins
    records = [
        record
        for shape in options.shapes
        for microbatches in options.microbatches
        for record in _records(shape, microbatches, options.steps)
    ]
    file.write(steps=options.steps, load=load, results=records)
    print(f"results: {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
