# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Callbacks of Keras that save the model: `ModelCheckpoint` and `BackupAndRestore`.

Keras' part of them is rank 0's, which has the files and decides what is best; what it asks its
model for is done by all ranks (`leading`). A subclass runs on all ranks, up to where it calls
`super()`. `BackupAndRestore` of tf-keras keeps its files by a `tf.train.CheckpointManager`, which
all ranks use together anyhow.

Source: our choice.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.tensorflow.keras.logs import average_logs
from smdistributed.dataparallel.tensorflow.patching import RULES
from smdistributed.modelparallel.exceptions import ModelNotPartitionedError
from smdistributed.modelparallel.tensorflow.checkpoints.leading import lead
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.model.distributed_model import DistributedModel

__all__ = ["lead_callbacks"]

_BATCH = "on_train_batch_end"
_METHODS = ("on_train_begin", _BATCH, "on_epoch_end", "on_train_end")


def lead_callbacks() -> None:
    """Changes classes of Keras. May be called again."""
    callbacks = tf.keras.callbacks
    keeps_checkpoints = tf.keras.Model.__module__.startswith("tf_keras")
    for name in _METHODS:
        if name in vars(callbacks.ModelCheckpoint):
            RULES.replace(callbacks.ModelCheckpoint, name, _saving)
        how = _keeping_checkpoints if keeps_checkpoints else _backing_up
        RULES.replace(callbacks.BackupAndRestore, name, how)


def _model_of(callback: Any) -> Any:
    """The model of a callback, if it is this job's."""
    model = callback.model
    return model if isinstance(model, DistributedModel) and state.model is model else None


def _model_over_ranks(callback: Any) -> Any:
    """That model, if other ranks train it, too."""
    model = _model_of(callback)
    return None if model is None or state.job.size == 1 else model


def _saving(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `ModelCheckpoint`."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        model = _model_over_ranks(self)
        if model is None or _is_idle(self, original):
            original(self, *args, **kwargs)
        elif state.job.config.partitions == 1:  # then other ranks need not have this callback
            if state.job.rank == 0:
                original(self, *args, **kwargs)
        else:
            args, kwargs = _with_averages(original, args, kwargs)

            def save() -> Any:
                original(self, *args, **kwargs)
                return self.best

            self.best = lead(f"{type(self).__name__}.{original.__name__}()", model, save)

    return method


def _backing_up(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `BackupAndRestore` of Keras 3."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        model = _model_over_ranks(self)
        if model is None or _is_idle(self, original):
            original(self, *args, **kwargs)
            return

        def back_up() -> Any:
            original(self, *args, **kwargs)
            return model._initial_epoch

        call = f"{type(self).__name__}.{original.__name__}()"
        _require_values(model, call)
        with _by_all_ranks(model):
            model._initial_epoch = lead(call, model, back_up)

    return method


def _keeping_checkpoints(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `BackupAndRestore` of tf-keras."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        model = _model_of(self)
        if model is None:
            original(self, *args, **kwargs)
            return
        deletes = self.delete_checkpoint
        self.delete_checkpoint = deletes and state.job.rank == 0
        try:
            with _by_all_ranks(model), _without_slots(model):
                original(self, *args, **kwargs)
        finally:
            self.delete_checkpoint = deletes

    return method


def _is_idle(callback: Any, original: Callable[..., Any]) -> bool:
    """Whether it saves at the end of epochs, and this is the end of a batch."""
    return original.__name__ == _BATCH and callback.save_freq == "epoch"


def _with_averages(
    original: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments whose logs are averages over the replicas, as at the end of an epoch they are."""
    group = state.job.replica_group
    if original.__name__ != _BATCH or group is None or group.size() == 1:
        return args, kwargs
    batch, logs = args[0], args[1] if len(args) > 1 else kwargs.get("logs")
    averages = dict(logs or {})
    average_logs(averages, group)
    return (batch, averages), {}


def _require_values(model: Any, call: str) -> None:
    if not model._smp_has_values():
        raise ModelNotPartitionedError(
            f"{call} was called before it is known which rank owns what of {type(model).__name__};"
            " expected a model that has been called. Call model.predict() with a batch before"
            " fit()."
        )


@contextlib.contextmanager
def _by_all_ranks(model: Any) -> Iterator[None]:
    """While it is open, all ranks read and write the model together, also whole replicas."""
    model._smp_private.is_of_all_ranks = True
    try:
        yield
    finally:
        model._smp_private.is_of_all_ranks = False


@contextlib.contextmanager
def _without_slots(model: Any) -> Iterator[None]:
    """While it is open, tf-keras lets no optimizer make slots before it is known of what."""
    optimizer = model.optimizer
    builds = callable(getattr(optimizer, "build", None)) and not getattr(optimizer, "_built", False)
    if model._smp_has_values() or not builds:
        yield
        return
    optimizer._built = True
    try:
        yield
    finally:
        del optimizer._built
