# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a job meet: rendezvous address and port.

Every rank must come to the same answer on its own, so only values that are the same on all ranks
are used. Source: dataparallel specification, section 3.3.
"""

import hashlib
from collections.abc import Callable, Mapping

from smdistributed._common.discovery import sagemaker, slurm
from smdistributed._common.discovery.membership import Claim
from smdistributed._common.discovery.variables import first_text, read_port, read_text

__all__ = ["DEFAULT_PORT", "HostBroadcast", "master_address", "master_port"]

# The port of the SageMaker container contract.
DEFAULT_PORT = 7777

# Below the ephemeral range of Linux (from 32768) and below Kubernetes node ports (from 30000), so
# that an outgoing connection cannot already hold the port that a job id leads to.
_FIRST_DERIVED_PORT = 15000
_NUM_DERIVED_PORTS = 15000

_LOOPBACK = "127.0.0.1"

# Called by every rank of an MPI job; returns the host name of rank 0, or None if it cannot.
HostBroadcast = Callable[[], str | None]

# Identifiers that a scheduler or launcher gives to a job as a whole, the same on all of its ranks.
# Ordered from the narrowest: two mpirun jobs in one Slurm allocation share SLURM_JOB_ID.
_MPI_JOB_NAMES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PALS_APID")
_OTHER_LAUNCHERS = ("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "RANK")
_SCHEDULER_JOB_NAMES = ("PBS_JOBID", "LSB_JOBID", "JOB_ID", "FLUX_JOB_ID")


def master_address(
    environ: Mapping[str, str],
    claim: Claim,
    *,
    slurm_step: Claim | None,
    is_mpi: bool,
    read_resource_config: sagemaker.ResourceConfigReader,
    broadcast_host: HostBroadcast | None,
) -> str | None:
    """Returns the rendezvous host, or `None` if nothing tells.

    Args:
        environ: the environment to read.
        claim: the place of this process, with the local size filled in where any source knew it.
        slurm_step: what Slurm says, if this process belongs to a step.
        is_mpi: an MPI launcher started the process.
        read_resource_config: reads SageMaker's resource configuration file.
        broadcast_host: asks rank 0 for its host through MPI; called by all ranks or by none.
    """
    given = first_text(environ, "MASTER_ADDR", "SMDATAPARALLEL_SERVER_ADDR")
    if given is not None:
        return given[1]
    # Ranks of one host need no name, and the name of a container often has no address.
    if claim.local_world_size == claim.world_size:
        return _LOOPBACK
    if claim.source == "sagemaker" or sagemaker.is_sagemaker(environ):
        hosts = sagemaker.distribution_hosts(environ, read_resource_config)
        if hosts:
            return _LOOPBACK if len(hosts) == 1 else hosts[0]
    # The step counts only if its tasks are our ranks. An MPI daemon that srun started on all hosts
    # but the first one would otherwise lead its ranks to the second host of the job.
    if slurm_step is not None and slurm_step.describes_same_process_as(claim):
        host = slurm.master_host(environ)
        if host is not None:
            return host
    if is_mpi and broadcast_host is not None:
        return broadcast_host()
    return None


def master_port(environ: Mapping[str, str], claim: Claim) -> int | None:
    """Returns the rendezvous port; `None` (any free one) only for a process without a job.

    Raises:
        ConfigurationError: a given port is not an integer from 1 to 65535.
    """
    given = read_port(environ, "MASTER_PORT")
    if given is not None and read_text(environ, "TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun listens there itself, for torch. What is derived from it is as good as its own.
        return _derived_port(f"torchrun={read_text(environ, 'TORCHELASTIC_RUN_ID')}:{given}")
    if given is None:
        given = read_port(environ, "SMDATAPARALLEL_SERVER_PORT")
    if given is not None:
        return given
    if claim.source == "none":
        return None
    if claim.source == "sagemaker" or sagemaker.is_sagemaker(environ):
        return DEFAULT_PORT
    job = _job_identifier(environ)
    if job is None:
        return DEFAULT_PORT
    return _derived_port(job)


def _derived_port(job: str) -> int:
    digest = hashlib.sha256(job.encode()).digest()
    return _FIRST_DERIVED_PORT + int.from_bytes(digest[:4], "big") % _NUM_DERIVED_PORTS


def _job_identifier(environ: Mapping[str, str]) -> str | None:
    found = first_text(environ, *_MPI_JOB_NAMES)
    if found is not None:
        return "=".join(found)
    job = first_text(environ, "SLURM_JOB_ID", "SLURM_JOBID")
    if job is not None:
        # Two steps may run side by side in one allocation. The step is the same on all ranks only
        # if Slurm started the ranks, which is so exactly if no MPI launcher left its mark.
        if first_text(environ, *_OTHER_LAUNCHERS) is not None:
            return f"slurm={job[1]}"
        return f"slurm={job[1]}.{read_text(environ, 'SLURM_STEP_ID')}"
    found = first_text(environ, *_SCHEDULER_JOB_NAMES)
    return None if found is None else "=".join(found)
