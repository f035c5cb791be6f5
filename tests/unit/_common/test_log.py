# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The library's logger."""

import logging

import pytest

from smdistributed._common.log import LOGGER_NAME, get_logger


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
