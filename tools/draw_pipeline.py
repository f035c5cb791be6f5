# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Draws the timelines of docs/model_parallel.md: who computes what when, as the schedules predict.

Usage: python tools/draw_pipeline.py [FOLDER]

Needs matplotlib (`make bench` installs it) and writes `pipeline_timeline.png` into docs/assets.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

from smdistributed.modelparallel.decide.schedules import SCHEDULES, schedule_named
from smdistributed.modelparallel.decide.schedules.schedule import Phase
from smdistributed.modelparallel.decide.schedules.simulation import Prediction, Visit, predict

mpl.use("Agg")
from matplotlib import pyplot as plt

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets"
NUM_RANKS = 3
# A batch takes each rank 4 units forward and 8 backward, however many pieces it is cut into.
FORWARD_S, BACKWARD_S = 4.0, 8.0
# Title, schedule, microbatches, active microbatches. The registry names the default first. Here the
# default comes last, beside the panel with more microbatches of the same schedule.
PANELS = (
    ("1 microbatch", "interleaved", 1, 1),
    *((f"4 microbatches, {name}", name, 4, 4) for name in reversed([*SCHEDULES])),
    ("8 microbatches, interleaved, active_microbatches 5", "interleaved", 8, 5),
)
# Distinct for colour-blind readers; the same as in the other pictures.
COLOURS = {Phase.FORWARD: "#56b4e9", Phase.BACKWARD: "#e69f00"}
LABELS = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward"}


def _predicted(pipeline: str, microbatches: int, active: int) -> Prediction:
    way = [
        Visit(rank, FORWARD_S / microbatches, BACKWARD_S / microbatches, activation_bytes=1)
        for rank in range(NUM_RANKS)
    ]
    return predict(schedule_named(pipeline, microbatches, active), way)


def draw(path: Path) -> None:
    """All panels on one scale, a row for each rank, numbers for the microbatches."""
    figure, panels = plt.subplots(
        len(PANELS), 1, figsize=(8.4, 0.5 + 1.4 * len(PANELS)), sharex=True, layout="constrained"
    )
    for panel, (title, pipeline, microbatches, active) in zip(panels, PANELS, strict=True):
        predicted = _predicted(pipeline, microbatches, active)
        for rank, runs in predicted.runs.items():
            for run in runs:
                phase = run.task.phase
                width = run.end_s - run.begin_s
                panel.barh(
                    rank,
                    width,
                    0.8,
                    run.begin_s,
                    color=COLOURS[phase],
                    edgecolor="white",
                    linewidth=0.8,
                    label=LABELS[phase],
                )
                panel.annotate(
                    str(run.task.microbatch),
                    (run.begin_s + width / 2, rank),
                    ha="center",
                    va="center",
                    fontsize="small",
                )
        kept = ", ".join(str(n) for n in predicted.peak_microbatches.values())
        panel.set_title(
            f"{title}: bubble {predicted.bubble:.0%}; microbatches kept at a time: {kept}",
            loc="left",
            fontsize="medium",
        )
        panel.set_yticks(range(NUM_RANKS), [f"rank {rank}" for rank in range(NUM_RANKS)])
        panel.invert_yaxis()
        panel.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[-1].get_legend_handles_labels()
    legend = dict(zip(labels, handles, strict=True))
    figure.legend(
        legend.values(), legend.keys(), fontsize="small", loc="outside lower center", ncols=3
    )
    panels[-1].set_xlabel("time; each rank has 12 units of work")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Draw the picture where the documentation shows it, or into the folder that is named."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ASSETS
    draw(folder / "pipeline_timeline.png")


if __name__ == "__main__":
    main()
