# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What launchers that set one variable per process say: torchrun and the MPI family.

Each function returns a `Claim`, or `None` if its source is not complete in this environment.
Source: dataparallel specification, section 3.2, rows 1 to 4.
"""

from collections.abc import Mapping

from smdistributed._common.discovery import slurm
from smdistributed._common.discovery.membership import Claim
from smdistributed._common.discovery.variables import first_text, read_int

__all__ = ["mvapich_claim", "openmpi_claim", "pmi_claim", "torch_claim"]


def torch_claim(environ: Mapping[str, str]) -> Claim | None:
    """torchrun, `smddprun`, Ray Train, Lightning and others: `RANK` and `WORLD_SIZE`."""
    rank = read_int(environ, "RANK")
    world_size = read_int(environ, "WORLD_SIZE")
    if rank is None or world_size is None:
        return None
    node = first_text(environ, "NODE_RANK", "GROUP_RANK")
    return Claim(
        source="torch",
        title="the torch variables",
        rank_name="RANK",
        size_name="WORLD_SIZE",
        rank=rank,
        world_size=world_size,
        local_rank=read_int(environ, "LOCAL_RANK"),
        local_world_size=read_int(environ, "LOCAL_WORLD_SIZE"),
        node_rank=None if node is None else read_int(environ, node[0]),
        num_nodes=read_int(environ, "GROUP_WORLD_SIZE"),
        local_rank_name="LOCAL_RANK",
        local_size_name="LOCAL_WORLD_SIZE",
    )


def openmpi_claim(environ: Mapping[str, str]) -> Claim | None:
    """Open MPI's mpirun; the variables are still there in version 5."""
    return _mpi_claim(
        environ,
        source="openmpi",
        title="Open MPI",
        names=(
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
    )


def mvapich_claim(environ: Mapping[str, str]) -> Claim | None:
    """MVAPICH's mpirun_rsh."""
    return _mpi_claim(
        environ,
        source="mvapich",
        title="MVAPICH",
        names=(
            "MV2_COMM_WORLD_RANK",
            "MV2_COMM_WORLD_SIZE",
            "MV2_COMM_WORLD_LOCAL_RANK",
            "MV2_COMM_WORLD_LOCAL_SIZE",
        ),
    )


def pmi_claim(environ: Mapping[str, str]) -> Claim | None:
    """MPICH, Intel MPI, Cray; also a bare `PMIX_RANK`, which needs a size from elsewhere."""
    claim = _mpi_claim(
        environ,
        source="pmi",
        title="PMI",
        names=("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    )
    if claim is not None:
        return claim
    rank = read_int(environ, "PMIX_RANK")
    if rank is None:
        return None
    size_name, world_size = _size_for_pmix(environ)
    if world_size is None:
        return None
    return Claim(
        source="pmi",
        title="PMIx",
        rank_name="PMIX_RANK",
        size_name=size_name,
        rank=rank,
        world_size=world_size,
    )


def _size_for_pmix(environ: Mapping[str, str]) -> tuple[str, int | None]:
    size = read_int(environ, "OMPI_COMM_WORLD_SIZE")
    if size is not None:
        return "OMPI_COMM_WORLD_SIZE", size
    return slurm.step_size(environ)


def _mpi_claim(
    environ: Mapping[str, str], *, source: str, title: str, names: tuple[str, str, str, str]
) -> Claim | None:
    rank_name, size_name, local_rank_name, local_size_name = names
    rank = read_int(environ, rank_name)
    world_size = read_int(environ, size_name)
    if rank is None or world_size is None:
        return None
    return Claim(
        source=source,
        title=title,
        rank_name=rank_name,
        size_name=size_name,
        rank=rank,
        world_size=world_size,
        local_rank=read_int(environ, local_rank_name),
        local_world_size=read_int(environ, local_size_name),
        local_rank_name=local_rank_name,
        local_size_name=local_size_name,
    )
