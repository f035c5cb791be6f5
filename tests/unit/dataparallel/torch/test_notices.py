# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Each thing is said once, loudly by the job's first rank only."""

import logging
from collections.abc import Iterator

import pytest

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.torch import notices


@pytest.fixture(autouse=True)
def said() -> Iterator[list[logging.LogRecord]]:
    """What was logged during the test."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler, logger = Keep(), get_logger()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    notices.forget()
    yield records
    notices.forget()
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.mark.parametrize("rank", [None, "0", "1", "7"])
def test_the_first_rank_speaks_and_the_others_whisper(
    said: list[logging.LogRecord], rank: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rank is None:
        monkeypatch.delenv("RANK", raising=False)
    else:
        monkeypatch.setenv("RANK", rank)
    notices.inform_once("a", "info")
    notices.warn_once("b", "warning")
    is_first = rank in (None, "0")
    expected = [logging.INFO, logging.WARNING] if is_first else [logging.DEBUG, logging.DEBUG]
    assert [record.levelno for record in said] == expected


def test_once_per_key_until_forgotten(said: list[logging.LogRecord]) -> None:
    for _ in range(3):
        notices.inform_once("a", "one")
        notices.warn_once("a", "the same key")
        notices.inform_once("b", "two")
    assert [record.getMessage().split(": ")[-1] for record in said] == ["one", "two"]
    notices.forget()
    notices.inform_once("a", "again")
    assert said[-1].getMessage().endswith("again")
