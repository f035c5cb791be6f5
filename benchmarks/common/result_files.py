# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Result files: their names, what all of them hold, how they are written and found again.

A benchmark is a folder with a ``run.py``, which writes into ``results``, and a ``report.py``, which
reads from there.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from common import environment

SCHEMA_VERSION = 1
DOCS_FOLDER = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"


class ResultFile:
    """The result file of one run. ``name`` is its name without the folder."""

    def __init__(
        self,
        benchmark: Path,
        out: Path | None,
        extent: str = "full",
        path_options: Collection[str] = ("--out",),
    ) -> None:
        """A file of the program that runs, in the folder ``benchmark``.

        Args:
            benchmark: the folder; its name is the benchmark's.
            out: where the file goes; None: into ``results``, under the date and the machine.
            extent: what is measured: ``full``, or a word that goes into the name.
            path_options: left out of the command that the file names: paths tell where somebody
                works.
        """
        self._path = out or _default_path(benchmark, extent)
        self.name = self._path.name
        self._head = {
            "schema": SCHEMA_VERSION,
            "benchmark": benchmark.name,
            "date": date.today().isoformat(),
            "command": _published_command(benchmark, path_options),
        }

    def write(self, **content: Any) -> None:
        """Write or replace the file.

        Args:
            content: what this benchmark has to say. A list ``results`` comes last, with a record in
                each line: readable differences, and a fraction of an indented file.
        """
        content = {**self._head, "environment": environment.describe(), **content}
        records = content.pop("results", None)
        text = json.dumps(content, indent=1)
        if records is not None:
            lines = ",\n".join(json.dumps(record) for record in records)
            text = text.removesuffix("\n}") + f',\n "results": [\n{lines}\n ]\n}}'
        write(self._path, text + "\n")


def write(path: Path, text: str) -> None:
    """Write or replace a file; an interrupted program leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def _default_path(benchmark: Path, extent: str) -> Path:
    suffix = "" if extent == "full" else f"_{extent}"
    name = f"{date.today().isoformat()}_{environment.machine_class()}{suffix}.json"
    return benchmark / "results" / name


def _published_command(benchmark: Path, path_options: Collection[str]) -> str:
    command = f"python benchmarks/{benchmark.name}/{Path(sys.argv[0]).name}"
    return f"{command} {shlex.join(_without(sys.argv[1:], path_options))}".strip()


def _without(argv: Sequence[str], options: Collection[str]) -> Iterator[str]:
    words = iter(argv)
    for word in words:
        option, equals, _ = word.partition("=")
        if option not in options:
            yield word
        elif not equals:
            next(words, None)


def read_for_report(benchmark: Path, description: str) -> tuple[dict[str, Any], Path]:
    """Content of the file that the command line of ``report.py`` names, and where pages go.

    Without a name it is the newest file in ``results``. Raises ``SystemExit`` if there is none. The
    folder for the pages is there.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("result", nargs="?", type=Path, metavar="RESULT.json")
    parser.add_argument("--docs", type=Path, default=DOCS_FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    path: Path | None = arguments.result or newest(benchmark)
    if path is None:
        here = f"benchmarks/{benchmark.name}"
        raise SystemExit(
            f"no result file in {here}/results; expected one from run.py. "
            f"Run `python {here}/run.py --quick` first."
        )
    arguments.docs.mkdir(parents=True, exist_ok=True)
    return json.loads(path.read_text()), arguments.docs


def write_page(
    benchmark: Path, description: str, name: str, page: Callable[[dict[str, Any]], str]
) -> None:
    """The whole of a ``report.py`` that writes one page from one result file."""
    content, folder = read_for_report(benchmark, description)
    (folder / name).write_text(page(content))
    print(f"wrote {name}")


def newest(
    benchmark: Path,
    pattern: str = "*.json",
    is_fit: Callable[[dict[str, Any]], bool] = lambda content: True,
) -> Path | None:
    """The newest of the benchmark's result files with such a name and such a content."""
    paths = (benchmark / "results").glob(pattern)
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        if is_fit(json.loads(path.read_text())):
            return path
    return None
