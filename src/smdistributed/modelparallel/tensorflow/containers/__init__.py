# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of step functions, with TensorFlow.

The rules are those of `smdistributed.modelparallel.containers`. Here is TensorFlow's part of them:

- `cutting`: which types are tensors, and how a tensor is cut, eagerly and in a graph.
- `arguments`: a call of a step function, as tensors and a signature of everything else.
- `step_output`: `smp.StepOutput`, one tensor for each microbatch.
- `results`: what the body returns in a trace, and what the microbatches make of it.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.containers.structures import (
    LEAF,
    Structure,
    flatten,
    is_container,
    map_leaves,
    never_open,
    open_as,
)

__all__ = ["LEAF", "Structure", "flatten", "is_container", "map_leaves"]

# Models and layers of both Kerases are among the trackables.
never_open(
    tf.Tensor, tf.Variable, tf.__internal__.CompositeTensor, tf.__internal__.tracking.AutoTrackable
)


def _open_wrappers() -> None:
    """Lists, dicts and tuples that TensorFlow made of those that a model or module was given."""
    module = tf.Module()
    plains: tuple[Any, ...] = ([], {}, ())
    for plain in plains:
        module.wrapped = plain
        if type(module.wrapped) is not type(plain):
            open_as(type(module.wrapped), type(plain))


_open_wrappers()
