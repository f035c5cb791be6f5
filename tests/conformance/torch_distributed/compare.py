# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Print torch's suite side by side: smddp and Gloo, passed, failed and skipped, by world size.

    python compare.py [--world-sizes 2 3 8] [--backends smddp gloo] [--folder results]

Takes a few minutes per column. `--folder` keeps each run's outcomes as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from expected import EXCLUDED

_HERE = Path(__file__).parent


def run(backend: str, world_size: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Outcomes of the whole suite by test name; the runner's progress goes to stderr."""
    results = folder / f"{backend}-{world_size}.json"
    command = [sys.executable, str(_HERE / "run_suite.py"), "--backend", backend]
    command += ["--world-size", str(world_size), "--json", str(results)]
    with (folder / f"{backend}-{world_size}.log").open("w") as log:
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=environ, stdout=log, stderr=subprocess.STDOUT)
    outcomes: dict[str, dict[str, Any]] = json.loads(results.read_text())
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description="torch's suite, backends side by side")
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[2, 3, 8])
    parser.add_argument("--backends", nargs="+", default=["smddp", "gloo"])
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="torch-suite-"))
    folder.mkdir(parents=True, exist_ok=True)
    unexpected = 0
    print("| ranks | backend | passed | failed | skipped |\n|---|---|---|---|---|")
    for world_size in arguments.world_sizes:
        for backend in arguments.backends:
            outcomes = run(backend, world_size, folder)
            counts = {"passed": 0, "failed": 0, "skipped": 0}
            for outcome in outcomes.values():
                counts[outcome["status"]] += 1
            print(
                f"| {world_size} | {backend} |", *(f" {n} |" for n in counts.values()), flush=True
            )
            for name, outcome in sorted(outcomes.items()):
                if outcome["status"] == "failed":
                    reason = EXCLUDED.get(name) if backend != "gloo" else None
                    unexpected += reason is None
                    print(f"  {name}: {reason or 'UNEXPECTED, see the JSON in ' + str(folder)}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
