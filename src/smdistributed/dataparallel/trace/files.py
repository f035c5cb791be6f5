# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Reads and writes trace files: whole or not at all, and checked before anything is believed.

A file is a Chrome trace in its object form. Who wrote it stands beside the events under `smddp`,
where viewers do not look.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from smdistributed._common.errors import ConfigurationError
from smdistributed.dataparallel.trace.chrome import Event, read_operations
from smdistributed.dataparallel.trace.model import RankInfo, RankTrace

__all__ = ["read_rank_trace", "read_rank_traces", "write_rank_trace", "write_trace"]

_FORMAT: Final = 1
_KEY: Final = "smddp"

_EXPECTED: Final = "expected a rank's trace, as start_profiler() and SMDDP_TRACE write it"


def write_rank_trace(path: Path, info: RankInfo, events: Sequence[Event]) -> None:
    """Writes one rank's trace; see `write_trace`."""
    write_trace(path, events, {"format": _FORMAT, "trace": "rank", **dataclasses.asdict(info)})


def write_trace(path: Path, events: Sequence[Event], about: Mapping[str, Any]) -> None:
    """Writes a trace next to its place and renames it there, so that no half of one is ever seen.

    Folders are created as needed.

    Raises:
        OSError: a folder or the file cannot be written; what was there before is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "x", encoding="utf-8") as file:
            # One event per line: short of memory for large ones, and other tools can cut them.
            encode = json.JSONEncoder(separators=(",", ":"), default=str).encode
            file.write('{"displayTimeUnit":"ms",\n')
            file.write(f'"{_KEY}":{encode(about)},\n"traceEvents":[')
            for number, event in enumerate(events):
                file.write(",\n" if number else "\n")
                file.write(encode(event))
            file.write("\n]}\n")
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def read_rank_traces(paths: Sequence[str | Path]) -> list[RankTrace]:
    """Reads the traces of a job, ordered by rank.

    Raises:
        ConfigurationError: a file is no rank's trace, or the files do not belong to one job.
    """
    traces = sorted((read_rank_trace(path) for path in paths), key=lambda trace: trace.info.rank)
    _check_one_job(traces)
    return traces


def read_rank_trace(path: str | Path) -> RankTrace:
    """Reads and checks one rank's trace.

    Raises:
        ConfigurationError: it cannot be read, or it is something else.
    """
    path = Path(path)
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error.strerror}); {_EXPECTED}. Check the path."
        ) from error
    except ValueError as error:
        raise ConfigurationError(
            f"{path} is not JSON ({error}); {_EXPECTED}. Give other files, or record again."
        ) from error
    about = document.get(_KEY) if isinstance(document, dict) else None
    if not isinstance(about, dict):
        raise ConfigurationError(
            f"{path} does not say which rank wrote it; {_EXPECTED}. A trace of another tool cannot "
            "be aligned: leave it out."
        )
    if about.get("trace") == "merged":
        raise ConfigurationError(
            f"{path} is a merged trace already; {_EXPECTED}. Give the files it was made from: "
            f"{', '.join(map(str, about.get('files', []))) or 'those of the ranks'}."
        )
    if about.get("format") != _FORMAT:
        raise ConfigurationError(
            f"{path} has format {about.get('format')!r}; expected {_FORMAT}, which this version "
            f"writes and reads. Use the smddptrace of version {about.get('version', '?')}."
        )
    try:
        info = RankInfo(**{f.name: about[f.name] for f in dataclasses.fields(RankInfo)})
        events = document["traceEvents"]
        operations = read_operations(events, info.origin_ns)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is damaged: {type(error).__name__} {error}; {_EXPECTED}, unchanged. Give the "
            "file as it was written, or record again."
        ) from error
    return RankTrace(path, info, events, operations)


def _check_one_job(traces: Sequence[RankTrace]) -> None:
    by_rank: dict[int, RankTrace] = {}
    for trace in traces:
        other = by_rank.setdefault(trace.info.rank, trace)
        if other is not trace:
            raise ConfigurationError(
                f"{other.path} and {trace.path} are both of rank {trace.info.rank}; expected one "
                "file per rank. Leave one out; without append_rank=True all ranks write to one "
                "name, and the last one stays."
            )
    for what, texts in (
        ("world_size", [str(trace.info.world_size) for trace in traces]),
        ("job", [trace.info.job for trace in traces]),
    ):
        known = {text: trace.path for text, trace in zip(texts, traces, strict=True) if text}
        if len(known) > 1:
            (one, first), (two, second) = list(known.items())[:2]
            raise ConfigurationError(
                f"{first} has {what}={one}, {second} has {what}={two}; expected traces of one run. "
                "Old files may lie beside new ones: give those of one run only."
            )
