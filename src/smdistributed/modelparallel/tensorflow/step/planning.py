# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Programs of a pipeline that is not there: a step is traced and cut here for each of its ranks.

This process has the whole model. While the part of one rank is traced, the variables of others say
that they are elsewhere, so that the step does what it would do on that rank.

Source: our choice.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, cast

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.tensorflow.containers.arguments import BoundCall
from smdistributed.modelparallel.tensorflow.graph.deciding import Decision, decide
from smdistributed.modelparallel.tensorflow.graph.nodes import Port
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.run.program import Program
from smdistributed.modelparallel.tensorflow.step.building import own_everywhere
from smdistributed.modelparallel.tensorflow.step.preparing import Preparing, Traced
from smdistributed.modelparallel.tensorflow.variables import pretending_elsewhere, raw

__all__ = ["planned_programs"]


@dataclasses.dataclass
class _Job:
    config: Config


@dataclasses.dataclass
class _Absent:
    """A rank of a pipeline that is not there, as far as `Preparing` asks for it."""

    rank: int
    decision: Decision | None
    job: _Job


def planned_programs(
    name: str, body: Callable[..., Any], call: BoundCall, config: Config
) -> list[Program]:
    """What each rank would run, by rank.

    Args:
        name, body: of the step function.
        call: with the signature.
        config: of the pipeline.

    Raises:
        ValueError: the step does not call the model, or cannot be cut so.
        Exception: what the body raises.
    """
    model = state.model
    job = _Job(config)
    first = _preparing(_Absent(0, None, job), name, body, call)
    traced = first.traced()
    if not traced.reader.trace.has_called_model:
        raise ValueError(
            f"smp.plan({name}) is of a step that does not call the model; expected one that does,"
            " as there is nothing else to cut. Give the step that trains."
        )
    decision = decide(traced.reader, config, model._smp_variable_of)
    with _unchanged(model):
        ranks = [
            _Rank(rank, _preparing(_Absent(rank, decision, job), name, body, call), decision)
            for rank in range(config.partitions)
        ]
        _trace_alike(ranks)
        asked = [rank.wanted() for rank in ranks]
        return [rank.program(asked) for rank in ranks]


def _preparing(absent: _Absent, name: str, body: Callable[..., Any], call: BoundCall) -> Preparing:
    return Preparing(cast("Any", absent), name, body, call)


@contextlib.contextmanager
def _unchanged(model: Any) -> Iterator[None]:
    """The model forgets what it takes up of a decision that is only planned."""
    private = model._smp_private
    before = private.place
    try:
        yield
    finally:
        private.place = before


class _Rank:
    """One rank of the pipeline."""

    def __init__(self, rank: int, preparing: Preparing, decision: Decision) -> None:
        self.rank = rank
        self.preparing = preparing
        self._decision = decision
        self.traced: Traced = self.trace()
        self._looked_at: Any = None

    def trace(self) -> Traced:
        """Traces the step as this rank would."""
        model = state.model
        owner_of = self._decision.owner_of
        foreign = [
            (each, owner_of[id(raw(each))])
            for each in model.smp_all_variables
            if owner_of.get(id(raw(each)), self.rank) != self.rank
        ]
        model._smp_private.place = owner_of, self.rank
        with pretending_elsewhere(foreign):
            self.traced = self.preparing.traced()
        return self.traced

    def wanted(self) -> list[Port]:
        """Tensors of the common part that are to be there."""
        self._looked_at = self.preparing.looked_at(self.traced)
        to_common = self.traced.common.to_common()
        own = self._looked_at[1]
        return [Port(to_common[port.node], port.output) for port in own.wanted]

    def program(self, asked: list[list[Port]]) -> Program:
        """What it runs, if all ranks want that."""
        homes, own, returned = self._looked_at
        common, reader = self.traced.common, self.traced.reader
        ports = sorted({port for theirs in asked for port in theirs})
        local = [Port(common.numbers[port.node], port.output) for port in ports]
        nodes = own_everywhere(reader.nodes(homes, local), common)
        unique = list(dict.fromkeys(returned))
        return self.preparing.built(self.traced, nodes, asked, own, unique, 0)[0]


def _trace_alike(ranks: list[_Rank]) -> None:
    """As `Preparing.trace_alike` does together with others."""
    if len({rank.traced.common.digest for rank in ranks}) > 1:
        for rank in ranks:
            rank.preparing.divides_losses = True
            rank.trace()
    foreign = frozenset().union(*(each.preparing.foreign(each.traced) for each in ranks))
    for rank in ranks:
        if foreign:
            rank.preparing.share(rank.traced, foreign)
    if len({rank.traced.common.digest for rank in ranks}) > 1:
        raise ValueError(
            "smp.plan() traced different steps for different ranks; expected the same code on all"
            " of them: nothing in the step that depends on the rank, as model.trainable_variables"
            " does: terms over these may be added to a loss, and that is all."
        )
