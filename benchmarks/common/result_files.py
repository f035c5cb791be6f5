# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Result files: their names, the command line inside, how they are written and found again.

A benchmark is a folder with a ``run.py``, which writes into ``results``, and a ``report.py``, which
reads from there.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Collection, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from common import environment

DOCS_FOLDER = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"


def default_path(benchmark: Path, extent: str) -> Path:
    """Where the results of today on this machine go, for the benchmark in this folder.

    ``extent`` says what is measured: ``full``, or a word that goes into the name.
    """
    suffix = "" if extent == "full" else f"_{extent}"
    name = f"{date.today().isoformat()}_{environment.machine_class()}{suffix}.json"
    return benchmark / "results" / name


def published_command(
    benchmark: Path, argv: Sequence[str], path_options: Collection[str] = ("--out",)
) -> str:
    """The command of this run without ``path_options``: paths tell where somebody works."""
    command = f"python benchmarks/{benchmark.name}/run.py"
    return f"{command} {shlex.join(_without(argv, path_options))}".strip()


def _without(argv: Sequence[str], options: Collection[str]) -> Iterator[str]:
    words = iter(argv)
    for word in words:
        option, equals, _ = word.partition("=")
        if option not in options:
            yield word
        elif not equals:
            next(words, None)


def write(path: Path, text: str) -> None:
    """Write or replace the file; an interrupted run leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def read_for_report(benchmark: Path, description: str) -> tuple[dict[str, Any], Path]:
    """Content of the file that the command line of ``report.py`` names, and where pages go.

    Without a name it is the newest file in ``results``. Raises ``SystemExit`` if there is none.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("result", nargs="?", type=Path, metavar="RESULT.json")
    parser.add_argument("--docs", type=Path, default=DOCS_FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    path: Path = arguments.result or _newest(benchmark)
    return json.loads(path.read_text()), arguments.docs


def _newest(benchmark: Path) -> Path:
    found = sorted((benchmark / "results").glob("*.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        here = f"benchmarks/{benchmark.name}"
        raise SystemExit(
            f"no result file in {here}/results; expected one from run.py. "
            f"Run `python {here}/run.py --quick` first."
        )
    return found[-1]
