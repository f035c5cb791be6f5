# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The first call of a step function with a signature: trace, agree, decide, cut.

All ranks of the pipeline do this together. The first step that calls the model is traced twice: the
decision follows from the first trace, and from then on each rank's model lists its own variables,
so the body may do something else.

Source: TensorFlow modelparallel specification, section 3.2.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.exceptions import SMDDPMismatch
from smdistributed.dataparallel.tensorflow.operations.refusals import refuse_collectives
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.tensorflow.containers.arguments import BoundCall
from smdistributed.modelparallel.tensorflow.containers.results import TracedResults
from smdistributed.modelparallel.tensorflow.containers.step_output import StepOutput
from smdistributed.modelparallel.tensorflow.graph.canonical import (
    Common,
    common_part,
    first_difference,
    part_of,
)
from smdistributed.modelparallel.tensorflow.graph.cutting import StateCrossing
from smdistributed.modelparallel.tensorflow.graph.deciding import (
    ModelVariable,
    decide,
    place,
)
from smdistributed.modelparallel.tensorflow.graph.nodes import EVERYWHERE, Node, Port, ancestors
from smdistributed.modelparallel.tensorflow.graph.reading import Reader, homes_of
from smdistributed.modelparallel.tensorflow.graph.tracing import current_trace, trace_step
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.run import gathering
from smdistributed.modelparallel.tensorflow.run.program import Program
from smdistributed.modelparallel.tensorflow.step.building import (
    Own,
    State,
    build,
    own_everywhere,
    own_part,
)
from smdistributed.modelparallel.tensorflow.step.hooks import run_post_partition_hooks
from smdistributed.modelparallel.tensorflow.step.pipeline import (
    Pipeline,
    WholeProgram,
    whole_program,
)
from smdistributed.modelparallel.tensorflow.step.tapes import tapes_in_step
from smdistributed.modelparallel.tensorflow.variables import is_global_seed, tracing, without_values

__all__ = ["Prepared", "Preparing", "Traced", "prepare"]


# What is added up as it comes; halves would be added in float32.
_SUMMED = (tf.float32, tf.float64)
_LEAST = 1024  # elements

_NO_PLAIN_GRADIENTS = (
    " tf.gradients(loss, model.trainable_variables) makes those operations alone that this rank's"
    " variables need, and other ranks need others. Write\n"
    "    gradients = optimizer.get_gradients(loss, model.trainable_variables)\n"
    "or take them from a tf.GradientTape that is opened in the step, around the call of the model."
)
_NO_COLLECTIVES = (
    "in a function with @smp.step, where each microbatch would do it, on one rank of a pipeline"
    " before the other; expected it after the step. Return the tensors from the step, and reduce"
    " what .accumulate() of each gives."
)


@dataclasses.dataclass
class Prepared:
    """A step function for one signature.

    Attributes:
        whole: the program of this rank, called eagerly.
        in_graph: the same as graphs call it, which say what they use of the results.
        touched: the states that it reads or changes here.
        lacks_model: it calls the model, and on no rank a result depends on what that gives.
    """

    whole: WholeProgram
    in_graph: WholeProgram
    touched: Sequence[Any]
    results: TracedResults
    result_of_tensor: list[int]
    lacks_model: bool

    def gather(self, tensors: Sequence[Any]) -> Any:
        """What the step function returns, of the results of all microbatches."""
        return self.results.gather(self._rows(tensors))

    def gather_in_graph(self, tensors: Sequence[Any]) -> Any:
        """The same in a graph, of the results of all microbatches and the sums."""
        uses = self.in_graph.uses
        assert uses is not None
        program = self.whole.program
        sums = tensors[len(program.results) * program.microbatches :]
        of_first = {id(tensors[each]): (each, sums[i]) for i, each in enumerate(uses.results)}

        def output_of(column: Sequence[Any]) -> StepOutput:
            if id(column[0]) not in of_first:
                return StepOutput(column)
            number, total = of_first[id(column[0])]
            return StepOutput.summed(
                column,
                total,
                functools.partial(uses.summed.add, number),
                functools.partial(uses.single.add, number),
            )

        return self.results.gather(self._rows(tensors), output_of)

    def _rows(self, tensors: Sequence[Any]) -> list[list[Any]]:
        """By microbatch, what its tensors are in the trace."""
        program = self.whole.program
        count = len(program.results)
        rows = (tensors[count * each : count * (each + 1)] for each in range(program.microbatches))
        return [[row[i] for i in self.result_of_tensor] for row in rows]


@dataclasses.dataclass
class Traced:
    """What a rank has traced."""

    reader: Reader
    results: TracedResults
    common: Common


def prepare(pipeline: Pipeline, name: str, body: Callable[..., Any], call: BoundCall) -> Prepared:
    """Makes the program of this rank; a collective of the pipeline.

    Args:
        pipeline: of this job.
        name: of the step function.
        body: the function.
        call: with the signature.

    Raises:
        Exception: what the body raised; or why it cannot be cut.
        SMDDPMismatch: ranks have traced different things.
        StepAborted: another rank could not; says why.
    """
    with pipeline.telling():
        preparing = Preparing(pipeline, name, body, call)
        traced = preparing.trace_alike()
        if pipeline.decision is None and traced.reader.trace.has_called_model:
            preparing.decide(traced)
            traced = preparing.trace_alike()
        return preparing.cut(traced)


class _Term(NamedTuple):
    """Of a loss, over variables of the model alone.

    Attributes:
        digest: of what it computes.
        owners: of its variables, a partition for each.
    """

    digest: bytes
    owners: tuple[int, ...]


class Preparing:
    """Makes the program of one rank; see `prepare`, and `planning`.

    Attributes:
        divides_losses: losses may have terms over the variables that each rank's model lists.
    """

    def __init__(
        self, pipeline: Pipeline, name: str, body: Callable[..., Any], call: BoundCall
    ) -> None:
        self._pipeline = pipeline
        self._name = name
        self._body = body
        self._call = call
        self._model = state.model
        self.divides_losses = False

    def trace_alike(self) -> Traced:
        """Traces the body, and makes sure that all ranks have traced the same."""
        traced = self.traced()
        everyone = self._agree("traces", (traced.common.digest, self.foreign(traced)))
        if len({digest for digest, _ in everyone}) > 1 and not self.divides_losses:
            # Losses may have terms over the variables that each rank's model lists.
            self.divides_losses = True
            traced = self.traced()
            everyone = self._agree("traces", (traced.common.digest, self.foreign(traced)))
            self._require_alike(traced, [digest for digest, _ in everyone])
            self._require_terms_of_the_whole(traced)
            self._warn_of_losses()
        self._require_alike(traced, [digest for digest, _ in everyone])
        foreign = frozenset().union(*(names for _, names in everyone))
        if foreign:
            self.share(traced, foreign)
            self._require_alike(traced, self._agree("shares variables of", traced.common.digest))
        return traced

    def _warn_of_losses(self) -> None:
        if self._pipeline.rank == 0:
            get_logger().warning(
                "step %s: its loss has terms over model.trainable_variables, which are other ones"
                " on each rank. Gradients are those of the sum of all terms. The loss that the step"
                " returns has those of this rank's variables alone. For the whole sum use"
                " regularizers of layers and model.losses.",
                self._name,
            )

    def _require_terms_of_the_whole(self, traced: Traced) -> None:
        """Each rank's terms must be those that the loss has in one process.

        There, a root of their sum is something else, and so is their number. The body may have kept
        a list of this rank's variables; then nobody can tell, and a term for each is all that adds
        up for certain.
        """
        whole = self._terms_of_the_whole()
        everyone = self._agree("looks at the whole loss of", whole)
        is_known = whole is not None and all(theirs == whole for theirs in everyone)

        mine = self._mine(self._terms(traced))
        if is_known:
            is_right = mine == self._mine(whole or [])
        else:
            is_right = all(len(term.owners) == 1 for terms in mine for term in terms)
        if not is_right:
            raise ValueError(
                f"step {self._name}: its loss has terms over model.trainable_variables, which"
                " are not those that it has in one process, where the list has the variables of"
                " all ranks; expected a term for each variable that depends on no other, nor on"
                " the length of the list, nor on places in it, and the terms added up, and"
                " scaled by numbers. Use regularizers of layers, and sum(model.losses)."
            )

    def _mine(self, terms: Sequence[Sequence[_Term]]) -> list[list[_Term]]:
        """Those with variables of this rank."""
        here = self._pipeline.rank
        return [sorted(each for each in those if here in each.owners) for those in terms]

    def _terms_of_the_whole(self) -> list[list[_Term]] | None:
        """What `_terms` would be in one process; None if the body cannot be traced so."""
        try:
            with self._model._smp_showing_all():
                return self._terms(self.traced())
        except Exception:  # zip(model.trainable_variables, what has one for each of this rank)
            return None

    def _terms(self, traced: Traced) -> list[list[_Term]]:
        """Each time that gradients are taken, the terms over variables of the model alone."""
        reader = traced.reader
        nodes = reader.nodes([EVERYWHERE] * len(reader.operations), ())
        owner_of = {} if self._pipeline.decision is None else self._pipeline.decision.owner_of

        def term(tensor: Any) -> _Term:
            part = part_of(reader, nodes, [reader.port(tensor).node], self._describe)
            found = (
                self._model._smp_variable_of(reader.externals[number])
                for number in part.numbers
                if number in reader.handles
            )
            owners = [owner_of.get(id(each.raw), 0) for each in found if each is not None]
            return _Term(part.digest, tuple(sorted(owners)))

        return [[term(each) for each in those] for those in reader.trace.own_terms]

    def _require_alike(self, traced: Traced, digests: Sequence[bytes]) -> None:
        if len(set(digests)) > 1:
            self._raise_difference(traced)

    def decide(self, traced: Traced) -> None:
        """Where the parts of the model are; then variables get their values, and hooks run."""
        config = self._pipeline.job.config
        decision = decide(traced.reader, config, self._model._smp_variable_of)
        self._pipeline.decision = decision
        self._model._smp_take_up(decision)
        run_post_partition_hooks()

    def cut(self, traced: Traced) -> Prepared:
        """The program."""
        reader, common = traced.reader, traced.common
        homes, own, returned = self.looked_at(traced)
        unique = list(dict.fromkeys(returned))
        to_common = common.to_common()
        mine = [(to_common[port.node], port.output) for port in own.wanted]
        brings = mine, self._recomputes, self._lacks_model(traced)
        everyone = self._agree("cuts", brings)
        self._require_one_way([recomputes for _, recomputes, _ in everyone])
        wanted = [[Port(*each) for each in theirs] for theirs, _, _ in everyone]
        number = self._pipeline.driver.number  # of that agreement: the same on all ranks

        asked = {port for theirs in wanted for port in theirs}
        local = [Port(common.numbers[port.node], port.output) for port in sorted(asked)]
        nodes = own_everywhere(reader.nodes(homes, local), common)
        program, touched = self.built(traced, nodes, wanted, own, unique, number)
        self._agree("is ready for", None)
        self._log_bytes(program)
        places = {port: place for place, port in enumerate(unique)}
        call = self._call.without_tensors()
        of_tensor = [places[port] for port in returned]
        alone = traced.results.alone()
        in_slices = {place for place, each in zip(of_tensor, alone, strict=True) if not each}
        uses = gathering.Uses(_with_sums(program, in_slices))
        return Prepared(
            whole_program(program, call),
            whole_program(program, call, uses),
            touched,
            traced.results.without_tensors(),
            of_tensor,
            all(lacks for _, _, lacks in everyone),
        )

    # ---- on this rank ------------------------------------------------------------------------

    def traced(self) -> Traced:
        """Traces the body."""

        def body(tensors: list[tf.Tensor]) -> Any:
            args, kwargs = self._call.rebuild(tensors)
            return self._body(*args, **kwargs)

        def run(tensors: list[tf.Tensor]) -> TracedResults:
            trace = current_trace()
            assert trace is not None
            trace.divides_losses = self.divides_losses
            refuse_collectives(tf.compat.v1.get_default_graph(), _NO_COLLECTIVES)
            with tapes_in_step():
                value = body(tensors)
            return TracedResults(value, self._name, _is_elsewhere)

        partitions = self._pipeline.job.config.partitions
        with tracing():
            if self._model is None:
                trace = trace_step(run, self._call.specs, partitions, self._name)
            else:
                with without_values(self._model._smp_book):
                    trace = trace_step(run, self._call.specs, partitions, self._name)
        reader = Reader(trace)
        self._require_no_updates(reader)
        nodes = reader.nodes([EVERYWHERE] * len(reader.operations), ())
        return Traced(reader, trace.result, common_part(reader, nodes, self._describe))

    def foreign(self, traced: Traced) -> frozenset[str]:
        """Names of other ranks' variables that this rank's own part uses, as regularizers do."""
        decision = self._pipeline.decision
        if decision is None:
            return frozenset()
        shared = set(traced.common.numbers)
        foreign = {
            number: variable.name
            for number, variable in self._uses_of_model(traced.reader)
            if number not in shared
            and decision.owner_of.get(id(variable.raw), 0) != self._pipeline.rank
        }
        if not foreign:
            return frozenset()
        reader = traced.reader
        nodes = reader.nodes([EVERYWHERE] * len(reader.operations), ())
        roots = [reader.port(tensor).node for tensor in traced.results.tensors]
        roots += [number for number, node in enumerate(nodes) if node.must_run]
        needed = ancestors(nodes, roots)  # layers read variables for their shapes alone
        return frozenset(name for number, name in foreign.items() if number in needed)

    def _lacks_model(self, traced: Traced) -> bool:
        """See `Prepared`; on this rank."""
        reader = traced.reader
        if not reader.trace.has_called_model:
            return False
        nodes = reader.nodes([EVERYWHERE] * len(reader.operations), ())
        roots = [reader.port(tensor).node for tensor in traced.results.tensors]
        needed = ancestors(nodes, roots) - reader.externals.keys()  # variables are no outputs
        return all(reader.trace.labels[number] is None for number in needed)

    def _log_bytes(self, program: Program) -> None:
        """At level DEBUG: what a step sends from here; what the model returns goes to all ranks."""
        log = get_logger()
        if not log.isEnabledFor(logging.DEBUG):
            return
        sent: Counter[str] = Counter()
        unknown = 0
        for segment in program.segments.values():
            for send in segment.sends:
                size = segment.sizes[send.output]
                unknown += size is None
                for destination in send.destinations:
                    to = f"{segment.phase} of {segment.name} to rank {self._ranks[destination]}"
                    sent[to] += (size or 0) * program.microbatches
        log.debug(
            "step %s: this rank sends %s bytes in each step%s%s%s",
            self._name_with_arguments(),
            f"{sent.total():,}",
            f", and {unknown} tensors of unknown size for each microbatch" if unknown else "",
            ": " if sent else "",
            "; ".join(f"{to}, {size:,}" for to, size in sent.items()),
        )

    def share(self, traced: Traced, names: frozenset[str]) -> None:
        """Makes what uses these variables a part of what all ranks have: their owners send them."""
        reader = traced.reader
        users = [number for number, each in self._uses_of_model(reader) if each.name in names]
        nodes = reader.nodes([EVERYWHERE] * len(reader.operations), ())
        traced.common = common_part(reader, nodes, self._describe, users)

    def _uses_of_model(self, reader: Reader) -> Iterator[tuple[int, ModelVariable]]:
        """By operation, the variables of the model that it reads or changes."""
        if self._model is None:
            return
        variable_of = {
            key: self._model._smp_variable_of(reader.externals[number])
            for number, key in reader.handles.items()
        }
        for number, touch in enumerate(reader.touches):
            for key in touch.reads | touch.changes:
                variable = variable_of.get(key)
                if variable is not None:
                    yield number, variable

    def _require_no_updates(self, reader: Reader) -> None:
        """Outside of `call`, a step must not change what is trained."""
        for number, touch in enumerate(reader.touches):
            if not touch.changes or reader.trace.labels[number] is not None or self._model is None:
                continue
            for handle, key in reader.handles.items():
                if key not in touch.changes:
                    continue
                variable = self._model._smp_variable_of(reader.externals[handle])
                if variable is not None and variable.raw.trainable:
                    raise RuntimeError(
                        f"step {self._name} changes the variable {variable.name}"
                        f" ({reader.operations[number].name}), which is trained; expected that"
                        " outside, as a step does it once for each microbatch. Return the"
                        " gradients from the step, and call optimizer.apply_gradients after the"
                        " step with what .accumulate() of each gives."
                    )

    def _describe(self, handle: Any) -> str:
        variable = None if self._model is None else self._model._smp_variable_of(handle)
        if variable is None:
            return "a variable from outside of the model"
        raw = variable.raw
        return f"the variable {variable.name} of shape {raw.shape}, {raw.dtype.name}"

    def looked_at(self, traced: Traced) -> tuple[list[int], Own, list[Port]]:
        """Where each operation runs, what is this rank's own, and what its step returns."""
        reader, common = traced.reader, traced.common
        returned = [reader.port(tensor) for tensor in traced.results.tensors]
        homes = self._homes(traced)
        nodes = own_everywhere(reader.nodes(homes, ()), common)
        return homes, own_part(nodes, common, list(dict.fromkeys(returned))), returned

    def _homes(self, traced: Traced) -> list[int]:
        reader = traced.reader
        decision = self._pipeline.decision
        if decision is None:
            return [EVERYWHERE] * len(reader.operations)
        config = self._pipeline.job.config
        partition_of = place(reader, config, decision, self._model._smp_variable_of)
        self._model._smp_take_up(decision)  # a layer may be new
        owner_of = {}
        for number, key in reader.handles.items():
            variable = self._model._smp_variable_of(reader.externals[number])
            if variable is not None and id(variable.raw) in decision.owner_of:
                owner_of[key] = decision.owner_of[id(variable.raw)]
        for number, partition in partition_of.items():
            touch = reader.touches[number]
            for key in touch.reads | touch.changes:
                if key in reader.handles.values():
                    owner_of.setdefault(key, partition)
        self._require_one_place(reader, partition_of)
        for number, key in reader.handles.items():
            if is_global_seed(reader.externals[number]):
                owner_of.setdefault(key, 0)
        return homes_of(reader, traced.common.numbers, partition_of, owner_of)

    def _require_one_place(self, reader: Reader, partition_of: Mapping[int, int]) -> None:
        """Of a variable that is not the model's each rank has a copy, and they must not part."""
        changed = {key for touch in reader.touches for key in touch.changes}
        for handle, key in reader.handles.items():
            external = reader.externals[handle]
            is_other = self._model._smp_variable_of(external) is None
            if key not in changed or not is_other or not State(external).is_variable():
                continue
            users: dict[int, str] = {}
            for number, partition in partition_of.items():
                if key in reader.touches[number].reads | reader.touches[number].changes:
                    users.setdefault(partition, reader.operations[number].name)
            if len(users) < 2:
                continue
            if is_global_seed(external):
                what = "the global seed generator of Keras"
                cure = "Give each layer a keras.random.SeedGenerator of its own, in its __init__."
            else:
                what = "a variable from outside of the model that changes in the step"
                cure = "Make it in the model, change it outside, or use it in one partition."
            uses = ", ".join(f"{users[each]} (partition {each})" for each in sorted(users))
            raise ValueError(
                f"step {self._name}: {uses} use {what}; expected one partition to do so, as each"
                f" rank has a copy of its own, and they would part. {cure}"
            )

    def built(
        self,
        traced: Traced,
        nodes: Sequence[Node],
        wanted: Sequence[Sequence[Port]],
        own: Any,
        returned: Sequence[Port],
        number: int,
    ) -> tuple[Program, list[State]]:
        """The program, and the states that it uses; see `build`."""
        pipeline = self._pipeline
        try:
            return build(
                traced.reader,
                nodes,
                traced.common,
                wanted,
                own,
                returned,
                pipeline.rank,
                pipeline.job.config,
                number,
                self._name_with_arguments(),
                self._recomputes,
            )
        except StateCrossing as error:
            one, other = nodes[error.one].name, nodes[error.other].name
            raise ValueError(
                f"step {self._name}: {one} and {other} touch one variable, one in the forward and"
                " one in the backward pass, and one changes it; expected changes in one of them, as"
                " microbatches overlap. Change the variable outside of the step, from what it"
                " returns."
            ) from None

    @property
    def _recomputes(self) -> bool:
        return self._model is not None and self._model._smp_recomputes

    # ---- with the others ---------------------------------------------------------------------

    @property
    def _ranks(self) -> tuple[int, ...]:
        return self._pipeline.job.members(GroupKind.PP)

    def _agree(self, what: str, value: Any) -> list[Any]:
        does = f"{what} step {self._name_with_arguments()}"
        return self._pipeline.driver.agree(does, value)

    def _require_one_way(self, recomputes: Sequence[bool]) -> None:
        for rank, theirs in zip(self._ranks, recomputes, strict=True):
            if theirs is not recomputes[0]:
                raise SMDDPMismatch(
                    f"step {self._name}: the model of rank {self._ranks[0]} has"
                    f" activation_checkpointing={recomputes[0]}, and that of rank {rank} has"
                    f" {theirs}; expected the same on all ranks of a pipeline. Write the same in"
                    " super().__init__() on all of them."
                )

    def _name_with_arguments(self) -> str:
        """So that ranks with different signatures differ, and say in what."""
        return f"{self._name}({', '.join(self._call.without_tensors().describe())})"

    def _raise_difference(self, traced: Traced) -> None:
        mine = (traced.common.lines, traced.reader.has_plain_gradients)
        everyone = self._agree("compares its trace of", mine)
        lines = [theirs for theirs, _ in everyone]
        for rank, theirs in zip(self._ranks, lines, strict=True):
            if theirs != lines[0]:
                one, other = first_difference(lines[0], theirs)
                raise SMDDPMismatch(
                    f"step {self._name}: ranks of one replica have traced different steps. The"
                    f" first difference: rank {self._ranks[0]} has {one}, and rank {rank} has"
                    f" {other}. Expected the same model and the same code on all of them: layers in"
                    " the same order, of the same sizes and names (which Keras numbers, so that a"
                    " model that one rank alone makes before counts), and nothing in the step that"
                    " depends on the rank, as model.trainable_variables does: terms over these may"
                    " be added to a loss, and that is all."
                    + (_NO_PLAIN_GRADIENTS if any(plain for _, plain in everyone) else "")
                )


def _with_sums(program: Program, others: Container[int]) -> tuple[int, ...]:
    """The results that are added up as they come; none where all together take little memory.

    Args:
        others: results that may not.
    """
    found = tuple(
        number
        for number, spec in enumerate(program.results)
        if number not in others
        and spec.dtype in _SUMMED
        and spec.shape.is_fully_defined()
        and spec.shape.num_elements() >= _LEAST
    )
    specs = [program.results[each] for each in found]
    of_one = sum(each.shape.num_elements() * each.dtype.size for each in specs)
    count = program.microbatches
    return found if count > 1 and of_one * count > gathering.MOST_BYTES else ()


def _is_elsewhere(tensor: Any) -> bool:
    """Whether a returned tensor is a gradient that another rank has."""
    trace = current_trace()
    return trace is not None and any(each is tensor for each in trace.elsewhere)
