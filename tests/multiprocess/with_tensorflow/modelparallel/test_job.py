# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The job of model parallelism with TensorFlow: init(), ranks, groups, objects between ranks.

Source: TensorFlow modelparallel specification, sections 2 and 5.6.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).with_name("job_ranks.py"))

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize(
    ("ranks", "legacy_keras"),
    [(1, "0"), (2, "1"), (4, "0")],
    ids=["1-keras-3", "2-tf-keras", "4-keras-3"],
)
@pytest.mark.parametrize("name", CHECKS.names)
def test_job(name: str, ranks: int, legacy_keras: str) -> None:
    CHECKS.require(name, ranks, TF_USE_LEGACY_KERAS=legacy_keras)
