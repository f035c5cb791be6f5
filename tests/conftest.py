# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Options that every test room shares."""

from __future__ import annotations

import signal

import hypothesis
import pytest

# How long one example takes depends on what else the machine does; whole tests have a limit.
hypothesis.settings.register_profile("smdistributed", deadline=None)
hypothesis.settings.load_profile("smdistributed")

# A shell starts background jobs with SIGINT ignored, which every process of a test would inherit,
# those that are to be interrupted too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--run-slow",
        action="store_true",
        help="also run the tests marked slow (minutes each)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is marked slow, saying how to run it, unless --run-slow is given."""
    if config.getoption("--run-slow"):
        return
    skip = pytest.mark.skip(reason="slow; run it with --run-slow")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)
