# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The page that compares a run with the targets, also where they are missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cases import size_name
from common.page_parts import machine_words, number, package_words, table
from core_state import COMPARABLE_TAGS
from targets import FAMILIES, GRANTED_US, CaseKey, Outcome, Record, Target, evaluate, key_of

Found = tuple[Target, list[Outcome]]
Rows = Mapping[CaseKey, Mapping[str, Record]]
_FLOOR = "floor-ideal"


def target_page(content: dict[str, Any], rows: Rows) -> str | None:
    """The text of the page; None if the run measured nothing that a target is about."""
    families = {
        title: [(target, evaluate(target, rows)) for target in targets]
        for title, targets in FAMILIES.items()
    }
    found = [pair for family in families.values() for pair in family]
    outcomes = [outcome for _, several in found for outcome in several]
    if not outcomes:
        return None
    reached = sum(all(outcome.is_reached) for outcome in outcomes)
    labels = {name: library["label"] for name, library in content["libraries"].items()}
    sections = [_section(title, family, labels, rows) for title, family in families.items()]
    return f"""# Collectives: what is aimed at, and what is reached

<!-- Written by benchmarks/collectives/report.py; edit that, not this page. -->

{reached} of {len(outcomes)} lines reached. Measured on {content["date"]} with

    {content["command"]}
    python benchmarks/collectives/report.py

{machine_words(content["environment"])}, {package_words(content["environment"])}.

A line is one target in one core state. Times and ratios are best / median, from pairs of turns: of
one round, so taken right after each other, and of one core state. "≥ 12 × Gloo" means that Gloo
takes at least 12 times as long; "≤ 1.2 × floor" means at most 1.2 times the floor's time. What is
granted after a "+" ({GRANTED_US:g} µs, or what a call of `torch.distributed` takes when the group
does nothing, measured in the same round) counts as time of the peer; divided by the factor, so that
the ratio is still compared with the number of the target. "Limit" is the ratio that the floor
itself reached beside the same peer in that core state of the run: a target beyond it is out of
reach on this machine. Columns, floor and core states are explained in
[benchmarks/collectives](../../benchmarks/collectives/README.md).

{"".join(filter(None, sections))}{_without_figures(found, labels)}"""


def _section(title: str, family: Sequence[Found], labels: Mapping[str, str], rows: Rows) -> str:
    """Heading and table of one family; empty if the run says nothing about it."""
    lines = [_line(outcome, labels, rows) for _, outcomes in family for outcome in outcomes]
    if not lines:
        return ""
    header = ["Call", "Ours", "Target", "Cores", "Ours, µs", "Peer, µs", "Ratio"]
    header += ["Limit", "Pairs", ""]
    reached = sum(all(outcome.is_reached) for _, outcomes in family for outcome in outcomes)
    return f"## {title}\n\n{reached} of {len(lines)} reached.\n\n{table(header, lines, 4)}\n"


def _line(outcome: Outcome, labels: Mapping[str, str], rows: Rows) -> list[str]:
    target = outcome.target
    names = ("best", "median")
    missed = [name for name, ok in zip(names, outcome.is_reached, strict=True) if not ok]
    verdict = "reached" if not missed else f"**missed** ({', '.join(missed)})"
    granted = "" if target.granted is None else f" + {_pair(outcome.granted_us)}"
    return [
        _call_words(target),
        labels[target.own],
        _target_words(target, labels),
        outcome.tag,
        _pair(outcome.own_us),
        _pair(outcome.peer_us) + granted,
        _pair(outcome.ratios),
        _limit(outcome, rows),
        str(outcome.pairs),
        verdict,
    ]


def _limit(outcome: Outcome, rows: Rows) -> str:
    """Peer's time / floor's time, where a speedup is aimed at and the run has the floor."""
    target = outcome.target
    floor = rows.get(key_of(target.case), {}).get(_FLOOR)
    figures = None if floor is None else floor["by_tag"].get(outcome.tag)
    if figures is None or not target.is_speedup:
        return ""
    best, middle = outcome.peer_us
    return _pair((best / figures["best_us"], middle / figures["median_us"]))


def _pair(values: tuple[float, float]) -> str:
    return f"{number(values[0])} / {number(values[1])}"


def _call_words(target: Target) -> str:
    case = target.case
    return f"{case.collective} {case.dtype}, {case.ranks} ranks, {size_name(case.size_bytes)}"


def _target_words(target: Target, labels: Mapping[str, str]) -> str:
    peer = labels.get(target.peer, target.peer)
    if target.peer_dtype is not None:
        peer += f" with {target.peer_dtype}"
    if target.granted is not None:
        peer += f" + {labels.get(target.granted, target.granted)}"
    granted = f" + {target.granted_us:g} µs" if target.granted_us else ""
    sign = "≥" if target.is_speedup else "≤"
    return f"{sign} {target.limit:g} × {peer}{granted}"


def _without_figures(found: Sequence[Found], labels: Mapping[str, str]) -> str:
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
    return f"## Without figures\n\n{reason}\n\n" + "\n".join(lines) + "\n"
