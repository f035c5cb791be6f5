# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The host of rank 0, asked for through MPI: for mpirun over several hosts without MASTER_ADDR.

Source: dataparallel specification, section 3.3, row 6.
"""

import socket

__all__ = ["host_of_rank_zero"]

_NAME_BYTES = 256  # a host name has at most 253


def host_of_rank_zero() -> str | None:
    """Host name of MPI's rank 0, or None if `mpi4py` cannot tell.

    Initialises MPI in this process. A collective over all ranks of the MPI job.
    """
    try:
        from mpi4py import MPI
    except (
        ImportError,
        RuntimeError,
    ):  # not installed; or without the MPI library it was built for
        return None
    world = MPI.COMM_WORLD
    if world.Get_size() == 1:
        return None  # another MPI than the one that launched us
    name = bytearray(_NAME_BYTES)
    if world.Get_rank() == 0:
        own = socket.gethostname().encode()
        name[: len(own)] = own
    world.Bcast(name, root=0)
    return name.rstrip(b"\0").decode() or None
