# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a run of pytest says when a test fails once, and then passes, hangs, skips or dies.

Each test here runs a pytest of its own, with our plugins, on a file of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from machine_speed import scaled

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = [f"tests.plugins.{name}" for name in ("cost", "alone", "second_run", "repeat")]

# A test calls this to learn whether it runs for the first time; the folder is its own.
IS_FIRST = """
import os, pathlib, signal, time, warnings
import pytest

def is_first(name):
    path = pathlib.Path(__file__).with_name(name)
    was_there = path.exists()
    path.touch()
    return not was_there
"""


def run_pytest(folder: Path, text: str, *options: str) -> tuple[int, str]:
    """Exit status and output of a run of these tests."""
    (folder / "test_it.py").write_text(IS_FIRST + textwrap.dedent(text))
    (folder / "pytest.ini").write_text("[pytest]\n")
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "--import-mode=importlib"]
    for plugin in ("no:cacheprovider", "no:hypothesispytest", *PLUGINS):
        command += ["-p", plugin]
    done = subprocess.run(
        [*command, *options],
        cwd=folder,
        env={**kept, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/multiprocess'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=scaled(60),
    )
    return done.returncode, done.stdout


def test_one_that_passes_the_second_time_is_unstable(tmp_path: Path) -> None:
    status, output = run_pytest(
        tmp_path,
        """
        def test_once():
            assert not is_first("once")
        """,
    )
    assert status == 0, output
    assert "test_it.py::test_once: NEW" in output


def test_one_that_does_not_pass_the_second_time_has_failed(tmp_path: Path) -> None:
    status, output = run_pytest(
        tmp_path,
        """
        def test_fails():
            assert False, "twice"

        def test_skips():
            if is_first("skips"):
                raise ValueError("the first run of what is then skipped")
            pytest.skip("not today")

        def test_hangs():
            assert not is_first("hangs")
            time.sleep(1000)

        @pytest.mark.filterwarnings("error")
        def test_warns():
            warnings.warn("of both runs")
        """,
        f"--timeout={scaled(1):.0f}",  # of each test; but one ends at once
    )
    assert status == 1, output
    assert "4 failed" in output
    assert "unstable" not in output
    assert "the first run of what is then skipped" in output
    assert "not today" in output


@pytest.mark.parametrize("options", [(), ("--numprocesses=1",)], ids=["here", "on a worker"])
def test_one_that_ends_its_process_the_second_time_has_failed(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Until 2026 a worker took what it had seen fail with it, and the run passed."""
    status, output = run_pytest(
        tmp_path,
        """
        def test_passes():
            pass

        def test_fails_before():
            assert not is_first("before"), "the first run of the one before"

        def test_dies():
            assert not is_first("dies"), "the first run of what then dies"
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        *options,
    )
    assert status == (1 if options else -signal.SIGKILL), output
    if options:
        assert "2 failed" in output
        assert "the first run of what then dies" in output


def test_repeated_tests_have_no_second_run(tmp_path: Path) -> None:
    """Each run is a whole one, with what its module keeps made anew."""
    status, output = run_pytest(
        tmp_path,
        """
        import functools
        __file__ = {!r}
        made = []

        @pytest.fixture(scope="module")
        def fixture():
            made.append("fixture")

        @functools.cache
        def cached():
            made.append("cached")

        def test_seldom(fixture):
            cached()
            assert len(made) != 4
            assert made == ["fixture", "cached"] * (len(made) // 2)
        """.format(str(ROOT / "tests" / "test_it.py")),
        "--repeat=3",
    )
    assert status == 1, output
    assert "test_seldom: 1 of 3 runs failed" in output
