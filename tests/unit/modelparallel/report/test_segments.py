# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Reports of steps that are cut beforehand: from records of two ranks that never ran."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from smdistributed.modelparallel.decide.schedules.ordering import Segment, order
from smdistributed.modelparallel.decide.schedules.schedule import Phase
from smdistributed.modelparallel.report.advice import enough_microbatches
from smdistributed.modelparallel.report.cli import main
from smdistributed.modelparallel.report.costs import OUTSIDE_ROW, Row, Settings
from smdistributed.modelparallel.report.document import Report, read_report, report_of_records
from smdistributed.modelparallel.report.expectation import expect_alike, expected_runs
from smdistributed.modelparallel.report.records import (
    Memory,
    RankRecord,
    Sent,
    StepRecord,
    Stretch,
    read_rank_record,
    write_rank_record,
)
from smdistributed.modelparallel.report.segments import (
    Edge,
    Hold,
    RankProgram,
    RankSegment,
    TurnSeconds,
    floor_of,
    peak_held,
    play,
)

MS = 1_000_000
SECONDS = {"F0@0": 1.0, "F1@1": 2.0, "B1@1": 4.0, "B2@0": 2.0}
GRAPH = (
    Segment("F0@0", 0, Phase.FORWARD, (), 1.0),
    Segment("F1@1", 1, Phase.FORWARD, ("F0@0",), 1.0),
    Segment("B1@1", 1, Phase.BACKWARD, ("F1@1",), 1.0),
    Segment("B2@0", 0, Phase.BACKWARD, ("B1@1", "F0@0"), 1.0),
)
ROWS = (Row("m/a", 0, 10, can_move=True), Row("m/b", 1, 20, can_move=True), Row("m/c", 1, 30))


def _settings(microbatches: int = 4, **changes: object) -> Settings:
    chosen = {"auto_partition": False, "framework": "tensorflow", **changes}
    made = Settings(2, microbatches, min(4, microbatches))
    return dataclasses.replace(made, **chosen)  # type: ignore[arg-type]


def _programs(settings: Settings) -> list[RankProgram]:
    lists = order(settings.schedule(), GRAPH, 2)
    shares = {
        "F0@0": (("m/a", 1.0),),
        "F1@1": (("m/b", 1.0), ("m/c", 2.0), (OUTSIDE_ROW, 1.0)),
        "B1@1": (("m/b", 1.0), ("m/c", 1.0)),
        "B2@0": (),
    }
    return [
        RankProgram(
            number=7,
            name="train(x)",
            microbatches=settings.microbatches,
            bound=settings.schedule().bound,
            rows=ROWS,
            graph=GRAPH,
            segments=tuple(
                RankSegment(each.key, each.phase.value, f"layers of {each.key}", shares[each.key])
                for each in GRAPH
                if each.rank == rank
            ),
            turns=tuple((turn.segment, turn.microbatch) for turn in lists.of_rank(rank)),
            edges=((Edge(0, "F0@0", 1, 100),), (Edge(1, "B1@1", 0, 50),))[rank],
            holds=(
                (Hold(None, "F0@0", ("B2@0",), 1000), Hold(1, "", ("B2@0",), None)),
                (Hold(0, "", ("F1@1", "B1@1"), None), Hold(None, "F1@1", ("B1@1",), 300)),
            )[rank],
        )
        for rank in range(2)
    ]


def _records(
    settings: Settings,
    late: float = 0.0,
    seconds: TurnSeconds | None = None,
    messages: float = 0.0,
) -> list[RankRecord]:
    """What ranks would have recorded that keep to their lists, in milliseconds.

    Args:
        late: how long a step goes on after the last turn.
        seconds: of turns; None: as `SECONDS` says.
        messages: how long rank 1 waits for each of its forwards when the message has left.
    """
    programs = _programs(settings)
    lists = tuple(each.turns for each in programs)
    runs = play(_graph(SECONDS), lists, programs[0].bound, seconds)
    if messages:
        turns = {
            (run.segment, run.microbatch): run.end_s - run.begin_s for own in runs for run in own
        }
        slower = {turn: takes + messages * (turn[0] == "F1@1") for turn, takes in turns.items()}
        runs = [
            [run._replace(begin_s=run.end_s - turns[run[:2]]) for run in own]
            for own in play(_graph(SECONDS), lists, programs[0].bound, slower)
        ]
    length = max(own[-1].end_s for own in runs) + late
    peaks = peak_held(programs, runs)
    phases = {each.key: each.phase.value for each in GRAPH}
    found = []
    for rank in range(2):
        steps = []
        for number in (3, 4, 5):
            begin = 1000 * MS * number
            stretches = tuple(
                Stretch(
                    phases[run.segment],
                    run.microbatch,
                    begin + round(run.begin_s * MS),
                    begin + round(run.end_s * MS),
                    f"layers of {run.segment}",
                )
                for run in runs[rank]
            )
            end = begin + round(length * MS)
            steps.append(
                StepRecord(
                    number,
                    settings.microbatches,
                    begin,
                    end + rank,
                    end - 1,
                    stretches,
                    (Sent(1 - rank, "Tensor", 4, 480),),
                    program=7,
                    held_bytes=peaks[rank],
                )
            )
        found.append(
            RankRecord(
                rank=rank,
                world_size=2,
                partition=rank,
                members=(0, 1),
                host="host",
                pid=100 + rank,
                clock="clock",
                wall_offset_ns=0,
                version="0",
                settings=settings,
                rows=(),
                order=(),
                module_seconds={},
                memory=Memory(4000, 0, 0, 8, None, False),
                steps=tuple(steps),
                programs=(programs[rank],),
            )
        )
    return found


def _graph(seconds: dict[str, float]) -> tuple[Segment, ...]:
    return tuple(dataclasses.replace(each, seconds=seconds[each.key]) for each in GRAPH)


def test_lists_are_played_with_the_times_that_were_measured() -> None:
    settings = _settings()
    report = report_of_records(_records(settings))
    assert report.measured is not None
    found = {each.key: round(each.seconds * 1e3, 6) for each in report.expected.graph}
    assert found == SECONDS
    # Rank 1 has 6 ms of each microbatch, and waits for the first and for the end of the last.
    assert report.expected.step_s == pytest.approx(1e-3 * (1 + 4 * 6 + 2))
    assert report.expected.floor_s == pytest.approx(1e-3 * (1 + 4 * 6 + 2))
    assert report.expected.bubble == pytest.approx([1 - 12 / 27, 1 - 24 / 27])
    assert report.measured.bubble == pytest.approx(report.expected.bubble)


def test_turns_of_a_segment_that_take_different_times_are_played_with_these() -> None:
    settings = _settings()
    # Every second microbatch takes three times as long; what that leads to is no mean of both.
    seconds = {
        (key, microbatch): takes * (0.5 if microbatch % 2 else 1.5)
        for key, takes in SECONDS.items()
        for microbatch in range(4)
    }
    report = report_of_records(_records(settings, seconds=seconds))
    expected, measured = report.expected, report.measured
    assert measured is not None
    assert {each.key: round(each.seconds * 1e3, 6) for each in expected.graph} == SECONDS
    assert expected.bubble == pytest.approx(measured.bubble)
    assert expected.step_s == pytest.approx(measured.step_s)
    assert expected.floor_s <= expected.step_s
    drawn = [list(map(tuple, own)) for own in expected_runs(expected, settings)]
    ran = [[span[:4] for span in own] for own in measured.timeline.spans]
    for told, found in zip(drawn, ran, strict=True):
        assert [each[:2] for each in told] == [each[:2] for each in found]
        assert [each[2:] for each in told] == [pytest.approx(each[2:]) for each in found]
    # Advice compares with what has not run, of which only such medians are known.
    alike = expect_alike(expected, settings)
    assert alike.bubble == pytest.approx([1 - 12 / 27, 1 - 24 / 27])
    assert alike.bubble != pytest.approx(expected.bubble)


def test_what_messages_take_is_not_expected() -> None:
    plain, slow = (
        report_of_records(_records(_settings(), messages=messages)) for messages in (0.0, 1.0)
    )
    assert slow.expected.bubble == pytest.approx(plain.expected.bubble)
    assert slow.measured is not None
    assert slow.measured.step_s == pytest.approx(plain.expected.step_s + 4e-3)
    assert slow.measured.bubble[1] == pytest.approx(1 - 24 / (27 + 4))


def test_no_step_of_some_is_expected_to_be_faster_than_any_order_allows() -> None:
    seconds = {("F0@0", 0): 1.0, ("F0@0", 1): 5.0, ("F1@1", 0): 2.0, ("F1@1", 1): 3.0}
    graph = GRAPH[:2]
    # Rank 0 has 6 s, and the shorter way after it is 2 s.
    assert floor_of(graph, 2, 2, seconds) == 5.0 + 3.0
    seconds["F0@0", 0] = 4.0
    assert floor_of(graph, 2, 2, seconds) == 9.0 + 2.0


def test_the_lists_that_ran_count_and_not_the_best_ones() -> None:
    programs = [
        dataclasses.replace(each, turns=turns)
        for each, turns in zip(
            _programs(_settings(2)),
            (
                (("F0@0", 0), ("B2@0", 0), ("F0@0", 1), ("B2@0", 1)),
                (("F1@1", 0), ("B1@1", 0), ("F1@1", 1), ("B1@1", 1)),
            ),
            strict=True,
        )
    ]
    runs = play(_graph(SECONDS), tuple(each.turns for each in programs), 2)
    assert runs[1][-1].end_s == 9 + 7
    assert floor_of(_graph(SECONDS), 2, 2) == 1 + 2 * 6 + 2
    # One microbatch after the other: of the second nothing is there while the first is.
    assert peak_held(programs, runs) == (1050, 400)
    with pytest.raises(ValueError, match="wait for each other"):
        play(_graph(SECONDS), ((("B2@0", 0), ("F0@0", 0)), programs[1].turns), 2)


def test_what_a_bad_order_costs_is_said() -> None:
    settings = _settings(2)
    records = [
        dataclasses.replace(
            record, programs=(dataclasses.replace(record.programs[0], turns=turns),)
        )
        for record, turns in zip(
            _records(settings),
            (
                (("F0@0", 0), ("B2@0", 0), ("F0@0", 1), ("B2@0", 1)),
                (("F1@1", 0), ("B1@1", 0), ("F1@1", 1), ("B1@1", 1)),
            ),
            strict=True,
        )
    ]
    said = report_of_records(records).advice
    assert any("The order in which ranks run segments costs" in text for text in said), said
    said = report_of_records(_records(settings)).advice
    assert not any("The order in which" in text for text in said), said


def test_a_rank_waits_for_room_where_nothing_comes_back() -> None:
    graph = (
        Segment("F0@0", 0, Phase.FORWARD, (), 1.0),
        Segment("F1@1", 1, Phase.FORWARD, ("F0@0",), 10.0),
    )
    lists = tuple(tuple((each.key, number) for number in range(3)) for each in graph)
    runs = play(graph, lists, 1)
    assert [run.begin_s for run in runs[0]] == [0, 11, 22]
    assert [run.begin_s for run in play(graph, lists, 3)[0]] == [0, 1, 2]


def test_what_is_held_is_counted_from_the_lists() -> None:
    settings = _settings(3, pipeline="simple")
    report = report_of_records(_records(settings))
    # All three forwards come first; of what comes in one gradient is there at a time.
    assert report.expected.peak_bytes == (3 * 1000 + 50, 3 * 400)
    assert report.measured is not None
    assert [each.grown for each in report.measured.memory if each] == [3050, 1200]
    assert report.expected.sent_bytes == {"0-1": 300, "1-0": 150}
    unknown = [
        dataclasses.replace(
            record,
            programs=(
                dataclasses.replace(
                    record.programs[0],
                    edges=tuple(each._replace(num_bytes=None) for each in record.programs[0].edges),
                ),
            ),
        )
        for record in _records(settings)
    ]
    report = report_of_records(unknown)
    assert (report.expected.peak_bytes, report.expected.sent_bytes) == ((), {})


def test_layers_have_shares_of_their_segments() -> None:
    report = report_of_records(_records(_settings()))
    assert [
        (row.path, row.partition, round(row.forward_s * 1e3, 6), round(row.backward_s * 1e3, 6))
        for row in report.rows
    ] == [
        ("m/a", 0, 1.0, 0.0),
        ("m/b", 1, 0.5, 2.0),
        ("m/c", 1, 1.0, 2.0),
        (OUTSIDE_ROW, 0, 0.0, 2.0),
        (OUTSIDE_ROW, 1, 0.5, 0.0),
    ]


def test_the_text_speaks_of_layers_and_segments() -> None:
    text = str(report_of_records(_records(_settings(), late=1.0)))
    lines = [line.split() for line in text.splitlines()]
    assert "step train(x)\n2 partitions, 4 microbatches (4 active)" in text
    assert ["1", "backward", "4", "ms", "layers", "of", "B1@1"] in lines
    assert "Times of segments are measured; those of layers are shares of these" in text
    assert "(outside of the model)" in text
    assert "held at most" in text
    assert "Partition 1 is overloaded: it does 67% of the computing" in text
    assert "smp.set_partition" not in text
    assert "module" not in text


def test_advice_of_the_automatic_partition() -> None:
    report = report_of_records(_records(_settings(auto_partition=True, memory_weight=0.2)))
    moved = dataclasses.replace(
        report,
        rows=(
            Row("m/a", 0, 1, can_move=True, forward_s=0.001, backward_s=0.002),
            *(
                Row(f"m/{name}", 1, 1, can_move=True, forward_s=0.001, backward_s=0.001)
                for name in "bcd"
            ),
        ),
    )
    assert "Move m/b to partition 0" in moved.advice[0], moved.advice
    assert "with smp.partition(partition)" in moved.advice[0]


def test_more_microbatches_are_ordered_as_the_library_would() -> None:
    report = report_of_records(_records(_settings(2)))
    found = enough_microbatches(report.settings, report.expected)
    assert found is not None
    microbatches, after = found
    assert microbatches > 2
    assert min(after.bubble) < min(report.expected.bubble)
    assert [len(own) for own in after.lists] == [2 * microbatches] * 2


def test_files_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = _records(_settings())
    files = []
    for record in records:
        files.append(str(tmp_path / f"report.{record.rank}.json"))
        write_rank_record(files[-1], record)
        assert read_rank_record(files[-1]) == record
    saved, trace = str(tmp_path / "all.json"), tmp_path / "trace.json"
    assert main([*files, "--save", saved, "--perfetto", str(trace)]) == 0
    text = capsys.readouterr().out
    assert "Partition 1 is overloaded" in text
    assert trace.exists()
    assert main([saved]) == 0
    assert capsys.readouterr().out == text
    plan = dataclasses.replace(read_report(saved), measured=None, records=(), ranks=())
    _require_kept(plan, tmp_path)
    assert main([*files, "--plan", str(tmp_path / "plan.json")]) == 0


def _require_kept(plan: Report, folder: Path) -> None:
    plan.save(folder / "plan.json")
    assert read_report(folder / "plan.json") == plan
    assert "planned, not run" in str(plan)


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (make bench does)")
    report_of_records(_records(_settings())).draw(tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def test_steps_of_another_program_are_of_another_kind() -> None:
    records = _records(_settings())
    changed = [
        dataclasses.replace(
            record, steps=(*record.steps, dataclasses.replace(record.steps[0], number=9, program=8))
        )
        for record in records
    ]
    report = report_of_records(changed)
    assert report.measured is not None
    assert (report.measured.num_steps, report.measured.num_others) == (3, 1)
