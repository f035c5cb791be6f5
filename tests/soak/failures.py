# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The tests of what fails in TensorFlow's model parallelism, round after round: is anything left?

    python -m tests.soak.failures --rounds 20

Each round is a run of pytest, with a folder of its own for temporary files. When it has ended no
process may be left that it started, directly or not, and so no socket and no memory of one; no file
in its folder; and none in /dev/shm that no living process has. (The engine's own shared memory has
no name, and ends with the last process that maps it.)
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "tests/multiprocess/with_tensorflow/modelparallel"
# Of tests/unit nothing: there is no process to be left.
TESTS = (
    f"{FOLDER}/test_failing_steps.py",
    f"{FOLDER}/test_driver_faults.py",
    f"{FOLDER}/test_replica_faults.py",
    f"{FOLDER}/test_lost_ranks.py",
    f"{FOLDER}/test_sabotage.py",
    f"{FOLDER}/test_job_failures.py",
    f"{FOLDER}/test_uneven_steps.py",
    f"{FOLDER}/test_checkpoints.py",
    f"{FOLDER}/test_horovod_meaning.py",
    f"{FOLDER}/test_tapes.py",
    f"{FOLDER}/test_fit.py::test_fit[check_what_fit_refuses]",
    f"{FOLDER}/test_fit.py::test_something_goes_wrong_on_one_rank",
)
_MARK = "SMD_FAILURES_ROUND"  # in the environment of all that a round starts
_PATIENCE_S = 5.0  # for what is just ending
# What pytest keeps of a run, for people to read; and what TensorFlow's AutoGraph writes, which a
# killed process cannot remove.
_NOT_OURS = ("pytest-of-", "__autograph_generated_file")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs rounds, and prints what they came to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no round after these")
    parser.add_argument("tests", nargs="*", default=TESTS, help="of pytest; default: all")
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    begin = time.monotonic()
    rounds = 0
    while rounds < options.rounds and time.monotonic() - begin < 60 * options.minutes:
        rounds += 1
        found, left = run_round(options.tests)
        counts += found
        wrong += [f"round {rounds}: {each}" for each in left]
        shown = ", ".join(f"{count} {name}" for name, count in sorted(found.items()))
        seconds = time.monotonic() - begin
        print(f"round {rounds}, {seconds:.0f} s: {shown}; left: {left or 'nothing'}", flush=True)
    ran = counts["passed"] + counts["failed"]
    print(
        f"{rounds} rounds: {ran} tests ran, {counts['failed']} failed, {counts['skipped']} skipped;"
        f" no process, socket, shared memory or temporary file is left: {not wrong}"
    )
    print("\n".join(wrong))
    return 1 if wrong or counts["failed"] or not ran else 0


def run_round(tests: Sequence[str]) -> tuple[Counter[str], list[str]]:
    """Runs the tests once: how many ended how, and what is left, in words."""
    mark = uuid.uuid4().hex
    before = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="failures-") as folder:
        temporary, report = Path(folder, "tmp"), Path(folder, "report.xml")
        temporary.mkdir()
        command = [sys.executable, "-m", "pytest", "-q", "--no-second-run", f"--junitxml={report}"]
        ended = subprocess.run(
            [*command, *tests],
            cwd=ROOT,
            env={**os.environ, _MARK: mark, "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        left = [f"process {each}" for each in _processes_left(mark)]
        left += [f"file {each}" for each in _files(temporary)]
        left += [f"file /dev/shm/{each}" for each in _memory_left(before)]
        found = _ended(report)
    if ended.returncode or found["failed"]:
        print(ended.stdout, flush=True)
        found["failed"] = found["failed"] or 1
    return found, left


def _ended(report: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    if report.exists():
        for case in ET.parse(report).iter("testcase"):
            names = {child.tag for child in case}
            failed = names & {"failure", "error"}
            found["failed" if failed else "skipped" if "skipped" in names else "passed"] += 1
    return found


def _processes_left(mark: str) -> list[str]:
    """Those that have the mark still when all had time to end."""
    end = time.monotonic() + _PATIENCE_S
    while (found := list(_marked(mark))) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def _marked(mark: str) -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
            if f"{_MARK}={mark}".encode() in (process / "environ").read_bytes():
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                yield f"{process.name} ({command.strip()})"


def _files(folder: Path) -> list[str]:
    left = sorted(each for each in folder.iterdir() if not _is_not_ours(each))
    return [f"{each.name} ({_inside(each)})" for each in left]


def _is_not_ours(path: Path) -> bool:
    # Keras 3 leaves the folder of a model's assets where `save` fails.
    of_keras = path.is_dir() and [each.name for each in path.iterdir()] == ["assets"]
    return path.name.startswith(_NOT_OURS) or (of_keras and not any((path / "assets").iterdir()))


def _inside(path: Path) -> str:
    """What tells who made it."""
    if path.is_dir():
        return "folder of " + (", ".join(sorted(each.name for each in path.iterdir())) or "nothing")
    return f"{path.stat().st_size} bytes: {path.read_bytes()[:200]!r}" if path.is_file() else "?"


def _memory_left(before: set[str]) -> list[str]:
    """New names in /dev/shm that no process has; others run on this machine, too."""
    new = set(os.listdir("/dev/shm")) - before
    return sorted(new - _in_use()) if new else []


def _in_use() -> set[str]:
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            paths = [os.readlink(each) for each in (process / "fd").iterdir()]
            paths += (process / "maps").read_text().split()
            found |= {each.split("/")[3] for each in paths if each.startswith("/dev/shm/")}
    return found


if __name__ == "__main__":
    sys.exit(main())
