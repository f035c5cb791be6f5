# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow's own classes do with a model whose parts are on several ranks.

`tf.train.Checkpoint.restore` says what to call instead: TensorFlow would restore what is here, by
positions that an optimizer of one rank does not have, and keep the rest for variables that never
come. A `tf.train.CheckpointManager` does what ours does: callbacks of Keras make such.

Source: TensorFlow modelparallel specification, section 5.5.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.tensorflow.patching import RULES
from smdistributed.modelparallel.tensorflow.checkpoints.manager import CheckpointManager
from smdistributed.modelparallel.tensorflow.job.state import state

__all__ = ["guard_tensorflow"]


def guard_tensorflow() -> None:
    """Changes TensorFlow's classes. May be called again."""
    for name in ("read", "restore"):
        RULES.replace(tf.train.Checkpoint, name, _refusing)
    for name in ("save", "restore_or_initialize"):
        RULES.replace(tf.train.CheckpointManager, name, _as_ours)


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def restore(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _holds_model_of_ranks(self):
            raise RuntimeError(
                f"tf.train.Checkpoint.{original.__name__}() was called for"
                f" {type(state.model).__name__}, whose parts are on several ranks; expected"
                " smp.CheckpointManager(checkpoint, directory).restore(path) on all ranks, which"
                " gives each its own part. Call that."
            )
        return original(self, *args, **kwargs)

    return restore


def _as_ours(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _holds_model_of_ranks(self.checkpoint):
            return original(self, *args, **kwargs)
        ours = CheckpointManager.__new__(CheckpointManager)
        ours.__dict__ = self.__dict__  # what one of them notes the other one knows
        return getattr(ours, original.__name__)(*args, **kwargs)

    return method


def _holds_model_of_ranks(checkpoint: Any) -> bool:
    if not state.initialized or state.model is None:
        return False
    if state.job.config.partitions == 1 and not state.model._smp_private.is_of_all_ranks:
        return False
    objects, _ = checkpoint._saver._graph_view.breadth_first_traversal()
    return any(each is state.model for each in objects)
