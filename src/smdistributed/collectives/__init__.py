# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The collectives engine, usable without any framework.

    from smdistributed import collectives

    with collectives.init() as comm:           # under smddprun, torchrun, mpirun, srun, ...
        comm.all_reduce(array)                  # NumPy, or anything with DLPack or buffers

Everything here works on contiguous arrays in CPU memory. Framework front ends
(`smdistributed.dataparallel`) build on `_native.Communicator`, the same engine by raw pointers.

Source: our choice; see docs/architecture.md.
"""

import atexit

from smdistributed.collectives import _native
from smdistributed.collectives._native import Work
from smdistributed.collectives.communicator import Communicator, ReduceOp
from smdistributed.collectives.environment import init
from smdistributed.collectives.flight import flight_record, flight_record_text

__all__ = [
    "Communicator",
    "ReduceOp",
    "Work",
    "flight_record",
    "flight_record_text",
    "init",
]

# Before the interpreter goes away, so that no thread of the engine outlives it.
atexit.register(_native.prepare_exit)
