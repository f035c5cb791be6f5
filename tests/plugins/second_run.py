# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The last word on a test that failed: it runs once more, alone, at the end of the run.

If it fails again the run fails. If it passes, the run passes, the test is called *unstable*, and
both outputs are shown and kept below `build/test-report/unstable/`. An unstable test is a race in
the product until it is shown to be one in the test: `make stress TEST=...` looks for it. Those that
are known stand, each with its cause, in `tests/unstable.txt`; one that does not is called new.

The second run passes only if the test passes there: one that is skipped says nothing, and neither
does one whose process dies meanwhile, with its worker of pytest-xdist. The first run counts then.

With `-x`, `--pdb`, `--repeat` or `--no-second-run` a failure counts at once.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.plugins.alone import run_alone

KNOWN = Path(__file__).resolve().parents[1] / "unstable.txt"
_OUTCOME = "rerun"
# Modules whose caches are ports and settings of this process, and servers of the run.
_KEPT = ("preloaded", "ports", "machine_speed")
_SENT = "second_runs"  # in what a worker of pytest-xdist tells when it has finished


@dataclasses.dataclass
class SecondRun:
    """What a test said both times."""

    first: list[pytest.TestReport]
    second: list[pytest.TestReport]

    @property
    def nodeid(self) -> str:
        return self.first[0].nodeid

    @property
    def is_unstable(self) -> bool:
        return bool(self.second) and all(report.passed for report in self.second)

    def verdict(self) -> list[pytest.TestReport]:
        """The reports that count: those of the second run, unless it was skipped."""
        if self.is_unstable or any(report.failed for report in self.second):
            return self.second
        return count_as_failed(self.first, _text("second run, which did not pass", self.second))


def count_as_failed(first: list[pytest.TestReport], why: str) -> list[pytest.TestReport]:
    """The failures of a first run, which nothing has made up for."""
    for report in first:
        report.outcome = "failed"
        report.sections.append(("no second run that passed", why))
    return first


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-second-run",
        action="store_true",
        help="a test that fails is not run once more at the end of the run",
    )


def pytest_configure(config: pytest.Config) -> None:
    at_once = ("no_second_run", "maxfail", "usepdb", "collectonly")
    if any(config.getoption(name) for name in at_once) or config.getoption("repeat", 1) > 1:
        return
    config.pluginmanager.register(_Failures(config), "failures")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Verdict(config), "verdict")


class _Failures:
    """In the process that runs tests: keeps failures back, and runs the tests again."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._first: dict[pytest.Item, list[pytest.TestReport]] = {}
        self._is_second = False
        self._second: list[pytest.TestReport] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and not self._is_second:
            self._first.setdefault(item, []).append(report)
            report.outcome = _OUTCOME  # type: ignore[assignment]
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        result = yield
        self._is_second = True
        runs = [self._run_again(item, first) for item, first in self._first.items()]
        if hasattr(self._config, "workerinput"):
            self._config.workeroutput[_SENT] = [  # type: ignore[attr-defined]
                [self._to_data(run.first), self._to_data(run.second)] for run in runs
            ]
        else:
            verdict: _Verdict = self._config.pluginmanager.get_plugin("verdict")
            for run in runs:
                verdict.add(run)
        return result

    def _run_again(self, item: pytest.Item, first: list[pytest.TestReport]) -> SecondRun:
        if isinstance(item, pytest.Function):
            item._initrequest()  # fixtures of its own, made again
        item._report_sections.clear()
        forget_what_ranks_found()
        run_alone(item)
        self._second = []
        # By the hook, around which others set the time limit of the test and its warning filters.
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        return SecondRun(first, self._second)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if not self._is_second:
            return None
        self._second = runtestprotocol(item, log=False, nextitem=None)
        return True

    def _to_data(self, reports: Sequence[pytest.TestReport]) -> list[Any]:
        to_data = self._config.hook.pytest_report_to_serializable
        return [to_data(config=self._config, report=report) for report in reports]


class _Verdict:
    """In the process that sums up: counts the second runs, and shows what is unstable."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._runs: list[SecondRun] = []
        self._open: dict[str, list[pytest.TestReport]] = {}  # failed, and not run again yet

    def add(self, run: SecondRun) -> None:
        """Have the second run counted as if it were the only one."""
        self._runs.append(run)
        self._open.pop(run.nodeid, None)
        self._count(run.verdict())

    def _count(self, reports: Sequence[pytest.TestReport]) -> None:
        for report in reports:
            self._config.hook.pytest_runtest_logreport(report=report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == _OUTCOME:
            self._open.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Counts what no second run has told of: its process has died, or the run was ended."""
        try:
            return (yield)
        finally:
            for first in self._open.values():
                self._count(count_as_failed(first, "The process that was to run it has ended."))
            self._open.clear()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for first, second in getattr(node, "workeroutput", {}).get(_SENT, []):
            self.add(SecondRun(self._from_data(first), self._from_data(second)))

    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        if report.outcome == _OUTCOME:
            return _OUTCOME, "R", ("RUN AGAIN", {"yellow": True})
        return None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        unstable = [run for run in self._runs if run.is_unstable]
        if not unstable:
            return
        folder = self._config.rootpath / "build" / "test-report" / "unstable"
        folder.mkdir(parents=True, exist_ok=True)
        known = known_causes()
        terminalreporter.section(
            "unstable: failed, and passed when run once more, alone", yellow=True
        )
        for run in unstable:
            cause = known.get(run.nodeid, f"NEW: neither mended nor in {KNOWN.name}")
            terminalreporter.write_line(f"{run.nodeid}: {cause}", yellow=True)
            kept = folder / (re.sub(r"[^\w.-]+", "_", run.nodeid)[-150:] + ".txt")
            text = f"{_text('first run', run.first)}\n{_text('second run', run.second)}"
            kept.write_text(text)
            terminalreporter.write_line(text)

    def _from_data(self, reports: Sequence[Any]) -> list[pytest.TestReport]:
        from_data = self._config.hook.pytest_report_from_serializable
        return [from_data(config=self._config, data=data) for data in reports]


def forget_what_ranks_found() -> None:
    """Clear the caches in which test modules keep it; a second run must not show the first."""
    tests = str(KNOWN.parent)
    for name, module in list(sys.modules.items()):
        is_test = (getattr(module, "__file__", None) or "").startswith(tests)
        if not is_test or name.startswith("tests.plugins") or name in _KEPT:
            continue
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear") and hasattr(value, "__wrapped__"):
                value.cache_clear()


def known_causes() -> dict[str, str]:
    """By test, the cause that `tests/unstable.txt` gives."""
    lines = KNOWN.read_text().splitlines()
    entries = [line for line in lines if line.strip() and not line.startswith("#")]
    return {test: cause.strip() for test, _, cause in (line.partition(" ") for line in entries)}


def _text(title: str, reports: Sequence[pytest.TestReport]) -> str:
    lines = [f"--- {title}"]
    for report in reports:
        lines.append(f"{report.when}: {report.outcome} after {report.duration:.2f} s")
        if report.longreprtext:
            lines.append(report.longreprtext)
        lines += [f"[{name}]\n{content}" for name, content in report.sections]
    return "\n".join(lines)
