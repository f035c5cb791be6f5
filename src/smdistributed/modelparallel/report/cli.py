# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The command `smpreport`: makes a report of what ranks have recorded, and draws it.

Source: our choice; docs/pipeline_report.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from smdistributed._common.errors import ConfigurationError
from smdistributed._common.version import __version__
from smdistributed.modelparallel.report.document import Report, read_report, report_of_records
from smdistributed.modelparallel.report.records import RankRecord, read_format, read_rank_record

__all__ = ["main"]

_PROGRAM = "smpreport"

_DESCRIPTION = """\
See what a pipeline does with its time and memory: who computed when, who waited, what was sent, how
much memory there was at the peak, what should have been, and what to change.

Steps are recorded by
    SMP_REPORT=runs/report.json smddprun -np 2 train.py
after which every rank has written a file (runs/report.0.json, runs/report.1.json), or by
    with smp.recording(): ...          a few steps of the script
    smp.report().save("runs/report.json")"""

_EXAMPLES = """\
examples:
  smpreport runs/report.*.json                       the report, as text; read the last lines first
  smpreport runs/report.*.json --draw step.png       a timeline for each rank (needs matplotlib)
  smpreport runs/report.*.json --perfetto step.json  all recorded steps, for https://ui.perfetto.dev
  smpreport runs/report.*.json --save report.json    one file, that this command reads, too
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options = _build_parser().parse_args(arguments)
    try:
        report = _read(options.files, options.pipeline)
        if options.plan:
            report = report.beside(read_report(options.plan))
        if options.draw:
            report.draw(options.draw)
        if options.perfetto:
            report.to_perfetto(options.perfetto)
        if options.save:
            report.save(options.save)
    except (ConfigurationError, ModuleNotFoundError, RuntimeError) as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 1
    print(report)
    return 0


def _read(paths: Sequence[str], pipeline: int | None) -> Report:
    if len(paths) == 1 and not read_format(paths[0]).endswith("rank record"):
        return read_report(paths[0])
    by_pipeline: dict[tuple[int, ...], list[RankRecord]] = {}
    for path in paths:
        record = read_rank_record(path)
        by_pipeline.setdefault(record.members, []).append(record)
    pipelines = sorted(by_pipeline)
    number = pipeline or 0
    if not 0 <= number < len(pipelines):
        raise ConfigurationError(
            f"--pipeline is {number}; expected one of 0 to {len(pipelines) - 1}, as the files are"
            f" of {len(pipelines)}. Give another number, or more files."
        )
    report = report_of_records(by_pipeline[pipelines[number]])
    if len(pipelines) > 1 and pipeline is None:
        others = ", ".join(str(each) for each in range(1, len(pipelines)))
        print(f"pipeline 0 of {len(pipelines)}; of replicas: --pipeline {others}\n")
    return report


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{_PROGRAM} {__version__}")
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="what a rank has recorded, or a saved report"
    )
    parser.add_argument("--draw", metavar="PICTURE", help="write a picture: .png, .svg or .pdf")
    parser.add_argument("--perfetto", metavar="TRACE", help="write a trace of all recorded steps")
    parser.add_argument("--save", metavar="REPORT", help="write the report as one file")
    parser.add_argument(
        "--plan",
        metavar="PLAN",
        help="for expected memory: what smp.plan(...)[0].save() has written",
    )
    parser.add_argument(
        "--pipeline", type=int, metavar="N", help="which of the replicas, by their lowest rank"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
