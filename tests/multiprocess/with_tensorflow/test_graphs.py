# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Operations in graphs: their gradients, however taken; graphs are freed, and are not saved.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks("graph_ranks.py")

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("name", CHECKS.names)
def test_graphs(name: str) -> None:
    CHECKS.require(name, 2)


@pytest.mark.parametrize("name", CHECKS.names)
def test_graphs_of_tf_keras_and_python_functions(name: str) -> None:
    CHECKS.require(name, 2, TF_USE_LEGACY_KERAS="1", SMDDP_TF_OPERATIONS="python")
