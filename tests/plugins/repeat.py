# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Run tests many times over, beside load, to find what fails once in a hundred (`make stress`).

    pytest tests/multiprocess/test_faults.py::test_killed --repeat 200 --busy 4

`--repeat N` runs each test N times in a row, as one test: it fails if a single run does, and says
how many did and what the first of them said. Each run is a whole one: what a module keeps of its
ranks, in fixtures or caches, is made anew, or the same ranks would be looked at N times. `--busy N`
keeps N processes computing and copying memory meanwhile; it also serves a whole run, to see whether
its verdict depends on a quiet machine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from _pytest.runner import runtestprotocol

from tests.plugins.second_run import forget_what_ranks_found

_COPIED_BYTES = 64 << 20  # more than a processor's caches hold


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--repeat", type=int, default=1, help="run each test that many times in a row")
    parser.addoption("--busy", type=int, default=0, help="keep that many processes busy meanwhile")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    count: int = item.config.getoption("repeat")
    if count < 2:
        return None
    failed = 0
    kept: list[pytest.TestReport] = []
    for index in range(count):
        if index and isinstance(item, pytest.Function):
            item._initrequest()
        forget_what_ranks_found()
        following = None if index + 1 < count else nextitem  # None: fixtures of modules end, too
        reports = runtestprotocol(item, log=False, nextitem=following)
        has_failed = any(report.failed for report in reports)
        failed += has_failed
        if not kept or (has_failed and failed == 1):
            kept = reports
    for report in kept:
        report.sections.append(("repeated", f"{failed} of {count} runs failed"))
        item.ihook.pytest_runtest_logreport(report=report)
    if failed:
        terminal = item.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.write_line(f"{item.nodeid}: {failed} of {count} runs failed")
    return True


def pytest_sessionstart(session: pytest.Session) -> None:
    count: int = session.config.getoption("busy")
    if count and not hasattr(session.config, "workerinput"):
        load = _load(count)
        next(load)
        session.config.add_cleanup(lambda: next(load, None))


def _load(count: int) -> Iterator[None]:
    """Keeps `count` processes busy until it is continued."""
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            _be_busy(os.getppid())
        pids.append(pid)
    yield
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _be_busy(parent: int) -> None:
    """Compute and copy in turn, for as long as the parent lives."""
    source, target = bytearray(_COPIED_BYTES), bytearray(_COPIED_BYTES)
    while os.getppid() == parent:
        target[:] = source
        sum(range(200_000))
    os._exit(0)
