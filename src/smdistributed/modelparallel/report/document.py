# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a pipeline: what it did, or would do; as text, file and picture."""

from __future__ import annotations

import dataclasses
import statistics
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.modelparallel.decide.schedules.simulation import Visit
from smdistributed.modelparallel.report import advice
from smdistributed.modelparallel.report.costs import OUTSIDE_ROW, Profile, Row, Settings
from smdistributed.modelparallel.report.expectation import (
    Expected,
    expect,
    with_memory,
)
from smdistributed.modelparallel.report.measured import Measured
from smdistributed.modelparallel.report.perfetto import clocks_of, write_perfetto
from smdistributed.modelparallel.report.programs import (
    expect_of_programs,
    names_of_segments,
    rows_of_segments,
    seconds_of_segments,
)
from smdistributed.modelparallel.report.records import (
    Memory,
    RankRecord,
    read_json,
    record_of,
    write_json,
)
from smdistributed.modelparallel.report.segments import segment_of
from smdistributed.modelparallel.report.timeline import (
    Timeline,
    comparable,
    order_of,
    timelines,
    typical,
    way_of,
)
from smdistributed.modelparallel.report.words import aligned, bytes_text, seconds_text, words_of

__all__ = [
    "Measured",
    "Report",
    "read_report",
    "report_of_records",
]

_FORMAT = "smdistributed.modelparallel report"
_VERSION = 2
_FORWARD = "F"
_MOST_ROWS = 40
_OF_LAYERS = (
    "Times of segments are measured; those of layers are shares of these, guessed from the graph:"
)
_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Report:
    """Of one pipeline. `print` it.

    Attributes:
        settings: its parameters.
        rows: what is where and what it costs, in the order of execution.
        expected: what computing and the schedule alone lead to.
        measured: what happened; None of a plan.
        ranks: world ranks, by partition; empty of a plan.
        records: what the ranks have recorded; empty of a plan.
        names: by key of a segment, its layers.
    """

    settings: Settings
    rows: tuple[Row, ...]
    expected: Expected
    measured: Measured | None = None
    ranks: tuple[int, ...] = ()
    records: tuple[RankRecord, ...] = dataclasses.field(default=(), repr=False)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def step_s(self) -> float:
        """Seconds of a step: as measured, or as expected."""
        return self.expected.step_s if self.measured is None else self.measured.step_s

    @property
    def advice(self) -> list[str]:
        """What to change, and what that would bring; what brings most first."""
        measured = self.measured
        return advice.advise(
            self.settings,
            self.rows,
            self.expected,
            None if measured is None else advice.Measured(measured.step_s, measured.leader_pieces),
        )

    def __str__(self) -> str:
        parts = [
            self._headline(),
            *aligned(self._partition_table()),
            "",
            *self._messages(),
            *self._segments(),
            *aligned(self._row_table(), words=1),
            "",
            *(
                textwrap.fill(f"* {text}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
                for text in self.advice
            ),
        ]
        return "\n".join(parts)

    def save(self, path: str | Path) -> None:
        """Writes it as JSON, which `smpreport` and `read_report` read.

        Raises:
            OSError: the file cannot be written.
        """
        content = {
            "settings": dataclasses.asdict(self.settings),
            "expected": dataclasses.asdict(self.expected),
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "records": [dataclasses.asdict(record) for record in self.records],
            "names": dict(self.names),
        }
        write_json(path, {"format": _FORMAT, "version": _VERSION, "report": content})

    def draw(self, path: str | Path) -> None:
        """Draws it: a timeline for each rank, what was beside what should be; needs matplotlib.

        Args:
            path: of a picture; its suffix says of which kind: .png, .svg, .pdf.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
            OSError: the file cannot be written.
        """
        from smdistributed.modelparallel.report.drawing import draw

        ranks = self.ranks or tuple(range(self.settings.partitions))
        draw(self.settings, self.expected, self.measured, ranks, Path(path))

    def to_perfetto(self, path: str | Path) -> None:
        """Writes all steps that were recorded for https://ui.perfetto.dev; as smddptrace does.

        Raises:
            RuntimeError: it is of a plan.
            OSError: the file cannot be written.
        """
        if not self.records:
            raise RuntimeError(
                "to_perfetto() of a plan, which has no steps; expected a report of steps that were"
                " recorded. Draw it instead."
            )
        write_perfetto(path, self.records)

    def beside(self, plan: Report) -> Report:
        """The same with the memory and the messages that a plan expects.

        Raises:
            ConfigurationError: the plan is of something else.
        """
        if plan.measured is not None:
            raise ConfigurationError(
                "the plan is a report of steps that ran; expected one of smp.plan(). Save plan[0],"
                " or another line of it."
            )
        for what, mine, theirs in (
            ("partitions", self.settings.partitions, plan.settings.partitions),
            ("microbatches", self.settings.microbatches, plan.settings.microbatches),
        ):
            if mine != theirs:
                raise ConfigurationError(
                    f"the plan is of {theirs} {what}; expected {mine}, as there were. Save the line"
                    " of the plan that has as many, or plan anew."
                )
        planned = {row.path: row.partition for row in plan.rows if row.parameters}
        moved = [
            row.path
            for row in self.rows
            if row.parameters and planned.get(row.path, row.partition) != row.partition
        ]
        if moved:
            raise ConfigurationError(
                f"the plan has {', '.join(moved[:4])} elsewhere; expected the partition that ran."
                " Plan with the parameters of the run, or with its partition file."
            )
        told = plan.expected
        expected = dataclasses.replace(
            self.expected,
            standing_bytes=told.standing_bytes,
            peak_bytes=told.peak_bytes,
            sent_bytes=told.sent_bytes,
        )
        return dataclasses.replace(self, expected=expected)

    # --- text ------------------------------------------------------------------------------------

    def _headline(self) -> str:
        settings, expected, measured = self.settings, self.expected, self.measured
        first = f"step {measured.step}\n" if measured is not None and measured.step else ""
        first += (
            f"{settings.partitions} partitions, {settings.microbatches} microbatches"
            f" ({settings.active_microbatches} active), {settings.pipeline}"
        )
        second = f"computing and schedule alone: {seconds_text(expected.step_s)}"
        if measured is None:
            first += "; planned, not run"
        else:
            first += f"; {measured.num_steps} step{'s' * (measured.num_steps > 1)} recorded"
            if measured.num_others:
                first += f" (and {measured.num_others} of another kind)"
            second = f"a step: {seconds_text(measured.step_s)}; {second}"
        second += f"; no schedule needs less than {seconds_text(expected.floor_s)}"
        return f"{first}\n{second}\n"

    def _partition_table(self) -> list[list[str]]:
        expected, measured = self.expected, self.measured
        words = words_of(self.settings.framework)
        is_held = bool(expected.graph)
        header = ["partition"]
        columns: list[list[str]] = [[str(each) for each in range(self.settings.partitions)]]
        if measured is not None:
            header += ["rank", "busy", "bubble", "expected"]
            columns += [
                [str(rank) for rank in self.ranks],
                [seconds_text(each) for each in measured.busy_s],
                [f"{each:.1%}" for each in measured.bubble],
                [f"{each:.1%}" for each in expected.bubble],
            ]
            header.append(words.memory)
            columns.append(
                [
                    bytes_text(None if each is None else each.grown if is_held else each.peak)
                    for each in measured.memory
                ]
            )
            if expected.peak_bytes:
                header.append("expected")
        else:
            header += ["busy", "bubble"]
            columns += [
                [seconds_text(each) for each in expected.busy_s],
                [f"{each:.1%}" for each in expected.bubble],
            ]
            if expected.peak_bytes:
                header.append(words.memory)
        if expected.peak_bytes:
            columns.append([bytes_text(each) for each in expected.peak_bytes])
        if measured is not None:
            told = ("variables",) if is_held else ("parameters", "gradients", "states")
            for title in told:
                name = "standing" if is_held else title
                header.append(title)
                columns.append(
                    [
                        bytes_text(getattr(each, name) if each is not None else None)
                        for each in measured.memory
                    ]
                )
        elif expected.standing_bytes:
            header.append("of that parameters, gradients, states")
            columns.append([bytes_text(each) for each in expected.standing_bytes])
        return [header, *(list(row) for row in zip(*columns, strict=True))]

    def _messages(self) -> list[str]:
        lines = []
        if self.measured is not None:
            for pair, kinds in sorted(self.measured.sent.items()):
                count = sum(each for each, _ in kinds.values())
                size = sum(each for _, each in kinds.values())
                most = sorted(kinds.items(), key=lambda kind: -kind[1][1])[:3]
                told = ", ".join(f"{name} {bytes_text(num)}" for name, (_, num) in most)
                planned = self.expected.sent_bytes.get(pair, 0)
                beside = f", expected {bytes_text(planned)}" if self.expected.sent_bytes else ""
                lines.append(
                    f"{pair.replace('-', ' to ')}: {bytes_text(size)} in {count} messages per step"
                    f" ({told}){beside}"
                )
        else:
            lines = [
                f"{pair.replace('-', ' to ')}: {bytes_text(size)} per step"
                for pair, size in sorted(self.expected.sent_bytes.items())
            ]
        return [*lines, ""] if lines else []

    def _segments(self) -> list[str]:
        """Of what is cut beforehand; layers have shares of these."""
        graph = self.expected.graph
        if not graph:
            return []
        table = [["partition", "pass", "time", "segment of a microbatch"]]
        for segment in sorted(graph, key=lambda each: each.rank)[:_MOST_ROWS]:
            name = segment.phase.name.lower()
            what = self.names.get(segment.key, segment.key)
            table.append([str(segment.rank), name, seconds_text(segment.seconds), what])
        return [
            *aligned(table, words=1),
            "",
            _OF_LAYERS,
            "",
        ]

    def _row_table(self) -> list[list[str]]:
        words = words_of(self.settings.framework)
        total = sum(row.seconds for row in self.rows)
        table = [["partition", "parameters", "forward", "backward", "share", words.part]]
        shown = sorted(self.rows, key=lambda row: -row.seconds)[:_MOST_ROWS]
        table += [
            [
                str(row.partition),
                f"{row.parameters:,}",
                seconds_text(row.forward_s),
                seconds_text(row.backward_s),
                f"{row.seconds / total:.1%}" if total else "",
                words.path(row.path),
            ]
            for row in self.rows
            if row in shown
        ]
        return table


def report_of_records(
    records: Sequence[RankRecord],
    profile: Profile | None = None,
    states_per_parameter: float = 0.0,
) -> Report:
    """What the ranks of one pipeline have recorded, as a report.

    Args:
        records: one for each partition, in any order.
        profile: of the model, for the memory to be expected.
        states_per_parameter: elements that the optimizer keeps for one of a parameter.

    Raises:
        ConfigurationError: some are missing, or they are not of one run.
    """
    records = sorted(records, key=lambda record: record.partition)
    members = records[0].members
    if [record.rank for record in records] != list(members):
        raise ConfigurationError(
            f"there are records of rank(s) {', '.join(str(each.rank) for each in records)};"
            f" expected those of one pipeline: {', '.join(map(str, members))}. Give all its files."
        )
    steps = timelines(records)
    if records[0].programs:
        return _report_of_segments(records, steps)
    # The first was looked at closely, which makes it slower.
    all_clean = steps[1:] if len(steps) > 1 else steps
    clean = comparable(all_clean)
    typical_step = typical(clean)
    settings = dataclasses.replace(
        records[0].settings,
        microbatches=typical_step.microbatches,
        active_microbatches=min(records[0].settings.active_microbatches, typical_step.microbatches),
    )
    expected = expect(way_of(clean), settings)
    rows = _rows_with_times(records, expected)
    if profile is not None:
        places = _places(profile, rows)
        orders = {
            record.partition: order_of(
                record.memory.stretches,
                sum(visit.rank == record.partition for visit in expected.way),
            )
            for record in records
            if record.memory is not None
        }
        expected = with_memory(expected, profile, places, settings, states_per_parameter, orders)
    measured = _measured(records, all_clean, clean)
    return Report(settings, rows, expected, measured, tuple(members), tuple(records))


def _measured(
    records: Sequence[RankRecord], steps: Sequence[Timeline], clean: Sequence[Timeline]
) -> Measured:
    """Of some of the steps."""
    partitions = range(len(records))
    typical_step = typical(clean)
    return Measured(
        num_steps=len(clean),
        num_others=len(steps) - len(clean),
        step_s=statistics.median(step.seconds for step in clean),
        busy_s=tuple(statistics.median(step.busy_s(each) for step in clean) for each in partitions),
        bubble=tuple(statistics.median(step.bubble(each) for step in clean) for each in partitions),
        memory=tuple(record.memory for record in records),
        sent=_sent(records, typical_step.number),
        timeline=typical_step,
        leader_pieces=_pieces(typical_step),
    )


def _report_of_segments(records: Sequence[RankRecord], steps: Sequence[Timeline]) -> Report:
    """Where what runs is known beforehand."""
    clean = comparable(steps)
    programs = [
        next(each for each in record.programs if each.number == clean[0].program)
        for record in records
    ]
    settings = dataclasses.replace(
        records[0].settings,
        microbatches=programs[0].microbatches,
        active_microbatches=min(records[0].settings.active_microbatches, programs[0].microbatches),
    )
    seconds = seconds_of_segments(programs, clean)
    measured = dataclasses.replace(
        _measured(records, steps, clean),
        memory=tuple(_held(record, clean) for record in records),
        step=programs[0].name,
    )
    return Report(
        settings,
        rows_of_segments(programs, seconds),
        expect_of_programs(programs, seconds, settings, clean),
        measured,
        tuple(records[0].members),
        tuple(records),
        names_of_segments(programs),
    )


def _held(record: RankRecord, steps: Sequence[Timeline]) -> Memory | None:
    numbers = {step.number for step in steps}
    held = [each.held_bytes for each in record.steps if each.number in numbers]
    known = [each for each in held if each is not None]
    if record.memory is None or not known:
        return record.memory
    return dataclasses.replace(record.memory, grown=max(known))


def _places(profile: Profile, rows: Sequence[Row]) -> dict[str, int]:
    """The partition of each module of a profile, by the row that it is in."""
    known = {row.path: row.partition for row in rows}
    places = {}
    for holder in profile.holders:
        path = holder.path
        while path not in known and "/" in path:
            path = path.rpartition("/")[0]
        places[holder.path] = known.get(path, 0)
    return places


def _rows_with_times(records: Sequence[RankRecord], expected: Expected) -> tuple[Row, ...]:
    """Rows in order of execution; the times of a partition are shared out as its forward was."""
    rows = {row.path: row for row in records[0].rows}
    seconds: dict[tuple[int, str], float] = {}
    first: dict[str, int] = {}
    for record, clock in zip(records, clocks_of(records), strict=True):
        for path, begin_ns in record.order:
            name, at = _row_path(path, rows), clock(begin_ns)
            first[name] = min(at, first.get(name, at))
        for path, spent in record.module_seconds.items():
            row = rows.get(_row_path(path, rows))
            # A module without parameters runs where it is called; so does a loss.
            is_here = row is not None and row.partition == record.partition
            key = record.partition, row.path if row is not None and is_here else OUTSIDE_ROW
            seconds[key] = seconds.get(key, 0.0) + spent
    found = []
    for partition in range(len(records)):
        here = {path: spent for (place, path), spent in seconds.items() if place == partition}
        total = sum(here.values())
        way = [visit for visit in expected.way if visit.rank == partition]
        forward = sum(visit.forward_s for visit in way)
        backward = sum(visit.backward_s for visit in way)
        for path, spent in here.items():
            share = spent / total if total else 0.0
            row = rows.get(path, Row(OUTSIDE_ROW, partition, 0))
            found.append(
                dataclasses.replace(row, forward_s=forward * share, backward_s=backward * share)
            )
    seen = {row.path for row in found}
    found += [row for path, row in rows.items() if path not in seen]
    last = max(first.values(), default=0) + 1
    return tuple(sorted(found, key=lambda row: first.get(row.path, last)))


def _row_path(path: str, rows: Mapping[str, Row]) -> str:
    while path not in rows and "/" in path:
        path = path.rpartition("/")[0]
    return path


def _sent(records: Sequence[RankRecord], number: int) -> dict[str, dict[str, tuple[int, int]]]:
    """In one step."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for record in records:
        for each in next(step for step in record.steps if step.number == number).sent:
            kinds = found.setdefault(f"{record.partition}-{each.dest}", {})
            kinds[each.kind] = each.messages, each.num_bytes
    return found


def _pieces(step: Timeline) -> int:
    counts = Counter(span.microbatch for span in step.spans[0] if span.phase == _FORWARD)
    return Counter(counts.values()).most_common(1)[0][0] if counts else 0


def read_report(path: str | Path) -> Report:
    """Reads what `Report.save` has written.

    Raises:
        ConfigurationError: it cannot be read, or it is something else.
    """
    content = read_json(path, _FORMAT, _VERSION, "a report that save() has written")["report"]
    try:
        return _report(content)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is damaged: {type(error).__name__} {error}; expected a report as save() has"
            " written it. Give it unchanged, or save it again."
        ) from error


def _report(content: dict[str, Any]) -> Report:
    expected = content["expected"]
    records = tuple(record_of(each) for each in content["records"])
    if not records:
        lists = {key: tuple(value) for key, value in expected.items() if isinstance(value, list)}
        lists["way"] = tuple(Visit(**visit) for visit in expected["way"])
        lists["graph"] = tuple(segment_of(each) for each in expected.get("graph", ()))
        lists["lists"] = tuple(
            tuple((key, microbatch) for key, microbatch in own) for own in expected.get("lists", ())
        )
        lists["turn_seconds"] = tuple(tuple(own) for own in expected.get("turn_seconds", ()))
        return Report(
            settings=Settings(**content["settings"]),
            rows=tuple(Row(**row) for row in content["rows"]),
            expected=Expected(**{**expected, **lists}),
            names=content.get("names", {}),
        )
    # All else follows from them, but for what a plan has told of memory.
    report = report_of_records(records)
    kept = {key: expected[key] for key in ("standing_bytes", "peak_bytes", "sent_bytes")}
    kept["standing_bytes"] = tuple(kept["standing_bytes"])
    kept["peak_bytes"] = tuple(kept["peak_bytes"])
    return dataclasses.replace(report, expected=dataclasses.replace(report.expected, **kept))
