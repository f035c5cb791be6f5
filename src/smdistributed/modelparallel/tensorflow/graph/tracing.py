# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Traces the body of a step for one microbatch: a graph of the whole, and where it comes from.

The graph itself has no automatic control dependencies: with them every output would need everything
that changes a state, and could not be cut. The cut puts the order of states back.

Source: TensorFlow modelparallel specification, section 3.2.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.tensorflow.graph.labels import Label, Labels

__all__ = ["Trace", "converting", "current_trace", "taking_gradients", "trace_step"]


@dataclasses.dataclass
class Trace:
    """A traced step.

    Attributes:
        graph: its operations; they run nowhere in this graph.
        arguments: the placeholders of the microbatch's tensors.
        result: what the body returned; tensors in it are of the graph.
        labels: by operation, where it was made; None: outside of the model.
        gradients: by operation, whether it was made by taking gradients.
        own_gradients: by operation, whether it was made by taking those that are this rank's alone.
        collector: knows the layers of the labels.
        gradient_ranges: of operations, while it is traced.
        own_ranges: of those that take this rank's own gradients, likewise.
        losses: tensors of the graph whose gradients were taken.
        elsewhere: gradients with respect to variables of other ranks, which the body asked for.
        has_called_model: whether the body did.
        converts: whether AutoGraph converts the body, and what that calls.
        divides_losses: terms of a loss over the model's variables alone are of this rank.
        own_terms: these, each time that gradients were taken.
    """

    graph: Any
    arguments: list[tf.Tensor]
    result: Any = None
    labels: list[Label | None] = dataclasses.field(default_factory=list)
    gradients: list[bool] = dataclasses.field(default_factory=list)
    own_gradients: list[bool] = dataclasses.field(default_factory=list)
    collector: Labels | None = None
    gradient_ranges: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    own_ranges: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    losses: list[Any] = dataclasses.field(default_factory=list)
    elsewhere: list[Any] = dataclasses.field(default_factory=list)
    has_called_model: bool = False
    converts: bool = False
    divides_losses: bool = False
    own_terms: list[list[Any]] = dataclasses.field(default_factory=list)


class _Tracing(threading.local):
    trace: Trace | None = None


_tracing = _Tracing()


def current_trace() -> Trace | None:
    """The step that this thread traces now."""
    return _tracing.trace


def converting() -> Any:
    """A context in which AutoGraph converts what is called, as in a `tf.function`."""
    here = tf.__internal__.autograph.control_status_ctx()
    return type(here)(status=type(here.status).ENABLED)


def trace_step(
    body: Callable[[list[tf.Tensor]], Any],
    specs: Sequence[tf.TensorSpec],
    partitions: int,
    name: str,
) -> Trace:
    """Runs the body once, on symbolic tensors, outside of any other graph.

    Args:
        body: takes the tensors of a microbatch.
        specs: of these.
        partitions: how many there are.
        name: of the step function.

    Raises:
        Exception: what the body raises.
    """
    with tf.init_scope():
        graph = tf.__internal__.FuncGraph(f"smp_step_{name}")
        # For branches and bodies of loops, which are not cut: what has effects there is to run.
        graph._add_control_dependencies = True
        collector = Labels(graph, partitions)
        with graph.as_default():
            arguments = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
            trace = Trace(graph, arguments, collector=collector)
            _tracing.trace = trace
            try:
                with collector.collecting():
                    trace.result = body(arguments)
            finally:
                _tracing.trace = None
    count = graph.version
    trace.labels = collector.of_operations(count)
    trace.gradients = _in_ranges(trace.gradient_ranges, count)
    trace.own_gradients = _in_ranges(trace.own_ranges, count)
    return trace


def taking_gradients(trace: Trace, take: Callable[[], Any], *, is_own: bool = False) -> Any:
    """Calls a function that takes gradients; what it adds to the graph counts as such.

    Args:
        trace: the step that is traced now.
        take: the function.
        is_own: what it adds is this rank's alone, and does not count.
    """
    begin = trace.graph.version
    try:
        return take()
    finally:
        ranges = trace.own_ranges if is_own else trace.gradient_ranges
        ranges.append((begin, trace.graph.version))


def _in_ranges(ranges: list[tuple[int, int]], count: int) -> list[bool]:
    found = [False] * count
    for begin, end in ranges:
        found[begin:end] = [True] * (end - begin)
    return found
