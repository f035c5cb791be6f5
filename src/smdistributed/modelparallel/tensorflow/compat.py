# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.compat`: the remedies for scripts of TensorFlow 2.3 to 2.6, taken away and given back.

The import of the library applies them. What makes training over several ranks right is no remedy,
and stays.

Source: TensorFlow modelparallel specification, section 6.2.
"""

from __future__ import annotations

from smdistributed.dataparallel.tensorflow.patching import REMEDIES
from smdistributed.modelparallel.tensorflow import remedies

__all__ = ["install", "uninstall"]


def install() -> None:
    """Gives back what `uninstall` has taken away; without that, does nothing."""
    REMEDIES.allow()
    remedies.install()


def uninstall() -> None:
    """Takes all remedies away, also those of `smdistributed.dataparallel.tensorflow`.

    TensorFlow and Keras have their own names alone from now on: `optimizer.get_gradients`, say, is
    missing where Keras has no more of it. Objects that exist lose them as well. Repeatable.
    """
    REMEDIES.remove()
