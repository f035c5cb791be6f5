# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which job is this? What a launcher says about the job as a whole, the same on all of its ranks.

Ranks of two jobs that meet at one address and port could form one group. The job's identity tells
them apart. It is no secret, and protects from accidents only: against strangers there is the token
(docs/security.md).

Only what has started the ranks is asked: ranks that are started by hand from two steps of one Slurm
job, say, are one job, whatever the variables of the steps say.
"""

from collections.abc import Mapping

from smdistributed._common.discovery.variables import first_text, read_text

__all__ = ["RUN_ID", "job_identity"]

RUN_ID = "SMDDP_RUN_ID"
"""`smddprun` sets it to random text; under other launchers users may set it."""

_BY_SOURCE = {
    "openmpi": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    "pmi": ("PMIX_NAMESPACE", "PMI_JOBID", "PALS_APID"),
}


def job_identity(environ: Mapping[str, str], source: str) -> str | None:
    """Returns the variables that identify the job with their values, or `None` if nothing does.

    Args:
        environ: the environment to read.
        source: of this process's membership, see `Membership.source`.
    """
    run = read_text(environ, RUN_ID)
    if run is not None:
        return f"{RUN_ID}={run}"
    if source == "torch":
        # torchrun calls every job "none" whose user has given it no name.
        name = read_text(environ, "TORCHELASTIC_RUN_ID")
        return None if name in (None, "none") else f"TORCHELASTIC_RUN_ID={name}"
    if source == "slurm":
        job = first_text(environ, "SLURM_JOB_ID", "SLURM_JOBID")
        step = read_text(environ, "SLURM_STEP_ID")
        return None if job is None else f"SLURM_JOB_ID={job[1]} SLURM_STEP_ID={step}"
    found = first_text(environ, *_BY_SOURCE.get(source, ()))
    return None if found is None else "=".join(found)
