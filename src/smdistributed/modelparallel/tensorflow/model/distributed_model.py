# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The model that scripts subclass.

While it is built it has no values: see `variables`. Its first call in a step decides which rank
owns what. From then on its lists of variables have those of this rank.

Source: TensorFlow modelparallel specification, sections 3.4 and 5.4.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.tensorflow.broadcasts import broadcast_variables
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import MultipleDistributedModelError
from smdistributed.modelparallel.tensorflow import remedies, updates
from smdistributed.modelparallel.tensorflow.graph.deciding import Decision, ModelVariable
from smdistributed.modelparallel.tensorflow.graph.labels import current_labels
from smdistributed.modelparallel.tensorflow.graph.tracing import converting, current_trace
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.job.strategies import refuse_strategy
from smdistributed.modelparallel.tensorflow.model.whole_model import WholeModel, answer_of
from smdistributed.modelparallel.tensorflow.variables import (
    Book,
    Record,
    is_elsewhere,
    mark_elsewhere,
    raw,
    tracing,
    without_values,
)

__all__ = ["DistributedModel"]

_log = get_logger()

# The attribute of a model whose `__init__` has called ours.
_HAS_BEGUN = "_smp_has_begun"


class _Meta(type(tf.keras.Model)):  # type: ignore[misc] # which Keras' models have
    """Makes models without values, one at a time."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        state.require("smp.DistributedModel")
        updates.install()  # Keras may have been imported since
        remedies.install()
        remedies.require_one_keras(cls)
        _refuse_functional(cls, args, kwargs)
        living = state.model
        if living is not None:
            raise MultipleDistributedModelError(
                f"a second smp.DistributedModel, {cls.__name__}, was made while"
                f" {type(living).__name__} is there; expected one. Put both into one model, or make"
                " the second a plain tf.keras.Model. To begin anew, call smp.reset() and"
                " smp.init()."
            )
        book = Book(state.job.seed)
        with without_values(book):
            model = _made(cls, lambda: super(_Meta, cls).__call__(*args, **kwargs))
        remedies.require_one_keras(model, *_objects_in(vars(model)))
        model._smp_take_book(book)
        state.model = model
        return model


class DistributedModel(WholeModel, metaclass=_Meta):
    """A Keras model that is cut into partitions, one on each rank of a pipeline.

        class Model(smp.DistributedModel):
            def __init__(self):
                super().__init__()
                self.conv = tf.keras.layers.Conv2D(32, 3, activation="relu")
                self.dense = tf.keras.layers.Dense(10)

            def call(self, x, training=None):
                ...

    It is called in step functions (`@smp.step`) only, unless there is one partition. What it
    returns is there on every rank of its pipeline.

    Its lists of variables have all of them before the first step that calls it, and those of this
    rank afterwards, in the order of the whole model. A variable of another rank has no value here.

    Raises:
        SMPNotInitialized: before `smp.init()`.
        MultipleDistributedModelError: there is another one.
        TypeError: it is made from inputs and outputs.
        RuntimeError: it is called outside of a step.
    """

    def __init__(self, *args: Any, activation_checkpointing: bool = False, **kwargs: Any) -> None:
        """As of Keras.

        Args:
            activation_checkpointing: between the forward and the backward pass of a microbatch keep
                what came from other ranks, and what is drawn, alone; the backward pass makes the
                rest once more, with the same bits. Less memory, more computation (ours). The same
                on all ranks.

        Raises:
            TypeError: for a functional model; `activation_checkpointing` is no bool.
            RuntimeError: under a `tf.distribute` strategy with several replicas.
        """
        _refuse_functional(type(self), args, kwargs)
        refuse_strategy(f"{type(self).__name__} was made")
        if not isinstance(activation_checkpointing, bool):
            raise TypeError(
                f"{type(self).__name__} got activation_checkpointing={activation_checkpointing!r};"
                " expected True or False. With True all partitions recompute."
            )
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "_smp_recomputes", activation_checkpointing)
        object.__setattr__(self, _HAS_BEGUN, True)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As of Keras; in a step."""
        trace = current_trace()
        if trace is not None:
            labels = current_labels()
            assert labels is not None
            trace.has_called_model = True
            # tf-keras converts `call` of models and layers where its caller is converted.
            autograph = converting() if trace.converts else contextlib.nullcontext()
            self._smp_private.note_call(self.call, args, kwargs)
            with labels.model_at_work(), autograph:
                return super().__call__(*args, **kwargs)
        if self._smp_private.is_lent:
            with tracing():
                return super().__call__(*args, **kwargs)
        if _is_symbolic(args, kwargs):
            with without_values(self._smp_book), tracing():
                return super().__call__(*args, **kwargs)
        if self._smp_calls_are_steps:
            return self._smp_call_in_step(args, kwargs)
        if state.job.config.partitions > 1:
            self._smp_refuse_call_in_training()
            raise RuntimeError(
                f"{type(self).__name__} was called outside of a step; expected a call in a function"
                " with @smp.step: its parts are on several ranks. Write\n    @smp.step\n    def"
                " predict(x):\n        return model(x, training=False)\nand call predict(batch) on"
                " all ranks."
            )
        self._smp_private.note_call(self.call, args, kwargs)
        self._smp_have_values(args, kwargs)
        return super().__call__(*args, **kwargs)

    # ---- variables ---------------------------------------------------------------------------

    @property
    def trainable_weights(self) -> Any:
        """Of this rank."""
        return self._smp_local(super().trainable_weights)

    @property
    def non_trainable_weights(self) -> Any:
        """Of this rank."""
        return self._smp_local(super().non_trainable_weights)

    @property
    def weights(self) -> Any:
        """Of this rank."""
        return self._smp_local(super().weights)

    @property
    def variables(self) -> Any:
        """Of this rank."""
        return self._smp_local(super().variables)

    @property
    def trainable_variables(self) -> Any:
        """Of this rank."""
        return self._smp_local(super().trainable_variables)

    @property
    def non_trainable_variables(self) -> Any:
        """Of this rank."""
        return self._smp_local(super().non_trainable_variables)

    @property
    def losses(self) -> list[Any]:
        """Of the whole model: Keras 3 finds regularizers in the lists of variables."""
        called = self._smp_training.losses
        if called is not None and current_trace() is None:
            return called
        with self._smp_private.showing_all():
            return list(super().losses)

    @property
    def smp_all_variables(self) -> list[Any]:
        """Of the whole model; those of other ranks have no value here (ours)."""
        with self._smp_private.showing_all():
            return list(super().variables)

    def save_model(self, save_path: str | os.PathLike[str] = "/opt/ml/model") -> None:
        """Write the whole model as a SavedModel; all ranks call it, rank 0 writes. Blocks.

        `tf.saved_model.load(path)` serves it without this library: `signatures["serving_default"]`
        takes batches of any size, under the names of the arguments of `call`, as they were when a
        step called the model first. The model predicts (`training=False`).

        Args:
            save_path: of a directory of this host, or shared, which is made. A SavedModel that is
                there is replaced; other files in it stay.

        Raises:
            ModelNotPartitionedError: before the first step.
            ValueError: it is on no file system, as "s3://...".
            OSError: rank 0 cannot write there.
            SMDDPMismatch, SMDDPTimeoutError, SMDDPPeerLost: another rank does not call it.
        """
        answer_of("save_model")(self, os.fspath(save_path))

    # ---- for the library ---------------------------------------------------------------------

    def _smp_take_book(self, book: Book) -> None:
        # Keras must not track it.
        object.__setattr__(self, "_smp_private", _Private(book))

    @property
    def _smp_book(self) -> Book:
        book: Book = self._smp_private.book
        return book

    def _smp_local(self, variables: Sequence[Any]) -> list[Any]:
        private = self.__dict__.get("_smp_private")
        if private is None or private.shows_all:
            return list(variables)
        return [each for each in variables if private.is_here(each)]

    def _smp_showing_all(self) -> contextlib.AbstractContextManager[None]:
        """While it is open, the lists of the model are those of one process."""
        return self._smp_private.showing_all()  # type: ignore[no-any-return]

    def _smp_all_trainable(self) -> list[Any]:
        """The `tf.Variable`s of the whole model that are trained."""
        with self._smp_private.showing_all():  # Keras' lists ask for each other
            return [raw(each) for each in super().trainable_variables]

    def _smp_variable_of(self, handle: Any) -> ModelVariable | None:
        """The variable of a handle; None if it is not the model's."""
        private: _Private = self._smp_private
        return private.variable_of(handle, lambda: self.smp_all_variables)

    def _smp_take_up(self, decision: Decision) -> None:
        """Gives this rank's variables their values, and marks the others."""
        job = state.job
        ranks = job.members(GroupKind.PP)
        here = job.rank_in(GroupKind.PP)
        book = self._smp_book
        self._smp_private.place = decision.owner_of, here
        for variable in self.smp_all_variables:  # of layers that were made before the model
            if id(raw(variable)) in decision.owner_of:
                book.adopt(variable)

        def owner(record: Record) -> int:
            return decision.owner_of.setdefault(id(record.raw), 0)

        new = [record for record in book.records if not record.is_decided]
        book.allocate(lambda record: owner(record) == here)
        for record in new:
            if owner(record) != here:
                mark_elsewhere(record.variable, owner(record), ranks[owner(record)])
        if new:
            _begin_alike([record.raw for record in new if owner(record) == here])
            _tell(decision, book.records, here, job.rank)
        self._smp_private.take_up()

    def _smp_when_decided(self, who: Any, restore: Callable[[], None]) -> None:
        """Calls a function when variables have owners and values. Its errors are the step's.

        Args:
            who: asks for it; what it has asked for before is forgotten.
            restore: a collective of all ranks; called until it succeeds.
        """
        self._smp_private.waiting[id(who)] = restore

    def _smp_has_values(self) -> bool:
        """Whether it is decided who owns what."""
        return bool(self.built) and all(record.is_decided for record in self._smp_book.records)

    def _smp_have_values(self, args: Any, kwargs: Any) -> None:
        """With one partition, before an eager call: the variables are made and have values."""
        book = self._smp_book
        if not self.built:
            graph = tf.__internal__.FuncGraph("smp_build")
            with tf.init_scope(), without_values(book), tracing(), graph.as_default():
                super().__call__(*args, **kwargs)
        if any(not record.is_decided for record in book.records):
            book.allocate(lambda record: True)
        self._smp_private.take_up()


class _OfThread(threading.local):
    """While one thread saves, others train: their lists have this rank's variables."""

    shows_all = False
    is_lent = False


class _Private:
    """What the library knows of a model.

    Attributes:
        book: its variables.
        shows_all: its lists have the variables of all ranks, on this thread.
        place: by `id` of a `tf.Variable`, the partition that owns it; and the one that is here.
        waiting: what is called when variables have owners and values, by `id` of who asks.
        is_lent: the whole model is here for a while, to be written, for this thread: it may be
            called in graphs.
        is_of_all_ranks: all ranks read and write it together, with one partition, too.
        call: its arguments by name when a step called it first: a `tf.TensorSpec` for a tensor.
    """

    def __init__(self, book: Book) -> None:
        self.book = book
        self._of_thread = _OfThread()
        self.place: tuple[dict[int, int], int] = ({}, 0)
        self.waiting: dict[int, Callable[[], None]] = {}
        self.is_of_all_ranks = False
        self.call: dict[str, Any] | None = None
        self._found: dict[int, ModelVariable] = {}
        self._kept: list[Any] = []
        self._taken: collections.Counter[str] = collections.Counter()

    def note_call(self, call: Any, args: Any, kwargs: Any) -> None:
        """Keeps with what a step calls the model first: what it is served with."""
        if self.call is not None:
            return
        signature = inspect.signature(call)
        if not any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
            # Keras drops `training=` where `call` does not take it.
            kwargs = {name: kwargs[name] for name in kwargs if name in signature.parameters}
        with contextlib.suppress(TypeError):  # which the call itself will raise
            bound = signature.bind(*args, **kwargs)
            self.call = tf.nest.map_structure(_spec_of, dict(bound.arguments))

    def take_up(self) -> None:
        """Calls what waits. Where it fails it stays, so that no step runs without it."""
        for who, restore in list(self.waiting.items()):
            with tf.init_scope():
                restore()
            del self.waiting[who]

    def is_here(self, variable: Any) -> bool:
        """Whether this rank owns a variable, or nobody does: also of one that has a value."""
        owner_of, here = self.place
        return not is_elsewhere(variable) and owner_of.get(id(raw(variable)), here) == here

    @property
    def shows_all(self) -> bool:
        return self._of_thread.shows_all

    @property
    def is_lent(self) -> bool:
        return self._of_thread.is_lent

    @contextlib.contextmanager
    def showing_all(self) -> Iterator[None]:
        """While it is open, the lists of the model are complete, on this thread."""
        here = self._of_thread
        before, here.shows_all = here.shows_all, True
        try:
            yield
        finally:
            here.shows_all = before

    @contextlib.contextmanager
    def being_lent(self) -> Iterator[None]:
        """While it is open, the whole model is here, for this thread."""
        self._of_thread.is_lent = True
        try:
            with self.showing_all():
                yield
        finally:
            self._of_thread.is_lent = False

    def variable_of(
        self, handle: Any, variables: Callable[[], Sequence[Any]]
    ) -> ModelVariable | None:
        """The variable of a handle; None if it is not among them."""
        record = self.book.record_of(handle)
        if record is not None:
            return self._named(record.raw, record.path, record.nbytes)
        for each in variables():  # made before the model, and given to it
            if raw(each).handle is handle:
                found = raw(each)
                path = str(getattr(each, "path", each.name))
                size = found.shape.num_elements() or 1
                return self._named(found, path, size * max(found.dtype.size, 1))
        return None

    def _named(self, variable: Any, path: str, nbytes: int) -> ModelVariable:
        """The same for each variable; names are made unique."""
        known = self._found.get(id(variable))
        if known is None:
            self._taken[path] += 1
            occurrence = self._taken[path]
            name = path if occurrence == 1 else f"{path}#{occurrence}"
            known = self._found[id(variable)] = ModelVariable(name, variable, nbytes)
            self._kept.append(variable)
        return known


def _spec_of(value: Any) -> Any:
    return tf.TensorSpec(value.shape, value.dtype) if tf.is_tensor(value) else value


def _begin_alike(variables: Sequence[Any]) -> None:
    """Gives the replicas what the first one has: a script may have assigned values of its own."""
    group = state.job.replica_group
    if group is not None and group.size() > 1:
        broadcast_variables(variables, 0, group=group)


def _refuse_functional(cls: type, args: Any, kwargs: Any) -> None:
    if {"inputs", "outputs"} & kwargs.keys() or _holds_keras_tensors(args):
        raise TypeError(
            f"{cls.__name__}(inputs=..., outputs=...) is a functional model; expected a"
            " subclass of smp.DistributedModel with a `call`. Make the functional model in its"
            " `__init__` (self.inner = tf.keras.Model(inputs, outputs)), and let `call` return"
            " self.inner(x)."
        )


def _made(cls: type, make: Callable[[], Any]) -> Any:
    """A model, unless its `__init__` has forgotten ours."""
    hint = (
        f"{cls.__name__}.__init__ has not called super().__init__(); expected that before all"
        " else. Write\n    def __init__(self, ...):\n        super().__init__()"
    )
    try:
        model = make()
    except (RuntimeError, AttributeError, TypeError) as error:
        if "super().__init__()" not in str(error):
            raise
        raise type(error)(f"{hint}\n{error}") from error
    if not hasattr(model, _HAS_BEGUN):
        raise RuntimeError(hint)
    return model


def _objects_in(attributes: Any) -> Iterator[Any]:
    """What attributes hold, themselves or in containers."""
    for value in attributes.values() if isinstance(attributes, dict) else attributes:
        if isinstance(value, (dict, list, tuple)):
            yield from _objects_in(value)
        elif type(value).__module__ != "builtins":
            yield value


def _holds_keras_tensors(values: Any) -> bool:
    return any(type(each).__name__ == "KerasTensor" for each in tf.nest.flatten(values))


def _is_symbolic(args: Any, kwargs: Any) -> bool:
    """Whether Keras only asks for shapes."""
    if _holds_keras_tensors((args, kwargs)):
        return True
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and graph.name in ("keras_graph", "scratch_graph")


def _tell(decision: Decision, records: Sequence[Record], here: int, rank: int) -> None:
    """Writes to the log where the parts of the model are."""
    if rank == 0:
        _log.info("Partition assignments:")
        for name, partition in decision.assignment.partition_of.items():
            _log.info("  %s: %d (%s)", name, partition, decision.assignment.reasons[name])
    mine = [record for record in records if decision.owner_of[id(record.raw)] == here]
    _log.info(
        "Partition %d has %d variables of %d, %d bytes",
        here,
        len(mine),
        len(records),
        sum(record.nbytes for record in mine),
    )
