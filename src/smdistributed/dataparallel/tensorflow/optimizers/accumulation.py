# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients that are added up on each rank, over several passes, before they are reduced.

Keras 3 does the adding itself (`gradient_accumulation_steps`), and what it lacks is here, in
`PresentGradients`. The optimizers of tf-keras have nothing of the kind: `LocalSums`.

A gradient may be None in some passes. Which ones they are is known when a step runs eagerly; a
graph is made once, with those that it has then. So a variable that gets its first gradient in a
later graph is refused: in an earlier one its sum would be left out.

Source: our choice: Horovod's `backward_passes_per_step`; see docs/tensorflow.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported
from smdistributed.dataparallel.tensorflow.gradient_reduction import to_dense

__all__ = ["LocalSums", "PresentGradients", "checked_passes", "dense"]

_Pair = tuple[Any, Any]


def checked_passes(passes: Any) -> int:
    """A `backward_passes_per_step` argument.

    Raises:
        SMDDPConfigInvalid: (a ValueError) it is no number from 1 on.
    """
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise SMDDPConfigInvalid(
            f"DistributedOptimizer got backward_passes_per_step={passes!r}; expected after how many"
            " batches it is to reduce their gradients, an int from 1 on. Pass 1 for every batch."
        )
    return passes


class PresentGradients:
    """Which variables of an optimizer have had a gradient, in any pass."""

    def __init__(self) -> None:
        self._variables: dict[int, Any] = {}  # by identity; kept, so that it stays their own
        self._has_traced = False

    def note(self, pairs: Sequence[_Pair]) -> list[Any]:
        """Adds those that have a gradient; returns the ones that are new.

        Raises:
            SMDDPUnsupported: new ones, where a graph was made without them.
        """
        new = [
            variable
            for gradient, variable in pairs
            if gradient is not None and id(variable) not in self._variables
        ]
        if new and self._has_traced:
            name = getattr(new[0], "path", None) or getattr(new[0], "name", "a variable")
            raise SMDDPUnsupported(
                f"{name} has its first gradient in a graph that was traced after another one, which"
                " would leave out what is added up here; expected the same variables to have"
                " gradients in every tf.function that adds up gradients. Pass zeros in place of"
                " None: tape.gradient(..., unconnected_gradients=tf.UnconnectedGradients.ZERO)."
            )
        self._has_traced = self._has_traced or not tf.executing_eagerly()
        self._variables.update((id(variable), variable) for variable in new)
        return new

    def filled(self, pairs: Sequence[_Pair]) -> list[_Pair]:
        """The pairs as dense tensors, with zeros for what has had a gradient and now has none."""
        self.note(pairs)
        missing = dict(self._variables)
        filled = []
        for gradient, variable in pairs:
            is_known = missing.pop(id(variable), None) is not None
            if gradient is None and is_known:
                gradient = tf.zeros_like(tf.convert_to_tensor(variable))
            filled.append((dense(gradient, variable), variable))
        zeros = [(tf.zeros_like(tf.convert_to_tensor(each)), each) for each in missing.values()]
        return filled + zeros


class LocalSums:
    """Sums of a rank's gradients, and what uses them after so many passes.

    Args:
        passes: how many.
        is_average: divide the sums by that.
    """

    def __init__(self, passes: int, is_average: bool) -> None:
        self._passes = passes
        self._is_average = is_average
        self._present = PresentGradients()
        self._sums: dict[int, tuple[Any, tf.Variable]] = {}  # with the variable, by its identity
        self._count: tf.Variable | None = None

    def step(self, pairs: Sequence[_Pair], apply: Callable[[list[_Pair]], Any]) -> None:
        """Adds (gradient, variable) pairs; in each last pass calls `apply` with the sums.

        Eagerly and in `tf.function`, where `apply` is traced every time and runs in last passes.
        """
        if not tf.executing_eagerly() and not tf.compat.v1.get_default_graph().building_function:
            raise SMDDPUnsupported(
                "backward_passes_per_step does not work with an optimizer of Keras in a graph of"
                " TensorFlow 1; expected eager execution, tf.function or fit(). Leave out"
                " tf.compat.v1.disable_eager_execution()."
            )
        with tf.init_scope():
            if self._count is None:
                self._count = tf.Variable(0, trainable=False, dtype=tf.int64)
        for variable in self._present.note(pairs):
            with tf.init_scope():
                zeros = tf.zeros(variable.shape, variable.dtype)
                self._sums[id(variable)] = variable, tf.Variable(zeros, trainable=False)
        for gradient, variable in pairs:
            if gradient is not None:
                self._sums[id(variable)][1].assign_add(dense(gradient, variable))
        self._count.assign_add(1)
        is_last = self._count % self._passes == 0
        if tf.executing_eagerly():
            if is_last:
                apply(self._taken(pairs))
            return

        def use() -> Any:
            apply(self._taken(pairs))
            return tf.constant(True)

        tf.cond(is_last, use, lambda: tf.constant(False))

    def _taken(self, pairs: Sequence[_Pair]) -> list[_Pair]:
        """The sums, which begin at 0 again; None for what has never had a gradient."""
        variables = {id(variable): variable for _, variable in pairs}
        variables.update((key, variable) for key, (variable, _) in self._sums.items())
        taken = []
        for key, variable in variables.items():
            total = None
            if key in self._sums:
                kept = self._sums[key][1]
                total = kept.read_value() / (self._passes if self._is_average else 1)
                kept.assign(tf.zeros_like(kept))
            taken.append((total, variable))
        return taken


def dense(gradient: Any, variable: Any) -> Any:
    """A tensor of what may be `tf.IndexedSlices`, or None."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return to_dense(gradient, tf.TensorShape(variable.shape))
