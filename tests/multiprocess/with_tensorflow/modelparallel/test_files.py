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


MOUNTED = "check_a_directory_that_cannot_be_renamed_is_written_into"
ALONE = [name for name in CHECKS.names if name != MOUNTED]


@pytest.mark.parametrize("name", ALONE)
def test_files(name: str) -> None:
    CHECKS.require(name, 1, ALONE)


def test_a_mounted_disk(tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk", "size=4m") as disk:
        CHECKS.require(MOUNTED, 1, [MOUNTED], TEST_DISK=str(disk))
