# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Two architectures of the table, quick ones: `make architectures` trains them all."""

from __future__ import annotations

import pytest
from harness import run_ranks
from preloaded import Preload

from tests.architectures import ranks

DEADLINE_S = 60.0


@pytest.mark.parametrize("name", ["qwen2-moe", "t5"])
def test_an_architecture_trains_over_two_ranks_as_in_one_process(name: str) -> None:
    results = run_ranks(ranks.compare, 2, name, deadline_s=DEADLINE_S, preload=Preload.TRAINERS)
    total = sum(found["local_bytes"] for found in results)
    for found in results:
        assert not found["error"]
        assert not found["wrong"]
        assert found["local_bytes"] > 0.3 * total
