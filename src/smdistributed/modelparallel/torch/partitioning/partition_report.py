# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A partition as a table for people: where each module is, what it costs, and why it is there.

A row is a module with all below it that has no row of its own, so rows add up: those of a partition
to what the partition holds, all of them to the model.

Source: our choice; the specification, section 3.7, has the log's lines only.
"""

from __future__ import annotations

from collections.abc import Sequence

from smdistributed.modelparallel.report.words import aligned
from smdistributed.modelparallel.torch.modules.assignment import ROOT
from smdistributed.modelparallel.torch.modules.placement import Placement

__all__ = ["partition_report"]

_MOST_RANKS = 4


def partition_report(placement: Placement, ranks: Sequence[Sequence[int]]) -> str:
    """A line for each partition, and a table of modules. Not collective.

    Args:
        placement: where everything is.
        ranks: by partition, the world ranks that hold it.

    Returns: lines. Loads, memory and time are shares of the model's; they are left out where the
        decision was not made by cost.
    """
    decision = placement.decision
    rows = decision.shown()
    numbers = _numbers_of_parameters(placement)
    parameters = _summed(numbers, rows)
    memory = _summed({path: share.memory for path, share in decision.shares.items()}, rows)
    time = _summed({path: share.time for path, share in decision.shares.items()}, rows)
    lines = []
    for partition, holders in enumerate(ranks):
        here = sum(n for path, n in numbers.items() if decision.partition_of[path] == partition)
        load = f"load {decision.loads[partition]:.1%}, " if decision.loads else ""
        lines.append(f"partition {partition} on {_listed(holders)}: {load}{here:,} parameters")
    table = [["partition", "parameters", "memory", "time", "module", "why"]]
    table += [
        [
            str(decision.partition_of[path]),
            f"{parameters[path]:,}",
            f"{memory[path]:.1%}",
            f"{time[path]:.1%}",
            path,
            decision.reasons.get(path, ""),
        ]
        for path in rows
    ]
    if not decision.shares:
        table = [row[:2] + row[4:] for row in table]
    return "\n".join([*lines, "", *aligned(table, words=2)])


def _numbers_of_parameters(placement: Placement) -> dict[str, int]:
    """By path of module, elements of the parameters that it holds itself; shared ones once."""
    numbers = dict.fromkeys(placement.decision.partition_of, 0)
    for name, parameter in placement.model.named_parameters():
        path = "/".join([ROOT, *name.split(".")[:-1]])
        numbers[path] += parameter.numel()
    return numbers


def _summed(values: dict[str, float] | dict[str, int], rows: Sequence[str]) -> dict[str, float]:
    """By row, with what is below it and in no other row."""
    sums: dict[str, float] = dict.fromkeys(rows, 0)
    for path, value in values.items():
        while path not in sums:
            path = path.rpartition("/")[0]
        sums[path] += value
    return sums


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_RANKS]))
    more = len(ranks) - _MOST_RANKS
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}" + (f" and {more} more" * (more > 0))
