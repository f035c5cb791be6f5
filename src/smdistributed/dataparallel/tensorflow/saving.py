# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A SavedModel holds no communication; this has TensorFlow say so, and what to do.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

import tensorflow as tf

__all__ = ["refuse_to_save"]

_TEXT = (
    "SMDDPUnsupported: it communicates with the other ranks of a job, which whoever loads a"
    " SavedModel has not; expected functions that do not. Keep the function that trains a model,"
    " and whatever else communicates, out of the attributes and layers of what you save; or save"
    " what holds no functions: model.save('name.keras'), tf.train.Checkpoint."
)


def refuse_to_save() -> None:
    """Marks the function that is being made, if one is: to save it is a ValueError from now on."""
    graph = tf.compat.v1.get_default_graph()
    while graph.building_function:  # functions tell those that call them, branches and loops do not
        graph.mark_as_unsaveable(_TEXT)
        graph = graph.outer_graph
