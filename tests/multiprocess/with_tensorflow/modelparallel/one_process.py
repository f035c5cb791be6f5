# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""All ranks' programs of a step, run in one process: no messages, a list of tensors per rank.

A case of the zoo is traced once, with a plain Keras model; cut as for several ranks; and run in the
order of the ranks' lists. What that gives is compared with two things: the step as a `tf.function`,
called microbatch by microbatch, and the traced graph as one function that is not cut.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from zoo import BATCH, Case, rewind

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.partition.graph_assignment import assign_graph
from smdistributed.modelparallel.tensorflow.graph import deciding
from smdistributed.modelparallel.tensorflow.graph.canonical import common_part
from smdistributed.modelparallel.tensorflow.graph.functions import SegmentFunctions
from smdistributed.modelparallel.tensorflow.graph.labels import current_labels
from smdistributed.modelparallel.tensorflow.graph.nodes import EVERYWHERE, Port, ancestors
from smdistributed.modelparallel.tensorflow.graph.reading import Reader
from smdistributed.modelparallel.tensorflow.graph.tracing import (
    current_trace,
    taking_gradients,
    trace_step,
)
from smdistributed.modelparallel.tensorflow.run.plan import Plan
from smdistributed.modelparallel.tensorflow.step import preparing
from smdistributed.modelparallel.tensorflow.step.building import build, own_everywhere, own_part
from smdistributed.modelparallel.tensorflow.variables import raw

_HIDDEN = ("RandomUniform", "RandomStandardNormal")

Assign = Callable[..., Any]
"""Decides about a graph, as `assign_graph` does."""


class WholeModel(tf.keras.Model):
    """A plain model; a step that is traced knows which operations are its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        labels, trace = current_labels(), current_trace()
        if trace is None or tf.executing_eagerly():
            return super().__call__(*args, **kwargs)
        assert labels is not None
        trace.has_called_model = True
        with labels.model_at_work():
            return super().__call__(*args, **kwargs)


class Whole:
    """A case with a plain model that is built, and its states, which can be put back."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case = case
        rewind(case.model)
        self.specs = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in case.batch]
        self._make_variables()
        self.states = [raw(each) for each in case.model.variables]
        set_values(self.states, seed)
        self._values = [state.numpy() for state in self.states]

    def _make_variables(self) -> None:
        """By a trace of the steps, which takes less time than a call, without gradients."""
        with tf.__internal__.FuncGraph("variables").as_default():
            tensors = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in self.specs]
            for step in (self.case.step, self.case.evaluate):
                if step is not None:
                    step(_zeros, *tensors)

    def put_back(self) -> None:
        """All states are as in the beginning."""
        for state, value in zip(self.states, self._values, strict=True):
            state.assign(value)

    def values(self) -> list[Any]:
        """Of the states, now."""
        return [state.numpy() for state in self.states]

    def pieces(self, microbatches: int) -> list[list[tf.Tensor]]:
        """The batch, cut."""
        size = BATCH // microbatches
        return [
            [tf.constant(each[size * number : size * (number + 1)]) for each in self.case.batch]
            for number in range(microbatches)
        ]

    def reference(self, step: Any, pieces: Sequence[Sequence[tf.Tensor]]) -> list[Any]:
        """What one process gets, microbatch by microbatch."""
        rewind(self.case.model)
        function = tf.function(
            lambda *tensors: flat(step(plain_gradients, *tensors)), autograph=False
        )
        return [[numpy_of(each) for each in function(*tensors)] for tensors in pieces]


def set_values(states: Sequence[Any], seed: int = 0) -> None:
    """Gives variables values that depend on their place in the list alone."""
    for place, state in enumerate(states):
        drawn = np.random.RandomState(1000 * seed + place)
        if not state.dtype.is_floating:
            state.assign(tf.cast(drawn.randint(0, 100, state.shape), state.dtype))
        elif state.shape.rank:
            state.assign(tf.cast(drawn.uniform(-0.7, 0.7, state.shape), state.dtype))
            if "var" in state.name:  # of a normalization
                state.assign(tf.abs(state))


def plain_gradients(loss: Any, variables: Sequence[Any]) -> list[Any]:
    """Without this library."""
    return tf.gradients(loss, [raw(each) for each in variables])


def _zeros(loss: Any, variables: Sequence[Any]) -> list[Any]:
    return [tf.zeros(raw(each).shape, raw(each).dtype) for each in variables]


def flat(results: Mapping[str, Any]) -> list[Any]:
    """Tensors, in an order that does not depend on where this runs."""
    found: list[Any] = []
    for name in sorted(results):
        for each in results[name] if isinstance(results[name], list) else [results[name]]:
            if isinstance(each, tf.IndexedSlices):
                found += [each.values, each.indices]
            else:
                found.append(each)
    return found


def numpy_of(tensor: Any) -> Any:
    return tensor.numpy()


class Cut:
    """A step of a case, cut.

    Args:
        whole: the case.
        step: which of its steps.
        config: partitions, microbatches, schedule.
        assign: instead of `assign_graph`.
        decision: of an earlier step of the case; it may be added to.
    """

    def __init__(
        self,
        whole: Whole,
        step: Any,
        config: Config,
        assign: Assign = assign_graph,
        decision: Any = None,
    ) -> None:
        self._whole = whole
        self.microbatches = config.microbatches
        variables = {
            id(raw(each).handle): deciding.ModelVariable(f"{number}", raw(each), 4)
            for number, each in enumerate(whole.case.model.variables)
        }

        def run(tensors: Sequence[tf.Tensor]) -> list[list[Any]]:
            results = step(_gradients_of_all(whole.case.model), *tensors)
            # By partition that wants it; None: all.
            wanted: list[Any] = []
            for name in sorted(results):
                if not name.startswith("gradients"):
                    wanted += [(None, each) for each in flat({name: results[name]})]
                    continue
                trained = whole.case.model.trainable_variables
                for variable, gradient in zip(trained, results[name], strict=True):
                    wanted += [(raw(variable), each) for each in flat({"": gradient})]
            return wanted

        rewind(whole.case.model)
        trace = trace_step(run, whole.specs, config.partitions, "zoo")
        self.reader = reader = Reader(trace)
        model = types.SimpleNamespace(
            _smp_variable_of=lambda handle: variables.get(id(handle)),
            _smp_take_up=lambda decision: None,
        )
        if decision is None and trace.has_called_model:
            with mock.patch.object(deciding, "assign_graph", assign):
                decision = deciding.decide(reader, config, model._smp_variable_of)
        self.decision = decision
        pipeline = types.SimpleNamespace(
            decision=decision,
            job=types.SimpleNamespace(config=config),
            driver=types.SimpleNamespace(refuse=lambda error: None),
        )
        preparing_here = preparing.Preparing(pipeline, "zoo", step, None)
        preparing_here._model = model
        unplaced = reader.nodes([EVERYWHERE] * len(reader.operations), ())
        common = common_part(reader, unplaced, lambda handle: "", _users_of(reader, variables))
        homes = preparing_here._homes(preparing.Traced(reader, None, common))
        ports = [reader.port(each) for _, each in trace.result]
        self._returned = [
            list(
                dict.fromkeys(
                    port
                    for port, (variable, _) in zip(ports, trace.result, strict=True)
                    if variable is None or decision.owner_of[id(variable)] == rank
                )
            )
            for rank in range(config.partitions)
        ]
        self._ports = ports
        placed = own_everywhere(reader.nodes(homes, ()), common)
        owns = [own_part(placed, common, each) for each in self._returned]
        to_common = common.to_common()
        wanted = [[Port(to_common[port.node], port.output) for port in own.wanted] for own in owns]
        asked = sorted({port for own in owns for port in own.wanted})
        self.nodes = own_everywhere(reader.nodes(homes, asked), common)
        self._common, self._wanted, self._owns, self._config = common, wanted, owns, config
        self._build(recomputes=False)

    def recomputing(self) -> Cut:
        """The same, but backward segments run again what they need of the forward."""
        other = copy.copy(self)
        other._build(recomputes=True)
        return other

    def _build(self, recomputes: bool) -> None:
        self.programs = [
            build(
                self.reader,
                self.nodes,
                self._common,
                self._wanted,
                own,
                self._returned[rank],
                rank,
                self._config,
                0,
                "zoo",
                recomputes,
            )[0]
            for rank, own in enumerate(self._owns)
        ]
        self._plans = [Plan(program) for program in self.programs]

    @property
    def has_hidden_states(self) -> bool:
        """Whether operations remember what cannot be put back, as tf-keras' dropout does."""
        return any(each.type in _HIDDEN for each in self.reader.operations)

    def run(self, pieces: Sequence[Sequence[tf.Tensor]], order: random.Random) -> list[Any]:
        """Runs the lists of all ranks; each in its order, the ranks in any."""
        places = [[None] * plan.num_places for plan in self._plans]
        rows = [[[None] * len(p.results) for _ in pieces] for p in self.programs]
        left = [list(reversed(plan.turns)) for plan in self._plans]
        for mine in places:
            arguments = [tensor for tensors in pieces for tensor in tensors]
            mine[: len(arguments)] = arguments
        while any(left):
            ready = [
                rank
                for rank, turns in enumerate(left)
                if turns and all(places[rank][place] is not None for place, _ in turns[-1].awaited)
            ]
            assert ready, "the ranks wait for each other"
            rank = order.choice(ready)
            self._take_turn(rank, left[rank].pop(), places, rows)
        return [self._results(rows, number) for number in range(len(pieces))]

    def _take_turn(self, rank: int, turn: Any, places: Any, rows: Any) -> None:
        mine = places[rank]
        inputs = [mine[place] for place in turn.inputs]
        assert all(each is not None for each in inputs), f"{turn.segment.name} lacks an input"
        outputs = turn.call(inputs)
        for output, edge, destinations in turn.sends:
            for destination in destinations:
                start, source = self._plans[destination].received[edge]
                assert source == rank
                assert places[destination][start + turn.microbatch] is None
                places[destination][start + turn.microbatch] = outputs[output]
        for output, place in turn.keeps:
            mine[place] = outputs[output]
        for output, result in turn.results:
            rows[rank][turn.microbatch][result] = outputs[output]
        for place in turn.last:
            mine[place] = None
        for destination in turn.tells_room:
            places[destination][self._plans[destination].room[rank] + turn.microbatch] = True

    def _results(self, rows: Any, number: int) -> list[Any]:
        """As the reference has them; equal on all ranks that have them."""
        found = []
        for port in self._ports:
            values = [
                numpy_of(rows[rank][number][returned.index(port)])
                for rank, returned in enumerate(self._returned)
                if port in returned
            ]
            for each in values[1:]:
                require_same_bits(values[0], each, "on two ranks")
            found.append(values[0])
        return found

    def uncut(self) -> Callable[[Sequence[tf.Tensor]], list[Any]]:
        """The traced graph as one function, states in the order in which they were touched."""
        unique = list(dict.fromkeys(self._ports))
        roots = [port.node for port in unique]
        roots += [number for number, node in enumerate(self.nodes) if node.must_run]
        needed = [
            each for each in ancestors(self.nodes, roots) if not self.nodes[each].role.is_cloned
        ]
        function, arguments = SegmentFunctions(self.reader, self.nodes).make(
            "uncut", sorted(needed), [], unique
        )
        names = [each.op.name for each in self.reader.trace.arguments]
        indices = [names.index(self.nodes[port.node].name) for port in arguments]

        def call(tensors: Sequence[tf.Tensor]) -> list[Any]:
            results = function([tensors[index] for index in indices])
            by_port = dict(zip(unique, results, strict=True))
            return [numpy_of(by_port[port]) for port in self._ports]

        return call


def _users_of(reader: Reader, variables: Mapping[int, Any]) -> list[int]:
    """Operations that use variables of the model: where these are elsewhere, ranks ask for them."""
    states = [key for n, key in reader.handles.items() if id(reader.externals[n]) in variables]
    return [
        number
        for number, touch in enumerate(reader.touches)
        if not (touch.reads | touch.changes).isdisjoint(states)
    ]


def _gradients_of_all(model: Any) -> Any:
    def gradients(loss: Any, variables: Sequence[Any]) -> list[Any]:
        trace = current_trace()
        assert trace is not None
        trace.losses.append(loss)
        return taking_gradients(trace, lambda: plain_gradients(loss, variables))

    return gradients


def scattered(seed: int) -> Assign:
    """Each group of layers goes to some partition."""
    drawn = random.Random(seed)

    def assign(graph: Any, partitions: int, *args: Any, **kwargs: Any) -> Any:
        found = assign_graph(graph, partitions, *args, **kwargs)
        places = {group: drawn.randrange(partitions) for group in found.partition_of}
        return dataclasses.replace(found, partition_of=places)

    return assign


def no_rewriting() -> None:
    """TensorFlow runs graphs as they are from now on.

    Else it makes other operations of some, which round otherwise, and it finds others in a part
    than in the whole.
    """
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    tf.config.threading.set_intra_op_parallelism_threads(1)


def require_right(
    case: Case, config: Config, assign: Assign = assign_graph, repetitions: int = 2, seed: int = 0
) -> None:
    """Fails unless a case, cut, gives what it gives whole; its states included.

    Every other time it recomputes.

    Whole as a traced graph bit by bit, each time; as a `tf.function` about. For bits, TensorFlow
    has to run graphs as they are: see `no_rewriting`.
    """
    whole = Whole(case, seed)
    pieces = whole.pieces(config.microbatches)
    decision = None
    for step in (case.evaluate, case.step):
        if step is None:
            continue
        cut = Cut(whole, step, config, assign, decision)
        decision = cut.decision
        whole.put_back()
        expected = whole.reference(step, pieces), whole.values()
        whole.put_back()
        uncut = cut.uncut()
        exactly = [uncut(tensors) for tensors in pieces], whole.values()
        for repetition in range(repetitions):
            whole.put_back()
            if repetition % 2 and step is case.step:
                cut = cut.recomputing()
            elif repetition and cut.has_hidden_states:
                cut = Cut(whole, step, config, assign, decision)
            found = cut.run(pieces, random.Random(repetition)), whole.values()
            _compare(found, exactly, require_same_bits)
        _compare(found, expected, lambda *what: require_close(*what[:2], case.tolerance, what[2]))


def _compare(found: Any, expected: Any, require: Callable[[Any, Any, str], None]) -> None:
    for number, (mine, theirs) in enumerate(zip(found[0], expected[0], strict=True)):
        for result, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            require(one, other, f"result {result} of microbatch {number}")
    for number, (one, other) in enumerate(zip(found[1], expected[1], strict=True)):
        require(one, other, f"state {number}")


def require_same_bits(one: Any, other: Any, where: str) -> None:
    assert one.dtype == other.dtype, (where, one.dtype, other.dtype)
    assert one.shape == other.shape, (where, one.shape, other.shape)
    if one.dtype == object:
        assert (one == other).all(), (where, one, other)
    else:
        assert one.tobytes() == other.tobytes(), (where, one, other)


def require_close(one: Any, other: Any, tolerance: float, where: str) -> None:
    """Within a tolerance of the largest value."""
    assert one.dtype == other.dtype, (where, one.dtype, other.dtype)
    assert one.shape == other.shape, (where, one.shape, other.shape)
    if one.dtype == object or one.dtype.kind in "bi":
        assert (one == other).all(), (where, one, other)
        return
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    scale = max(float(np.abs(other).max(initial=0.0)), 1e-3)
    worst = float(np.abs(one - other).max(initial=0.0)) / scale
    assert worst <= tolerance, (where, worst, one, other)
