# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What `smp.init()` compares between ranks, and who says what (specification, section 1.1)."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import pytest

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.topology import Topology
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.job.agreement import (
    check_equal,
    comparable,
    tell,
    tell_of_another_call,
)
from smdistributed.modelparallel.job.state import BaseJob

# Of all parameters those that a rank may have to itself, and what is not a parameter.
NOT_COMPARED = {"partition_file", "unknown", "notices"}


def of(framework: Any = "torch", **parameters: Any) -> dict[str, str]:
    """As it travels: as JSON."""
    config = Config.parse(parameters, {}, framework)
    copy: dict[str, str] = json.loads(json.dumps(comparable(config)))
    return copy


def test_every_parameter_is_compared() -> None:
    names = {field.name for field in dataclasses.fields(Config)}
    assert set(of()) == names - NOT_COMPARED


def test_a_rank_may_have_files_and_notices_of_its_own() -> None:
    check_equal([of(), of(partition_file="a", of_the_script=1), of(fp16_params=False)])
    check_equal([of()])


@pytest.mark.parametrize("odd", [1, 2, 3])
def test_the_rank_that_differs_is_named_with_both_values(odd: int) -> None:
    parameters = (
        [of(microbatches=4)] * odd + [of(microbatches=2)] + [of(microbatches=4)] * (3 - odd)
    )
    words = rf"microbatches is 2 on rank {odd}, and 4 on rank 0; expected the same on all ranks\."
    with pytest.raises(ConfigError, match=words):
        check_equal(parameters)


def test_ranks_of_two_frameworks_differ() -> None:
    with pytest.raises(ConfigError, match=r"framework is 'tensorflow' on rank 1, and 'torch' on"):
        check_equal([of(memory_weight=0.5), of("tensorflow", memory_weight=0.5)])


def test_a_parameter_that_one_rank_leaves_out_differs() -> None:
    with pytest.raises(ConfigError, match=r"default_partition is 1 on rank 1, and None on rank 0"):
        check_equal([of(partitions=2), of(partitions=2, default_partition=1)])


def a_job(rank: int, **parameters: Any) -> BaseJob:
    config = Config.parse({"ddp": True, **parameters}, {})
    return BaseJob(config=config, topology=Topology(2, 1), rank=rank, local_rank=rank, local_size=2)


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_speaks_for_all(rank: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tell(a_job(rank, of_the_script="x"))
    tell_of_another_call(rank, {"microbatches": 2}, "call it once.")
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    if rank:
        assert not told
        return
    assert told[0] == "Configuration parameters:"
    assert "  of_the_script: x" in told
    assert any("of_the_script is no parameter of this library" in line for line in told)
    assert told[-1] == (
        "smp.init() was called again: initialized already, ignoring this call and its configuration"
        " {'microbatches': 2}. The first one counts: call it once."
    )
