# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of Keras 3 made of several: distributed as a whole, or in their parts.

Source: dataparallel specification, sections 6.3 and 7.7.
"""

from __future__ import annotations

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks("nested_optimizer_ranks.py")

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("name", CHECKS.names)
def test_optimizers_of_several(name: str) -> None:
    CHECKS.require(name, 2)
