# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Breaks the product in one place at a time, and sees whether a test says so.

    python tests/mutations/run.py --list                      what there is
    python tests/mutations/run.py                             all of it, an hour or more
    python tests/mutations/run.py checkpoints-are-deleted-by-name --kind leak

A fault of faults.toml is written into the checkout's own file, what depends on it is compiled, and
its tests run until one fails: then it is caught. The file is put back whatever happens; after
SIGKILL `git diff` shows what is left. Nobody else may use the checkout meanwhile, and src/ and
native/ must have no changes that are not staged. A test that fails anyway catches nothing, and
`--clean` finds it. At the end the clean tree is built again, and the table written, as JSON too.
Status 0: all were caught (with --clean: all passed); 1: not all; 2: nothing was done.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
REPORT, NATIVE_BUILD = ROOT / "build/test-report/mutations.json", ROOT / "build/native"
BIN = ROOT / ".venv" / "bin"
CAUGHT, MISSED, BROKEN, UNKNOWN = "caught", "NOT caught", "did not build", "tests did not run"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MAKE_MODULE = ("make", "--no-print-directory", "build")  # puts what Python imports into .venv
_LIMIT_S, _LAST_WORDS_S = 1800.0, 20.0  # of a command, and of one that is interrupted


@dataclasses.dataclass
class Fault:
    """A table of faults.toml, which says what the keys mean; and what became of it."""

    name: str
    kind: str
    file: str
    old: str
    new: str
    tests: list[str]
    why: str
    verdict: str = UNKNOWN
    by: str = ""  # the first test that failed
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.is_native = self.file.startswith("native/")
        self.room = str(Path(self.file).parent).removeprefix("src/smdistributed/")


def refuse(text: str) -> NoReturn:
    print(text, file=sys.stderr)
    raise SystemExit(2)


def load_faults() -> list[Fault]:
    content = tomllib.loads(Path(__file__).with_name("faults.toml").read_bytes().decode())
    faults = [Fault(**table) for table in content["fault"]]
    for each in faults:
        count = (ROOT / each.file).read_bytes().count(each.old.encode())
        if count != 1 or each.kind not in content["kinds"]:
            refuse(f"{each.name}: kind {each.kind}, `old` {count} times; correct faults.toml")
    return sorted(faults, key=lambda each: each.is_native)  # these leave their module in .venv


_originals: dict[Path, tuple[bytes, os.stat_result]] = {}


def make_fault(fault: Fault) -> None:
    path = ROOT / fault.file
    content, _ = _originals[path] = (path.read_bytes(), path.stat())
    path.write_bytes(content.replace(fault.old.encode(), fault.new.encode()))


def restore() -> None:
    for path, (content, status) in list(_originals.items()):
        path.write_bytes(content)
        if path.suffix == ".py":
            # Bytecode of the broken file bears its time, and is not taken for that of this one.
            # What is compiled, on the other hand, has to be newer than that of the broken one.
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        del _originals[path]


def execute(command: Sequence[str | Path], cwd: Path = ROOT) -> tuple[int | None, str]:
    """Exit status (None: it did not end) and output. What interrupts us ends the command too."""
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=file, stderr=file, process_group=0
        )
        status: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(_LIMIT_S)
        finally:
            # At the first pytest ends its ranks. If the command has ended: what it has left behind.
            for number in (signal.SIGINT, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, number)
                    process.wait(_LAST_WORDS_S)
        file.seek(0)
        return status, "\n".join(file.read().decode(errors="replace").rstrip().splitlines()[-400:])


def builds(*command: str | Path) -> bool:
    status, output = execute(command)
    if status != 0:
        print(output[-2000:], file=sys.stderr)
    return status == 0


def configure_native_tests() -> None:  # as tools/run_native_tests.sh does
    status, prefix = execute(["tools/find_googletest.sh", "build/googletest"])
    options = ["-G", "Ninja", "-DSMD_BUILD_TESTS=ON", "-DSMD_WARNINGS_AS_ERRORS=ON"]
    options.append(f"-DCMAKE_PREFIX_PATH={prefix.rpartition(chr(10))[2]}")
    if status != 0 or not builds("cmake", "-S", ".", "-B", NATIVE_BUILD, *options):
        refuse(f"the native tests cannot be built: {prefix}")


def run_native(test: str) -> tuple[str, str]:
    """Verdict, and which test gave it."""
    target = test.removeprefix("native/").replace("/", "_")
    if not builds("cmake", "--build", NATIVE_BUILD, "--target", target, "--", "--quiet"):
        return BROKEN, ""
    options = ["--output-on-failure", "--no-tests=error", "-R", f"^{re.escape(test)}$"]
    status, output = execute(["ctest", "--test-dir", NATIVE_BUILD, *options])
    found = re.search(r"\[  FAILED  \] ([\w./]+)", output)
    return (MISSED, "") if status == 0 else (CAUGHT, f"{test}: {found[1] if found else 'its end'}")


def run_python(test: str, arguments: argparse.Namespace) -> tuple[str, str]:
    options = ["-x", "-q", "-p", "no:cacheprovider"]
    options += ["--no-second-run"] * (arguments.tests / "plugins" / "second_run.py").exists()
    command = [arguments.python, "-m", "pytest", *options, test]
    status, output = execute(command, arguments.tests.parent)
    # 1: a test failed; 2: one could not be imported. A signal, or no end, is a find as well.
    if status == 0 or (status is not None and status > 2):
        return (MISSED, "") if status == 0 else (UNKNOWN, output[-2000:])
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    return CAUGHT, found[1] if found else f"{test}, which did not end as it should"


def judge(fault: Fault, arguments: argparse.Namespace) -> None:
    """Runs the tests of a fault until one fails, on the tree as it is."""
    begin = time.monotonic()
    is_built = not fault.is_native
    for test in fault.tests:
        if test.startswith("native/"):
            verdict, by = run_native(test)
        else:
            is_built = is_built or builds(*_MAKE_MODULE)
            verdict, by = run_python(test, arguments) if is_built else (BROKEN, "")
        if verdict != UNKNOWN or fault.verdict == UNKNOWN:  # what has run counts for more
            fault.verdict, fault.by = verdict, by
        if verdict in (CAUGHT, BROKEN):
            break
    fault.seconds = round(time.monotonic() - begin, 1)


def report(faults: Sequence[Fault]) -> None:
    for each in faults:
        line = f"{each.name:<56}  {each.kind:<21}  {each.room:<37}  {each.seconds:>7.1f}"
        print(f"{line}  {each.verdict:<17}  {each.by}".partition("\n")[0])
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps([vars(each) for each in faults], indent=2) + "\n")
    print(f"{sum(each.verdict == CAUGHT for each in faults)} of {len(faults)} were caught")


def parse_arguments() -> argparse.Namespace:
    shape, cores = argparse.RawDescriptionHelpFormatter, len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="faults to make, and those of --kind; or all")
    add("--kind", metavar="KIND", action="append", default=[], help="see --list; may be repeated")
    add("--list", action="store_true", help="say what the faults are, and do nothing")
    add("--clean", action="store_true", help="make no fault: every test must pass")
    add("--python", metavar="EXE", type=Path, default=BIN / "python", help="runs pytest")
    older = "of another checkout, an older one say; native ones are left out then"
    add("--tests", metavar="DIR", type=Path, default=ROOT / "tests", help=older)
    add("--jobs", metavar="N", type=int, default=cores, help="compilers side by side")
    return parser.parse_args()


def stop(number: int, _: Any) -> None:
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)  # once is enough: files are being put back
    raise SystemExit(128 + number)


def main() -> int:
    arguments = parse_arguments()
    arguments.tests = arguments.tests.resolve()
    arguments.python = arguments.python.absolute()  # not resolved: a link says which .venv
    jobs = dict.fromkeys(("JOBS", "CMAKE_BUILD_PARALLEL_LEVEL"), str(arguments.jobs))
    os.environ.update(jobs, PATH=f"{BIN}:{os.environ['PATH']}")
    wanted = {*arguments.names, *arguments.kind}
    faults = [each for each in load_faults() if not wanted or {each.name, each.kind} & wanted]
    if unknown := wanted - {word for each in faults for word in (each.name, each.kind)}:
        refuse(f"there is no {', '.join(sorted(unknown))}; see --list")
    if arguments.list:
        for each in faults:
            print(f"{each.name}  [{each.kind}, {each.room}]\n    {each.why}")
        return 0
    if arguments.tests != ROOT / "tests":
        for each in faults:  # programs of this checkout would answer for the other one
            each.tests = [test for test in each.tests if not test.startswith("native/")]
    if execute(["git", "diff", "--quiet", "--", "src", "native"])[0] != 0:
        refuse("src/ or native/ has changes that are not staged: stage or stash them")
    for number in _ENDING:
        signal.signal(number, stop)
    if not builds(*_MAKE_MODULE):
        refuse("the tree as it is does not build")
    code = "import smdistributed.collectives as room; print(room.__file__)"
    _, place = execute([arguments.python, "-c", code])
    if not place.startswith(str(ROOT / "src")):  # where faults are
        refuse(f"{arguments.python} does not import from {ROOT}/src, but: {place}")
    if any(test.startswith("native/") for each in faults for test in each.tests):
        configure_native_tests()
    try:
        for each in faults:
            if not arguments.clean:
                make_fault(each)
            judge(each, arguments)
            restore()
            print(f"{each.verdict:>17}  {each.name}  {each.by}", flush=True)
    finally:
        restore()
        if any(each.is_native for each in faults):
            builds(*_MAKE_MODULE)
        report(faults)
    return int(any(each.verdict != (MISSED if arguments.clean else CAUGHT) for each in faults))


if __name__ == "__main__":
    sys.exit(main())
