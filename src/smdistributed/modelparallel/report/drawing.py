# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures of a report: a row for each rank, what was above what should have been, on one scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from smdistributed.modelparallel.report.costs import Settings
from smdistributed.modelparallel.report.expectation import Expected, expected_runs
from smdistributed.modelparallel.report.measured import Measured
from smdistributed.modelparallel.report.timeline import Span
from smdistributed.modelparallel.report.words import seconds_text

__all__ = ["draw"]

# Distinct for colour-blind readers; the same as in the pictures of docs/model_parallel.md.
_COLOURS = {"F": "#56b4e9", "B": "#e69f00"}
_LABELS = {"F": "forward", "B": "backward"}
_OTHER = "#999999"
# Of the width: narrower stretches have no room for a number.
_LEAST_LABELLED = 0.012


def draw(
    settings: Settings,
    expected: Expected,
    measured: Measured | None,
    ranks: Sequence[int],
    path: Path,
) -> None:
    """Draws what a report says to a file; the arguments are those of `document.Report`.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "a picture of a report needs matplotlib, which is not installed; expected it with the"
            " extra `plot`. pip install smdistributed-open[plot], or save() the report and draw it"
            " elsewhere with smpreport."
        ) from error
    partitions = settings.partitions
    height = 0.9 + 0.5 * partitions * (2 if measured is not None else 1)
    figure = Figure(figsize=(9.0, height + 0.8), layout="constrained")
    panels: list[Any] = list(
        figure.subplots(1 if measured is None else 2, 1, sharex=True, squeeze=False)[:, 0]
    )
    width_s = expected.step_s
    if measured is not None:
        width_s = max(width_s, measured.timeline.seconds)
        _panel(
            panels[0],
            f"as measured: {seconds_text(measured.timeline.seconds)}",
            measured.timeline.spans,
            _names(ranks, measured.bubble),
            width_s,
        )
    title = "computing and schedule alone" if measured is not None else "as planned"
    _panel(
        panels[-1],
        f"{title}: {seconds_text(expected.step_s)}",
        _expected_spans(settings, expected),
        _names(ranks, expected.bubble),
        width_s,
    )
    panels[-1].set_xlabel("ms since the step began; numbers are microbatches")
    handles: dict[str, Any] = {}
    for panel in panels:
        bars, labels = panel.get_legend_handles_labels()
        handles |= dict(zip(labels, bars, strict=True))
    figure.legend(
        list(handles.values()),
        list(handles),
        fontsize="small",
        loc="outside lower center",
        ncols=max(1, len(handles)),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _expected_spans(settings: Settings, expected: Expected) -> list[list[Span]]:
    return [[Span(*run) for run in own] for own in expected_runs(expected, settings)]


def _names(ranks: Sequence[int], bubbles: Sequence[float]) -> list[str]:
    return [
        f"rank {rank}\nbubble {bubble:.0%}" for rank, bubble in zip(ranks, bubbles, strict=True)
    ]


def _panel(
    panel: Any, title: str, rows: Iterable[Iterable[Span]], names: list[str], width_s: float
) -> None:
    for row, spans in enumerate(rows):
        for span in spans:
            panel.barh(
                row,
                span.seconds * 1e3,
                0.8,
                span.begin_s * 1e3,
                color=_COLOURS.get(span.phase, _OTHER),
                edgecolor="white",
                linewidth=0.4,
                label=_LABELS.get(span.phase, span.phase),
            )
            if span.seconds >= _LEAST_LABELLED * width_s:
                panel.annotate(
                    str(span.microbatch),
                    ((span.begin_s + span.end_s) * 500, row),
                    ha="center",
                    va="center",
                    fontsize="x-small",
                )
    panel.set_title(title, loc="left", fontsize="medium")
    panel.set_yticks(range(len(names)), names, fontsize="small")
    panel.invert_yaxis()
    panel.set_xlim(0, width_s * 1e3)
    panel.spines[["top", "right"]].set_visible(False)
