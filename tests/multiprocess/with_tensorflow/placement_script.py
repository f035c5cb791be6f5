# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a TensorFlow script is told about its place in the job, as one line of JSON."""

import json
import os

import tensorflow as tf

import smdistributed.dataparallel.tensorflow as sdp

sdp.init()
place = {
    "rank": sdp.rank(),
    "size": sdp.size(),
    "local_rank": sdp.local_rank(),
    "local_size": sdp.local_size(),
    # As the documented scripts do it; the list stands for a host with two GPUs.
    "gpu": ["first", "second"][sdp.local_rank()],
    "LOCAL_RANK": os.environ.get("LOCAL_RANK"),
    # Rank 0 counts 1, rank 1 counts 10: who is missing, or there twice, shows.
    "sum": float(sdp.oob_allreduce(tf.constant(10.0 ** sdp.rank()), op=sdp.ReduceOp.SUM)),
}
# In one piece: ranks share a pipe.
os.write(1, f"placed: {json.dumps(place)}\n".encode())
sdp.shutdown()
