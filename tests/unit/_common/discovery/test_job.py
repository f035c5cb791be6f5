# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What tells one job from another, by launcher."""

import pytest

from smdistributed._common.discovery.job import job_identity

SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3"}


@pytest.mark.parametrize(
    ("environ", "source", "identity"),
    [
        ({}, "torch", None),
        ({"TORCHELASTIC_RUN_ID": "job7"}, "torch", "TORCHELASTIC_RUN_ID=job7"),
        # What torchrun calls every job that has been given no name.
        ({"TORCHELASTIC_RUN_ID": "none"}, "torch", None),
        ({"PMIX_NAMESPACE": "prterun-a-1@1"}, "openmpi", "PMIX_NAMESPACE=prterun-a-1@1"),
        ({"OMPI_MCA_ess_base_jobid": "9"}, "openmpi", "OMPI_MCA_ess_base_jobid=9"),
        ({"PMI_JOBID": "9"}, "pmi", "PMI_JOBID=9"),
        (SLURM, "slurm", "SLURM_JOB_ID=77 SLURM_STEP_ID=3"),
        # Ranks started by hand in two steps of one Slurm job are one job.
        (SLURM, "torch", None),
        (SLURM, "none", None),
        (SLURM | {"SMDDP_RUN_ID": "mine"}, "slurm", "SMDDP_RUN_ID=mine"),
        ({"SMDDP_RUN_ID": "mine", "TORCHELASTIC_RUN_ID": "x"}, "torch", "SMDDP_RUN_ID=mine"),
    ],
)
def test_identities(environ: dict[str, str], source: str, identity: str | None) -> None:
    assert job_identity(environ, source) == identity
