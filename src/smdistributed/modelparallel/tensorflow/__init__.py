# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Model parallel training with TensorFlow. Scripts import this package as `smp`.

Each folder is a room, and its docstring says what to read first.

Source: TensorFlow modelparallel specification, sections 1 to 6.
"""

from __future__ import annotations

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError(
        f"smdistributed.modelparallel.tensorflow needs TensorFlow, which cannot be imported"
        f" ({error}); expected TensorFlow 2. Run: pip install smdistributed-open[tensorflow]"
    ) from error

if int(tf.__version__.partition(".")[0]) < 2:
    raise ImportError(
        f"smdistributed.modelparallel.tensorflow found TensorFlow {tf.__version__}; expected"
        " TensorFlow 2. Run: pip install smdistributed-open[tensorflow]"
    )
