# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Run torch's own distributed test-suite, as shipped in its wheel, against one backend.

    python run_suite.py --backend smddp --world-size 2 [--only test_a test_b] [--json results.json]

The suite (`torch.testing._internal.distributed.distributed_test`) reads its backend's name from the
environment while it is imported, because its decorators decide then which tests that backend gets;
some test bodies ask again. They know Gloo, NCCL and MPI by name, so a backend of another name would
lose tests that ask for nothing but CPU collectives. We import the suite as if for Gloo, and then
put in the place of the name one that compares equal to "gloo" but *is* the backend under test:
every condition is evaluated as for Gloo, every process group is made by our backend.

Tests that cannot hold for a backend of another name are listed, with the reason, in `expected.py`.

Each test forks its ranks from this process, which imports torch but never starts a thread or a
process group. (torch's own runner can fork or spawn as well; spawning costs seconds a test.)
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import sys
import tempfile
import time
import types
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.multiprocessing

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_SUITE = "torch.testing._internal.distributed.distributed_test"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one test of the suite did; `reason` is the failure's text or why it was skipped."""

    status: str
    reason: str
    seconds: float


class _AsIfGloo(str):
    """A backend's name that answers like Gloo when it is compared, also as a member of a set."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


def load_suite(backend: str, world_size: int) -> types.ModuleType:
    """Import the suite with the tests that Gloo gets, to run against `backend`."""
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(world_size),
        # Both are replaced for each test by the suite itself; the kind of method decides whether
        # its tests of barrier timeouts run.
        TEMP_DIR=tempfile.gettempdir(),
        INIT_METHOD="file://",
    )
    suite = importlib.import_module(_SUITE)
    if backend != "gloo":
        suite.BACKEND = _AsIfGloo(backend)  # type: ignore[attr-defined]
    if backend == "smddp":
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend
    return suite


def test_case(suite: types.ModuleType) -> type[unittest.TestCase]:
    """The suite's tests as a unittest class whose ranks are forked."""

    class TorchDistributed(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        def setUp(self) -> None:
            super().setUp()
            suite.INIT_METHOD = os.environ["INIT_METHOD"]  # type: ignore[attr-defined]
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return TorchDistributed


class _Recorder(unittest.TestResult):
    """Collects an `Outcome` for every test and says on stderr how far it is."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self.outcomes: dict[str, Outcome] = {}
        self._total = total
        self._start_s = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 -- unittest
        super().startTest(test)
        self._start_s = time.monotonic()

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 -- unittest
        self._record(test, PASSED, "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802 -- unittest
        self._record(test, SKIPPED, reason)

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802 -- unittest
        self._record(test, FAILED, self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addFailure = addError  # noqa: N815 -- unittest

    def _record(self, test: unittest.TestCase, status: str, reason: str) -> None:
        name = test.id().rpartition(".")[2]
        seconds = time.monotonic() - self._start_s
        self.outcomes[name] = Outcome(status, reason, round(seconds, 2))
        if status != SKIPPED:
            done = f"[{len(self.outcomes)}/{self._total}]"
            print(f"{done} {name}: {status} ({seconds:.1f} s)", file=sys.stderr, flush=True)


def run(
    backend: str, world_size: int, only: Sequence[str] | None, deadline_s: int
) -> dict[str, Outcome]:
    """Run the suite, or the tests named in `only`; outcomes by test name.

    Args:
        deadline_s: seconds that one test may take; afterwards its ranks' stacks are in the reason.
    """
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(deadline_s)  # read at import
    case = test_case(load_suite(backend, world_size))
    names = only or unittest.TestLoader().getTestCaseNames(case)
    recorder = _Recorder(len(names))
    # A class object of its own per run; unittest runs its fixtures.
    unittest.TestSuite(case(name) for name in names).run(recorder)
    return recorder.outcomes


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="torch's own distributed tests, one backend")
    parser.add_argument("--backend", default="smddp")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--only", nargs="+", metavar="TEST")
    parser.add_argument("--json", type=Path, help="where to write the outcomes")
    parser.add_argument("--deadline", type=int, default=120, metavar="SECONDS", help="per test")
    arguments = parser.parse_args(argv)
    outcomes = run(arguments.backend, arguments.world_size, arguments.only, arguments.deadline)
    if arguments.json:
        data = {name: dataclasses.asdict(outcome) for name, outcome in sorted(outcomes.items())}
        arguments.json.write_text(json.dumps(data, indent=1) + "\n")
    counts = dict.fromkeys((PASSED, FAILED, SKIPPED), 0)
    for outcome in outcomes.values():
        counts[outcome.status] += 1
    print(f"{arguments.backend}, {arguments.world_size} ranks: {counts}")
    return 1 if counts[FAILED] else 0


if __name__ == "__main__":
    sys.exit(main())
