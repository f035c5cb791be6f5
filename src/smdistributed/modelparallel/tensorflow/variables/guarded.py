# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A variable that may have no value on this rank, and says so to whoever reads it.

TensorFlow answers a read of a variable without a value with an empty tensor, and some later
operation fails about shapes. `GuardedVariable` raises instead, with the variable's name, its owner
and what to do. What a variable goes through:

    WITHOUT_VALUE --allocate--> HERE (the owner) or ELSEWHERE (the other ranks)
    WITHOUT_VALUE --assign--> ASSIGNED --allocate--> HERE (the value is kept) or ELSEWHERE
    made before the model --guard--> ASSIGNED --allocate--> HERE or ELSEWHERE

An eager read, before the decision, of a variable that is not trained and begins with a constant
gives it that value: layers read such while they are built (`Normalization` its mean).

The library traces graphs that no rank runs as they are. In those, and in the graphs in which Keras
only infers shapes, reads and assignments are allowed: see `tracing`.

Source: TensorFlow modelparallel specification, section 3.4.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import (  # they are not public
    ResourceVariable,
    UninitializedVariable,
)

from smdistributed.modelparallel.exceptions import ModelNotPartitionedError, SMPError
from smdistributed.modelparallel.tensorflow.remedies import hooks

__all__ = [
    "GuardedVariable",
    "Loan",
    "Owner",
    "State",
    "VariableElsewhereError",
    "VariableWithoutValueError",
    "guard",
    "is_elsewhere",
    "is_tracing",
    "lending",
    "mark_elsewhere",
    "pretending_elsewhere",
    "raw",
    "require_here",
    "require_value",
    "take_away",
    "tracing",
]

# Graphs in which Keras calls layers to learn the shapes of their results. Nothing runs them.
_KERAS_GRAPH = "keras_graph"
_SCRATCH_GRAPH = "scratch_graph"


# AutoGraph passes on a class of exceptions from a `tf.function` if it has this very `__init__`, and
# raises one of its own otherwise.
class VariableWithoutValueError(ModelNotPartitionedError):
    """The value of a variable was needed before it was decided which rank owns it."""

    __init__ = Exception.__init__


class VariableElsewhereError(SMPError, RuntimeError):
    """The value of a variable was needed on a rank that does not own it."""

    __init__ = Exception.__init__


class State(enum.Enum):
    """What this rank has of a variable."""

    WITHOUT_VALUE = enum.auto()
    """Nobody has decided which rank owns it."""
    ASSIGNED = enum.auto()
    """The same, and the script has given it a value, on this rank at least."""
    HERE = enum.auto()
    """This rank owns it."""
    ELSEWHERE = enum.auto()
    """Another rank owns it."""


@dataclasses.dataclass(eq=False)
class Loan:
    """What takes the place of a variable's value for a while, in host memory.

    Attributes:
        value: an eager tensor; None until one is assigned.
    """

    value: Any = None


@dataclasses.dataclass(frozen=True)
class Owner:
    """Where a variable is.

    Attributes:
        partition: its index.
        rank: in the job.
    """

    partition: int
    rank: int


class _Thread(threading.local):
    tracing = 0


_this_thread = _Thread()


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """While it is open, this thread may read and assign variables without values in graphs.

    For graphs of which each rank runs its part only. Eager reads are refused as before.
    """
    _this_thread.tracing += 1
    try:
        yield
    finally:
        _this_thread.tracing -= 1


def is_tracing() -> bool:
    """Whether this thread is inside of `tracing()`."""
    return _this_thread.tracing > 0


class GuardedVariable(UninitializedVariable):  # type: ignore[misc]  # TensorFlow has no types
    """A `tf.Variable` that is made without a value.

    Its shape, dtype, name and handle may be used at any time, its value once it has one.

    Attributes:
        path: its name in error texts.
        state: what this rank has of it.
        owner: where it is; None if that is not known, or it is here.
        constant: gives the value with which it begins, if that is known before it is drawn.
        loan: what eager reads and assignments use instead of the value; see `lending`.
    """

    loan: Loan | None = None

    def __init__(self, *, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.constant: Callable[[], Any] | None = None
        self.state = State.WITHOUT_VALUE
        self.owner: Owner | None = None

    # Every read goes through one of these four; what reads and writes, through those below.

    def _read_variable_op(self, *args: Any, **kwargs: Any) -> Any:
        if self.loan is not None and self.loan.value is not None and tf.executing_eagerly():
            return self.loan.value
        if self.state is State.WITHOUT_VALUE and self.constant and tf.executing_eagerly():
            self.assign(self.constant(), read_value=False)
        require_value(self, "Reading it")
        return super()._read_variable_op(*args, **kwargs)

    def sparse_read(self, *args: Any, **kwargs: Any) -> Any:
        """As of `tf.Variable`; raises as `require_value` does."""
        require_value(self, "Reading it")
        return super().sparse_read(*args, **kwargs)

    def gather_nd(self, *args: Any, **kwargs: Any) -> Any:
        """As of `tf.Variable`; raises as `require_value` does."""
        require_value(self, "Reading it")
        return super().gather_nd(*args, **kwargs)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        """For checkpoints. TensorFlow leaves out a variable without a value, in silence."""
        return {
            key: self._guarded_spec(spec) for key, spec in super()._serialize_to_tensors().items()
        }

    def _guarded_spec(self, spec: Any) -> Any:
        def value() -> Any:
            if self.loan is not None and self.loan.value is not None:
                return self.loan.value
            require_value(self, "Saving it")
            return spec.tensor

        return type(spec)(value, spec.dtype, spec.device)

    def assign(self, *args: Any, **kwargs: Any) -> Any:
        """As of `tf.Variable`. Before the decision it gives the variable a value that counts."""
        if self.loan is not None and tf.executing_eagerly():
            self.loan.value = self._fitting(args[0] if args else kwargs["value"])
            return self
        is_first_value = self.state is State.WITHOUT_VALUE and tf.executing_eagerly()
        if not is_first_value:
            require_value(self, "Assigning to it")
        result = super().assign(*args, **kwargs)
        if is_first_value:
            self.state = State.ASSIGNED
        return result

    def _restore_from_tensors(self, *args: Any, **kwargs: Any) -> Any:
        """For checkpoints: as `assign`."""
        if self.loan is not None and tf.executing_eagerly():
            (value,) = (args[0] if args else kwargs["restored_tensors"]).values()
            self.loan.value = self._fitting(value)
            return self
        is_first_value = self.state is State.WITHOUT_VALUE and tf.executing_eagerly()
        if not is_first_value:
            require_value(self, "Restoring it")
        result = super()._restore_from_tensors(*args, **kwargs)
        if is_first_value:
            self.state = State.ASSIGNED
        return result

    def _fitting(self, value: Any) -> Any:
        with tf.device("/CPU:0"):
            tensor = tf.convert_to_tensor(value, self.dtype)
        if not self.shape.is_compatible_with(tensor.shape):
            raise ValueError(
                f"{self.path} has the shape {self.shape} and was assigned a value of the shape"
                f" {tensor.shape}; expected the same."
            )
        return tensor


@contextlib.contextmanager
def lending(loans: Sequence[tuple[GuardedVariable, Loan]]) -> Iterator[None]:
    """While it is open, eager reads and assignments of variables use what they are lent.

    So code that wants a whole model finds one, and none of its variables changes.

    Args:
        loans: variables, and what each is lent.
    """
    try:
        for variable, loan in loans:
            variable.loan = loan
        yield
    finally:
        for variable, _ in loans:
            variable.loan = None


def _guarded(name: str) -> Callable[..., Any]:
    original = getattr(UninitializedVariable, name)

    def method(self: GuardedVariable, *args: Any, **kwargs: Any) -> Any:
        require_value(self, "Assigning to it")
        return original(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = original.__doc__
    return method


for _name in (
    "assign_add",
    "assign_sub",
    "batch_scatter_update",
    "count_up_to",
    "scatter_add",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_nd_add",
    "scatter_nd_max",
    "scatter_nd_min",
    "scatter_nd_sub",
    "scatter_nd_update",
    "scatter_sub",
    "scatter_update",
):
    setattr(GuardedVariable, _name, _guarded(_name))


def guard(variable: Any, path: str) -> bool:
    """Makes a `tf.Variable` that has its value a guarded one; whether it could.

    The object stays the same: layers and lists of the script hold it.
    """
    if type(variable) is not ResourceVariable:
        return False
    variable.__class__ = GuardedVariable
    variable.path, variable.state = path, State.ASSIGNED
    variable.constant = variable.owner = None
    return True


def raw(variable: Any) -> Any:
    """The `tf.Variable` that holds the value of a variable of either Keras, or is it.

    Its dtype is the one that is stored, also under a policy of mixed precision.
    """
    if isinstance(variable, GuardedVariable):
        return variable
    if isinstance(variable, tf.Variable):
        return getattr(variable, "_variable", variable)  # of tf-keras, under mixed precision
    return hooks.raw(variable)


def is_elsewhere(variable: Any) -> bool:
    """Whether another rank owns a variable. False before that is decided, and of other tensors."""
    guarded = raw(variable)
    return isinstance(guarded, GuardedVariable) and guarded.state is State.ELSEWHERE


def mark_elsewhere(variable: Any, partition: int, rank: int) -> None:
    """Says where a variable is. A value that this rank has of it is dropped.

    Args:
        variable: one that was made in `without_values`.
        partition: the index of the partition that has it.
        rank: of its owner, in the job.

    Raises:
        ValueError: the variable was not made in `without_values`.
    """
    guarded = raw(variable)
    if not isinstance(guarded, GuardedVariable):
        raise ValueError(
            f"{getattr(variable, 'path', variable.name)} was made with a value and keeps it;"
            " expected a variable that was made in `without_values`."
        )
    if guarded.state in (State.ASSIGNED, State.HERE):
        _drop_value(guarded)
    guarded.state = State.ELSEWHERE
    guarded.owner = Owner(partition, rank)


@contextlib.contextmanager
def pretending_elsewhere(variables: Iterable[tuple[Any, int]]) -> Iterator[None]:
    """While it is open, variables say that they are elsewhere; their values stay.

    Args:
        variables: each with the partition that is to own it.
    """
    before = []
    try:
        for variable, partition in variables:
            guarded = raw(variable)
            if isinstance(guarded, GuardedVariable):
                before.append((guarded, guarded.state, guarded.owner))
                guarded.state, guarded.owner = State.ELSEWHERE, Owner(partition, partition)
        yield
    finally:
        for guarded, state, owner in before:
            guarded.state, guarded.owner = state, owner


def take_away(guarded: GuardedVariable) -> None:
    """Another rank owns the variable; which one is not known here."""
    if guarded.state in (State.ASSIGNED, State.HERE):
        _drop_value(guarded)
    guarded.state = State.ELSEWHERE


def _drop_value(variable: GuardedVariable) -> None:
    """Frees the value's memory, which `tf.raw_ops.DestroyResourceOp` would not do."""
    with tf.init_scope(), tf.device(variable.device):
        nothing = tf.constant([], variable.dtype, [0])
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=nothing, validate_shape=False)


def require_value(variable: Any, action: str) -> None:
    """Fails if a variable has no value on this rank, and one is needed.

    Args:
        variable: any; only those that were made in `without_values` can fail.
        action: what needs the value, as the beginning of a sentence.

    Raises:
        VariableWithoutValueError: which rank owns it has not been decided.
        VariableElsewhereError: another rank owns it.
    """
    if not isinstance(variable, GuardedVariable):
        return
    if variable.loan is not None and variable.loan.value is not None:
        return
    if variable.state in (State.HERE, State.ASSIGNED) or _is_graph_that_nothing_runs():
        return
    raise _absence(variable, action)


def require_here(variable: Any, action: str) -> None:
    """Fails unless this rank owns a variable, decided: also in graphs.

    Args:
        variable: any; only those that were made in `without_values` can fail.
        action: what must be done on the owner, as the beginning of a sentence.

    Raises:
        VariableWithoutValueError: which rank owns it has not been decided.
        VariableElsewhereError: another rank owns it.
    """
    if isinstance(variable, GuardedVariable) and variable.state is not State.HERE:
        raise _absence(variable, action)


def _absence(variable: GuardedVariable, action: str) -> Exception:
    error: Exception
    if variable.state is not State.ELSEWHERE:
        error = VariableWithoutValueError(
            f"{variable.path} has no owner and no value yet. {action} needs both. The first call"
            " of a function with @smp.step decides which rank owns it and gives it its value"
            " there: call one first. To begin with values of your own, assign them (`assign`,"
            " `set_weights`, `load_weights`); that is allowed before."
        )
        return error
    owner = variable.owner
    if owner is None:
        where, cure = "another rank", "on its owner only"
    else:
        where = f"rank {owner.rank} (partition {owner.partition})"
        cure = f"on its owner only: `if smp.pp_rank() == {owner.partition}:`"
    error = VariableElsewhereError(
        f"{variable.path} is on {where} and has no value on this one. {action} needs one. Do that"
        f" {cure}. `model.variables` lists those that are on this rank."
    )
    return error


def _is_graph_that_nothing_runs() -> bool:
    if tf.executing_eagerly():
        return False
    if is_tracing():
        return True
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:  # a branch of a `cond` has a graph of its own
        name = getattr(graph, "name", "")
        if name == _KERAS_GRAPH or _SCRATCH_GRAPH in name:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
