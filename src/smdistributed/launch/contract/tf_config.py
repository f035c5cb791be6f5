# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`TF_CONFIG`: by it TensorFlow's `MultiWorkerMirroredStrategy` learns who its workers are.

Source: launch specification, sections 4.2 and 7.3.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

__all__ = ["tf_config"]


def tf_config(workers: Sequence[str], index: int) -> str:
    """The value of the variable, on one host.

    Args:
        workers: address and port of each host's process, in the order of their indices.
        index: of this host.
    """
    task = {"type": "worker", "index": index}
    return json.dumps({"cluster": {"worker": list(workers)}, "task": task})
