# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks get of the environment that a job was started in, and of the GPUs."""

from __future__ import annotations

import pytest

from smdistributed.launch.agent import surroundings
from smdistributed.launch.environment import outside


def test_variables_of_another_job_stay_outside() -> None:
    kept = {
        "PATH": "/bin",
        "HOME": "/home/u",
        "SMDDP_CPU_SHIM": "full",
        "SMDDP_TRANSPORT": "tcp",
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "1",
        "RANKING": "x",
        "NCCL_DEBUG": "INFO",
    }
    dropped = dict.fromkeys(
        [
            "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG",
            "TORCHELASTIC_USE_AGENT_STORE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_SIZE",
            "MV2_COMM_WORLD_RANK", "SLURM_PROCID", "SM_HP_MP_PARAMETERS",
            "SM_HP_BATCH-SIZE", "SM_CHANNEL_TRAIN",
            "SMDATAPARALLEL_USE_HOMOGENEOUS", "SMDDP_TOKEN", "SMDDP_RUN_ID", "SAGEMAKER_BASE_DIR",
            "TRAINING_JOB_NAME", "SMD_ML_IS_MOUNTED",
        ],
        "1",
    )  # fmt: skip
    assert outside({**kept, **dropped}) == kept


@pytest.mark.parametrize(
    ("present", "given", "index", "num_hosts", "expected"),
    [
        (8, None, 0, 2, "0,1,2,3"),
        (8, None, 1, 2, "4,5,6,7"),
        (8, "2,5,GPU-x,7", 1, 2, "GPU-x,7"),
        (8, None, 0, 1, None),
        (1, None, 0, 2, None),
        (0, None, 1, 2, None),
        (3, None, 1, 2, "1"),
    ],
)
def test_hosts_of_one_machine_share_its_gpus(
    monkeypatch: pytest.MonkeyPatch,
    present: int,
    given: str | None,
    index: int,
    num_hosts: int,
    expected: str | None,
) -> None:
    count = min(present, len(given.split(","))) if given else present
    monkeypatch.setattr(surroundings, "visible_accelerators", lambda _: count)
    environ = {} if given is None else {"CUDA_VISIBLE_DEVICES": given}
    assert surroundings._share_of(environ, index, num_hosts) == expected
