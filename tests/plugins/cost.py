# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a test run costs: seconds of wall and of processor time, by folder and for slow tests.

Every test's cost is its own process's and that of every process that it started and that has ended
by then, those that servers forked for it included (`preloaded.py`); not that of the servers. At the
end of the run the table is printed and written below `build/test-report/`, one JSON file for
programs and one text file to read.

A process that was left to init is not counted: nobody below us has waited for it.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from pathlib import Path

import pytest
from preloaded import Run

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_DEAREST = 30
_PROPERTY = "cost"
# How many folders below tests/ make a row of the table.
_DEPTH = 3


@dataclasses.dataclass
class Cost:
    """Seconds by the clock, and of processor time, for a number of tests."""

    tests: int = 0
    wall_s: float = 0.0
    processor_s: float = 0.0

    def add(self, wall_s: float, processor_s: float) -> None:
        self.tests += 1
        self.wall_s += wall_s
        self.processor_s += processor_s


def processor_seconds() -> float:
    """Processor time of this process, of all below it, and of those of them that have ended."""
    run = Run.current()
    below = _tree(os.getpid(), without=run.pids())
    return sum(_ticks(pid) for pid in below) / _TICKS_PER_S + run.spent_s()


def _tree(pid: int, without: Collection[int]) -> Iterator[int]:
    if pid in without:
        return
    yield pid
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        try:
            children = Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _tree(int(child), without)


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    # After the name: state is field 0, utime, stime, cutime and cstime are fields 11 to 14.
    return sum(int(field) for field in fields[11:15])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure the whole of a test, its fixtures included, and hand it on with its last report."""
    if not item.stash.get(_IS_COUNTED, False):  # a second run of the test is not counted
        item.stash[_START] = (time.monotonic(), processor_seconds())
        item.stash[_IS_COUNTED] = True
    return (yield)


_START = pytest.StashKey[tuple[float, float]]()
_IS_COUNTED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown" and (start := item.stash.get(_START, None)) is not None:
        wall, processor = start
        del item.stash[_START]
        cost = (time.monotonic() - wall, processor_seconds() - processor)
        report.user_properties.append((_PROPERTY, cost))
    return report


class CostTable:
    """Gathers the costs where the reports arrive: here, or from all workers of pytest-xdist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._costs: dict[str, Cost] = collections.defaultdict(Cost)
        self._start = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY and report.when == "teardown":
                self._costs[report.nodeid].add(*value)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._costs) < 2:
            return
        lines = [*self._lines(time.monotonic() - self._start), "", *_starts(Run.current().afresh())]
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "cost.txt").write_text("\n".join(lines) + "\n")
        (self._folder / "cost.json").write_text(
            json.dumps({name: dataclasses.asdict(cost) for name, cost in self._costs.items()})
        )
        terminalreporter.section("cost: seconds by the clock, and of processor time")
        terminalreporter.write_line("\n".join(lines))

    def _lines(self, elapsed_s: float) -> list[str]:
        folders: dict[str, Cost] = collections.defaultdict(Cost)
        whole = Cost()
        for name, cost in self._costs.items():
            for total in (folders["/".join(name.split("::")[0].split("/")[:_DEPTH])], whole):
                total.add(cost.wall_s, cost.processor_s)
        summary = f"all, in {elapsed_s:.1f} s by the clock"
        dearest = sorted(self._costs.items(), key=lambda row: -row[1].wall_s)[:_DEAREST]
        return [
            f"{'tests':>6} {'wall':>8} {'proc':>8}  folder",
            *(
                f"{cost.tests:>6} {cost.wall_s:>8.1f} {cost.processor_s:>8.1f}  {name}"
                for name, cost in sorted(folders.items(), key=lambda row: -row[1].wall_s)
            ),
            f"{whole.tests:>6} {whole.wall_s:>8.1f} {whole.processor_s:>8.1f}  {summary}",
            "",
            f"{'':>6} {'wall':>8} {'proc':>8}  the {len(dearest)} slowest tests",
            *(
                f"{'':>6} {cost.wall_s:>8.1f} {cost.processor_s:>8.1f}  {name}"
                for name, cost in dearest
            ),
        ]


def _starts(afresh: Mapping[str, int]) -> list[str]:
    """Of interpreters that tests do not ask for: a name that many have makes a run slow."""
    rows = sorted(afresh.items(), key=lambda row: -row[1])
    return [
        f"{sum(afresh.values()):>6} interpreters started where a preloaded one would not do; for",
        *(f"{count:>6}   {reason}" for reason, count in rows),
    ]


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist has none of its own
        config.pluginmanager.register(CostTable(config.rootpath / "build" / "test-report"))
