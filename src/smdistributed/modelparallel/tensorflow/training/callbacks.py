# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Callbacks of Keras that write files, or look at all weights.

Source: TensorFlow modelparallel specification, section 5.4; our choice.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.tensorflow.reduce_op import ReduceOp
from smdistributed.dataparallel.tensorflow.reductions import oob_allreduce
from smdistributed.modelparallel.tensorflow.containers.cutting import is_keras
from smdistributed.modelparallel.tensorflow.job.state import Job

__all__ = ["on_this_rank", "require_savers_everywhere", "savers_among"]

# Write what they are told, which is the same on all ranks of a replica.
_WRITERS = ("TensorBoard", "CSVLogger")
# Save the whole model, by all ranks together: `checkpoints.keras_callbacks`.
_SAVERS = ("ModelCheckpoint", "BackupAndRestore")
# Would save what is here.
_SAVERS_OF_A_PART = ("OrbaxCheckpoint",)


def on_this_rank(callbacks: Any, model: Any, job: Job) -> Any:
    """The callbacks that are for this rank.

    Args:
        callbacks: as of `fit`: one, several, a `CallbackList`, None.
        model: that they will be told of.

    Raises:
        NotImplementedError: one needs values of other ranks.
    """
    if callbacks is None or is_keras(type(callbacks), "CallbackList"):
        return callbacks
    kept = []
    for each in _listed(callbacks):
        _require_possible(each, job)
        if job.rank != 0 and is_keras(type(each), *_WRITERS):
            get_logger().debug("%s writes on rank 0 alone", type(each).__name__)
            continue
        if is_keras(type(each), "EarlyStopping"):
            _keep_own_weights(each)
        kept.append(each)
    return kept


def savers_among(callbacks: Any, job: Job) -> Mapping[str, int]:
    """How many callbacks of `fit` all ranks must have, by class of Keras."""
    kinds = _SAVERS if job.config.partitions > 1 else ("BackupAndRestore",)
    return collections.Counter(
        kind for each in _listed(callbacks) for kind in kinds if is_keras(type(each), kind)
    )


def require_savers_everywhere(by_rank: Sequence[Mapping[str, int]], job: Job) -> None:
    """Fails if some rank has callbacks that save the model, and another one has not.

    A collective of the replicas.

    Args:
        by_rank: what `savers_among` gives on the ranks of this pipeline.

    Raises:
        ValueError: on all ranks.
    """
    counts = [[each.get(kind, 0) for kind in _SAVERS] for each in by_rank]
    least, most = ([how(column) for column in zip(*counts, strict=True)] for how in (min, max))
    group = job.replica_group
    if group is not None and group.size() > 1:
        extremes = tf.constant([most, [-each for each in least]], tf.int32)
        found = oob_allreduce(extremes, op=ReduceOp.MAX, name="callbacks that save", group=group)
        most, least = found[0].numpy().tolist(), (-found[1]).numpy().tolist()
    for kind, few, many in zip(_SAVERS, least, most, strict=True):
        if few != many:
            raise ValueError(
                f"fit(): some ranks have {many} callbacks {kind} and others {few}; expected as"
                " many on all of them, as each has a part of the model or is to go on alike. Take"
                " it out of `if smp.rank() == 0:`: rank 0 alone writes."
            )


def _listed(callbacks: Any) -> Iterable[Any]:
    if callbacks is None:
        return []
    if is_keras(type(callbacks), "CallbackList"):
        return list(callbacks.callbacks)
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


def _require_possible(callback: Any, job: Job) -> None:
    name = type(callback).__name__
    if is_keras(type(callback), *_SAVERS_OF_A_PART) and job.size > 1:
        raise NotImplementedError(
            f"the callback {name} saves what this rank has, and other ranks have parts or copies of"
            " the model; expected ModelCheckpoint or BackupAndRestore. Use one of these, or call"
            " save() of an smp.CheckpointManager in a callback of your own."
        )
    if job.config.partitions > 1 and is_keras(type(callback), "TensorBoard"):
        for attribute in ("histogram_freq", "embeddings_freq"):
            if getattr(callback, attribute, 0):
                raise NotImplementedError(
                    f"{name}({attribute}={getattr(callback, attribute)}) writes weights of all"
                    f" layers, which other ranks have; expected {attribute}=0. Leave it out."
                )


def _keep_own_weights(callback: Any) -> None:
    """`EarlyStopping` keeps the best weights: of each rank its own."""
    original = callback.set_model

    def set_model(model: Any) -> None:
        original(model if isinstance(model, _OwnWeights) else _OwnWeights(model))

    if not getattr(original, "_smp_keeps_own", False):
        set_model._smp_keeps_own = True  # type: ignore[attr-defined]
        callback.set_model = set_model


class _OwnWeights:
    """A model whose `get_weights` and `set_weights` are those of this rank's variables."""

    def __init__(self, model: Any) -> None:
        object.__setattr__(self, "_model", model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._model, name, value)

    def get_weights(self) -> list[Any]:
        """Copies of the values that are here."""
        return [each.numpy().copy() for each in self._model.weights]

    def set_weights(self, weights: list[Any]) -> None:
        """Assigns them again."""
        for variable, value in zip(self._model.weights, weights, strict=True):
            variable.assign(value)
