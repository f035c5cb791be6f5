# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of unknown size between processes: bodies in place, waits, and who goes meanwhile.

Order, sizes and memory are tested in `tests/native/engine/messages/messages_test.cc`.

Source: `post_message` and `next_message` of `_native.Communicator`; docs/architecture.md.
"""

from __future__ import annotations

import message_ranks
import pytest
from harness import RankOutcome, run_ranks, run_script
from message_ranks import (
    is_interrupted,
    loses_a_peer,
    refuses_nonsense,
    uses_bodies_in_place,
    waits_for_as_long_as_it_says,
)

# Ranks that truly run at the same time, with all processors to themselves.
pytestmark = pytest.mark.quiet

TRANSPORTS = ("shm", "tcp")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("world_size", [2, 3])
def test_arrays_are_views_of_a_message(transport: str, world_size: int) -> None:
    run_ranks(uses_bodies_in_place, world_size, env={"SMDDP_TRANSPORT": transport})


@pytest.mark.parametrize("world_size", [1, 2])
def test_what_cannot_be_is_refused(world_size: int) -> None:
    for errors in run_ranks(refuses_nonsense, world_size):
        for told in errors:
            assert told.type_name == "ConfigurationError", told
            assert "Check the rank arithmetic" in told.text


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_wait_ends_in_time_and_lets_others_run(transport: str) -> None:
    run_ranks(waits_for_as_long_as_it_says, 2, env={"SMDDP_TRANSPORT": transport})


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_interruption_harms_nothing(transport: str) -> None:
    run_ranks(is_interrupted, 2, env={"SMDDP_TRANSPORT": transport})


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_that_dies_ends_a_wait_after_its_messages(transport: str) -> None:
    outcomes: list[RankOutcome] = run_ranks(
        loses_a_peer, 3, env={"SMDDP_TRANSPORT": transport}, check=False
    )
    for outcome in outcomes[1:]:
        assert outcome.ok, outcome
        taken, next_told, post_told = outcome.value
        assert taken == 40
        for told in (next_told, post_told):
            assert told.type_name == "PeerLostError", told
            assert "rank 0 (host " in told.text


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_interpreter_may_end_at_any_time(transport: str) -> None:
    outcomes = run_script([message_ranks.__file__], 2, env={"SMDDP_TRANSPORT": transport})
    assert all("Error" not in outcome.output for outcome in outcomes), outcomes
