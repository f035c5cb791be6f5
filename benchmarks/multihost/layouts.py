# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How ranks are spread over hosts, and what the links allow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """`ranks_per_host` ranks on each of `hosts` hosts."""

    hosts: int
    ranks_per_host: int

    @property
    def ranks(self) -> int:
        """World size."""
        return self.hosts * self.ranks_per_host

    def __str__(self) -> str:
        return f"{self.hosts}x{self.ranks_per_host}"

    def bound_seconds(self, size_bytes: int, gbit: float) -> float:
        """The least time of an all_reduce of `size_bytes`, in seconds, with `gbit` Gbit/s links.

        2 (n-1)/n x S / B for n hosts: whatever the algorithm, what n hosts hold can be summed and
        handed out in no less, however many ranks are on a host. Headers are not counted: a frame of
        1500 bytes carries data for 0.956 of its time on the wire, so 0.956 is the most to be had.
        """
        return 2 * (self.hosts - 1) / self.hosts * size_bytes * 8 / (gbit * 1e9)


# Of the computing of a step (step_ranks.py): so many equal layers, a third of it in forward.
LAYERS = 16
FORWARD_SHARE = 1 / 3


def least_step_ms(compute_ms: float, link_ms: float) -> float:
    """The least time of a step whose gradients need `link_ms` on the link.

    Nothing can be sent before the gradients of the last layer are there: after forward, and a
    layer's part of backward.
    """
    silent = FORWARD_SHARE + (1 - FORWARD_SHARE) / LAYERS
    return max(compute_ms, silent * compute_ms + link_ms)


LAYOUTS = (Layout(2, 1), Layout(2, 2), Layout(4, 1))


def parse_layout(text: str) -> Layout:
    """``"2x2"`` -> 2 hosts with 2 ranks each. Raises ``ValueError``."""
    hosts, cross, ranks = text.strip().partition("x")
    if not (cross and hosts.isdigit() and ranks.isdigit() and 2 <= int(hosts) <= 8 and int(ranks)):
        raise ValueError(
            f"layout {text!r} is not HOSTSxRANKS; expected 2 to 8 hosts and the ranks on each. "
            "Write for example 2x2."
        )
    return Layout(int(hosts), int(ranks))
