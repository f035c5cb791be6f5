# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Train every architecture over two ranks and in one process; write docs/architectures.md.

    python -m tests.architectures.run [--only NAME ...] [--page FILE] [--side-by-side N]

`make architectures` does it. The exit status is 1 if a row is neither equal nor refused.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.architectures.models import ARCHITECTURES, Architecture
from tests.multiprocess.machine_speed import scaled

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architectures.md"
DEADLINE_S = 60.0  # on an idle machine
RANKS = 2
# How an error of the library names the module that it is about.
_NAMES_A_MODULE = re.compile(r"\bmain(/\w+)+|SMPError: the forward\(\) of \w+")
# What stands in the page between these lines is made; the rest is written by hand.
_BEGIN, _END = "<!-- made by `make architectures` -->\n", "<!-- end -->\n"


@dataclasses.dataclass(frozen=True)
class Result:
    """How an architecture went.

    Attributes:
        verdict: "equal", "refused", "wrong", "error" (which names no module), "hang" or "left out".
        shares: by rank, of the bytes of all parameters.
        detail: the error, what differs, or what has been warned of.
        difference: the largest of a parameter, see `ranks.Found`.
        duration_s: of the whole command.
    """

    verdict: str
    shares: tuple[float, ...] = ()
    detail: str = ""
    difference: float = 0.0
    duration_s: float = 0.0


def run(architecture: Architecture) -> Result:
    """Train `architecture` over ranks and here; never raises for what went wrong there."""
    if importlib.util.find_spec(architecture.library) is None:
        return Result("left out", detail=f"{architecture.library} is not installed")
    launcher = shutil.which("smddprun", path=str(Path(sys.executable).parent)) or "smddprun"
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="architecture-") as folder:
        command = [launcher, "-np", str(RANKS), sys.executable, "-m", "tests.architectures.ranks"]
        process = subprocess.Popen(
            [*command, architecture.name, folder],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=scaled(DEADLINE_S))
        except subprocess.TimeoutExpired:
            output = _end(process)
            return Result("hang", detail=output[-4000:], duration_s=scaled(DEADLINE_S))
        found = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
    result = _judge(found, output)
    return dataclasses.replace(result, duration_s=time.monotonic() - begin)


def _end(process: subprocess.Popen[str]) -> str:
    """Let the launcher end its ranks; what they have said."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=10)[0]
    return ""


def _judge(found: list[dict[str, object]], output: str) -> Result:
    errors = [str(one["error"]) for one in found if one["error"]]
    if errors:
        named = [error for error in errors if _NAMES_A_MODULE.search(error)]
        return Result("refused" if named else "error", detail=(named or errors)[0])
    if len(found) < RANKS:
        return Result("error", detail=output[-4000:])
    local = [int(str(one["local_bytes"])) for one in found]
    shares = tuple(part / max(sum(local), 1) for part in local)
    difference = float(str(found[0]["difference"]))
    wrong, warnings = found[0]["wrong"], [one["warnings"] for one in found]
    assert isinstance(wrong, list)
    if wrong:
        return Result("wrong", shares, "; ".join(map(str, wrong)), difference)
    texts = [str(text) for some in warnings if isinstance(some, list) for text in some]
    return Result("equal", shares, " ".join(dict.fromkeys(texts)), difference)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train public architectures over two ranks.")
    parser.add_argument("--only", nargs="*", metavar="NAME", choices=ARCHITECTURES, help="of all")
    parser.add_argument("--page", type=Path, help=f"written to ({PAGE.name}, unless --only)")
    parser.add_argument("--side-by-side", type=int, default=1, metavar="N", help="runs at a time")
    options = parser.parse_args(arguments)
    chosen = [a for a in ARCHITECTURES.values() if options.only is None or a.name in options.only]
    with ThreadPoolExecutor(options.side_by_side) as pool:
        rows = []
        for architecture, result in zip(chosen, pool.map(run, chosen), strict=True):
            shares = " ".join(f"{share:.0%}" for share in result.shares)
            about = f"{result.verdict} {shares} ({result.duration_s:.0f} s)"
            is_short = result.verdict == "equal"
            detail = result.detail[:120] if is_short else result.detail
            print(f"{architecture.name}: {about} {detail}".rstrip(), flush=True)
            rows.append((architecture, result))
    page = options.page or (PAGE if options.only is None else None)
    if page is not None:
        page.write_text(_filled_in(page.read_text(), rows))
    is_well = all(result.verdict in ("equal", "refused", "left out") for _, result in rows)
    return 0 if is_well else 1


def _filled_in(text: str, rows: list[tuple[Architecture, Result]]) -> str:
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"expected the lines {_BEGIN!r} and {_END!r} in the page; put them back")
    return f"{before}{begin}{_table(rows)}{end}{after}"


def _table(rows: list[tuple[Architecture, Result]]) -> str:
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in dict.fromkeys(architecture.library for architecture, _ in rows)
        if importlib.util.find_spec(name)
    )
    counts: dict[str, int] = {}
    for _, result in rows:
        counts[result.verdict] = counts.get(result.verdict, 0) + 1
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    torch = importlib.metadata.version("torch").partition("+")[0]
    lines = [
        f"With torch {torch}, {versions}: {summary}.",
        "",
        "| Name | Model | Kind | Result | Parameters per rank | Largest difference | Remarks |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for architecture, result in rows:
        shares = ", ".join(f"{share:.0%}" for share in result.shares) or "-"
        difference = f"{result.difference:.0e}" if result.difference else "none"
        if not result.shares:
            difference = "-"
        remarks = [architecture.remark] if architecture.remark else []
        if result.detail:
            remarks.append(_in_short(result.detail))
        lines.append(
            f"| {architecture.name} | `{architecture.model_class}` | {architecture.kind} |"
            f" {result.verdict} | {shares} | {difference} | {'; '.join(remarks)} |"
        )
    return "\n".join(lines) + "\n"


def _in_short(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= 300 else f"{text[:297].rpartition(' ')[0]} ..."


if __name__ == "__main__":
    sys.exit(main())
