# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Makes what docs/pipeline_report.md shows: a model that is cut badly, and the same after the fix.

    smddprun -np 2 python tools/draw_report.py [torch | tensorflow] [FOLDER]

Trains a GPT whose head is as much work as several of its blocks, cut in the middle of its blocks;
then moves what the report says. Prints both reports, and draws `pipeline_report_before.png` and
`pipeline_report_after.png` (`tensorflow_report_...`) into docs/assets. Needs matplotlib and two
processors.
"""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

from smdistributed.modelparallel.report.advice import better_moves

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets"
NAMES = {"torch": "pipeline_report", "tensorflow": "tensorflow_report"}
BLOCKS = 8


def main() -> None:
    """Draws both pictures where the documentation shows them, or into the folder that is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", nargs="?", choices=NAMES, default="torch")
    parser.add_argument("folder", nargs="?", type=Path, default=ASSETS)
    options = parser.parse_args()
    train = importlib.import_module(f"report_model_{options.framework}").train
    names = [f"block_{number}" for number in range(BLOCKS)]
    places = {name: int(number >= BLOCKS // 2) for number, name in enumerate(names)}
    places |= {"norm": 1, "head": 1}
    before = train(places)
    moves, _ = better_moves(before.settings, before.rows)
    places |= {move.path.rpartition("/")[2]: move.dest for move in moves}
    after = train(places)
    if os.environ["RANK"] == "0":
        for name, report in (("before", before), ("after", after)):
            print(f"--- {name} ---\n{report}\n")
            report.draw(options.folder / f"{NAMES[options.framework]}_{name}.png")


if __name__ == "__main__":
    main()
