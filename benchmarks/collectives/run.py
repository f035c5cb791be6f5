# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Measures collectives of all libraries, interleaved in one run. See README.md beside this file.

Loop:  for ranks: start the groups of all libraries that are needed
         for block (a collective, dtype and size): every group prepares (and verifies)
           for repetition, for set of columns: a round
             for column, in an order that turns by one each repetition: probe, measure, probe
         stop the groups

Only one group is awake at any moment.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from adapters.floor import FloorGroup, FloorProgram
from cases import (
    COLLECTIVES,
    FULL_SIZES,
    ITEM_SIZES,
    QUICK_SIZES,
    Case,
    Column,
    parse_size,
    size_name,
)
from common import environment
from common.command_line import add_turns, names, rank_counts
from common.result_files import ResultFile
from common.rounds import in_turn
from core_state import CoreProbe, CoreStates, ProbeSample
from figures import summarise
from groups import CaseUnsupported, GroupFailed, MeasuredGroup, WorkerGroup
from libraries import FLOOR_VARIANTS, LIBRARIES, Library, LibraryAbsent, is_oversubscribed
from native_programs import CannotBuild, build
from plan import Block, table_blocks, table_cases, target_blocks

BATCH_SECONDS = 200e-6  # short calls are timed in batches about this long, to hide the clock's cost
TRIAL_BATCHES = 3  # not counted; they say how long calls take now, and so how many a turn has
STARTS_PER_LIBRARY = 3  # a library that fails this often with one number of ranks is given up
HERE = Path(__file__).resolve().parent


@dataclass
class Turn:
    """One library's measurement in one round, with the probes around it."""

    round: int
    seconds: list[float]
    before: ProbeSample | None
    after: ProbeSample | None


@dataclass
class Entry:
    """A library in the run: how to start its group, and what came of it."""

    name: str
    label: str
    settings: str
    start: Callable[[], MeasuredGroup]
    group: MeasuredGroup | None = None
    starts: int = 0
    note: str = ""
    version: str = ""

    def ensure_started(self) -> None:
        """Start the group if it is not there. Raises ``GroupFailed`` or ``LibraryAbsent``."""
        if self.group is not None:
            return
        if self.starts >= STARTS_PER_LIBRARY:
            raise GroupFailed(f"given up after {self.starts} failures; the last: {self.note}")
        self.starts += 1
        self.group = self.start()
        self.version = self.group.version


@dataclass
class Measurement:
    """What one library gave in one case."""

    case: Case
    library: str
    status: str = "ok"
    note: str = ""
    turns: list[Turn] = field(default_factory=list)
    call_seconds: float = math.inf  # the shortest that a call is known to take

    def note_call(self, seconds: float) -> None:
        """A call took so long in one turn, or when the case was prepared."""
        self.call_seconds = max(1e-8, min(seconds, self.call_seconds))

    def to_json(self, states: CoreStates) -> dict[str, Any]:
        """The record of the result file."""
        record: dict[str, Any] = {
            **self.case.to_json(),
            "actual_bytes": self.case.actual_bytes,
            "library": self.library,
            "status": self.status,
        }
        if self.note:
            record["note"] = self.note
        by_tag: dict[str, list[Turn]] = {}
        record["turns"] = []
        for turn in self.turns:
            tag = states.tag_turn(turn.before, turn.after)
            by_tag.setdefault(tag, []).append(turn)
            figures = summarise(self.case, turn.seconds, 1)
            kept = ("samples", "best_us", "median_us")
            record["turns"].append(
                {"round": turn.round, "tag": tag, **{key: figures[key] for key in kept}}
            )
        record["by_tag"] = {
            tag: summarise(self.case, [s for t in turns for s in t.seconds], len(turns))
            for tag, turns in sorted(by_tag.items())
        }
        return record


class Run:
    """Everything measured so far, and the file that holds it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        hidden = ("--out", "--reference-floor")
        self.file = ResultFile(HERE, arguments.out, arguments.extent, hidden)
        self._probe = CoreProbe()
        self._probes: list[ProbeSample] = []
        self._measurements: dict[Column, Measurement] = {}
        self._rounds = 0
        self._libraries: dict[str, dict[str, Any]] = {}
        self._reference_floor: Any = None

    def measure_ranks(self, ranks: int, blocks: Sequence[Block]) -> None:
        """Start the groups that ``blocks`` need, measure, stop the groups."""
        floor: FloorProgram | None = None
        columns = {column for block in blocks for column in block.columns}
        wanted = {column.library for column in columns}
        entries = [_entry_of(library, ranks) for library in LIBRARIES if library.name in wanted]
        variants = [variant for variant in FLOOR_VARIANTS if f"floor-{variant}" in wanted]
        if variants:
            try:
                floor = FloorProgram(max(column.case.actual_bytes for column in columns))
            except LibraryAbsent as reason:
                self._libraries["floor"] = {"label": "floor", "absent": str(reason)}
                print(f"floor: left out, {reason}")
            else:
                entries += [_floor_entry(floor, variant) for variant in variants]
        try:
            self._start_all(entries, ranks)
            known = {entry.name: entry for entry in entries}
            for block in blocks:
                self._measure_block(block.only(known), known)
                self.save()
        finally:
            for entry in entries:
                if entry.group is not None:
                    entry.group.stop()
            if floor is not None:
                floor.stop()

    def _start_all(self, entries: list[Entry], ranks: int) -> None:
        for entry in list(entries):
            known = self._libraries.setdefault(
                entry.name, {"label": entry.label, "settings": entry.settings}
            )
            try:
                entry.ensure_started()
                known["version"] = entry.version
                print(f"{ranks} ranks of {entry.label}: {entry.version}", flush=True)
            except LibraryAbsent as reason:
                known["absent"] = str(reason)
                entries.remove(entry)
                print(f"{entry.label}: left out, {reason}", flush=True)
            except GroupFailed as failure:
                entry.note = str(failure)
                print(f"{ranks} ranks of {entry.label}: failed to start: {failure}", flush=True)

    def _measure_block(self, block: Block, entries: Mapping[str, Entry]) -> None:
        begin = time.monotonic()
        # A column may have been measured in an earlier block too; its turns stay together.
        measured = {
            column: self._measurements.setdefault(column, Measurement(column.case, column.library))
            for column in block.columns
        }
        keep_buffers = _fits_memory(block.columns)

        def attempt(
            column: Column, act: Callable[[MeasuredGroup], object], may_start: bool = False
        ) -> None:
            self._attempt(entries[column.library], measured[column], act, may_start)

        def prepare(column: Column) -> None:
            def act(group: MeasuredGroup) -> None:
                measured[column].note_call(group.prepare(column.case))

            attempt(column, act, may_start=True)

        def verify(column: Column) -> None:
            attempt(column, lambda group: group.verify(column.case))

        def release(column: Column) -> None:
            attempt(column, lambda group: group.release(column.case))

        for column in block.columns:
            prepare(column)
            if not keep_buffers:
                release(column)
        for repetition in range(block.rounds):
            for columns in block.sets:
                for column in in_turn(columns, repetition):
                    if not keep_buffers:
                        prepare(column)
                    self._take_turn(entries[column.library], measured[column], block.turn_ms)
                    if not keep_buffers:
                        release(column)
                self._rounds += 1
        if keep_buffers:
            for column in block.columns:
                verify(column)
                release(column)
        self._print_block(block, list(measured.values()), time.monotonic() - begin)

    def _attempt(
        self,
        entry: Entry,
        measurement: Measurement,
        act: Callable[[MeasuredGroup], object],
        may_start: bool = False,
    ) -> None:
        """Do ``act`` on the group; a failure is written into ``measurement``, and never raised.

        A group that failed in another case of the block is there again after ``may_start``, which
        is for preparing: it knows nothing of the cases that were prepared before.
        """
        if measurement.status != "ok":
            return
        try:
            if may_start:
                entry.ensure_started()
            if entry.group is None:
                raise GroupFailed(entry.note)
            act(entry.group)
        except CaseUnsupported as reason:
            measurement.status, measurement.note = "unsupported", str(reason)
        except (GroupFailed, LibraryAbsent) as failure:
            if entry.starts < STARTS_PER_LIBRARY or entry.group is not None:
                entry.note = str(failure)
            entry.group = None
            measurement.status, measurement.note = "failed", str(failure)
            measurement.turns.clear()

    def _take_turn(self, entry: Entry, measurement: Measurement, turn_ms: float) -> None:
        turn_seconds = turn_ms * 1e-3
        case = measurement.case

        def measure(group: MeasuredGroup) -> None:
            before = self._sample_probe()
            call_seconds = measurement.call_seconds
            inner = _calls_per_batch(call_seconds)
            if TRIAL_BATCHES * inner * call_seconds < 0.1 * turn_seconds:
                # Short calls can take many times as long in another state of the machine.
                call_seconds = median(group.run(case, inner, TRIAL_BATCHES))
                inner = _calls_per_batch(call_seconds)
            budget = round(turn_seconds / (call_seconds * inner))
            seconds = group.run(case, inner, max(1 if call_seconds > 0.2 else 3, budget))
            after = self._sample_probe()
            measurement.turns.append(Turn(self._rounds, seconds, before, after))
            measurement.note_call(median(seconds))

        self._attempt(entry, measurement, measure)

    def _sample_probe(self) -> ProbeSample | None:
        sample = self._probe.sample()
        if sample is not None:
            self._probes.append(sample)
        return sample

    def _print_block(
        self, block: Block, measurements: Sequence[Measurement], seconds: float
    ) -> None:
        case = block.case
        print(
            f"\n{case.collective} {case.dtype}, {case.ranks} ranks, {size_name(case.size_bytes)} "
            f"({seconds:.1f} s)"
        )
        states = CoreStates(self._probes)
        for measurement in measurements:
            name = measurement.library
            if measurement.case != case:
                name += f" {measurement.case.dtype}"
            if measurement.status != "ok":
                print(f"  {name:20} {measurement.status}: {measurement.note}")
                continue
            columns = [
                f"{tag} {figures['best_us']:.1f} / {figures['median_us']:.1f} us"
                f" ({figures['turns']} turns)"
                for tag, figures in measurement.to_json(states)["by_tag"].items()
            ]
            print(f"  {name:20} best / median: {', '.join(columns)}")
        sys.stdout.flush()

    def run_reference_floor(self, path: Path, when: str) -> None:
        """Run a foreign floor program (JSON lines on stdout) between probes; keep its lines."""
        if self._reference_floor is None:
            self._reference_floor = []
        program = path
        if path.suffix == ".c":
            if "avx512f" not in environment.describe()["vector_extensions"]:
                self._reference_floor = {"skipped": "its source needs AVX-512, this CPU has none"}
                print(f"reference floor: skipped, {self._reference_floor['skipped']}")
                return
            try:
                program = build(path, ("-O3", "-march=native"))
            except CannotBuild as error:
                self._reference_floor = {"skipped": str(error)}
                return
        for chunk_kib in (128, 256):
            before = self._sample_probe()
            outcome = subprocess.run(
                [str(program.resolve()), "20", str(chunk_kib)], capture_output=True, text=True
            )
            after = self._sample_probe()
            lines = [json.loads(line) for line in outcome.stdout.splitlines() if line]
            self._reference_floor.append({"when": when, "probes": [before, after], "points": lines})

    def save(self) -> None:
        """Write the result file: complete after every case, so an interrupted run is not lost."""
        states = CoreStates(self._probes)
        reference = self._reference_floor
        if isinstance(reference, list):
            reference = [
                {
                    "when": block["when"],
                    "tag": states.tag_turn(*block["probes"]),
                    "points": block["points"],
                }
                for block in reference
            ]
        self.file.write(
            extent=self._arguments.extent,
            rounds=self._arguments.rounds,
            core_states=states.to_json(),
            probes=len(self._probes),
            libraries=self._libraries,
            reference_floor=reference,
            results=[found.to_json(states) for found in self._measurements.values()],
        )

    def stop(self) -> None:
        """End the probe."""
        self._probe.stop()


def _entry_of(library: Library, ranks: int) -> Entry:
    return Entry(library.name, library.label, library.settings, lambda: WorkerGroup(library, ranks))


def _floor_entry(program: FloorProgram, variant: str) -> Entry:
    return Entry(
        f"floor-{variant}",
        f"floor, {variant}",
        "two processes pinned to two CPUs; the best of the segment sizes in each turn",
        lambda: FloorGroup(program, variant),
    )


def _calls_per_batch(call_seconds: float) -> int:
    return max(1, round(BATCH_SECONDS / call_seconds))


def _fits_memory(columns: Sequence[Column]) -> bool:
    """Whether all columns can keep their buffers between turns: 40 % of the memory at most."""
    wanted = sum(column.case.buffer_bytes for column in columns)
    return wanted < 0.4 * environment.available_bytes()


def _blocks(arguments: argparse.Namespace, ranks: int) -> list[Block]:
    """What is measured with this number of ranks."""
    libraries = [
        library.name
        for library in arguments.libraries
        if is_oversubscribed(ranks) or not library.only_oversubscribed
    ]
    if arguments.floor and ranks == 2:
        libraries += [f"floor-{variant}" for variant in FLOOR_VARIANTS]
    if arguments.targets:
        return target_blocks(ranks, libraries, arguments.rounds, arguments.turn_ms)
    sizes = {
        dtype: [max(arguments.sizes)] if arguments.quick and dtype != "f32" else arguments.sizes
        for dtype in arguments.dtypes
    }
    cases = list(table_cases(arguments.collectives, arguments.dtypes, sizes, ranks))
    return table_blocks(cases, libraries, arguments.rounds, arguments.turn_ms)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    def sizes(text: str) -> list[int]:
        try:
            return [parse_size(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    library_names = [library.name for library in LIBRARIES]
    parser = argparse.ArgumentParser(
        prog="run.py", description="Measure collectives of all libraries, interleaved in one run."
    )
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument(
        "--quick", action="store_true", help="a subset in about 3 minutes (default)"
    )
    extent.add_argument("--full", action="store_true", help="everything, in some hours")
    extent.add_argument(
        "--targets", action="store_true", help="what the targets need, in some 15 minutes"
    )
    parser.add_argument("--collectives", type=names(COLLECTIVES), metavar="NAME,...")
    parser.add_argument("--dtypes", type=names(tuple(ITEM_SIZES)), metavar="NAME,...")
    parser.add_argument("--sizes", type=sizes, metavar="SIZE,...", help="such as 4,64K,25M")
    parser.add_argument("--ranks", type=rank_counts(1), metavar="N,...", help="such as 2,4")
    parser.add_argument(
        "--libraries",
        type=names((*library_names, "floor")),
        metavar="NAME,...",
        help=f"of {', '.join(library_names)}, floor",
    )
    add_turns(parser)
    parser.add_argument(
        "--reference-floor",
        type=Path,
        metavar="PATH",
        help="source (needs AVX-512) or program of another floor, run before and after",
    )
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    arguments = parser.parse_args(argv)
    full = arguments.full
    arguments.quick = not (full or arguments.targets)
    arguments.extent = "full" if full else "targets" if arguments.targets else "quick"
    given = [name for name in ("collectives", "dtypes", "sizes") if getattr(arguments, name)]
    if arguments.targets and given:
        parser.error(f"--targets has cases of its own; leave out --{', --'.join(given)}")
    arguments.collectives = arguments.collectives or (list(COLLECTIVES) if full else ["all_reduce"])
    arguments.dtypes = arguments.dtypes or list(ITEM_SIZES)
    arguments.sizes = arguments.sizes or list(FULL_SIZES if full else QUICK_SIZES)
    default_ranks = [1, 2, 4, 8] if full else [2, 4, 8] if arguments.targets else [2, 4]
    arguments.ranks = arguments.ranks or default_ranks
    if not arguments.targets:
        arguments.rounds = arguments.rounds or (5 if arguments.quick else 9)
        arguments.turn_ms = arguments.turn_ms or (15.0 if arguments.quick else 25.0)
    chosen = arguments.libraries
    arguments.floor = chosen is None or "floor" in chosen
    arguments.libraries = [
        library
        for library in LIBRARIES
        if (library.is_default or arguments.targets if chosen is None else library.name in chosen)
    ]
    return arguments


def main() -> int:
    """Measure what the command line asks for; the exit status is 0 unless nothing was measured."""
    arguments = _parse(sys.argv[1:])
    # Ends through `finally`: the ranks lead process groups of their own and would go on without us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin = time.monotonic()
    run = Run(arguments)
    try:
        if arguments.reference_floor is not None:
            run.run_reference_floor(arguments.reference_floor, "before")
        for ranks in arguments.ranks:
            run.measure_ranks(ranks, _blocks(arguments, ranks))
        if arguments.reference_floor is not None:
            run.run_reference_floor(arguments.reference_floor, "after")
        run.save()
    except KeyboardInterrupt:
        print("interrupted; the cases that were complete are in the result file")
        return 130
    finally:
        run.stop()
    print(f"\nresults: {run.file.name} ({(time.monotonic() - begin) / 60:.1f} min)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
