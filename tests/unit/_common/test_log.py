# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The library's logger."""

import logging
from collections.abc import Iterator

import pytest

from smdistributed._common.log import LOGGER_NAME, get_logger, set_rank


@pytest.fixture(autouse=True)
def _forget_rank() -> Iterator[None]:
    yield
    set_rank(None)


def test_messages_start_with_the_rank_once_it_is_known(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger()
    logger.warning("no rank %d%%", 1)
    set_rank(3, 8)
    logger.warning("with rank %d%%", 2)
    assert [record.getMessage() for record in caplog.records] == [
        "no rank 1%",
        "rank 3/8: with rank 2%",
    ]


def test_asking_twice_adds_nothing() -> None:
    handlers = list(get_logger().handlers)
    assert get_logger().handlers == handlers
    assert get_logger() is logging.getLogger(LOGGER_NAME)


def test_a_plain_script_sees_warnings_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logger = get_logger()
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler):
            import sys

            monkeypatch.setattr(handler, "stream", sys.stderr)
    logger.warning("look")
    logger.info("not this")
    assert capsys.readouterr().err == "[smdistributed] WARNING: look\n"
