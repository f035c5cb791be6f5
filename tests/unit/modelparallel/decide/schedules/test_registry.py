# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The registry of schedules, and that the guide names each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.schedules import PIPELINES, SCHEDULES, schedule_named
from smdistributed.modelparallel.decide.schedules.simple import Simple

GUIDE = Path(__file__).resolve().parents[5] / "docs" / "model_parallel.md"


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_made_by_its_name(name: str) -> None:
    schedule = schedule_named(name, 8, 3)
    assert schedule.name == name
    assert schedule.microbatches == 8
    assert 1 <= schedule.bound <= 8
    assert Config.parse({"pipeline": name}, {}).pipeline == name


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_guide_names_each(name: str) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    section = text.partition("\n## Microbatches, and the bubble\n")[2].partition("\n## ")[0]
    assert f"\n- **{name}**" in section
    (row,) = re.findall(r"\n\| `pipeline` \|.*", text)
    assert f"`{name}`" in row


def test_a_name_of_the_original_means_a_schedule_of_ours() -> None:
    assert schedule_named("_only_forward", 4, 2) == Simple(4, 2)
    assert set(PIPELINES) == {*SCHEDULES, "_only_forward"}


def test_a_name_that_is_none_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigurationError, match="'zero_bubble'; expected one of interleaved, s"):
        schedule_named("zero_bubble", 4, 2)
