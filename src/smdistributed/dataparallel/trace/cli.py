# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The command `smddptrace`: merges the traces of a job's ranks, and sums them up.

Source: our choice; docs/tracing.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from smdistributed._common.errors import ConfigurationError
from smdistributed._common.version import __version__
from smdistributed.dataparallel.trace.files import read_rank_traces, write_trace
from smdistributed.dataparallel.trace.merge import (
    describe_clocks,
    merge_events,
    merged_about,
    read_job,
)
from smdistributed.dataparallel.trace.summary import summarise

__all__ = ["main"]

_PROGRAM = "smddptrace"

_DESCRIPTION = """\
Look at where the ranks of a data parallel job spent their time, and at whom they waited for.

Every rank writes one file, if the job was started with
    smddprun --trace runs/trace.json -np 2 train.py      (this also merges them)
    SMDDP_TRACE=runs/trace.json torchrun ... train.py
or if the script calls smdistributed.dataparallel.start_profiler("runs/trace.json")."""

_EXAMPLES = """\
examples:
  smddptrace summary runs/trace.*.json          what took long, who came last; read this first
  smddptrace merge -o all.json runs/trace.*.json
                                                one timeline of all ranks; open all.json with
                                                "Open trace file" at https://ui.perfetto.dev
                                                (it stays in your browser) or in chrome://tracing
"""

_MERGE = """\
Write one trace of all ranks, on one clock. Ranks of one host share a clock. Hosts are aligned by
the collectives that their ranks did together: none can end on one rank before it began on every
other. The error that remains is printed and stands in the file."""

_SUMMARY = """\
Print what the traces say: a table of operations (by kind, size and algorithm: how often, how long,
how much of it waiting for other ranks), which rank comes last how often, and what of all that the
training thread had to wait for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options = _build_parser().parse_args(arguments)
    try:
        text = _merge(options) if options.command == "merge" else _summarise(options)
    except ConfigurationError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"{_PROGRAM}: {options.output} could not be written ({error.strerror}); expected a "
            "folder with room for it that may be written to. Make room, or name another with -o.",
            file=sys.stderr,
        )
        return 1
    print(text, end="")
    return 0


def _merge(options: argparse.Namespace) -> str:
    output = Path(options.output)
    if output.resolve() in {Path(path).resolve() for path in options.files}:
        raise ConfigurationError(
            f"{output} is one of the files to merge; expected another name after -o. Patterns such "
            "as trace*.json also match the output of the last time."
        )
    job = read_job(read_rank_traces(options.files))
    events = merge_events(job)
    write_trace(output, events, merged_about(job))
    ranks = len(job.traces)
    lines = [f"{output}: {ranks} rank(s), {len(job.collectives)} collectives matched"]
    lines += describe_clocks(job)
    if job.missing_ranks:
        lines.append(f"no trace of rank(s) {' '.join(map(str, job.missing_ranks))}")
    return "".join(f"{line}\n" for line in lines)


def _summarise(options: argparse.Namespace) -> str:
    job = read_job(read_rank_traces(options.files))
    return summarise(job, None if options.all else 20)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{_PROGRAM} {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    merge = commands.add_parser(
        "merge",
        help="one timeline of all ranks, on one clock",
        description=_MERGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    merge.add_argument("-o", "--output", required=True, metavar="MERGED", help="file to write")
    summary = commands.add_parser(
        "summary",
        help="tables: what took long, who came last",
        description=_SUMMARY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    summary.add_argument("--all", action="store_true", help="all operations, not the 20 longest")
    for command in (merge, summary):
        command.add_argument("files", nargs="+", metavar="FILE", help="trace of one rank")
    return parser
