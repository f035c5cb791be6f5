# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Graphs in which there shall be no collectives, and why.

Source: our choice.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.exceptions import SMDDPUnsupported

__all__ = ["refuse_collectives", "require_no_refusal"]

# The attribute of such a graph.
_REASON = "_smddp_refuses_collectives"


def refuse_collectives(graph: Any, reason: str) -> None:
    """Collectives that are made in this graph, or in one inside of it, fail from now on.

    Args:
        reason: goes on after "a collective (...) was called".
    """
    setattr(graph, _REASON, reason)


def require_no_refusal(key: str) -> None:
    """Does nothing where a collective may be made.

    Args:
        key: what for, in messages.

    Raises:
        SMDDPUnsupported: whoever makes this graph has refused them.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        reason = getattr(graph, _REASON, None)
        if reason is not None:
            raise SMDDPUnsupported(f"a collective ({key}) was called {reason}")
        graph = getattr(graph, "outer_graph", None)
