# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks whose calls do not match all hear of it, with both sides of the difference.

Source: Communicator's docstring.
"""

from __future__ import annotations

import pytest
from disagreement_ranks import DISAGREEMENTS, disagree, message_of_the_wrong_size
from engine_ranks import Heard
from harness import run_ranks

TRANSPORTS = ("shm", "tcp")
WORLD_SIZE = 3


def reason(told: Heard) -> str:
    """The text without the prefix that names the rank it was raised on."""
    _, found, text = told.text.partition("'): ")
    assert found, told.text
    return text


@pytest.mark.parametrize("count", [5, 300_007], ids=["small", "large"])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("how", DISAGREEMENTS)
def test_ranks_that_disagree_all_hear_of_it(how: str, transport: str, count: int) -> None:
    heard_by_rank = run_ranks(
        disagree, WORLD_SIZE, how, count, env={"SMDDP_TRANSPORT": transport}, deadline_s=40
    )
    for first, second in heard_by_rank:
        assert first.type_name == "MismatchError", first
        assert "RuntimeError" in first.bases
        assert "rank 1" in first.text, first.text
        assert "Expected: " in first.text, first.text
        assert reason(second) == reason(first), "the first error stays"
    # Over TCP, what does not fit between one sender and one receiver is told by the receiver.
    if transport == "shm" or how not in ("split sizes", "gather sizes", "scatter sizes"):
        assert len({reason(first) for first, _ in heard_by_rank}) == 1, heard_by_rank


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_message_of_the_wrong_size_concerns_its_receiver_only(transport: str) -> None:
    _, told, _ = run_ranks(
        message_of_the_wrong_size, WORLD_SIZE, env={"SMDDP_TRANSPORT": transport}
    )
    assert told.type_name == "MismatchError"
    assert "float32 x 5" in told.text
    assert "float32 x 4" in told.text
