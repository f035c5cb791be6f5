# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which gradients a rank applies, and which of them count in what all partitions add up.

Source: TensorFlow modelparallel specification, section 3.4.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.tensorflow.job.communication import sum_over_pipeline
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.remedies import hooks
from smdistributed.modelparallel.tensorflow.updates.clipping import global_norm, scale_for
from smdistributed.modelparallel.tensorflow.variables import GuardedVariable, State, raw

__all__ = [
    "applying",
    "are_finite_everywhere",
    "asks_others",
    "clipping_scale",
    "has_pipeline",
    "local_pairs",
    "note_trained_in_steps",
    "require_no_step",
]

_log = get_logger()

_CLIPNORM = "global_clipnorm of an optimizer"


class _Thread(threading.local):
    counts: list[bool] | None = None


_this_thread = _Thread()
# By `id`: variables outside of the model of which steps have taken gradients.
_trained_in_steps: dict[int, weakref.ref[Any]] = {}


def has_pipeline() -> bool:
    """Whether this process has a part of a model, and others the rest."""
    return state.initialized and state.job.has_pipeline


def require_no_step() -> None:
    """Fails in a step."""
    if hooks.is_tracing():
        raise RuntimeError(
            "apply_gradients() was called in a step, where each microbatch would change the"
            " weights; expected it outside. Return the gradients from the step, and call"
            " `optimizer.apply_gradients(zip([g.accumulate() for g in gradients],"
            " model.trainable_variables))` with what it gives."
        )


def local_pairs(grads_and_vars: Iterable[Any]) -> list[Any]:
    """Pairs of gradient and variable, without those of other ranks' variables.

    Raises:
        RuntimeError: in a step.
    """
    require_no_step()
    pairs = list(grads_and_vars)
    here = [pair for pair in pairs if pair[0] is not None or not hooks.is_elsewhere(pair[1])]
    if len(here) < len(pairs):
        _log.debug(
            "apply_gradients(): %d of %d variables are on other ranks, which update them",
            len(pairs) - len(here),
            len(pairs),
        )
    return here


def note_trained_in_steps(variables: Iterable[Any]) -> None:
    """Says that steps take gradients of these, which may be the model's, or nobody's."""
    for each in map(raw, variables):
        if isinstance(each, tf.Variable) and not isinstance(each, GuardedVariable):
            _trained_in_steps[id(each)] = weakref.ref(each)


@contextlib.contextmanager
def applying(variables: Sequence[Any]) -> Iterator[None]:
    """While it is open, this thread's optimizer applies the gradients of these variables.

    If they are those of the cut model, it asks the other ranks what it must know of all gradients:
    also where they are none, as then it is a rank that has none. Optimizers of other models, which
    each rank has for itself, ask nobody.
    """
    before, _this_thread.counts = _this_thread.counts, _counts(variables)
    try:
        yield
    finally:
        _this_thread.counts = before


def asks_others() -> bool:
    """Whether the gradients that are applied are a part of those of the cut model."""
    return _this_thread.counts is not None


def _counts(variables: Sequence[Any]) -> list[bool] | None:
    """For each, whether its gradient counts here; None: nobody else is asked.

    What is not the model's has the same gradient on all ranks, which counts on the first.
    """
    if not has_pipeline():
        return None
    if variables and not any(_is_trained_in_steps(each) for each in variables):
        return None
    is_first = state.job.rank_in(GroupKind.PP) == 0
    return [is_first or isinstance(raw(each), GuardedVariable) for each in variables]


def _is_trained_in_steps(variable: Any) -> bool:
    found = raw(variable)
    if isinstance(found, GuardedVariable):
        return found.state is State.HERE
    noted = _trained_in_steps.get(id(found))
    return noted is not None and noted() is found


def clipping_scale(gradients: Sequence[Any], clip_norm: Any) -> tf.Tensor:
    """By what to multiply gradients that are applied, to clip them by their norm over all ranks.

    All ranks of the pipeline call it.
    """
    norm = global_norm(gradients, _CLIPNORM, _this_thread.counts)
    return scale_for(clip_norm, norm)


def are_finite_everywhere(are_finite: Any) -> tf.Tensor:
    """Whether something holds on all ranks of the pipeline; all of them call it."""
    fails = tf.cast(tf.logical_not(are_finite), tf.float32)
    return tf.equal(sum_over_pipeline(fails, "LossScaleOptimizer"), 0)
