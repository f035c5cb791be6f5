# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of `docs/why_fast.md`.

Usage: python benchmarks/why_fast/report.py [TIMELINE.json] [--collectives RESULT.json]

The first file is one of `run.py`, the second one of `benchmarks/collectives/run.py`; without names,
the newest of each that has what is drawn.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "collectives"))

import matplotlib as mpl
from common.result_files import newest
from core_state import main_tag
from traffic import ALGORITHMS

mpl.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).resolve().parent
COLLECTIVES_FOLDER = HERE.parent / "collectives"
ASSETS = HERE.parents[1] / "docs" / "assets"
# Distinct for colour-blind readers; the same as in the plots of the collectives.
PART_COLOURS = {
    "copy in": "#e69f00",
    "copy out": "#f0c870",
    "reduce": "#d55e00",
    "send: into the kernel": "#0072b2",
    "receive: out of the kernel": "#56b4e9",
}
BARS = {
    "floor-ideal": "#000000",
    "smddp-shared": "#8c2d04",
    "smddp-torch": "#d55e00",
    "floor-staged_rs": "#888888",
    "smddp-direct": "#e69f00",
    "smddp-torch-plain": "#f0a070",
    "openmpi": "#009e73",
    "mpich": "#cc79a7",
    "intelmpi": "#56b4e9",
    "deepspeed": "#f0e442",
    "gloo": "#0072b2",
}
CASE = {"collective": "all_reduce", "dtype": "f32", "ranks": 2, "size_bytes": 25 << 20}


def draw_traffic(path: Path) -> None:
    """Bytes moved per byte of the buffer, by algorithm, for 2 and 4 ranks."""
    counts = (2, 4)
    figure, panels = plt.subplots(
        1, len(counts), figsize=(8.4, 3.4), sharey=True, layout="constrained"
    )
    legend: dict[str, Any] = {}
    for panel, ranks in zip(panels, counts, strict=True):
        for position, parts_of in enumerate(ALGORITHMS.values()):
            bottom = 0.0
            for part in parts_of(ranks):
                for amount, hatch in ((part.read, None), (part.written, "///")):
                    bar = panel.bar(
                        position,
                        amount,
                        0.62,
                        bottom,
                        color=PART_COLOURS[part.name],
                        hatch=hatch,
                        edgecolor="white",
                        linewidth=0.6,
                    )
                    legend.setdefault(part.name, bar)
                    bottom += amount
            panel.annotate(f"{bottom:g} S", (position, bottom + 0.12), ha="center")
        panel.set_xticks(range(len(ALGORITHMS)), ALGORITHMS.keys(), fontsize="small")
        panel.set_title(f"{ranks} ranks", fontsize="medium")
        panel.grid(True, axis="y", alpha=0.3)
        panel.set_axisbelow(True)
    panels[0].set_ylabel("read (plain) and written (hatched)\nper rank, in buffers S")
    panels[0].set_ylim(0, 9.4)
    panels[0].legend(legend.values(), legend.keys(), fontsize="small", loc="upper left")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_timeline(content: dict[str, Any], path: Path) -> None:
    """Each rank's part of one call of each kind, on one clock and one scale."""
    calls = content["calls_us"]
    names = ("staged", "shared")
    figure, panels = plt.subplots(
        len(names), 1, figsize=(8.4, 2.8), sharex=True, layout="constrained"
    )
    for panel, name in zip(panels, names, strict=True):
        for rank, (start, arrived, end) in enumerate(calls[name]):
            arrived = max(start, min(arrived, end))
            panel.barh(rank, arrived - start, 0.6, start, color="#b8a9d9", label="waits for others")
            panel.barh(
                rank, end - arrived, 0.6, arrived, color="#d55e00", label="moves and reduces"
            )
        last = max(end for _, _, end in calls[name])
        panel.annotate(
            f"{last / 1e3:.2f} ms",
            (last, (len(calls[name]) - 1) / 2),
            (5, 0),
            va="center",
            textcoords="offset points",
        )
        panel.set_yticks(range(len(calls[name])), [f"rank {r}" for r in range(len(calls[name]))])
        panel.invert_yaxis()
        panel.set_title(name, loc="left", fontsize="medium")
        panel.grid(True, axis="x", alpha=0.3)
        panel.set_axisbelow(True)
    handles, labels = panels[0].get_legend_handles_labels()
    legend = dict(zip(labels, handles, strict=True))
    figure.legend(
        legend.values(),
        legend.keys(),
        fontsize="small",
        loc="outside lower center",
        ncols=len(legend),
    )
    panels[-1].set_xlim(0, 1.12 * max(end for ranks in calls.values() for _, _, end in ranks))
    panels[-1].set_xlabel("µs since the first rank began")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_times(content: dict[str, Any], path: Path) -> None:
    """Median time of every column in the case, the best as a mark, in the main core state."""
    records = {record["library"]: record for record in _records(content)}
    tag = main_tag(record["by_tag"] for record in records.values())
    names = [name for name in BARS if name in records and tag in records[name]["by_tag"]]
    figure, panel = plt.subplots(figsize=(8.4, 0.36 * len(names) + 1.1), layout="constrained")
    for position, name in enumerate(names):
        figures = records[name]["by_tag"][tag]
        middle, best = figures["median_us"] / 1e3, figures["best_us"] / 1e3
        panel.barh(position, middle, 0.66, color=BARS[name])
        panel.plot([best, best], [position - 0.33, position + 0.33], color="white", linewidth=1.6)
        panel.annotate(
            f"{middle:.2f} ms",
            (middle, position),
            (4, 0),
            va="center",
            fontsize="small",
            textcoords="offset points",
        )
    labels = [content["libraries"][name]["label"] for name in names]
    panel.set_yticks(range(len(names)), labels, fontsize="small")
    panel.invert_yaxis()
    panel.set_xlabel(f"ms per call, median; white mark: best (cores: {tag})")
    panel.set_xlim(0, 1.12e-3 * max(records[name]["by_tag"][tag]["median_us"] for name in names))
    panel.grid(True, axis="x", alpha=0.3)
    panel.set_axisbelow(True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _records(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        record
        for record in content.get("results", ())
        if all(record[name] == value for name, value in CASE.items()) and record["status"] == "ok"
    ]


def _has_times(content: dict[str, Any]) -> bool:
    found = {record["library"] for record in _records(content)}
    return {"smddp-torch", "gloo", "floor-ideal"} <= found


def main() -> None:
    """Draw what there are figures for; say what is left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("timeline", nargs="?", type=Path, metavar="TIMELINE.json")
    parser.add_argument("--collectives", type=Path, metavar="RESULT.json")
    parser.add_argument("--assets", type=Path, default=ASSETS, metavar="FOLDER")
    arguments = parser.parse_args()
    draw_traffic(arguments.assets / "why_fast_bytes.png")
    timeline = arguments.timeline or newest(HERE, is_fit=lambda content: "calls_us" in content)
    times = arguments.collectives or newest(COLLECTIVES_FOLDER, is_fit=_has_times)
    for path, draw, name, source in (
        (timeline, draw_timeline, "timeline", "smddprun -np 2 python benchmarks/why_fast/run.py"),
        (times, draw_times, "times", "python benchmarks/collectives/run.py --targets"),
    ):
        if path is None:
            print(f"why_fast_{name}.png is left as it is: no figures. Make them with `{source}`.")
            continue
        draw(json.loads(path.read_text()), arguments.assets / f"why_fast_{name}.png")
        print(f"why_fast_{name}.png from {path.name}")


if __name__ == "__main__":
    main()
