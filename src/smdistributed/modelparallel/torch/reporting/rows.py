# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The rows of a report: modules that make sense as one thing to place."""

from __future__ import annotations

from torch import nn

from smdistributed.modelparallel.report.costs import Row
from smdistributed.modelparallel.torch.modules.assignment import ROOT, Decision, module_paths

__all__ = ["row_of", "rows_of"]

# Of containers that are in one place; more rows would tell nobody anything.
_MOST_CHILDREN = 64


def rows_of(model: nn.Module, decision: Decision) -> tuple[Row, ...]:
    """Modules, down to those below which all is in one place; of containers what is in them.

    So a row can be placed elsewhere without cutting through what computes as one. Rows without
    parameters are left out, but for the root's.
    """
    modules = {path: module for module, path in module_paths(model).items()}
    paths = set(decision.shown())
    for path, module in modules.items():  # callers first
        children = [f"{path}/{name}" for name, _ in module.named_children()]
        is_container = isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential))
        if path in paths and (path == ROOT or (is_container and len(children) <= _MOST_CHILDREN)):
            paths.update(child for child in children if child in decision.partition_of)
    numbers = dict.fromkeys(paths, 0)
    holders: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        row = row_of("/".join([ROOT, *name.split(".")[:-1]]), paths)
        if id(parameter) not in holders:
            numbers[row] += parameter.numel()
        holders.setdefault(id(parameter), set()).add(row)
    bound = {row for rows in holders.values() if len(rows) > 1 for row in rows}
    return tuple(
        Row(
            path=path,
            partition=decision.partition_of[path],
            parameters=numbers[path],
            why=decision.reasons.get(path, ""),
            can_move=path != ROOT and path not in bound,
        )
        for path in modules
        if path in paths and (numbers[path] or path == ROOT)
    )


def row_of(path: str, rows: set[str]) -> str:
    """The row that a module belongs to: its own, or the nearest above it."""
    while path not in rows:
        path = path.rpartition("/")[0]
    return path
