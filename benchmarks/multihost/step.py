# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Measures steps of DistributedDataParallel between test hosts. See README.md.

How much of the communication is hidden behind backward: a step beside the longer of its computing
alone and its bytes over the link, and beside the least that there can be, as nothing is sent during
forward.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.command_line import add_names
from common.result_files import ResultFile
from layouts import Layout, least_step_ms, parse_layout
from shared import (
    HEADER_CAP,
    network,
    run_ranks_on,
    why_not,
)
from step_ranks import FREE, GRADIENT_BYTES, Plan, measure

HERE = Path(__file__).resolve().parent
BACKENDS = ("smddp", "gloo")
DEADLINE_S = 900.0


def _figures(turns: Sequence[Sequence[float]]) -> dict[str, Any]:
    samples = sorted(seconds for turn in turns for seconds in turn)
    return {
        "samples": len(samples),
        "best_ms": round(samples[0] * 1e3, 3),
        "median_ms": round(median(samples) * 1e3, 3),
        "round_medians_ms": [round(median(turn) * 1e3, 3) for turn in turns],
    }


def _measure(arguments: argparse.Namespace, gbit: float, compute_ms: float) -> dict[str, Any]:
    layout: Layout = arguments.layout
    plan = Plan(
        columns=(FREE, *arguments.columns),
        bucket_mb=arguments.bucket_mb,
        compute_s=compute_ms * 1e-3,
        steps=arguments.steps,
        rounds=arguments.rounds,
    )
    with network(layout.hosts, gbit=gbit) as hosts:
        places = [layout.ranks_per_host] * layout.hosts
        found = run_ranks_on(hosts, places, measure, plan, deadline_s=DEADLINE_S)[0]
    link_ms = layout.bound_seconds(GRADIENT_BYTES, gbit) / HEADER_CAP * 1e3
    columns = {name: _figures(turns) for name, turns in found.items()}
    longer_ms = max(columns[FREE]["median_ms"], link_ms)
    least_ms = least_step_ms(columns[FREE]["median_ms"], link_ms)
    print(
        f"\n{GRADIENT_BYTES >> 20} MiB of gradients, {layout} at {gbit:g} Gbit/s, buckets of"
        f" {arguments.bucket_mb:g} MiB: link {link_ms:.0f} ms, headers included"
    )
    for name, figures in columns.items():
        ratio = figures["median_ms"] / longer_ms
        figures["to_least"] = round(ratio, 4)
        beside_least = figures["median_ms"] / least_ms
        print(
            f"  {name:8} median {figures['median_ms']:8.1f} ms (best {figures['best_ms']:.1f})"
            + (
                ""
                if name == FREE
                else f"  {ratio:.3f} x max(compute, link), {beside_least:.3f} x the least"
            )
        )
    return {
        "layout": str(layout),
        "gbit": gbit,
        "bucket_mb": arguments.bucket_mb,
        "gradient_bytes": GRADIENT_BYTES,
        "compute_ms": compute_ms,
        "link_ms": round(link_ms, 3),
        "columns": columns,
    }


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    def numbers(text: str) -> list[float]:
        return [float(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(
        prog="step.py", description="Measure steps of DDP between test hosts (network namespaces)."
    )
    parser.add_argument("--layout", type=parse_layout, default=Layout(2, 2), metavar="HxR")
    parser.add_argument("--gbit", type=numbers, default=[1.0], metavar="G,...")
    parser.add_argument(
        "--compute-ms",
        type=numbers,
        default=[300.0, 600.0, 1200.0],
        metavar="MS,...",
        help="computing of one step; below, at and above the time on the link by default",
    )
    parser.add_argument("--bucket-mb", type=float, default=4.0, help="DDP's bucket_cap_mb")
    add_names(parser, "--columns", BACKENDS)
    parser.add_argument("--steps", type=int, default=4, help="steps of one turn")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each column")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    return parser.parse_args(argv)


def main() -> int:
    """Measure what the command line asks for; the exit status is 0 unless hosts cannot be made."""
    arguments = _parse(sys.argv[1:])
    if reason := why_not():
        print(f"nothing was measured: {reason}", file=sys.stderr)
        return 1
    file = ResultFile(HERE, arguments.out, "step")
    results = [
        _measure(arguments, gbit, compute_ms)
        for gbit in arguments.gbit
        for compute_ms in arguments.compute_ms
    ]
    file.write(results=results)
    print(f"\nresults: {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
