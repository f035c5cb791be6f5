# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""An actor for each application: it keeps its package on the cluster, and hears what went wrong."""

from __future__ import annotations

__all__ = ["Keeper"]


class Keeper:
    """While this actor lives Ray keeps the package of its environment, for replicas to come."""

    def __init__(self) -> None:
        self._said = ("", "")

    def tell(self, problem: str, log: str) -> None:
        """A replica could not load the model."""
        self._said = self._said if self._said[0] else (problem, log)

    def told(self) -> tuple[str, str]:
        """Why the first one could not, and the end of its log; empty if all could."""
        return self._said
