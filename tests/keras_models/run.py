# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Compare Keras models with one process and write docs/keras-models.md.

    PYTHONPATH=tests/multiprocess python -m tests.keras_models.run [--only NAME ...] [--keras NAME]

`make keras-models` does it for all. The exit status is 1 if a row is not what the table asks for.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from harness import RanksFailed

from tests.keras_models.comparison import Keras, Result, compare
from tests.keras_models.registry import Row, rows, sections

PAGE = Path(__file__).resolve().parents[2] / "docs" / "keras-models.md"
# What is made stands in the page between these lines; the rest is written by hand.
_BEGIN, _END = "<!-- made by `make keras-models` -->\n", "<!-- end -->\n"
_LIBRARIES = ("tensorflow", "tensorflow-cpu", "keras", "tf-keras")
_PARTITIONS = (2, 3)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares, prints, and writes the page if all rows were asked for."""
    known = rows()
    parser = argparse.ArgumentParser(description="Compare Keras models with one process.")
    parser.add_argument("--only", nargs="*", metavar="NAME", choices=known, help="no page then")
    parser.add_argument("--keras", choices=[each.value for each in Keras], help="no page then")
    parser.add_argument("--partitions", type=int, nargs="*", default=_PARTITIONS)
    options = parser.parse_args(arguments)
    results = []
    kerases = [each for each in Keras if options.keras in (None, each.value)]
    for name in options.only or known:
        for keras in kerases:
            start = time.monotonic()
            result = run(known[name], keras, options.partitions)
            results.append(result)
            shares = "; ".join(map(_shares, result.shares.values()))
            spent = time.monotonic() - start
            print(
                f"{name}, {keras.value}: {result.verdict} {result.difference:.0e}, {shares}"
                f" ({spent:.1f} s)",
                flush=True,
            )
            if not result.is_expected or options.only:
                print(f"    {result.reason}\n{result.detail}".rstrip(), flush=True)
    is_whole = not (options.only or options.keras) and tuple(options.partitions) == _PARTITIONS
    if is_whole:
        PAGE.write_text(page(PAGE.read_text(), results))
    unexpected = [result.row.name for result in results if not result.is_expected]
    if unexpected:
        print(f"NOT AS EXPECTED: {', '.join(unexpected)}")
    return 1 if unexpected else 0


def run(row: Row, keras: Keras, partitions: Sequence[int]) -> Result:
    try:
        return compare(row, keras, partitions)
    except RanksFailed as error:
        return Result(row, keras, "error", "in one process, without us", detail=str(error))


def page(text: str, results: Sequence[Result]) -> str:
    """`text` of the page, with the tables in their place."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"expected the lines {_BEGIN!r} and {_END!r} in the page; put them back")
    return f"{before}{begin}\n{_tables(results)}\n{end}{after}"


def _tables(results: Sequence[Result]) -> str:
    versions = [
        f"{each.metadata['Name']} {each.version}"
        for name in _LIBRARIES
        for each in importlib.metadata.distributions(name=name)
    ]
    counts = Counter(result.verdict for result in results)
    lines = [
        f"{len(results)} runs, with {', '.join(versions)}: "
        + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        + ".",
    ]
    for title, some in sections().items():
        names = {row.name for row in some}
        for keras in Keras:
            chosen = [each for each in results if each.keras is keras and each.row.name in names]
            lines += [
                f"\n### {title}, {keras.value}\n",
                "| Name | Result | 2 partitions | 3 partitions | Largest difference | Remarks |",
                "| --- | --- | --- | --- | --- | --- |",
                *map(_line, chosen),
            ]
    said = {
        f"- **{each.row.name}**, {each.keras.value}: {each.reason}"
        for each in results
        if each.reason
    }
    if said:
        lines += ["\n### What the library says, and what rounds otherwise\n", *sorted(said)]
    return "\n".join(lines) + "\n"


def _line(result: Result) -> str:
    shares = [_shares(result.shares.get(count, ())) for count in _PARTITIONS]
    difference = f"{result.difference:.0e}" if result.difference else "none"
    if result.difference_64 is not None:
        difference += f"; float64: {result.difference_64:.0e}"
    verdict = result.verdict if result.is_expected else f"**{result.verdict}**"
    return (
        f"| {result.row.name} | {verdict} | {' | '.join(shares)} |"
        f" {difference if result.shares else '-'} | {result.row.remark} |"
    )


def _shares(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.0%}" for share in shares) or "-"


if __name__ == "__main__":
    sys.exit(main())
