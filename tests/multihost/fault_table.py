# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Make every fault and write docs/faults.md: what each rank said, how soon, and what was left.

    python -m tests.multihost.fault_table [--only NAME ...] [--page FILE]

Needs what test hosts need: root, on a Linux kernel with network namespaces. `make faults` does it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.multihost.fault_run import Fault, Record, check, run
from tests.multihost.faults import FAULTS
from tests.multihost.namespaces import why_not

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
_OURS = "[smdistributed]"
# "all_reduce #7 (...) on rank 0 of 4 (host a, group 'default'): " is each rank's own.
_PREFIX = re.compile(r"^(.*? on rank )\d+( of \d+ \(host )[^,]*(, group '[^']*'\): )")

# What is made stands in the page between these lines; the rest is written by hand.
_BEGIN, _END = "<!-- made by `make faults`: {} -->\n", "<!-- end -->\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the faults, write the page; the exit status is 1 if a rank was told something else."""
    parser = argparse.ArgumentParser(description="Make every fault on test hosts, write a page.")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these faults (default: all)")
    parser.add_argument("--page", type=Path, default=PAGE, help="written to (docs/faults.md)")
    options = parser.parse_args(arguments)
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    chosen = [fault for fault in FAULTS if options.only is None or fault.name in options.only]
    made: list[tuple[Fault, Record]] = []
    status = 0
    for number, fault in enumerate(chosen, 1):
        print(f"{number}/{len(chosen)} {fault.name}: ", end="", flush=True)
        try:
            with tempfile.TemporaryDirectory(prefix="fault-") as folder:
                record = run(fault, Path(folder))
            made.append((fault, record))
            check(fault, record)
            print(f"{_after(record)}, as expected", flush=True)
        except AssertionError as error:
            status = 1
            print(f"NOT AS EXPECTED: {error}", flush=True)
    options.page.write_text(page(options.page.read_text(), made))
    return status


def page(text: str, made: Sequence[tuple[Fault, Record]]) -> str:
    """`text` of the page, with what is made in its place."""
    rows = "".join(
        f"| {fault.name} | {fault.made_by} | {_in_short(record)} | {_after(record)} |"
        f" {', '.join(record.left) or 'nothing'} |\n"
        for fault, record in made
    )
    header = "| Fault | How it is made | What the ranks say | Seconds | Left behind |\n"
    for name, content in (
        ("table", f"{header}| --- | --- | --- | --- | --- |\n{rows}"),
        ("texts", "\n" + "".join(_details(fault, record) for fault, record in made)),
    ):
        before, begin, rest = text.partition(_BEGIN.format(name))
        _, end, after = rest.partition(_END)
        if not end:
            raise ValueError(
                f"no part '{name}' in the page; expected the lines {_BEGIN.format(name)!r} and"
                f" {_END!r} around it. Put them back."
            )
        text = f"{before}{begin}{content}{end}{after}"
    return text


def _after(record: Record) -> str:
    return "-" if record.seconds is None else f"{record.seconds:.2f}"


def _in_short(record: Record) -> str:
    texts = dict.fromkeys(_without_prefix(text) for _, text in _texts(record))
    if texts:
        return "<br>".join(_first_clause(text) for text in texts)
    lines = dict.fromkeys(
        _first_clause(line.partition(": rank ")[2]) for _, line in _printed(record)
    )
    if lines:
        return "<br>".join(f"the job goes on; rank {line}" for line in lines)
    return "nothing: the job goes on, all sums are right"


def _first_clause(text: str) -> str:
    shorter = re.sub(r"\(host ([^,]*), pid \d+\)", r"(\1)", text)
    return re.split(r", noticed|, last seen|; |\. |\.$| \(\d+ refused", shorter, maxsplit=1)[0]


def _details(fault: Fault, record: Record) -> str:
    parts = [f"### {fault.name[0].upper()}{fault.name[1:]}\n\n{_sentence(fault.made_by)}"]
    if fault.note:
        parts.append(f" {fault.note}")
    blocks = [f"{who}: {text}" for who, text in _texts(record)]
    blocks += [f"rank {rank} prints: {line}" for rank, line in _printed(record)]
    if blocks:
        parts.append("\n\n```text\n" + "\n".join(blocks) + "\n```")
    else:
        parts.append(" Nobody says anything; the job goes on.")
    return "".join(parts) + "\n\n"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _texts(record: Record) -> Iterator[tuple[str, str]]:
    """(ranks, text): who was told what; ranks that were told the same stand together."""
    ranks_of: dict[str, list[int]] = {}
    first: dict[str, str] = {}
    for rank, told in enumerate(record.told):
        if told is not None and told.error:
            key = _without_prefix(told.text)
            ranks_of.setdefault(key, []).append(rank)
            first.setdefault(key, f"{told.error}: {told.text}")
    for key, ranks in ranks_of.items():
        name = "rank" if len(ranks) == 1 else "ranks"
        yield f"{name} {', '.join(map(str, ranks))}", first[key]


def _without_prefix(text: str) -> str:
    return _PREFIX.sub("", text)


def _printed(record: Record) -> Iterator[tuple[int, str]]:
    """What the package wrote by itself."""
    for rank, output in enumerate(record.output):
        for line in output.splitlines():
            if line.startswith(_OURS):
                yield rank, line


if __name__ == "__main__":
    sys.exit(main())
