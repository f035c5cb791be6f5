# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""docs/model_parallel.md leaves out no name of the API and no key of the configuration."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.decide.config import Config

GUIDE = Path(__file__).resolve().parents[4] / "docs" / "model_parallel.md"


@pytest.fixture(scope="module")
def guide() -> str:
    return GUIDE.read_text(encoding="utf-8")


def test_every_name_of_the_api_is_in_the_guide(guide: str) -> None:
    table = guide.partition("\n## The API\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"smp\.(\w+)", table))
    assert set(smp.__all__) <= named
    assert {name for name in named if not hasattr(smp, name)} == set()


def test_every_key_of_the_configuration_is_in_the_guide(guide: str) -> None:
    section = guide.partition("\n## The configuration\n")[2]
    named = set(re.findall(r"`(\w+)`", section))
    keys = {field.name for field in dataclasses.fields(Config) if "check" in field.metadata}
    assert keys <= named
    assert "partitions" in named


def test_every_link_of_the_guide_leads_somewhere(guide: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", guide)
    assert len(targets) > 5
    missing = [target for target in targets if not (GUIDE.parent / target).exists()]
    assert missing == []
