# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`@smp.step`: a function that is called with a batch, and runs once for each microbatch.

What a call does: its arguments are bound, and make a signature. For a new signature the body is
traced, cut and made into a program (`preparing`), together with the other ranks of the pipeline.
Then the driver runs the program: at once, or when the user's graph runs.

Source: TensorFlow modelparallel specification, sections 3 and 5.2.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.tensorflow.xla import require_no_xla
from smdistributed.modelparallel.tensorflow.containers.arguments import ArgumentSplitter
from smdistributed.modelparallel.tensorflow.graph.tracing import converting, current_trace
from smdistributed.modelparallel.tensorflow.step.pipeline import Pipeline, current_pipeline
from smdistributed.modelparallel.tensorflow.step.preparing import Prepared, prepare
from smdistributed.modelparallel.tensorflow.step.tapes import refuse_tape_around, without_gradients

__all__ = ["StepFunction", "step"]

_OF_TF_FUNCTION = frozenset(inspect.signature(tf.function).parameters) - {"func"}
_MANY_TRACES = 8
# Those that steps take into account; compilation is left out below, others change nothing here.
_COMPILING = ("jit_compile", "experimental_compile")


class StepFunction:
    """What `@smp.step` makes of a function.

    No descriptor: scripts decorate functions without `self` in a class, and call them as methods.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        input_signature: Sequence[Any] | None,
        autograph: bool,
        non_split_inputs: Iterable[str] | None,
        input_split_axes: Mapping[str, int] | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._name = str(getattr(function, "__name__", function))
        self._converts = autograph
        self._splitter = ArgumentSplitter(
            function,
            non_split_inputs=non_split_inputs,
            input_split_axes=input_split_axes,
            input_signature=input_signature,
        )
        self._prepared: dict[Hashable, Prepared] = {}
        self._pipeline: Pipeline | None = None  # of which those are

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a step; every rank of the pipeline calls it, with the same batch.

        Returns: the containers that the function returns, with a `StepOutput` for each value.

        Raises:
            SMPNotInitialized: before `smp.init()`.
            ValueError: a batch does not divide.
            RuntimeError: inside of another step, or of a `tf.GradientTape` that records.
            SMDDPMismatch: ranks of the pipeline have traced different steps.
            StepAborted: another rank has failed; says which, and how.
            Exception: what the function, or an operation on this rank, raised.
        """
        if current_trace() is not None:
            raise RuntimeError(
                f"{self._name} was called inside of a step; expected steps one after the other."
                " Call the plain function there: its __wrapped__."
            )
        pipeline = current_pipeline(f"the step function {self._name}")
        if pipeline is not self._pipeline:
            self._prepared.clear()
            self._pipeline = pipeline
        try:
            refuse_tape_around(self._name)
            call = self._splitter.bind(args, kwargs, pipeline.job.config.microbatches)
        except BaseException as error:
            pipeline.refuse(error)
            raise
        prepared = self._prepared.get(call.signature)
        if prepared is None:
            with tf.init_scope():
                prepared = prepare(pipeline, self._name, self._body(), call)
            self._prepared[call.signature] = prepared
            if len(self._prepared) == _MANY_TRACES:
                get_logger().warning(
                    "The step function %s has been traced for %d signatures, which takes time and"
                    " memory for each; expected a few. Pass tensors where Python numbers or objects"
                    " change from call to call, and batches of one shape.",
                    self._name,
                    _MANY_TRACES,
                )
        if tf.executing_eagerly():
            (results,) = pipeline.run(prepared.whole, [call.tensors])
        else:
            require_no_xla()
            whole, touched = prepared.whole, prepared.touched
            (results,) = pipeline.bridges.call_in_graph(whole, [call.tensors], touched)
            results = without_gradients(
                self._name, results, functools.partial(_tell, weakref.ref(pipeline))
            )
        return prepared.gather(results)

    def _body(self) -> Callable[..., Any]:
        if not self._converts:
            return self._function
        converted: Callable[..., Any] = tf.__internal__.autograph.tf_convert(
            self._function, converting()
        )

        def body(*args: Any, **kwargs: Any) -> Any:
            trace = current_trace()
            assert trace is not None
            trace.converts = True
            return converted(*args, **kwargs)

        return body


def _tell(pipeline: Callable[[], Pipeline | None], error: BaseException) -> None:
    """The other ranks hear why this one does not run the step, if there is the pipeline."""
    found = pipeline()
    if found is not None:
        found.refuse(error)


def step(
    fn: Callable[..., Any] | None = None,
    *,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    non_split_inputs: Iterable[str] | None = None,
    input_split_axes: Mapping[str, int] | None = None,
    **of_tf_function: Any,
) -> Any:
    """Decorates a function that takes a batch: it runs once for each microbatch.

    `@smp.step`, `@smp.step()`, `@smp.step(input_signature=[...])`.

    Args:
        input_signature: `tf.TensorSpec`s of the arguments, of the whole batch.
        autograph: convert Python's `if` and `while` on tensors, as `tf.function` does.
        non_split_inputs: names of arguments that every microbatch gets whole.
        input_split_axes: by name of argument, the axis along which its tensors are cut.
        of_tf_function: other arguments of `tf.function` are accepted and change nothing; to compile
            (`jit_compile=True`) is refused with a warning.

    Raises:
        TypeError: an argument that neither this nor `tf.function` has.
    """
    unknown = sorted(set(of_tf_function) - _OF_TF_FUNCTION - set(_COMPILING))
    if unknown:
        raise TypeError(
            f"smp.step() got {unknown[0]}; expected input_signature, autograph, non_split_inputs,"
            " input_split_axes, or an argument of tf.function."
        )
    if any(of_tf_function.get(key) for key in _COMPILING):
        get_logger().warning(
            "smp.step: jit_compile=True is ignored: a step communicates, and XLA cannot compile"
            " that. Leave it out."
        )

    def decorate(function: Callable[..., Any]) -> StepFunction:
        return StepFunction(
            function,
            input_signature=input_signature,
            autograph=autograph,
            non_split_inputs=non_split_inputs,
            input_split_axes=input_split_axes,
        )

    return decorate if fn is None else decorate(fn)
