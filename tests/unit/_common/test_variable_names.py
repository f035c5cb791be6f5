# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Misspelt variables are told, and no variable that is read anywhere is called misspelt."""

import logging
import re
from pathlib import Path

import pytest

from smdistributed._common import settings
from smdistributed._common.variable_names import KNOWN, unknown_variables

_ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("SMDDP_TIMEOUT_SECOND", "expected SMDDP_TIMEOUT_SECONDS?"),
        ("SMDDP_ZEROCOPY", "expected SMDDP_ZERO_COPY?"),
        ("SMP_REPORTS", "expected SMP_REPORT?"),
        ("SMP_QQQQQQQQQQQQQQQQQQ", "docs/environment.md"),
    ],
)
def test_a_misspelt_name_gets_the_nearest_known_one(name: str, advice: str) -> None:
    (sentence,) = unknown_variables([name, "SMDDP_TRANSPORT", "PATH", "SM_HOSTS"])
    assert f"variable {name} is unknown and has no effect" in sentence
    assert advice in sentence


def test_what_the_original_documents_is_known() -> None:
    assert not unknown_variables(["SMP_DISABLE_D2D", "SMDDP_AG_SORT_BUFFER_SIZE_BYTES"])


def test_every_variable_in_the_sources_is_known() -> None:
    sources = [
        path
        for folder, endings in (("src", ("*.py",)), ("native", ("*.cc", "*.h")))
        for ending in endings
        for path in (_ROOT / folder).rglob(ending)
    ]
    found = {
        name
        for path in sources
        for name in re.findall(r"\b(?:SMDDP|SMP)_[A-Z0-9_]*[A-Z0-9]\b", path.read_text())
    }
    assert len(found) > 20
    assert found <= KNOWN


def test_every_variable_of_the_page_is_known() -> None:
    page = (_ROOT / "docs/environment.md").read_text()
    assert set(re.findall(r"`((?:SMDDP|SMP)_[A-Z0-9_]*[A-Z0-9])\b", page)) <= KNOWN


@pytest.mark.parametrize(("local_rank", "levels"), [("0", ["WARNING"]), ("1", ["DEBUG"])])
def test_the_first_rank_of_a_host_warns_once(
    local_rank: str,
    levels: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setenv("SMDDP_TRANSPROT", "tcp")
    settings.process_settings.cache_clear()
    try:
        with caplog.at_level(logging.DEBUG, logger="smdistributed"):
            settings.process_settings()
            settings.process_settings()
    finally:
        settings.process_settings.cache_clear()
    told = [record for record in caplog.records if "SMDDP_TRANSPROT" in record.getMessage()]
    assert [record.levelname for record in told] == levels
