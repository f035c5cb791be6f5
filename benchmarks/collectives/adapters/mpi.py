# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Any MPI through mpi4py's buffer calls; the environment and its ``mpiexec`` decide which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cases import REDUCING, Case
from mpi4py import MPI

from adapters.base import Adapter, Unsupported


class MpiAdapter(Adapter):
    """Measures the MPI library that mpi4py has loaded, on NumPy buffers, in place where MPI can."""

    def start(self) -> str:
        self._world = MPI.COMM_WORLD
        # The default handler ends the whole job on an unsupported datatype; we want the words.
        self._world.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank = self._world.Get_rank()
        self.world_size = self._world.Get_size()
        first_line = MPI.Get_library_version().replace("\0", "").strip().splitlines()[0]
        # "Open MPI v5.0.11, package: Open MPI user@host Distribution, ...": keep no host names.
        return " ".join(first_line.split(",")[0].split())

    def stop(self) -> None:
        MPI.Finalize()

    def barrier(self) -> None:
        self._world.Barrier()

    def _datatype(self, case: Case) -> Any:
        datatype = {
            "f32": MPI.FLOAT,
            "f16": getattr(MPI, "FLOAT16_T", MPI.DATATYPE_NULL),
            "bf16": getattr(MPI, "BFLOAT16_T", MPI.DATATYPE_NULL),
        }[case.dtype]
        if datatype != MPI.DATATYPE_NULL:
            return datatype
        if case.collective in REDUCING:
            raise Unsupported(f"this MPI has no {case.dtype} type to reduce")
        return MPI.UINT16_T  # moving data needs no arithmetic

    def bind(self, case: Case, source: Any, output: Any) -> Callable[[], object]:
        barrier: Callable[[], object] = self._world.Barrier
        world, name, rank = self._world, case.collective, self.rank
        datatype = self._datatype(case)
        mine, result = [source, datatype], [output, datatype]
        if name == "all_reduce":
            return lambda: world.Allreduce(MPI.IN_PLACE, mine)
        if name == "reduce":
            if rank == 0:
                return lambda: world.Reduce(MPI.IN_PLACE, mine)
            return lambda: world.Reduce(mine, None)
        if name == "broadcast":
            return lambda: world.Bcast(mine)
        if name == "all_gather":
            return lambda: world.Allgather(mine, result)
        if name == "reduce_scatter":
            return lambda: world.Reduce_scatter_block(mine, result)
        if name == "all_to_all":
            return lambda: world.Alltoall(mine, result)
        if name == "gather":
            gathered = result if rank == 0 else None
            return lambda: world.Gather(mine, gathered)
        if name == "scatter":
            scattered = mine if rank == 0 else None
            return lambda: world.Scatter(scattered, result)
        if name == "send_recv":
            return self._bind_ping_pong(mine)
        return barrier

    def _bind_ping_pong(self, message: list[Any]) -> Callable[[], object]:
        world = self._world

        def ping() -> None:
            world.Send(message, 1)
            world.Recv(message, 1)

        def pong() -> None:
            world.Recv(message, 0)
            world.Send(message, 0)

        return (ping, pong, lambda: None)[min(self.rank, 2)]
