# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Files and folders that are replaced, in one process.

Source: TensorFlow modelparallel specification, section 5.5.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks
from tests.small_disks import mounted_disk

CHECKS = Checks(Path(__file__).parent / "file_ranks.py")

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


CALL_THAT_FAILS = "check_a_call_that_fails"
ON_A_DISK = (
    "check_a_directory_that_cannot_be_renamed_is_written_into",
    "check_folders_that_are_mounted",
    CALL_THAT_FAILS,
)
ALONE = [name for name in CHECKS.names if name not in ON_A_DISK]


@pytest.mark.parametrize("name", ALONE)
def test_files(name: str) -> None:
    CHECKS.require(name, 1, ALONE)


@pytest.mark.parametrize("name", ON_A_DISK)
def test_a_mounted_disk(name: str, tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk", "size=4m") as disk:
        CHECKS.require(name, 1, [name], TEST_DISK=str(disk))


@pytest.mark.slow
def test_each_call_that_fails(tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk", "size=4m") as disk:
        env = {"TEST_DISK": str(disk), "TEST_EVERY": "1"}
        CHECKS.require(CALL_THAT_FAILS, 1, [CALL_THAT_FAILS], **env)
