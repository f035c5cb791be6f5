# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Tests run side by side; those marked `quiet` run alone, at the end.

pytest-xdist runs a test on each of its workers (`pytest -n 2`). A test marked `quiet` measures
something, or needs the processors at once: it has the machine for itself. For that each test holds
a lock on one file of the run while it runs, a shared one or, if it is quiet, an exclusive one.
Modules with quiet tests are moved to the end of the list, so that a worker that waits for the lock
waits for the last of the others and for little more. A module is run by one worker, since many keep
what ranks have found for all of their tests (`--dist loadfile`, in pyproject.toml).

Each worker has processors of its own, and so have the ranks that its tests start. Otherwise the
ranks of two tests, which each take the machine for theirs, would spin on one another's processors:
two workers then took twice as long as one. Quiet tests, and all tests without `-n`, have them all.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import tempfile
from collections.abc import Generator, Iterator

import pytest

_VARIABLE = "SMD_TEST_LOCK"  # the file's path, for the workers


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist, which finds the variable
        return
    # Of its own even in a run that a test has started: that test holds the lock of the outer one.
    descriptor, path = tempfile.mkstemp(prefix="tests-lock-")
    os.close(descriptor)
    outer = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = path

    def remove() -> None:
        os.unlink(path)
        os.environ.pop(_VARIABLE)
        if outer is not None:
            os.environ[_VARIABLE] = outer

    config.add_cleanup(remove)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    late = {item.path for item in items if is_quiet(item)}
    items.sort(key=lambda item: (item.path in late, is_quiet(item)))  # stable


_ALONE = pytest.StashKey[bool]()


def run_alone(item: pytest.Item) -> None:
    """Have a test run alone from now on, whether it is marked `quiet` or not."""
    item.stash[_ALONE] = True


def is_quiet(item: pytest.Item) -> bool:
    return item.get_closest_marker("quiet") is not None or item.stash.get(_ALONE, False)


@functools.cache
def _processors() -> tuple[set[int], set[int]]:
    """All that this run may use, and those of them that are this worker's."""
    everything = sorted(os.sched_getaffinity(0))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    index = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % count
    if count > len(everything):
        return set(everything), {everything[index % len(everything)]}
    share = len(everything) // count
    return set(everything), set(everything[index * share : (index + 1) * share])


@contextlib.contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """While this is held no test runs elsewhere; or, not `alone`, none that is to be alone."""
    with open(os.environ[_VARIABLE], "r+b") as file:
        # Of this process: not of what a test has forked and left behind.
        fcntl.lockf(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        everything, own = _processors()
        os.sched_setaffinity(0, everything if alone else own)
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with turn(alone=is_quiet(item)):
        return (yield)
