# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`tf.GradientTape` in a step: gives what `get_gradients` gives, bit by bit.

TensorFlow's own way to play a tape back does not say of which operation a gradient is, and the cut
has to know that. So while a step is traced, gradients of a tape are taken by `tf.gradients`, with
respect to all of the model's variables (see `gradients`). The tape says where they end: at
operations that it has not recorded. It records an operation if it is active, and an input depends
on something that is watched:

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x)              # recorded
        with tape.stop_recording():
            z = f(y)              # not: a constant
    w = g(y)                      # not

Trained variables of the model count as watched also where the script has not watched them: ranks
watch their own ones, and need one graph. Of what is not watched the gradient is None all the same.

In bodies of loops, branches and functions the tape is TensorFlow's: these are one operation here.

Source: TensorFlow modelparallel specification, section 8; our choice.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe  # these are not public
from tensorflow.python.eager import imperative_grad, record

from smdistributed.dataparallel.tensorflow.autograph import not_converted
from smdistributed.modelparallel.tensorflow.containers.step_output import StepOutput
from smdistributed.modelparallel.tensorflow.graph.tracing import Trace, current_trace
from smdistributed.modelparallel.tensorflow.step.gradients import (
    gradients_of_all,
    require_of_this_step,
    trained_variables,
)
from smdistributed.modelparallel.tensorflow.updates.applying import note_trained_in_steps
from smdistributed.modelparallel.tensorflow.variables import is_elsewhere, raw

__all__ = ["refuse_tape_around", "tapes_in_step", "without_gradients"]

_NO_WAY_BACK = (
    "; expected the tape inside of the step, where gradients go through all partitions. Write\n"
    "    @smp.step\n"
    "    def {name}(...):\n"
    "        with tf.GradientTape() as tape:\n"
    "            loss = ...\n"
    "        return loss, tape.gradient(loss, model.trainable_variables)\n"
    "and call .accumulate() of each gradient that it returns. Where only values are wanted, call"
    " the step outside of the tape, or in `with tape.stop_recording():`."
)


Method = Callable[..., Any]


def refuse_tape_around(name: str) -> None:
    """Fails if this thread has a tape that records.

    Args:
        name: of the step function.

    Raises:
        RuntimeError: it has.
    """
    if record.could_possibly_record():
        raise RuntimeError(
            f"{name} was called while a tf.GradientTape records{_NO_WAY_BACK.format(name=name)}"
        )


def without_gradients(
    name: str, tensors: Sequence[tf.Tensor], refused: Callable[[BaseException], None]
) -> list[tf.Tensor]:
    """The tensors; who takes gradients through them gets an error, and not None.

    For a step in a `tf.function`: the function may be called in a tape when it has been traced, and
    then TensorFlow takes gradients of what it returns before it runs.

    Args:
        name: of the step function.
        tensors: what it gives in this graph.
        refused: is called with the error. TensorFlow keeps it for good.
    """
    text = f"gradients were taken of what {name} returns{_NO_WAY_BACK.format(name=name)}"
    graph = tf.compat.v1.get_default_graph()
    for variable in trained_variables():
        if hasattr(graph, "watch_variable") and not is_elsewhere(variable):
            graph.watch_variable(variable)  # or a tape sees no connection, and is content with None

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def passed(tensor: tf.Tensor) -> Any:
        def refuse(*_: Any) -> Any:
            error = RuntimeError(text)
            refused(error)
            raise error

        return tf.identity(tensor), refuse

    return [passed(each) if _is_differentiable(each) else each for each in tensors]


@contextlib.contextmanager
def tapes_in_step() -> Iterator[None]:
    """While it is open, tapes in the step that this thread traces work as said above."""
    tapes = _Tapes()
    cls = tf.GradientTape
    with contextlib.ExitStack() as changed:
        for name in ("_push_tape", "_pop_tape", "watch", "gradient", "jacobian", "batch_jacobian"):
            changed.enter_context(_changed(cls, name, getattr(tapes, name.removeprefix("_"))))
        changed.enter_context(_changed(imperative_grad, "imperative_grad", tapes.played_back))
        changed.enter_context(_recording())
        yield


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    """Tapes record, which `tf.init_scope` has forbidden on this thread."""
    is_stopped = pywrap_tfe.TFE_Py_TapeSetIsStopped()
    if is_stopped:
        pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
    try:
        yield
    finally:
        if is_stopped:
            pywrap_tfe.TFE_Py_TapeSetStopOnThread()


@contextlib.contextmanager
def _changed(owner: Any, name: str, make: Callable[[Method], Method]) -> Iterator[None]:
    original = vars(owner)[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


@dataclasses.dataclass
class _Record:
    """What a tape has recorded.

    Attributes:
        tape: TensorFlow's, which knows the watched variables; kept, so that its id stays its own.
        ranges: of operations, while it was active: first, and the one after the last.
        begun: the first operation of the range that is open; None: it is not active.
        watched: tensors, and how many operations there were when they were watched.
    """

    tape: Any
    ranges: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    begun: int | None = None
    watched: list[tuple[int, tf.Tensor]] = dataclasses.field(default_factory=list)


class _Tapes:
    """What is known of the tapes of one trace; makes what takes the place of their methods."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}

    def push_tape(self, original: Method) -> Method:
        @not_converted
        def push(tape: Any) -> None:
            original(tape)
            if (trace := current_trace()) is not None:
                self._record_of(tape._tape).begun = trace.graph.version

        return push

    def pop_tape(self, original: Method) -> Method:
        @not_converted
        def pop(tape: Any) -> None:
            original(tape)
            if (trace := current_trace()) is not None:
                found = self._record_of(tape._tape)
                if found.begun is not None:
                    found.ranges.append((found.begun, trace.graph.version))
                    found.begun = None

        return pop

    def watch(self, original: Method) -> Method:
        @not_converted
        def watch(tape: Any, tensor: Any) -> None:
            trace = current_trace()
            if trace is None:
                original(tape, tensor)
                return
            tensor = tf.nest.map_structure(raw, tensor)  # TensorFlow does not know Keras 3's
            original(tape, tensor)
            found = self._record_of(tape._tape)
            for each in tf.nest.flatten(tensor, expand_composites=True):
                if isinstance(each, tf.Tensor) and not hasattr(each, "handle"):
                    found.watched.append((trace.graph.version, each))

        return watch

    def gradient(self, original: Method) -> Method:
        @not_converted
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            if _traced_here() is not None:
                if tape._tape is not None and id(tape._tape) not in self._records:
                    raise RuntimeError(
                        "tape.gradient of a tape that has recorded nothing in this step; expected"
                        " one that was opened in it: what another step, or another call of the"
                        " function, has recorded has no value here. Write `with tf.GradientTape()"
                        " as tape:`, to open a tape in this one."
                    )
                for each in tf.nest.flatten((target, sources)):
                    if isinstance(each, StepOutput):
                        raise TypeError(
                            f"tape.gradient was given {each!r}, what a step has returned; expected"
                            " tensors of this microbatch. Take gradients in the step that makes"
                            " the value, and return them."
                        )
            return original(tape, target, sources, *args, **kwargs)

        return gradient

    def jacobian(self, original: Method) -> Method:
        return self._refused("jacobian", original)

    def batch_jacobian(self, original: Method) -> Method:
        return self._refused("batch_jacobian", original)

    def _refused(self, name: str, original: Method) -> Method:
        @not_converted
        def refuse(tape: Any, *args: Any, **kwargs: Any) -> Any:
            if _traced_here() is None:
                return original(tape, *args, **kwargs)
            raise NotImplementedError(
                f"tape.{name} was called in a step, whose operations it repeats for each element"
                " in a loop, and a loop cannot be on several partitions; expected tape.gradient."
                " Make the tape persistent, and take the gradient of each element."
            )

        return refuse

    def played_back(self, original: Method) -> Method:
        """In the place of `imperative_grad`, for which targets and sources are flat tensors."""

        @not_converted
        def gradients(
            tape: Any,
            target: Sequence[tf.Tensor],
            sources: Sequence[tf.Tensor],
            output_gradients: Sequence[tf.Tensor] | None = None,
            sources_raw: Sequence[Any] | None = None,
            unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        ) -> list[Any]:
            trace = _traced_here()
            if trace is None:
                return original(  # type: ignore[no-any-return]
                    tape, target, sources, output_gradients, sources_raw, unconnected_gradients
                )
            wants_zeros = (
                tf.UnconnectedGradients(unconnected_gradients) is tf.UnconnectedGradients.ZERO
            )
            note_trained_in_steps(sources_raw or ())
            found = self._gradients(trace, tape, target, sources, output_gradients)
            variables = {id(each.handle): each for each in sources_raw or () if _is_variable(each)}
            for place, source in enumerate(sources):
                variable = variables.get(id(source))
                if found[place] is None and wants_zeros:
                    found[place] = _zeros_like(source, variable)
                if variable is not None and is_elsewhere(variable) and found[place] is not None:
                    trace.elsewhere.append(found[place])
            return found

        return gradients

    def _gradients(
        self,
        trace: Trace,
        tape: Any,
        targets: Sequence[tf.Tensor],
        sources: Sequence[tf.Tensor],
        of_targets: Sequence[tf.Tensor | None] | None,
    ) -> list[Any]:
        for each in targets:
            if each.dtype == tf.resource:
                raise ValueError(
                    "tape.gradient of a variable; expected a tensor that is computed from it."
                    " Multiply the variable by 1.0, say, in the tape."
                )
            require_of_this_step(trace, each, "tape.gradient")
        of_model = [each.handle for each in trained_variables()]
        for each in of_model:
            trace.graph.capture(each)  # on all ranks in one order
        wanted = [_in_graph(trace, each) for each in sources]
        recorded, depending = self._recorded(trace, self._record_of(tape), of_model)
        pairs = [
            (target, None if of_targets is None else of_targets[place])
            for place, target in enumerate(targets)
            if _is_differentiable(target)
        ]
        if not pairs:
            return [None] * len(sources)
        found = gradients_of_all(
            trace,
            [target for target, _ in pairs],
            [trace.graph.capture(each) for each in of_model],
            wanted,
            grad_ys=[of_target for _, of_target in pairs],
            stop_gradients=_ends(trace, recorded, [target for target, _ in pairs]),
        )
        watched = {id(each.handle) for each in tape.watched_variables()}
        return [
            gradient
            if (id(source) in watched if source.dtype == tf.resource else here.name in depending)
            else None
            for gradient, source, here in zip(found, sources, wanted, strict=True)
        ]

    def _recorded(
        self, trace: Trace, found: _Record, of_model: Sequence[Any]
    ) -> tuple[set[int], set[str]]:
        """Numbers of operations; names of tensors that are watched, or made by these."""
        watched = {id(each) for each in of_model}
        watched |= {id(each.handle) for each in found.tape.watched_variables()}
        depending = {
            placeholder.name
            for external, placeholder in trace.graph.captures
            if id(external) in watched
        }
        ranges = list(found.ranges)
        if found.begun is not None:  # gradients are taken while it is active
            ranges.append((found.begun, trace.graph.version))
        operations = trace.graph.get_operations()
        waiting = sorted(found.watched, key=lambda each: each[0], reverse=True)
        recorded: set[int] = set()
        for begin, end in ranges:
            for number in range(begin, end):
                while waiting and waiting[-1][0] <= number:
                    depending.add(_in_graph(trace, waiting.pop()[1]).name)
                op = operations[number]
                if any(each.name in depending and _is_differentiable(each) for each in op.inputs):
                    recorded.add(number)
                    depending.update(each.name for each in op.outputs)
        depending.update(_in_graph(trace, each).name for _, each in waiting)
        return recorded, depending

    def _record_of(self, tape: Any) -> _Record:
        return self._records.setdefault(id(tape), _Record(tape))


def _traced_here() -> Trace | None:
    """The step that is traced; None in bodies of loops, branches and functions in it, too."""
    trace = current_trace()
    is_here = trace is not None and tf.compat.v1.get_default_graph() is trace.graph
    return trace if is_here else None


def _in_graph(trace: Trace, tensor: tf.Tensor) -> tf.Tensor:
    """A tensor of the step, or what stands in it for a tensor from outside of all graphs."""
    if isinstance(tensor, tf.__internal__.EagerTensor):
        return trace.graph.capture(tensor)
    require_of_this_step(trace, tensor, "tape.gradient")
    return tensor


def _ends(trace: Trace, recorded: set[int], targets: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Tensors that are constants for a tape."""
    operations = trace.graph.get_operations()
    names = {operations[number].name for number in recorded}
    needed = [
        *targets,
        *(each for number in sorted(recorded) for each in operations[number].inputs),
    ]
    ends = {each.name: each for each in needed if each.op.name not in names}
    return list(ends.values())


def _zeros_like(source: tf.Tensor, variable: Any) -> tf.Tensor:
    if variable is None:
        return tf.zeros_like(source)
    return tf.zeros(variable.shape, variable.dtype)


def _is_variable(value: Any) -> bool:
    return hasattr(value, "handle")


def _is_differentiable(tensor: tf.Tensor) -> bool:
    dtype = tensor.dtype
    return bool(dtype.is_floating or dtype.is_complex or dtype in (tf.resource, tf.variant))
