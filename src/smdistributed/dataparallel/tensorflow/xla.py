# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""XLA compiles no communication of ours; this says so before XLA does, and says what to do.

Source: dataparallel specification, section 7.5, text included.
"""

from __future__ import annotations

import tensorflow as tf

from smdistributed.dataparallel.exceptions import SMDDPUnsupported

__all__ = ["UNSUPPORTED_TEXT", "is_for_xla", "require_no_xla"]

UNSUPPORTED_TEXT = (
    "communication inside jit_compile=True is not available on this platform; call the collective"
    " outside the compiled function. For model.compile(), pass jit_compile=False or leave it out."
)


def is_for_xla() -> bool:
    """Whether a function is being traced that XLA will compile, with all of its callees."""
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:  # it is not public; without it, XLA's own error has to do
        return False
    return not tf.executing_eagerly() and bool(
        GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    )


def require_no_xla() -> None:
    """Does nothing where operations can be made.

    Raises:
        SMDDPUnsupported: as `is_for_xla`.
    """
    if is_for_xla():
        raise SMDDPUnsupported(UNSUPPORTED_TEXT)
