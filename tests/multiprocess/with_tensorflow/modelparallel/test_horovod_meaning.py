# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""In a job of model parallelism `hvd.*` means the replicas, or is an error; never all ranks.

Source: TensorFlow modelparallel specification, section 7.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).with_name("horovod_meaning_ranks.py"))

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", CHECKS.names)
def test_meaning(name: str, ranks: int) -> None:
    CHECKS.require(name, ranks)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS.names)
def test_meaning_in_tf_keras(name: str) -> None:
    CHECKS.require(name, 4, TF_USE_LEGACY_KERAS="1")
