# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Compare architectures with one process and write docs/architectures.md.

    PYTHONPATH=tests/multiprocess python -m tests.architectures.run [--only NAME ...] [--ranks N]

`make architectures` does it for all. The exit status is 1 if a row is not what the table asks for.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from harness import RanksFailed

from tests.architectures.comparison import Result, compare
from tests.architectures.registry import Architecture, architectures, sections

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architectures.md"
# What is made stands in the page between these lines; the rest is written by hand.
_BEGIN, _END = "<!-- made by `make architectures` -->\n", "<!-- end -->\n"
_LIBRARIES = ("torch", "transformers", "diffusers", "timm")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares, prints, and writes the page if all rows were asked for."""
    known = architectures()
    parser = argparse.ArgumentParser(description="Compare public architectures with one process.")
    parser.add_argument("--only", nargs="*", metavar="NAME", choices=known, help="no page then")
    parser.add_argument("--ranks", type=int, default=2, help="partitions (2); no page if others")
    options = parser.parse_args(arguments)
    results = []
    for name in options.only or known:
        start = time.monotonic()
        result = run(known[name], options.ranks)
        results.append(result)
        shares = " ".join(f"{share:.0%}" for share in result.shares)
        print(f"{name}: {result.verdict} {shares} ({time.monotonic() - start:.1f} s)", flush=True)
        if not result.is_expected or options.only:
            print(f"    {result.reason}\n{result.detail}".rstrip(), flush=True)
    if not options.only and options.ranks == 2:
        PAGE.write_text(page(PAGE.read_text(), results))
    unexpected = [result.architecture.name for result in results if not result.is_expected]
    if unexpected:
        print(f"NOT AS EXPECTED: {', '.join(unexpected)}")
    return 1 if unexpected else 0


def run(architecture: Architecture, num_ranks: int) -> Result:
    if importlib.util.find_spec(architecture.library) is None:
        reason = f"{architecture.library} is not installed"
        return Result(architecture, "left out", reason, is_expected=True)
    try:
        return compare(architecture, num_ranks)
    except RanksFailed as error:
        return Result(
            architecture, "error", "in one process, without the library", detail=str(error)
        )


def page(text: str, results: Sequence[Result]) -> str:
    """`text` of the page, with the tables in their place."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"expected the lines {_BEGIN!r} and {_END!r} in the page; put them back")
    return f"{before}{begin}\n{_tables(results)}\n{end}{after}"


def _tables(results: Sequence[Result]) -> str:
    versions = [f"{name} {_version(name)}" for name in _LIBRARIES if _has(name)]
    counts = Counter(result.verdict for result in results)
    lines = [
        f"{len(results)} rows, with {', '.join(versions)}: "
        + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        + ".",
    ]
    by_name = {result.architecture.name: result for result in results}
    for title, rows in sections().items():
        lines += [
            f"\n### {title}\n",
            "| Name | Model | Result | Parameters per rank | Largest difference | Remarks |",
            "| --- | --- | --- | --- | --- | --- |",
            *(_line(by_name[row.name]) for row in rows if row.name in by_name),
        ]
    lines.append("\n### What the library says\n")
    said: dict[str, list[str]] = {}
    for result in results:
        if result.reason:
            said.setdefault(_escaped(result.reason), []).append(result.architecture.name)
    lines += [f"- **{', '.join(names)}**: {text}" for text, names in said.items()]
    return "\n".join(lines) + "\n"


def _version(library: str) -> str:
    return importlib.metadata.version(library).partition("+")[0]


def _has(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _line(result: Result) -> str:
    architecture = result.architecture
    shares = ", ".join(f"{share:.0%}" for share in result.shares) or "-"
    difference = f"{result.difference:.0e}" if result.difference else "none"
    verdict = result.verdict if result.is_expected else f"**{result.verdict}**"
    return (
        f"| {architecture.name} | `{architecture.title}` | {verdict} | {shares} |"
        f" {difference if result.shares else '-'} | {architecture.remark} |"
    )


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", r"\*")


if __name__ == "__main__":
    sys.exit(main())
