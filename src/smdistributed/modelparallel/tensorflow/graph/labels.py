# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which layer, and which `smp.partition` context, each operation of a traced step comes from.

Names do not tell: they are made unique, and absolute name scopes escape. So while a step is traced,
`Layer.__call__` says which layer is at work, and contexts say that they are open; each notes how
many operations the graph had when it began and when it ended.

Source: TensorFlow modelparallel specification, sections 4 and 5.6.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

__all__ = ["Label", "Labels", "current_labels", "partition"]


@dataclasses.dataclass(frozen=True)
class Label:
    """Where an operation of the model was made.

    Attributes:
        layer: number of the outermost layer that is no container of layers; None: in `call` itself.
        partition: of the innermost context; None: there was none.
    """

    layer: int | None
    partition: int | None


class _Current:
    labels: Labels | None = None


class Labels:
    """Collects labels while one graph is traced.

    Args:
        graph: the traced graph.
        partitions: how many there are, for contexts that name one.

    Attributes:
        layers: by number, as they were first called.
    """

    def __init__(self, graph: tf.Graph, partitions: int) -> None:
        self._graph = graph
        self._partitions = partitions
        self._opened: list[Any] = []  # containers, and perhaps a layer, that are at work
        self._contexts: list[int] = []
        self._stamps: list[tuple[int, Label | None]] = []  # from that operation on
        self._number_of: dict[int, int] = {}
        self.layers: list[Any] = []

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """From now on layers and contexts tell of themselves."""
        if _Current.labels is not None:
            raise RuntimeError("a step is traced already")
        layer_class = tf.keras.layers.Layer
        original = layer_class.__call__

        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            with self._at_work(layer):
                return original(layer, *args, **kwargs)

        _Current.labels = self
        layer_class.__call__ = call
        try:
            yield
        finally:
            layer_class.__call__ = original
            _Current.labels = None

    @contextlib.contextmanager
    def model_at_work(self) -> Iterator[None]:
        """The model is called: what is made from here on is its own."""
        self._opened.append(None)
        self._stamp()
        try:
            yield
        finally:
            self._opened.pop()
            self._stamp()

    @contextlib.contextmanager
    def in_partition(self, index: int) -> Iterator[None]:
        """An `smp.partition` context is open."""
        if not self._opened:  # outside of `call` it has no effect
            yield
            return
        self._require_outside_of_bodies(index)
        self._contexts.append(index)
        self._stamp()
        try:
            yield
        finally:
            self._contexts.pop()
            self._stamp()

    def of_operations(self, count: int) -> list[Label | None]:
        """By operation of the graph; None: made outside of the model."""
        labels: list[Label | None] = []
        current: Label | None = None
        for begin, label in self._stamps:
            labels.extend([current] * (begin - len(labels)))
            current = label
        labels.extend([current] * (count - len(labels)))
        return labels

    def name_of(self, label: Label) -> str:
        """For messages."""
        if label.layer is None:
            return "call"
        return str(getattr(self.layers[label.layer], "name", label.layer))

    def unique_names(self) -> list[str]:
        """By number of a layer; the same on all ranks."""
        taken: collections.Counter[str] = collections.Counter()
        names = []
        for layer in self.layers:
            name = str(getattr(layer, "path", "") or layer.name)
            taken[name] += 1
            names.append(name if taken[name] == 1 else f"{name}#{taken[name]}")
        return names

    @contextlib.contextmanager
    def _at_work(self, layer: Any) -> Iterator[None]:
        # In the body of a loop or a condition another graph is traced; that is one operation here.
        is_hidden = not self._opened or self._innermost_is_layer()
        if is_hidden or tf.compat.v1.get_default_graph() is not self._graph:
            yield
            return
        self._opened.append(None if isinstance(layer, tf.keras.Model) else layer)
        self._stamp()
        try:
            yield
        finally:
            self._opened.pop()
            self._stamp()

    def _innermost_is_layer(self) -> bool:
        return self._opened[-1] is not None

    def _stamp(self) -> None:
        self._stamps.append((self._graph.version, self._label()))

    def _label(self) -> Label | None:
        if not self._opened:
            return None
        layer = self._opened[-1]
        number = None if layer is None else self._number(layer)
        return Label(number, self._contexts[-1] if self._contexts else None)

    def _number(self, layer: Any) -> int:
        number = self._number_of.setdefault(id(layer), len(self.layers))
        if number == len(self.layers):
            self.layers.append(layer)
        return number

    def _require_outside_of_bodies(self, index: int) -> None:
        if tf.compat.v1.get_default_graph() is self._graph:
            return
        current = self._contexts[-1] if self._contexts else None
        if index != current:
            raise ValueError(
                f"smp.partition({index}) stands in the body of a loop or a condition, in"
                f" {self._where()}; expected it around the whole: a loop, or a condition, runs on"
                " one partition with all that is in it. Open the context around it."
            )

    def _where(self) -> str:
        layer = self._opened[-1]
        return "call" if layer is None else f"the layer {layer.name}"


def current_labels() -> Labels | None:
    """Of the step that is traced now."""
    return _Current.labels


@contextlib.contextmanager
def partition(index: int) -> Iterator[None]:
    """Operations that are made in this context, in `call` of the model, go to a partition.

        class Model(smp.DistributedModel):
            def call(self, x):
                with smp.partition(0):
                    x = self.first(x)
                with smp.partition(1):
                    return self.second(x)

    The innermost context wins. With `auto_partition`, and with one partition, they are ignored: so
    the script also runs in one process, where `smp.plan()` reads them. Outside of `call` of the
    model, around the construction of layers say, it has no effect.

    Args:
        index: of the partition, from 0.

    Raises:
        ValueError: while a step is traced: there is no such partition, of several.
    """
    labels = current_labels()
    if labels is None:
        yield
        return
    _require_partition(index, labels._partitions)
    if labels._partitions == 1:
        yield
        return
    with labels.in_partition(index):
        yield


def _require_partition(index: object, partitions: int) -> None:
    is_index = isinstance(index, int) and not isinstance(index, bool)
    most = math.inf if partitions == 1 else partitions
    if not (is_index and 0 <= index < most):  # type: ignore[operator]
        raise ValueError(
            f"smp.partition({index!r}); expected an integer from 0 to {partitions - 1}, as"
            f" partitions (pipeline_parallel_degree) is {partitions}. Correct the index, or raise"
            " the number of partitions."
        )
