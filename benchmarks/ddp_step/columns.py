# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is compared: the ways to make one training step of a model.

A name is `<what>` with gradients as views into buckets, `<what>-copies` without. This file does
not need torch, so that `--help` and the report do not load it.
"""

from __future__ import annotations

from dataclasses import dataclass

COMPUTE = "compute"
FREE = "free"


@dataclass(frozen=True)
class Column:
    """One way to make a step.

    Attributes:
        name: for command lines and files.
        label: for headings.
        wrapper: `none` (the bare module), `torch` (its DDP) or `legacy` (smdistributed's).
        backend: the process group that DDP gets.
        is_free: a communication hook returns at once, with the gradients as they are.
        has_views: `gradient_as_bucket_view`.
    """

    name: str
    label: str
    wrapper: str
    backend: str = "smddp"
    is_free: bool = False
    has_views: bool = True


COLUMNS: tuple[Column, ...] = (
    Column(COMPUTE, "compute alone", "none"),
    Column(FREE, "free collective", "torch", is_free=True),
    Column("smddp", "torch DDP, smddp", "torch"),
    Column("legacy", "legacy DDP", "legacy"),
    Column("gloo", "torch DDP, Gloo", "torch", backend="gloo"),
    Column("free-copies", "free collective", "torch", is_free=True, has_views=False),
    Column("smddp-copies", "torch DDP, smddp", "torch", has_views=False),
    Column("gloo-copies", "torch DDP, Gloo", "torch", backend="gloo", has_views=False),
)


def column(name: str) -> Column:
    """The column of this name."""
    return next(found for found in COLUMNS if found.name == name)


def reference_of(name: str) -> str:
    """The free collective that a column is compared with: the one with the same kind of buckets."""
    return "free" if column(name).has_views else "free-copies"
