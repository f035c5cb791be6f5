# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of tf-keras (and Keras 2) that reduce gradients.

Both of its generations have a method that adds up gradients over the replicas of a strategy. What
calls it is the optimizer itself, before it clips; or its loss scaling, before it looks whether the
gradients are finite, and then it tells the optimizer not to. That is the place to reduce, and a
caller's `skip_gradients_aggregation=True` holds for it, too.

Source: dataparallel specification, sections 6.3 and 7.7.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.tensorflow.optimizers.reducer import GradientReducer

__all__ = ["LegacyDistributed", "TfKerasDistributed"]

_Pair = tuple[Any, Any]


class TfKerasDistributed:
    """What a distributed optimizer of tf-keras does in another way."""

    _smddp_reducer: GradientReducer
    iterations: Any

    def build(self, var_list: Any) -> Any:
        """Builds; remembers for what."""
        variables = list(var_list)
        self._smddp_reducer.built_for = variables
        parent: Any = super()
        return parent.build(variables)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_gradients(
        self,
        grads_and_vars: Iterable[_Pair],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As the wrapped optimizer, which reduces; or adds up, and does so in every n-th pass."""
        parent: Any = super()
        reducer = self._smddp_reducer
        if reducer.sums is None:
            return parent.apply_gradients(
                grads_and_vars, name, skip_gradients_aggregation, **kwargs
            )
        pairs = list(grads_and_vars)
        is_reduced = skip_gradients_aggregation or reducer.knows_reduced(
            [gradient for gradient, _ in pairs]
        )
        reducer.sums.step(
            pairs, lambda sums: parent.apply_gradients(sums, name, is_reduced, **kwargs)
        )
        return self.iterations

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def aggregate_gradients(self, grads_and_vars: Iterable[_Pair]) -> list[_Pair]:
        """Reduces (gradient, variable) pairs over all ranks."""
        pairs = list(grads_and_vars)
        if getattr(self, "_is_wrapped_by_loss_scale_optimizer", False):
            # It has left out those without a gradient, which other ranks may not have done.
            pairs = _with_absent_ones(pairs, self._smddp_reducer.built_for)
            pairs = self._smddp_reducer.reduce_pairs(pairs)
            return [pair for pair in pairs if pair[0] is not None]
        return self._smddp_reducer.reduce_pairs(pairs)


class LegacyDistributed:
    """What a distributed optimizer of `optimizers.legacy` does in another way."""

    _smddp_reducer: GradientReducer
    iterations: Any

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_gradients(
        self,
        grads_and_vars: Iterable[_Pair],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Reduces, then applies; here, since what follows leaves out what is None."""
        pairs = list(grads_and_vars)
        reducer = self._smddp_reducer
        is_open = experimental_aggregate_gradients and not reducer.is_suspended
        parent: Any = super()

        def apply(pairs: list[_Pair], is_open: bool) -> Any:
            if is_open:
                pairs = reducer.reduce_pairs(pairs)
            with reducer.suspended():
                return parent.apply_gradients(pairs, name, experimental_aggregate_gradients)

        if reducer.sums is None:
            return apply(pairs, is_open)
        is_open = is_open and not reducer.knows_reduced([gradient for gradient, _ in pairs])
        reducer.sums.step(pairs, lambda sums: apply(sums, is_open))
        return self.iterations

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _aggregate_gradients(self, grads_and_vars: Iterable[_Pair]) -> list[_Pair]:
        """Loss scaling calls it."""
        pairs = list(grads_and_vars)
        reducer = self._smddp_reducer
        return pairs if reducer.is_suspended else reducer.reduce_pairs(pairs)

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Gradients of a loss, reduced; `apply_gradients` does not reduce them again."""
        parent: Any = super()
        gradients = self._smddp_reducer.reduce(
            parent.get_gradients(loss, params), tf.nest.flatten(params)
        )
        self._smddp_reducer.note_own(gradients)
        return gradients

    def __deepcopy__(self, memo: Any) -> Any:
        """A copy made by the class that was wrapped, and made distributed again."""
        parent: Any = super()
        copy = parent.__deepcopy__(memo)
        object.__setattr__(copy, "__class__", type(self))
        return copy


def _with_absent_ones(pairs: list[_Pair], variables: list[Any]) -> list[_Pair]:
    gradients = {id(variable): gradient for gradient, variable in pairs}
    if not gradients.keys() <= {id(variable) for variable in variables}:
        return pairs
    return [(gradients.get(id(variable)), variable) for variable in variables]
