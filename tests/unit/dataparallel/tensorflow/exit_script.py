# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A script that ends without closing anything; on rank 0 in the middle of a collective."""

from __future__ import annotations

import threading
import time
from typing import Any

import tensorflow as tf

from smdistributed import collectives
from smdistributed.dataparallel.tensorflow.groups import WORLD
from smdistributed.dataparallel.tensorflow.operations import kernels
from smdistributed.dataparallel.tensorflow.operations.order import in_order

group = collectives.init()
kernels.set_group(WORLD, group)


@tf.function(autograph=False)
def step(x: Any) -> Any:
    def make(token: Any) -> Any:
        return kernels.all_reduce([x], 0, token, "a sum", 0, WORLD)

    return in_order(make, [x], group=WORLD, lane=WORLD)[0]


kept = step(tf.zeros([100000]))  # a view of shared memory
if group.rank == 0:
    # Its peer does not come; the process ends while the operation is under way.
    threading.Thread(target=lambda: step(kept), daemon=True).start()
    time.sleep(0.5)
print("at the end", flush=True)
