# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The page that compares a run with the targets, also where they are missed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cases import size_name
from core_state import COMPARABLE_TAGS
from page_parts import machine_words, number, package_words, table
from targets import TARGETS, TORCH_OVERHEAD_US, CaseKey, Outcome, Record, Target, evaluate


def target_page(
    content: dict[str, Any], rows: Mapping[CaseKey, Mapping[str, Record]]
) -> str | None:
    """The text of the page; None if the run measured nothing that a target is about."""
    found = [(target, evaluate(target, rows)) for target in TARGETS]
    outcomes = [outcome for _, several in found for outcome in several]
    if not outcomes:
        return None
    reached = sum(all(outcome.is_reached) for outcome in outcomes)
    labels = {name: library["label"] for name, library in content["libraries"].items()}
    lines = [_line(outcome, labels) for outcome in outcomes]
    header = ["Call", "Ours", "Target", "Cores", "Ours, µs", "Peer, µs", "Ratio", "Pairs", ""]
    return f"""# Collectives: what is aimed at, and what is reached

<!-- Written by benchmarks/collectives/report.py; edit that, not this page. -->

{reached} of {len(outcomes)} lines reached. Measured on {content["date"]} with

    {content["command"]}
    python benchmarks/collectives/report.py

{machine_words(content["environment"])}, {package_words(content["environment"])}.

A line is one target in one core state. Times and ratios are best / median, from turns of one round
and one core state; with several peers, the fastest of each round counts. "≥ 12 × Gloo" means that
Gloo takes at least 12 times as long; "≤ 1.2 × floor" means at most 1.2 times the floor's time.
Where {TORCH_OVERHEAD_US:g} µs are granted, for what a call of `torch.distributed` costs before it
reaches any backend, the ratio is formed without them. Columns, floor and core states are explained
in [benchmarks/collectives](../../benchmarks/collectives/README.md).

{table(header, lines, 4)}
{_without_figures(found, labels)}"""


def _line(outcome: Outcome, labels: Mapping[str, str]) -> list[str]:
    target = outcome.target
    names = ("best", "median")
    missed = [name for name, ok in zip(names, outcome.is_reached, strict=True) if not ok]
    verdict = "reached" if not missed else f"**missed** ({', '.join(missed)})"
    return [
        _call_words(target),
        labels[target.own],
        _target_words(target, labels),
        outcome.tag,
        _pair(outcome.own_us),
        _pair(outcome.peer_us),
        _pair(outcome.ratios),
        str(outcome.pairs),
        verdict,
    ]


def _pair(values: tuple[float, float]) -> str:
    return f"{number(values[0])} / {number(values[1])}"


def _call_words(target: Target) -> str:
    case = target.case
    return f"{case.collective} {case.dtype}, {case.ranks} ranks, {size_name(case.size_bytes)}"


def _target_words(target: Target, labels: Mapping[str, str]) -> str:
    known = [labels.get(name, name) for name in target.peers]
    peer = known[0] if len(known) == 1 else f"fastest of {len(known)}"
    if all(name.startswith("floor") for name in target.peers):
        peer = "floor, best staged" if len(known) > 1 else known[0]
    elif len(known) > 1:
        peer = "the fastest MPI"
    if target.peer_dtype is not None:
        peer += f" with {target.peer_dtype}"
    times = 1 / target.factor if target.is_speedup else target.factor
    sign = "≥" if target.is_speedup else "≤"
    extra = f" + {target.extra_us:g} µs" if target.extra_us else ""
    return f"{sign} {times:g} × {peer}{extra}"


def _without_figures(found: list[tuple[Target, list[Outcome]]], labels: Mapping[str, str]) -> str:
    """Targets about which this run says nothing, in words."""
    lines = []
    for target, outcomes in found:
        if not outcomes:
            words = f"{labels.get(target.own, target.own)}, {_target_words(target, labels)}"
            where = "" if target.tags == COMPARABLE_TAGS else f", {' or '.join(target.tags)}"
            lines.append(f"- {_call_words(target)}: {words}{where}")
    if not lines:
        return ""
    reason = "Not measured, or no round in which all of them ran undisturbed in one core state:"
    return reason + "\n\n" + "\n".join(lines) + "\n"
