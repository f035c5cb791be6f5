# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What Keras does with whole models, and what a model has that is cut.

Source: TensorFlow modelparallel specification, sections 3.4 and 5.4.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).with_name("whole_model_ranks.py"))

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("legacy_keras", ["0", "1"], ids=["keras-3", "tf-keras"])
@pytest.mark.parametrize("name", CHECKS.names)
def test_whole_model(name: str, legacy_keras: str) -> None:
    CHECKS.require(name, 2, TF_USE_LEGACY_KERAS=legacy_keras)
