# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a report shows of a traced step: its layers, who computes what, how large tensors are.

How long an operation takes is guessed (`costs`): of a segment, whose time is measured, that says
which share is whose, and nothing else.

Source: our choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.report.costs import OUTSIDE_ROW, Row
from smdistributed.modelparallel.tensorflow.graph.costs import Costs
from smdistributed.modelparallel.tensorflow.graph.nodes import EVERYWHERE, Node
from smdistributed.modelparallel.tensorflow.graph.reading import Reader

__all__ = ["LayerRows", "size_bytes"]


class LayerRows:
    """Of one traced step.

    Args:
        reader: its operations.
        nodes: the same, placed.
        costs: of the operations.

    Attributes:
        rows: layers, in the order in which they were called first, without times.
    """

    def __init__(self, reader: Reader, nodes: Sequence[Node], costs: Costs) -> None:
        self._reader = reader
        self._costs = costs
        collector = reader.trace.collector
        assert collector is not None
        names = collector.unique_names()
        self._path_of: dict[int, str] = {}
        homes: dict[str, int] = {}
        users: dict[Any, dict[str, None]] = {}  # by state, the layers
        last: dict[int, str] = {}  # by partition, the layer that was called last
        for number, label in enumerate(reader.trace.labels):
            home = nodes[number].home
            if label is None or reader.is_gradient[number] or nodes[number].role.is_cloned:
                if label is not None and label.layer is not None:
                    self._note_states(users, number, names[label.layer])
                continue
            if label.layer is not None:
                path = names[label.layer]
                self._note_states(users, number, path)
                if home != EVERYWHERE:
                    homes.setdefault(path, home)
                    last[home] = path
            else:  # of `call` itself: it goes with what it needs
                path = last.get(home, OUTSIDE_ROW)
            self._path_of[number] = path
        elements = dict.fromkeys(homes, 0)
        bound: set[str] = set()
        for state, layers in users.items():
            first = next((path for path in layers if path in homes), None)
            if first is not None:
                elements[first] += _elements_of_handle(reader.externals[state])
            if len(layers) > 1:
                bound |= layers.keys()
        self.rows = tuple(
            Row(path, home, elements[path], can_move=path not in bound)
            for path, home in homes.items()
        )

    def _note_states(self, users: dict[Any, dict[str, None]], number: int, path: str) -> None:
        touch = self._reader.touches[number]
        for state in touch.reads | touch.changes:
            if state in self._reader.handles.values():
                users.setdefault(state, {})[path] = None

    def path_of(self, number: int) -> str:
        """The row of an operation; of a gradient that of what it is the gradient of."""
        original = self._reader.originals[number]
        return self._path_of.get(number if original is None else original, OUTSIDE_ROW)

    def shares(self, numbers: Iterable[int]) -> tuple[tuple[str, float], ...]:
        """By row, guessed seconds of some operations."""
        found: dict[str, float] = {}
        for number in numbers:
            path = self.path_of(number)
            found[path] = found.get(path, 0.0) + self._costs.seconds_of(number)
        return tuple(found.items())


def size_bytes(tensor: Any) -> int | None:
    """Of a tensor of the graph; None if its shape does not say, or its elements have no size."""
    elements = tensor.shape.num_elements()
    if elements is None or tensor.dtype == tf.string:
        return None
    return int(elements * tensor.dtype.size)


def _elements_of_handle(handle: Any) -> int:
    described = getattr(handle, "_handle_data", None)
    if described is None or not described.is_set or not described.shape_and_type:
        return 0
    kind = described.shape_and_type[0]
    if not tf.dtypes.as_dtype(kind.dtype).is_floating:
        return 0
    return tf.TensorShape(kind.shape).num_elements() or 0
