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
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.tensorflow.xla import require_no_xla
from smdistributed.modelparallel.tensorflow.containers.arguments import ArgumentSplitter, BoundCall
from smdistributed.modelparallel.tensorflow.graph.tracing import converting, current_trace
from smdistributed.modelparallel.tensorflow.job.strategies import refuse_strategy
from smdistributed.modelparallel.tensorflow.step.as_argument import ItselfType
from smdistributed.modelparallel.tensorflow.step.pipeline import Pipeline, current_pipeline
from smdistributed.modelparallel.tensorflow.step.preparing import Prepared, prepare
from smdistributed.modelparallel.tensorflow.step.tapes import refuse_tape_around, without_gradients
from smdistributed.modelparallel.tensorflow.variables import outside_of_functions

__all__ = ["StepFunction", "step"]

_OF_TF_FUNCTION = frozenset(inspect.signature(tf.function).parameters)
# Arguments of some version of TensorFlow 2, which the running one may have no more.
_OF_OTHER_VERSIONS = frozenset(
    (
        "autograph",
        "experimental_attributes",
        "experimental_autograph_options",
        "experimental_compile",
        "experimental_follow_type_hints",
        "experimental_implements",
        "experimental_relax_shapes",
        "jit_compile",
        "reduce_retracing",
    )
)
_COMPILING = ("jit_compile", "experimental_compile")
_WITHOUT_EFFECT = (
    "experimental_attributes",
    "experimental_follow_type_hints",
    "experimental_implements",
)
_RELAXING = ("experimental_relax_shapes", "reduce_retracing")
_MANY_TRACES = 8
# Threads trace one after the other. A hook that runs then may call a step.
_tracing = threading.RLock()


class StepFunction:
    """What `@smp.step` makes of a function.

    As an attribute of a class it is called with what the function takes. Scripts decorate functions
    without `self` in classes, and call them as methods; if the first parameter is `self` (`cls`, of
    a class method) it is a method.

    Attributes:
        python_function: what was decorated.
        input_signature: as given.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        input_signature: Sequence[Any] | None,
        autograph: bool,
        autograph_options: Any,
        non_split_inputs: Iterable[str] | None,
        input_split_axes: Mapping[str, int] | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.python_function = function
        self.input_signature = input_signature
        self._name = _name_of(function)
        self._converting: dict[str, Any] = {
            "autograph": autograph,
            "autograph_options": autograph_options,
        }
        self._splitting: dict[str, Any] = {
            "non_split_inputs": non_split_inputs,
            "input_split_axes": input_split_axes,
            "input_signature": input_signature,
        }
        self._splitter = ArgumentSplitter(function, **self._splitting)
        self._instance: Callable[[], Any] | None = None  # of which it is a method
        self._methods: dict[int, tuple[Callable[[], Any], StepFunction]] = {}
        self._prepared: dict[Hashable, Prepared] = {}
        self._pipeline: Pipeline | None = None  # of which those are
        self._is_in_class = False
        self._has_warned = False  # that it returns nothing of the model

    def __set_name__(self, owner: type, name: str) -> None:
        """It is made in the body of a class."""
        self._is_in_class = True

    def __get__(self, instance: Any, owner: type | None = None) -> StepFunction:
        """Itself; of a function with `self`, the step of that instance."""
        name = "cls" if isinstance(instance, type) else "self"
        if instance is None or self._instance is not None or self._first_parameter != name:
            return self
        found = self._methods.get(id(instance))
        if found is None or found[0]() is not instance:
            found = self._methods[id(instance)] = self._method_of(instance)
        return found[1]

    def __tf_tracing_type__(self, context: Any) -> ItselfType:
        """What it is for a `tf.function` that has it as an argument."""
        return ItselfType(self)

    @functools.cached_property
    def _first_parameter(self) -> str:
        return next(iter(inspect.signature(self.python_function).parameters), "")

    def _method_of(self, instance: Any) -> tuple[Callable[[], Any], StepFunction]:
        try:  # not kept: it goes as if this were a plain method
            reference: Callable[[], Any] = weakref.ref(
                instance, functools.partial(_forget, weakref.ref(self), id(instance))
            )
        except TypeError:
            reference = lambda: instance  # noqa: E731
        method = StepFunction(self.python_function, **self._converting, **self._splitting)
        method._instance = reference
        method._splitter = ArgumentSplitter(_without_first(self.python_function), **self._splitting)
        return reference, method

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a step; every rank of the pipeline calls it, with the same batch.

        Returns: the containers that the function returns, with a `StepOutput` for each value.

        Raises:
            SMPNotInitialized: before `smp.init()`.
            ValueError: a batch does not divide.
            RuntimeError: inside of another step, of a `tf.GradientTape` that records, or of a
                `tf.distribute` strategy with several replicas.
            SMDDPMismatch: ranks of the pipeline have traced different steps.
            StepAborted: another rank has failed; says which, and how.
            Exception: what the function, or an operation on this rank, raised.
        """
        if args and getattr(type(args[0]), self._name, None) is self:  # Class.method(instance, ...)
            method = self.__get__(args[0])
            if method is not self:
                return method(*args[1:], **kwargs)
        if current_trace() is not None:
            raise RuntimeError(
                f"{self._name} was called inside of a step; expected steps one after the other."
                " Call the plain function there: its __wrapped__."
            )
        pipeline = current_pipeline(f"the step function {self._name}")
        if pipeline is not self._pipeline:
            self._prepared.clear()
            self._pipeline = pipeline
        with pipeline.telling_of_step():
            refuse_tape_around(self._name)
            refuse_strategy(f"{self._name} was called")
            call = self._bound_call(args, kwargs, pipeline.job.config.microbatches)
            prepared = self._prepared.get(call.signature) or self._prepare(pipeline, call)
            if tf.executing_eagerly():
                (results,) = pipeline.run(prepared.whole, [call.tensors])
            else:
                require_no_xla()
                whole, touched = prepared.in_graph, prepared.touched
                (results,) = pipeline.bridges.call_in_graph(whole, [call.tensors], touched)
        if tf.executing_eagerly():
            return prepared.gather(results)
        results = without_gradients(
            self._name, results, functools.partial(_tell, weakref.ref(pipeline))
        )
        return prepared.gather_in_graph(results)

    def _bound_call(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], microbatches: int
    ) -> BoundCall:
        try:
            return self._splitter.bind(args, kwargs, microbatches)
        except TypeError as error:
            signature = inspect.signature(self.python_function)
            lacks_self = (
                self._is_in_class
                and self._instance is None
                and not _takes(signature, *args, **kwargs)
                and _takes(signature, None, *args, **kwargs)
            )
            if not lacks_self:
                raise
            raise TypeError(
                f"{error} If {self._name} is a method, call its first parameter self and not"
                f" {next(iter(signature.parameters))}: smp.step passes the instance to that name"
                " alone, as scripts also decorate functions without self in classes."
            ) from None

    def _prepare(self, pipeline: Pipeline, call: BoundCall) -> Prepared:
        """Of a new signature."""
        with _tracing:
            prepared = self._prepared.get(call.signature)
            if prepared is not None:  # of another thread
                return prepared
            with outside_of_functions():
                prepared = prepare(pipeline, self._name, self._body(), call)
            self._prepared[call.signature] = prepared
        if prepared.lacks_model and not self._has_warned and pipeline.rank == 0:
            self._has_warned = True
            get_logger().warning(
                "step %s calls the model, and returns nothing that depends on what the model"
                " gives; expected that a step does, as in the original library. It runs all the"
                " same, for its effects. Return the loss, or what the model gives.",
                self._name,
            )
        if len(self._prepared) == _MANY_TRACES:
            get_logger().warning(
                "The step function %s has been traced for %d signatures, which takes time and"
                " memory for each; expected a few. Pass tensors where Python numbers or objects"
                " change from call to call, and batches of one shape.",
                self._name,
                _MANY_TRACES,
            )
        return prepared

    def bound(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], microbatches: int
    ) -> tuple[str, Callable[..., Any], BoundCall]:
        """The name, what runs for a microbatch, and the call that binds these arguments."""
        return (
            self._name,
            self._body(),
            self._splitter.bind(tuple(args), dict(kwargs), microbatches),
        )

    def _body(self) -> Callable[..., Any]:
        function = self.python_function
        first = () if self._instance is None else (self._instance(),)
        if not self._converting["autograph"]:
            return functools.partial(function, *first)
        converted = _converted(function, self._converting["autograph_options"])

        def body(*args: Any, **kwargs: Any) -> Any:
            trace = current_trace()
            assert trace is not None
            trace.converts = True
            return converted(*first, *args, **kwargs)

        return body


def _name_of(function: Callable[..., Any]) -> str:
    """The same on all ranks, so without the address that a `repr` has."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _converted(function: Callable[..., Any], options: Any) -> Callable[..., Any]:
    """What AutoGraph makes of a function, with features that are not on by themselves."""
    if options is None:
        return tf.__internal__.autograph.tf_convert(function, converting())  # type: ignore[no-any-return]
    found: Callable[..., Any] = tf.autograph.to_graph(
        function, experimental_optional_features=options
    )
    return found


def _tell(pipeline: Callable[[], Pipeline | None], error: BaseException) -> None:
    """The other ranks hear why this one does not run the step, if there is the pipeline."""
    found = pipeline()
    if found is not None:
        found.refuse(error)


def _forget(step: Callable[[], StepFunction | None], key: int, gone: Any) -> None:
    """An instance is gone, and with it its method."""
    owner = step()
    if owner is not None:
        owner._methods.pop(key, None)


def _takes(signature: inspect.Signature, *args: Any, **kwargs: Any) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _without_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """What stands for a method, whose arguments have their names: it is not called."""
    signature = inspect.signature(function)

    def method() -> None:
        raise NotImplementedError

    functools.update_wrapper(method, function)
    del method.__wrapped__  # type: ignore[attr-defined]
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=list(signature.parameters.values())[1:]
    )
    return method


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

    `@smp.step`, `@smp.step()`, `@smp.step(input_signature=[...])`; of methods, too, whose `self` is
    not described in `input_signature`.

    Args:
        input_signature: `tf.TensorSpec`s of the arguments, of the whole batch.
        autograph: convert Python's `if` and `while` on tensors, as `tf.function` does.
        non_split_inputs: names of arguments that every microbatch gets whole.
        input_split_axes: by name of argument, the axis along which its tensors are cut.
        of_tf_function: other arguments of `tf.function`. `func` is `fn`, and
            `experimental_autograph_options` are AutoGraph's. Others change nothing here, and a
            warning says so, `jit_compile=True` and `reduce_retracing=True` among them. What an
            earlier version of TensorFlow had is dropped, with a warning.

    Raises:
        TypeError: an argument that neither this nor `tf.function` has.

    Source: TensorFlow modelparallel specification, section 5.2.
    """
    _require_known(of_tf_function)
    _warn_of_ignored(of_tf_function)
    function = fn if fn is not None else of_tf_function.get("func")

    def decorate(function: Callable[..., Any]) -> StepFunction:
        return StepFunction(
            function,
            input_signature=input_signature,
            autograph=autograph,
            autograph_options=of_tf_function.get("experimental_autograph_options"),
            non_split_inputs=non_split_inputs,
            input_split_axes=input_split_axes,
        )

    return decorate if function is None else decorate(function)


def _require_known(of_tf_function: Mapping[str, Any]) -> None:
    unknown = sorted(of_tf_function.keys() - _OF_TF_FUNCTION - _OF_OTHER_VERSIONS)
    if unknown:
        raise TypeError(
            f"smp.step() got {unknown[0]}; expected input_signature, autograph, non_split_inputs,"
            " input_split_axes, or an argument of tf.function."
        )


def _warn_of_ignored(of_tf_function: Mapping[str, Any]) -> None:
    log = get_logger()
    if any(of_tf_function.get(key) for key in _COMPILING):
        log.warning(
            "smp.step: jit_compile=True is ignored: a step communicates, and XLA cannot compile"
            " that. Leave it out."
        )
    gone = sorted(of_tf_function.keys() - _OF_TF_FUNCTION - set(_COMPILING))
    if gone:
        log.warning(
            "smp.step: %s is dropped: TensorFlow %s has no such argument of tf.function. Leave it"
            " out.",
            ", ".join(gone),
            tf.__version__,
        )
    relaxing = [key for key in _RELAXING if of_tf_function.get(key) and key not in gone]
    if relaxing:
        log.warning(
            "smp.step: %s has no effect: a step is traced once for each shape of its microbatches,"
            " on all ranks alike. For one trace of all sizes write input_signature, with None for"
            " sizes that change.",
            ", ".join(relaxing),
        )
    idle = [key for key in _WITHOUT_EFFECT if of_tf_function.get(key) and key not in gone]
    if idle:
        log.warning(
            "smp.step: %s has no effect: a step is cut, and its graph is not called as a"
            " tf.function's. Leave it out.",
            ", ".join(idle),
        )
