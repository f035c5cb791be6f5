# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What an optimizer that reduces gradients needs to know and do, whichever Keras it is of.

Also how an optimizer becomes one: its object gets a class of its own, derived from the class that
it had and one of the mixins of `keras3` and `tf_keras`. The object stays the same, with all of its
variables and whatever holds it (a compiled model, a checkpoint). To whoever asks for `__class__`,
the serialisation of both Kerases above all, it is still of the class that it had: what is saved
names Keras's own class, and loads where this library is not installed.

Source: dataparallel specification, section 7.7.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.compression import Compressor
from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.tensorflow.gradient_reduction import is_reduced, reduce_gradients
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.optimizers.accumulation import (
    LocalSums,
    PresentGradients,
)

__all__ = ["GradientReducer", "make_distributed", "reducer_of"]

_ATTRIBUTE = "_smddp_reducer"


@dataclasses.dataclass(eq=False)
class GradientReducer:
    """How one optimizer reduces, and where it is within a step.

    Attributes:
        op: AVERAGE or SUM; None is AVERAGE.
        compression, sparse_as_dense: as in `reduce_gradients`.
        bucket_cap_bytes: size of the fusion buffers.
        optimizer_name: for messages.
        group: whose ranks; None: all.
        passes: of how many batches gradients are added up before they are reduced.
        is_average_of_passes: divide these sums by `passes`.
        is_suspended: the gradients that the optimizer gets now have been reduced by its caller.
        built_for: variables that a tf-keras optimizer last got all of.
    """

    op: Any
    compression: Compressor
    sparse_as_dense: bool
    bucket_cap_bytes: int
    optimizer_name: str
    group: Group | None = None
    passes: int = 1
    is_average_of_passes: bool = False
    is_suspended: bool = False
    built_for: list[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.present = PresentGradients()
        self.sums = LocalSums(self.passes, self.is_average_of_passes) if self.passes > 1 else None
        self._has_warned = False
        self._own: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._deferred: tuple[list[bool], list[Any]] | None = None

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces gradients over all ranks, except those that have been.

        Args:
            gradients: one for each variable, or None.
            variables: of TensorFlow or Keras.

        Raises:
            SMDDPUnsupported: a `tf.distribute` strategy with several replicas is in effect.
        """
        _require_one_replica()
        results = list(gradients)
        open_ones = self._not_reduced(results)
        if open_ones:
            reduced = reduce_gradients(
                [results[index] for index in open_ones],
                variables=[variables[index] for index in open_ones],
                op=self.op,
                compression=self.compression,
                sparse_as_dense=self.sparse_as_dense,
                bucket_cap_bytes=self.bucket_cap_bytes,
                group=self.group,
            )
            for index, gradient in zip(open_ones, reduced, strict=True):
                results[index] = gradient
        return results

    def reduce_pairs(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """As `reduce`, for (gradient, variable) pairs."""
        if not pairs:
            return []
        gradients, variables = zip(*pairs, strict=True)
        return list(zip(self.reduce(gradients, variables), variables, strict=True))

    def note_own(self, gradients: Sequence[Any]) -> None:
        """Remembers gradients that were reduced here and given to the user, who applies them."""
        for gradient in gradients:
            if gradient is not None:
                self._own[id(gradient)] = gradient

    def knows_reduced(self, gradients: Sequence[Any]) -> bool:
        """Whether there is nothing left to reduce, as a tape has."""
        return not self._not_reduced(list(gradients))

    @contextlib.contextmanager
    def deferred(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Iterator[None]:
        """Within, `reduce_deferred` reduces what comes of these gradients."""
        self._deferred = ([gradient is not None for gradient in gradients], list(variables))
        try:
            yield
        finally:
            self._deferred = None

    def reduce_deferred(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Reduces sums of the gradients of `deferred`, without the None; elsewhere does nothing.

        Raises:
            SMDDPUnsupported: another rank has a gradient where this one has None.
        """
        if self._deferred is None:
            return gradients
        is_present, variables = self._deferred
        given = iter(gradients)
        reduced = self.reduce([next(given) if has else None for has in is_present], variables)
        for has, gradient, variable in zip(is_present, reduced, variables, strict=True):
            if gradient is not None and not has:
                raise SMDDPUnsupported(
                    f"{getattr(variable, 'path', variable)} has no gradient on this rank and has"
                    " one on another; expected the same ones everywhere, since the optimizer"
                    " accumulates gradients. Give it zeros, or leave out"
                    " gradient_accumulation_steps."
                )
        return [gradient for has, gradient in zip(is_present, reduced, strict=True) if has]

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """The optimizer takes gradients as they are: its caller has reduced them."""
        before, self.is_suspended = self.is_suspended, True
        try:
            yield
        finally:
            self.is_suspended = before

    def _not_reduced(self, gradients: list[Any]) -> list[int]:
        """Which are still to be reduced; warns, once, of those that a tape has."""
        present = [each for each in gradients if each is not None]
        by_tape = [each for each in present if self._is_done(each) and not self._is_own(each)]
        if by_tape and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self.optimizer_name} is a DistributedOptimizer, and its gradients come from a"
                " DistributedGradientTape; they are reduced once, by the tape. Use one of the two.",
                UserWarning,
                stacklevel=2,
            )
        done = [self._is_done(each) or self._is_own(each) for each in gradients]
        if sum(done) == len(present) > 0:
            return []
        return [index for index, is_done in enumerate(done) if not is_done]

    def _is_done(self, gradient: Any) -> bool:
        """Whether it has been reduced over the ranks that this would reduce it over."""
        return is_reduced(gradient, self.group)

    def _is_own(self, gradient: Any) -> bool:
        return gradient is not None and self._own.get(id(gradient)) is gradient


def make_distributed(optimizer: Any, mixin: type, reducer: GradientReducer, name: str) -> None:
    """Turns an optimizer into one that reduces its gradients.

    Args:
        optimizer: any that the mixin is made for; changed in place.
        mixin: what overrides its methods.
        reducer: how it reduces.
        name: the optimizer's name from now on.
    """
    wrapped = type(optimizer)

    def fill(namespace: dict[str, Any]) -> None:
        namespace.update(
            {
                "__module__": wrapped.__module__,
                "__qualname__": wrapped.__qualname__,
                "__doc__": wrapped.__doc__,
                # Serialisation, copies and messages see the class that was wrapped.
                "__class__": property(lambda self: wrapped),
                _ATTRIBUTE: reducer,
            }
        )

    distributed = types.new_class(wrapped.__name__, (mixin, wrapped), exec_body=fill)
    # `_name` is where the older optimizers keep it, as a hyperparameter would be.
    object.__setattr__(optimizer, "name" if "name" in vars(optimizer) else "_name", name)
    object.__setattr__(optimizer, "__class__", distributed)


def reducer_of(optimizer: Any) -> GradientReducer | None:
    """The reducer of a distributed optimizer, also of one within a loss-scaling one; or None."""
    found = getattr(type(optimizer), _ATTRIBUTE, None)
    if found is None:
        inner = getattr(optimizer, "inner_optimizer", None)
        found = None if inner is None else getattr(type(inner), _ATTRIBUTE, None)
    return found if isinstance(found, GradientReducer) else None


def _require_one_replica() -> None:
    if not tf.distribute.has_strategy():
        return
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise SMDDPUnsupported(
            f"a distributed optimizer runs in a tf.distribute strategy of {replicas} replicas;"
            " expected one replica in each process. Start a process for each GPU, and leave out"
            " the strategy."
        )
