# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Writes `docs/benchmarks/multihost.md` from result files of `run.py` and `step.py`.

Usage: python benchmarks/multihost/report.py [--run RESULT.json] [--step RESULT.json]
Without names it takes the newest of each in `results`; a page without steps leaves them out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import page_parts, result_files
from layouts import least_step_ms
from shared import MIB, size_name

HERE = Path(__file__).resolve().parent
LARGE = 100 * MIB
# What is promised for 100 MiB: at least this share of the bound, by layout and rate in Gbit/s.
TARGETS = {
    ("2x1", 1.0): 0.94,
    ("2x1", 5.0): 0.90,
    ("2x2", 1.0): 0.90,
    ("2x2", 5.0): 0.80,
    ("4x1", 5.0): 0.75,
}

Record = dict[str, Any]


def _cases(records: list[Record]) -> list[tuple[str, float]]:
    """Layouts and rates in the order of the run."""
    return list(dict.fromkeys((record["layout"], record["gbit"]) for record in records))


def share_table(content: Record) -> str:
    """Share of the bound at 100 MiB: one line per layout and rate, one column per library."""
    records = [record for record in content["results"] if record["size_bytes"] == LARGE]
    libraries = content["libraries"]
    lines = []
    for layout, gbit in _cases(records):
        found = {r["library"]: r for r in records if (r["layout"], r["gbit"]) == (layout, gbit)}
        target = TARGETS.get((layout, gbit))
        cells = (_share(found.get(name)) for name in libraries)
        lines.append([layout, f"{gbit:g}", *cells, "–" if target is None else f"≥ {target:.2f}"])
    labels = (known["label"] for known in libraries.values())
    header = ["Hosts x ranks", "Gbit/s", *labels, "Target for smddp"]
    return page_parts.table(header, lines)


def _share(record: Record | None) -> str:
    if record is None or "share" not in record:
        return "–"
    return f"{record['share']:.2f} (best {record['best_share']:.2f})"


def time_tables(content: Record) -> Iterator[str]:
    """For each layout and rate the times of all sizes, with a heading."""
    libraries = content["libraries"]
    for layout, gbit in _cases(content["results"]):
        chosen = [r for r in content["results"] if (r["layout"], r["gbit"]) == (layout, gbit)]
        lines = []
        for size in dict.fromkeys(record["size_bytes"] for record in chosen):
            found = {r["library"]: r for r in chosen if r["size_bytes"] == size}
            bound_ms = next(iter(found.values()))["bound_us"] / 1e3
            cells = (_times(found.get(name)) for name in libraries)
            bound = page_parts.number(bound_ms) if bound_ms > 0.01 else "–"
            lines.append([size_name(size), bound, *cells])
        labels = (known["label"] for known in libraries.values())
        yield f"### {layout} at {gbit:g} Gbit/s\n"
        yield page_parts.table(["Size", "Bound", *labels], lines)


def _times(record: Record | None) -> str:
    if record is None or "median_us" not in record:
        return "–"
    best, middle, p90 = (
        page_parts.number(record[key] / 1e3) for key in ("best_us", "median_us", "p90_us")
    )
    return f"**{middle}** ({best} – {p90})"


def step_table(content: Record) -> str:
    """Steps of DDP: one line per measurement."""
    lines = []
    names = [name for name in content["results"][0]["columns"] if name != "compute"]
    for result in content["results"]:
        columns = result["columns"]
        least = least_step_ms(columns["compute"]["median_ms"], result["link_ms"])
        cells = (
            f"{columns[name]['median_ms']:.0f} ({columns[name]['to_least']:.2f};"
            f" {columns[name]['median_ms'] / least:.2f})"
            for name in names
        )
        lines.append(
            [
                f"{result['layout']} at {result['gbit']:g} Gbit/s",
                f"{columns['compute']['median_ms']:.0f}",
                f"{result['link_ms']:.0f}",
                f"{least:.0f}",
                *cells,
            ]
        )
    header = [
        "Hosts x ranks",
        "computing, ms",
        "link, ms",
        "least, ms",
        *(f"{name}, ms" for name in names),
    ]
    return page_parts.table(header, lines)


_INTRODUCTION = """\
# all_reduce between hosts

<!-- Written by benchmarks/multihost/report.py; edit that, not this page. -->

How much of a link between hosts do collectives use? The hosts are network namespaces of one
machine, joined by links of 1 and 5 Gbit/s. They share its processors, which on a cluster each host
has for itself; and there are no switches with other users. What that means for the figures, how the
hosts are made and what is measured: [benchmarks/multihost](../../benchmarks/multihost/README.md).
"""
_SETTINGS = """One thread per rank; {rounds} rounds; TCP with {congestion_control}, but smddp asks
for CUBIC where that is BBR.
"""
_BOUND = """\
Medians, and the best call. The bound is 2 (n − 1) / n × size / rate for n hosts, however many ranks
are on each: no algorithm needs less on the busiest link. Headers leave {header_cap:.3f} of it for
data at an MTU of {mtu}.
"""
_STEPS = """\
## Steps of DistributedDataParallel

A step averages {gradients} MiB of gradients while it computes, in buckets of {bucket:g} MiB. Hidden
as far as possible, communication would leave a step that takes as long as the longer of its
computing and its bytes over the link (headers included). But nothing can be sent during forward, a
third of the computing here, and before the first gradients are there; "least" counts that in. In
brackets: the ratio to the former, and to the latter.
"""


def page(run: Record, step: Record | None) -> str:
    """The page as Markdown."""
    machine, network = run["environment"], run["network"]
    parts = [
        _INTRODUCTION,
        f"## Share of the bound, {size_name(LARGE)}\n",
        share_table(run),
        _BOUND.format(**network),
        f"Measured on {run['date']} with\n",
        f"    {run['command']}\n    python benchmarks/multihost/report.py\n",
        f"{page_parts.machine_words(machine)}, {page_parts.package_words(machine)}.",
        _SETTINGS.format(rounds=run["rounds"], **network),
        "## Times\n",
        "Milliseconds: median (best – 90th percentile).\n",
        *time_tables(run),
    ]
    if step is not None:
        first = step["results"][0]
        parts += [
            _STEPS.format(gradients=first["gradient_bytes"] >> 20, bucket=first["bucket_mb"]),
            step_table(step),
            f"Medians. Measured on {step['date']} with\n",
            f"    {step['command']}\n",
        ]
    parts += ["## Libraries\n", library_table(run)]
    return "\n".join(parts)


def library_table(run: Record) -> str:
    """Versions and settings, or why a library was left out."""
    lines = (
        [known["label"], known.get("version") or f"left out: {known['absent']}", known["settings"]]
        for known in run["libraries"].values()
    )
    return page_parts.table(["Library", "Version", "Settings"], lines, text_columns=3)


def main() -> int:
    """Write the page; the exit status is 0 unless there is no result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", type=Path, default=result_files.newest(HERE, "*cpu.json"), metavar="RESULT.json"
    )
    parser.add_argument(
        "--step", type=Path, default=result_files.newest(HERE, "*_step.json"), metavar="RESULT.json"
    )
    parser.add_argument("--docs", type=Path, default=result_files.DOCS_FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.run is None:
        print(
            "no result file in benchmarks/multihost/results; expected one from run.py. "
            "Run `python benchmarks/multihost/run.py` first.",
            file=sys.stderr,
        )
        return 1
    run = json.loads(arguments.run.read_text())
    step = None if arguments.step is None else json.loads(arguments.step.read_text())
    result_files.write(arguments.docs / "multihost.md", page(run, step))
    print("written: multihost.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
