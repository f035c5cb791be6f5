# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a script is told about its place in a model parallel job, as one line of JSON."""

import json
import os

import smdistributed.modelparallel.tensorflow as smp

smp.init()
place = {
    "rank": smp.rank(),
    "local": [smp.local_rank(), smp.local_size()],
    "mp": smp.get_mp_group(),
    "dp": smp.get_dp_group(),
    "all": smp.allgather(smp.rank(), smp.WORLD),
    "microbatches": smp.num_microbatches(),
}
# In one piece: ranks share a pipe.
os.write(1, f"placed: {json.dumps(place)}\n".encode())
smp.barrier()  # the end of the process does the rest
