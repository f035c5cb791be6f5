# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who am I? The precedence of sources, and what to do when they disagree.

    #  source             wins if complete, except
    1  torch variables    without LOCAL_RANK it loses to 2-4 when they disagree: pod operators set
                          RANK and WORLD_SIZE per host, not per process
    2  Open MPI
    3  MVAPICH
    4  PMI, PMIx
    5  Ray Train          only if ray is already imported
    6  Slurm step         not inside an sbatch script or a salloc shell
    7  SageMaker hosts    one process per host
    8  none               a single process

A field on which the winner is silent is filled from a later source that means the same process,
that is, one that agrees on rank and world size.

Source: dataparallel specification, section 3.2.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence

from smdistributed._common.discovery import address, launchers, ray, sagemaker, slurm
from smdistributed._common.discovery.membership import Claim, Membership
from smdistributed._common.errors import ConfigurationError

__all__ = ["discover"]

_MPI_SOURCES = ("openmpi", "mvapich", "pmi")

# SageMaker lists hosts, not processes: its count may differ from the world size for good reason.
_COUNTS_PROCESSES = ("torch", *_MPI_SOURCES, "ray", "slurm")

_NOBODY = Claim(
    source="none",
    title="nothing",
    rank_name="RANK",
    size_name="WORLD_SIZE",
    rank=0,
    world_size=1,
    local_rank=0,
    local_world_size=1,
    node_rank=0,
    num_nodes=1,
)


def discover(
    environ: Mapping[str, str] | None = None,
    *,
    find_ray_context: ray.RayContextFinder = ray.live_ray_context,
    read_resource_config: sagemaker.ResourceConfigReader = sagemaker.read_resource_config,
    broadcast_host: address.HostBroadcast | None = None,
) -> Membership:
    """Finds the place of this process in its job.

    Pure: everything it looks at is an argument, and it changes nothing. See `export_membership`.

    Args:
        environ: the environment; default: that of this process.
        find_ray_context: returns the live Ray Train context, or `None`.
        read_resource_config: returns the text of SageMaker's resourceconfig.json, or `None`.
        broadcast_host: for MPI jobs over several hosts that nothing else gives an address: returns
            the host of rank 0, asked for through MPI. Collective over all ranks of the job.

    Returns:
        The membership; its local and node fields may be `None`, see `complete_membership`.

    Raises:
        ConfigurationError: a variable of the winning source is not an integer or out of range; the
            text names variable and value.
    """
    if environ is None:
        environ = os.environ
    readers: Sequence[Callable[[], Claim | None]] = (
        lambda: launchers.torch_claim(environ),
        lambda: launchers.openmpi_claim(environ),
        lambda: launchers.mvapich_claim(environ),
        lambda: launchers.pmi_claim(environ),
        lambda: ray.ray_claim(find_ray_context),
        lambda: slurm.slurm_claim(environ),
        lambda: sagemaker.sagemaker_claim(environ, read_resource_config),
    )
    claims, warnings = _read_claims(readers)
    winner, overruled = _choose(claims)
    if overruled is not None:
        warnings.append(
            f"RANK={overruled.rank} and WORLD_SIZE={overruled.world_size} are set without "
            f"LOCAL_RANK and look as if they counted hosts; {winner.title} says rank {winner.rank} "
            f"of {winner.world_size}, which is used instead"
        )
    else:
        warnings += _disagreements(winner, claims)
    filled = _fill(winner, claims)
    if filled.source != "sagemaker":
        filled = _fill_node_from_sagemaker(filled, environ, read_resource_config)
    by_source = {claim.source: claim for claim in claims}
    return Membership(
        rank=filled.rank,
        world_size=filled.world_size,
        local_rank=filled.local_rank,
        local_world_size=filled.local_world_size,
        node_rank=filled.node_rank,
        num_nodes=filled.num_nodes,
        master_addr=address.master_address(
            environ,
            filled,
            slurm_step=by_source.get("slurm"),
            is_mpi=any(source in by_source for source in _MPI_SOURCES),
            read_resource_config=read_resource_config,
            broadcast_host=broadcast_host,
        ),
        master_port=address.master_port(environ, filled),
        source=filled.source,
        warnings=tuple(warnings),
        overrules_torch=overruled is not None,
    )


def _read_claims(
    readers: Sequence[Callable[[], Claim | None]],
) -> tuple[list[Claim], list[str]]:
    """Reads all sources in order; a malformed source matters only while nothing better is found."""
    claims: list[Claim] = []
    warnings: list[str] = []
    for read in readers:
        try:
            claim = read()
        except ConfigurationError as error:
            if not claims:
                raise
            warnings.append(f"ignored, as {claims[0].title} came first: {error}")
            continue
        if claim is not None:
            claims.append(claim)
    return claims, warnings


def _choose(claims: Sequence[Claim]) -> tuple[Claim, Claim | None]:
    """Returns the claim to follow, and the torch claim if it was complete but overruled."""
    if not claims:
        return _NOBODY, None
    first = claims[0]
    if first.source == "torch" and first.local_rank is None:
        for other in claims:
            if other.source in _MPI_SOURCES and not other.describes_same_process_as(first):
                return other, first
    return first, None


def _disagreements(winner: Claim, claims: Sequence[Claim]) -> list[str]:
    others = [
        f"{claim.title} says {claim.world_size} ({claim.size_name})"
        for claim in claims
        if claim.source in _COUNTS_PROCESSES and claim.world_size != winner.world_size
    ]
    if not others or winner.source not in _COUNTS_PROCESSES:
        return []
    warning = (
        f"sources disagree on the world size: {winner.title} says {winner.world_size} "
        f"({winner.size_name}), {', '.join(others)}; {winner.title} is followed"
    )
    return [warning]


def _fill(winner: Claim, claims: Sequence[Claim]) -> Claim:
    """Fills what the winner left open from later sources that mean the same process."""
    filled = winner
    for claim in claims:
        if claim is winner or not claim.describes_same_process_as(winner):
            continue
        # SageMaker's "one process per host" is an assumption for want of better, not a fact.
        if claim.source == "sagemaker":
            continue
        missing = {
            name: getattr(claim, name)
            for name in ("local_rank", "local_world_size", "node_rank", "num_nodes")
            if getattr(filled, name) is None and getattr(claim, name) is not None
        }
        # A later source that cannot be right here (its local size is below our local rank) adds
        # nothing; the winner alone is sound.
        with contextlib.suppress(ConfigurationError):
            filled = dataclasses.replace(filled, **missing)
    if filled.local_world_size == filled.world_size:
        # One host holds all ranks; then the rank within the host is the rank.
        filled = dataclasses.replace(
            filled,
            local_rank=filled.rank if filled.local_rank is None else filled.local_rank,
            node_rank=0 if filled.node_rank is None else filled.node_rank,
            num_nodes=1 if filled.num_nodes is None else filled.num_nodes,
        )
    return filled


def _fill_node_from_sagemaker(
    claim: Claim, environ: Mapping[str, str], read_resource_config: sagemaker.ResourceConfigReader
) -> Claim:
    if not sagemaker.is_sagemaker(environ):
        return claim
    try:
        hosts = sagemaker.distribution_hosts(environ, read_resource_config)
        host = sagemaker.current_host(environ, read_resource_config)
    except ConfigurationError:
        # Already reported as an ignored source; the host index can also come from the rendezvous.
        return claim
    if not hosts or host not in hosts:
        return claim
    return dataclasses.replace(
        claim,
        node_rank=hosts.index(host) if claim.node_rank is None else claim.node_rank,
        num_nodes=len(hosts) if claim.num_nodes is None else claim.num_nodes,
    )
