# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Writes `docs/benchmarks/ddp_step.md` and its plot from one result file of `run.py`.

Usage: python benchmarks/ddp_step/report.py [RESULT.json] [--docs FOLDER]
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from columns import COLUMNS, COMPUTE, column, reference_of
from common import page_parts, result_files
from shared import COMPARABLE_TAGS, main_tag

HERE = Path(__file__).resolve().parent
PICTURE = "ddp_step.png"
FLOOR = "floor"
MODEL_LABELS = {"gpt": "small GPT", "resnet18": "ResNet-18-like", "mlp": "tiny MLP"}
# What is promised for 2 ranks: this column's median ratio to the free collective, gradients as
# bucket views.
PROMISED = "smddp"
TARGETS = {"gpt": 1.03, "resnet18": 1.03, "mlp": 1.3}
# Distinct for colour-blind readers; ours are the strong ones.
COLOURS = {"compute": "#888888", "smddp": "#d55e00", "legacy": "#e69f00", "gloo": "#0072b2"}

Case = dict[str, Any]


def tag_of_case(case: Case) -> str | None:
    """The core state in which most turns took place, among those that are compared."""
    return main_tag(
        found.get("by_tag", {}) for name, found in case["columns"].items() if name != FLOOR
    )


def number(value: float) -> str:
    """Three significant digits, no exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def step_table(case: Case) -> str:
    """Times of each column and its ratio to the free collective, in each core state."""
    lines = []
    for spec in COLUMNS:
        found = case["columns"].get(spec.name)
        if found is None or "absent" in found:
            continue
        for tag in COMPARABLE_TAGS:
            figures = found["by_tag"].get(tag)
            if figures is None:
                continue
            ratio = found.get("to_free", {}).get(tag)
            cells = ["–"] * 5
            if ratio is not None:
                cells = [
                    f"{ratio['best']:.3f}",
                    f"**{ratio['median']:.3f}**",
                    f"{ratio['p10']:.3f} – {ratio['p90']:.3f}",
                    str(ratio["pairs"]),
                    f"{ratio['cpu']:.3f}",
                ]
            views = "–" if spec.name == COMPUTE else "yes" if spec.has_views else "no"
            lines.append(
                [
                    spec.label,
                    views,
                    tag,
                    f"{number(figures['best_ms'])} / {number(figures['median_ms'])}",
                    f"{figures['spread']:.2f}",
                    *cells,
                ]
            )
    if not lines:
        return "No turn of this case was undisturbed: there is nothing to compare.\n"
    header = ["Step", "Views", "Cores", "ms, best / median", "Spread"]
    header += ["Ratio, best", "Ratio, median", "Ratio, p10 – p90", "Pairs", "Processor time"]
    return page_parts.table(header, lines, 3)


def floor_words(case: Case) -> str:
    """What a sum of all gradients costs at least, and what a step would be with it on top."""
    floor = case["columns"].get(FLOOR, {})
    tag = tag_of_case(case)
    figures = floor.get("by_tag", {}).get(tag)
    free = case["columns"].get("free", {}).get("by_tag", {}).get(tag)
    if figures is None or free is None:
        return ""
    ratio = 1 + figures["median_ms"] / free["median_ms"]
    return (
        f"The floor of one sum of {case['gradient_bytes'] / 1e6:.2f} MB between two ranks, staged"
        f" through shared memory, is {number(figures['best_ms'])} ms at best and"
        f" {number(figures['median_ms'])} ms in the median ({tag}): a step that hides none of it"
        f" would take {ratio:.3f} times the free collective's.\n"
    )


def notes(case: Case) -> str:
    """Columns that gave no figures, and turns that were left out, in words."""
    lines = [
        f"- {column(name).label if name != FLOOR else FLOOR}: left out: {found['absent']}"
        for name, found in case["columns"].items()
        if "absent" in found
    ]
    counts: Counter[str] = Counter()
    for found in case["columns"].values():
        for turn in found.get("turns", ()):
            counts[turn["tag"]] += 1
    disturbed = {tag: counts[tag] for tag in ("noisy", "mixed") if counts[tag]}
    if disturbed:
        words = " and ".join(f"{count} {tag}" for tag, count in disturbed.items())
        lines.append(f"- {words} turns of {sum(counts.values())} are not compared.")
    return "\n".join(lines) + "\n" if lines else ""


def summary_table(cases: Sequence[Case]) -> str:
    """The promised figures: median ratio to the free collective, gradients as bucket views."""
    names = [name for name in ("smddp", "legacy", "gloo") if _has(cases, name)]
    lines = []
    for case in cases:
        tag = tag_of_case(case)
        target = TARGETS[case["model"]] if case["ranks"] == 2 else None
        cells = []
        for name in names:
            ratio = case["columns"].get(name, {}).get("to_free", {}).get(tag)
            cell = f"{ratio['median']:.3f}" if ratio else "–"
            is_missed = ratio and target and name == PROMISED and ratio["median"] > target
            cells.append(f"{cell} (missed)" if is_missed else cell)
        lines.append(
            [
                MODEL_LABELS[case["model"]],
                str(case["ranks"]),
                f"{case['gradient_bytes'] / 1e6:.2f}",
                tag or "no quiet turn",
                *cells,
                f"≤ {target:.2f}" if target else "–",
            ]
        )
    header = ["Model", "Ranks", "Gradients, MB", "Cores", *(column(n).label for n in names)]
    return page_parts.table([*header, f"Target for {PROMISED}"], lines)


def _has(cases: Sequence[Case], name: str) -> bool:
    return any("by_tag" in case["columns"].get(name, {}) for case in cases)


def plot(cases: Sequence[Case], path: Path) -> None:
    """One panel per case: the ratio of every round, and its median."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(
        1, len(cases), figsize=(3.6 * len(cases) + 0.6, 3.8), squeeze=False, layout="constrained"
    )
    for panel, case in zip(panels[0], cases, strict=True):
        tag = tag_of_case(case)
        names = [name for name in COLOURS if "to_free" in case["columns"].get(name, {})]
        for position, name in enumerate(names):
            ratios = _round_ratios(case, name, tag)
            if not ratios:
                continue
            middle = case["columns"][name]["to_free"][tag]["median"]
            panel.plot([position] * len(ratios), ratios, ".", color=COLOURS[name], alpha=0.45)
            panel.hlines(middle, position - 0.3, position + 0.3, color=COLOURS[name], linewidth=2.5)
            panel.annotate(f"{middle:.2f}", (position + 0.32, middle), fontsize="x-small")
        if case["ranks"] == 2:
            panel.axhline(TARGETS[case["model"]], color="#009e73", linestyle="--", linewidth=1)
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_xticks(range(len(names)), [column(name).label for name in names], rotation=25)
        panel.set_xlim(-0.5, len(names) - 0.2)
        panel.set_title(f"{MODEL_LABELS[case['model']]}, {case['ranks']} ranks", fontsize="medium")
        panel.grid(True, axis="y", alpha=0.3)
    panels[0][0].set_ylabel("step / step with a free collective")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _round_ratios(case: Case, name: str, tag: str | None) -> list[float]:
    free = {turn["round"]: turn for turn in case["columns"][reference_of(name)]["turns"]}
    return [
        turn["median_ms"] / free[turn["round"]]["median_ms"]
        for turn in case["columns"][name]["turns"]
        if turn["tag"] == tag and free.get(turn["round"], {}).get("tag") == tag
    ]


def page(content: dict[str, Any]) -> str:
    """The text of the page."""
    cases: list[Case] = content["results"]
    machine = content["environment"]
    states = [
        [
            state["tag"],
            f"{state['median_flag_ns']:.0f}",
            f"{state['median_compute_ratio']:.2f}",
            f"{state['share_of_quiet_probes']:.0%}",
        ]
        for state in content["core_states"]
    ]
    parts = [
        f"""# A training step of DDP, beside one whose collective is free

<!-- Written by benchmarks/ddp_step/report.py; edit that, not this page. -->

How much longer does a step of `DistributedDataParallel` take because its gradients are averaged?
Each column is compared with the same step under a communication hook that returns at once, in the
same run, in the same pair of processes. A ratio of 1.03 means that averaging costs 3 % of the step.

{summary_table(cases)}
Median ratios, gradients as bucket views. Measured on {content["date"]} with

    {content["command"]}
    python benchmarks/ddp_step/report.py

{page_parts.machine_words(machine)}, {page_parts.package_words(machine)}. One thread per rank; \
{content["rounds"]} rounds.

![ratio of a step to one with a free collective]({PICTURE})

Dots are rounds, bars their medians, the dashed line is the target. What a column does, what the
floor is and when a turn counts: [benchmarks/ddp_step](../../benchmarks/ddp_step/README.md).
"""
    ]
    for case in cases:
        parts.append(f"## {MODEL_LABELS[case['model']]}, {case['ranks']} ranks\n")
        parts.append(
            f"{case['gradient_bytes'] / 1e6:.2f} MB of float32 gradients in"
            f" {case['gradient_tensors']} tensors.\n"
        )
        parts += [step_table(case), floor_words(case), notes(case)]
    parts.append(
        "## Core states\n\n"
        f"Found by {content['probes']} probes of this run; only turns of one state are compared.\n"
    )
    parts.append(page_parts.table(["State", "Flag, median ns", "Compute ratio", "Share"], states))
    return "\n".join(part for part in parts if part)


def main() -> int:
    """Write the page from the result file named on the command line, by default the newest."""
    content, folder = result_files.read_for_report(HERE, __doc__.splitlines()[0])
    (folder / "ddp_step.md").write_text(page(content))
    plot(content["results"], folder / PICTURE)
    print("wrote ddp_step.md and its plot")
    return 0


if __name__ == "__main__":
    sys.exit(main())
