# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Callbacks of Keras that write files, or look at all weights.

Source: TensorFlow modelparallel specification, section 5.4; our choice.
"""

from __future__ import annotations

from typing import Any

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.tensorflow.containers.cutting import is_keras
from smdistributed.modelparallel.tensorflow.job.state import Job

__all__ = ["on_this_rank"]

# Write what they are told, which is the same on all ranks of a replica.
_WRITERS = ("TensorBoard", "CSVLogger")
# Save the whole model.
_SAVERS = ("ModelCheckpoint", "BackupAndRestore")


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
    given = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    kept = []
    for each in given:
        _require_possible(each, job)
        if job.rank != 0 and is_keras(type(each), *_WRITERS):
            get_logger().debug("%s writes on rank 0 alone", type(each).__name__)
            continue
        if is_keras(type(each), "EarlyStopping"):
            _keep_own_weights(each)
        kept.append(each)
    return kept


def _require_possible(callback: Any, job: Job) -> None:
    name = type(callback).__name__
    if is_keras(type(callback), *_SAVERS) and job.size > 1:
        raise NotImplementedError(
            f"the callback {name} saves the model, of which other ranks have parts or copies, and"
            " is not tested there; expected callbacks that save nothing. Call save() of an"
            " smp.CheckpointManager, or model.save_weights(), on all ranks, in a callback of your"
            " own or after fit()."
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
