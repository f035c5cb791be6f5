# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Classic mistakes, and what every rank is told: who, where, in which operation, and what to do.

The texts are shown in docs/troubleshooting.md.

Source: our choice; dataparallel specification, section 9, for the classes.
"""

from __future__ import annotations

import dataclasses
import re
import socket
from pathlib import Path

import pytest
from harness import RankOutcome, run_ranks
from wrong_usage_ranks import MISTAKES, ODD, STARTS, calls_in_a_group_it_is_not_in, make

WORLD_SIZE = 3
DEADLINE_S = 90


@dataclasses.dataclass(frozen=True)
class Told:
    """What must be read.

    Attributes:
        error: class on the ranks that are told.
        parts: of the text, each; the last ones say what to do.
        ranks: that are told; the others may be through, or gone.
        is_own: a rank reads of its own call; there is no other rank to name.
    """

    error: str
    parts: tuple[str, ...]
    ranks: tuple[int, ...] = (0, 2)
    is_own: bool = False


MISMATCH = "SMDDPMismatch"
EXPECTED = {
    "uneven_batches": Told(
        "SMDDPTimeoutError",
        ("all_reduce #3", "waited", "in no operation of this group since all_reduce #2", "Join"),
    ),
    "early_exit": Told("SMDDPPeerLost", ("all_reduce #2", "died", "Read the log of rank 1 first")),
    "exception_on_one_rank": Told(
        "SMDDPPeerLost", ("all_reduce #2", "left the group", "Read the log of rank 1 first")
    ),
    "swapped_order": Told(
        MISMATCH,
        ("ranks 0, 2 called all_reduce", "rank 1 called broadcast", "branch that depends on"),
        (0, 1, 2),
    ),
    "other_dtype": Told(
        MISMATCH, ("rank 1 called all_reduce (SUM, float16", "Look for a conversion"), (0, 1, 2)
    ),
    "other_shape": Told(
        MISMATCH, ("rank 1 called all_reduce (SUM, float32 x 7)", "uneven length"), (0, 1, 2)
    ),
    "other_reduce_op": Told(
        MISMATCH, ("rank 1 called all_reduce (MAX", "`op` that depends on the rank"), (0, 1, 2)
    ),
    "different_roots": Told(
        MISMATCH, ("rank 1 called broadcast", "root 1", "Pass a constant root rank"), (0, 1, 2)
    ),
    "validation_on_one_rank": Told(
        MISMATCH,
        ("operation #2", "rank 1 called all_reduce (SUM, float32 x 1)", "depends on the rank"),
        (0, 1, 2),
    ),
    "branch_into_another_group": Told(
        "SMDDPTimeoutError",
        ("rank 1", "waits in another operation", "waits in all_reduce #1 (SUM, float32 x 2) of"),
        (0, 2),
    ),
    "call_after_destroy": Told(
        "SMDDPConfigInvalid", ("is closed", "close it after its last use"), (0, 1, 2), is_own=True
    ),
    "message_nobody_receives": Told(
        "SMDDPTimeoutError",
        (
            "recv from rank 0 (float32 x 3, tag 2)",
            "its last message was send to rank 1 (float32 x 3, tag 1)",
            "compare peers and tags",
        ),
        (ODD,),
    ),
    "object_that_cannot_be_pickled": Told(
        "SMDDPTimeoutError", ("broadcast #1", "not seen in any collective yet", "same order")
    ),
    "init_twice": Told("ValueError", ("process group twice",), (0, 1, 2), is_own=True),
    "tensor_without_memory": Told(
        "SMDDPConfigInvalid", ("meta tensor", "Materialise it first"), (0, 1, 2), is_own=True
    ),
    "output_of_another_size": Told(
        "SMDDPConfigInvalid", ("they hold 8 and 4", "Allocate 12 elements"), (0, 1, 2), is_own=True
    ),
    "other_world_size": Told(
        "SMDDPConfigInvalid",
        ("rank 1 was started as one of 4 ranks", "rank 0 as one of 3", "Correct WORLD_SIZE"),
        (0, 1, 2),
        is_own=True,
    ),
    "rank_given_twice": Told(
        "SMDDPTimeoutError", ("ranks [1] of 3 did not come", "Look at their logs"), (0, 2), True
    ),
    "rank_out_of_range": Told(
        "SMDDPConfigInvalid",
        ("RANK=3 is out of range for WORLD_SIZE=3", "let the launcher set them"),
        (ODD,),
        is_own=True,
    ),
    "other_master_port": Told(  # torch's own text, before there is a group
        "DistNetworkError", ("trying to connect to (127.0.0.1, 1)",), (ODD,), is_own=True
    ),
}
# What happens before there is a group, or on one rank alone, does not depend on the transport.
CASES = [
    (mistake, transport)
    for mistake, told in EXPECTED.items()
    for transport in (("shm",) if told.is_own else ("shm", "tcp"))
]


def test_every_mistake_has_its_expectation() -> None:
    assert EXPECTED.keys() == {**MISTAKES, **STARTS}.keys()


def test_a_group_that_this_rank_is_not_in_is_left_alone() -> None:
    """A warning is torch's own answer, and nothing is done."""
    found = run_ranks(calls_in_a_group_it_is_not_in, WORLD_SIZE)
    for rank, (values, warned) in enumerate(found):
        assert values == ([1.0, 1.0] if rank == ODD else [2.0, 2.0])
        named = [text for text in warned if "rank 1 which does not belong to the given" in text]
        assert len(named) == (rank == ODD), warned


@pytest.mark.parametrize(("mistake", "transport"), CASES)
def test_the_text_says_who_where_and_what_to_do(
    mistake: str, transport: str, tmp_path: Path
) -> None:
    expected = EXPECTED[mistake]
    outcomes: list[RankOutcome] = run_ranks(
        make,
        WORLD_SIZE,
        mistake,
        str(tmp_path),
        expected.ranks,
        env={"SMDDP_TRANSPORT": transport},
        check=False,
        deadline_s=DEADLINE_S,
    )
    texts = set()
    for rank in expected.ranks:
        outcome = outcomes[rank]
        assert outcome.ok, outcome.output
        assert outcome.value is not None, f"rank {rank} was told nothing"
        error, text = outcome.value
        assert error == expected.error, text
        for part in expected.parts:
            if transport == "tcp":  # all that shows is how the connection ended
                part = {"died": "closed", "left the group": "left: it closed"}.get(part, part)
            assert part in text, text
        if not expected.is_own:
            assert "rank 1" in text, text
            assert f"host {socket.gethostname()}" in text, text
        texts.add(re.sub(r"^.*?'\): ", "", text, flags=re.DOTALL))
    if expected.error == MISMATCH:
        assert len(texts) == 1, "every rank raises the same text"
