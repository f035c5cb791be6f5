# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The report as text, file, picture and trace; and the command that makes it."""

from __future__ import annotations

import builtins
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.modelparallel.decide.schedules.simulation import Visit
from smdistributed.modelparallel.report.cli import main
from smdistributed.modelparallel.report.costs import OUTSIDE_ROW
from smdistributed.modelparallel.report.document import (
    read_report,
    report_of_records,
)
from smdistributed.modelparallel.report.records import (
    StepRecord,
    read_rank_record,
    write_rank_record,
)
from tests.unit.modelparallel.report.synthetic import records, settings

# What has no parameters of its own, as "main/free", runs where it is called.
WAY = [Visit(0, 10, 20), Visit(1, 30, 60)]
SECONDS = ({"main/a": 1.0, "": 1.0}, {"main/b": 1.0, "main/c": 3.0, "main/free": 1.0})


def _files(folder: Path) -> list[str]:
    found = []
    for record in records(WAY, settings(), module_seconds=SECONDS):
        path = folder / f"report.{record.rank}.json"
        write_rank_record(path, record)
        found.append(str(path))
    return found


def test_what_ranks_have_recorded_comes_back_from_its_file(tmp_path: Path) -> None:
    for path, record in zip(
        _files(tmp_path), records(WAY, settings(), module_seconds=SECONDS), strict=True
    ):
        assert read_rank_record(path) == record


def test_times_of_a_partition_are_shared_out_among_its_modules() -> None:
    report = report_of_records(records(WAY, settings(), module_seconds=SECONDS))
    # In the order of execution; what is outside of modules has no place in it, and comes last.
    assert [
        (row.path, row.partition, round(1e3 * row.forward_s, 6), round(1e3 * row.backward_s, 6))
        for row in report.rows
    ] == [
        ("main/a", 0, 5.0, 10.0),
        ("main/b", 1, 6.0, 12.0),
        ("main/c", 1, 18.0, 36.0),
        ("main", 0, 0.0, 0.0),
        (OUTSIDE_ROW, 0, 5.0, 10.0),
        (OUTSIDE_ROW, 1, 6.0, 12.0),
    ]


def test_the_text_has_what_was_asked_for() -> None:
    text = str(report_of_records(records(WAY, settings(), late_ns=5_000_000)))
    assert "2 partitions, 4 microbatches (4 active), interleaved; 2 steps recorded" in text
    assert "a step: 395 ms; computing and schedule alone: 390 ms" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["0", "0", "120", "ms", "69.6%", "69.2%", "3.5", "kB"] in [line[:8] for line in lines]
    assert "0 to 1: 4.1 kB in 4 messages per step (Call 4.1 kB)" in text
    assert "Partition 1 is overloaded" in text


def test_a_saved_report_says_the_same(tmp_path: Path) -> None:
    report = report_of_records(records(WAY, settings()))
    report.save(tmp_path / "new" / "report.json")
    assert str(read_report(tmp_path / "new" / "report.json")) == str(report)
    plan = dataclasses.replace(report, measured=None, records=(), ranks=())
    plan.save(tmp_path / "plan.json")
    assert read_report(tmp_path / "plan.json") == plan
    assert "planned, not run" in str(plan)
    with pytest.raises(RuntimeError, match="Draw it instead"):
        plan.to_perfetto(tmp_path / "trace.json")


def test_the_trace_has_a_row_for_each_partition(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    report_of_records(records(WAY, settings())).to_perfetto(path)
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    # Three steps of eight tasks on two ranks, and the steps themselves.
    assert len(spans) == 3 * 2 * (8 + 1)
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {
        "step",
        "partition 0",
        "partition 1",
    }
    first = min((span for span in spans if span["pid"] == 1), key=lambda span: span["ts"])
    assert first["name"] in ("step 1", "F0")


def test_a_picture_has_all_that_was_done(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (make bench does)")
    report = report_of_records(records(WAY, settings()))
    report.draw(tmp_path / "step.svg")
    text = (tmp_path / "step.svg").read_text()
    assert "<svg" in text
    report.draw(tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def refusing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refusing)
    report = report_of_records(records(WAY, settings()))
    with pytest.raises(ModuleNotFoundError, match=r"smdistributed-open\[plot\]"):
        report.draw(tmp_path / "step.png")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = _files(tmp_path)
    saved, trace = str(tmp_path / "all.json"), str(tmp_path / "trace.json")
    assert main([*files, "--save", saved, "--perfetto", trace]) == 0
    text = capsys.readouterr().out
    assert "Partition 1 is overloaded" in text
    assert Path(trace).exists()
    assert main([saved]) == 0
    assert capsys.readouterr().out == text


def test_a_plan_beside_what_the_ranks_have_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = report_of_records(records(WAY, settings()))
    expected = dataclasses.replace(report.expected, peak_bytes=(3000, 4000), sent_bytes={"0-1": 4})
    plan = dataclasses.replace(report, expected=expected, measured=None, records=(), ranks=())
    path = str(tmp_path / "plan.json")
    plan.save(path)
    assert main([*_files(tmp_path), "--plan", path]) == 0
    text = capsys.readouterr().out
    assert [line.split()[-8:-6] for line in text.splitlines()[4:6]] == [["3", "kB"], ["4", "kB"]]
    assert "0 to 1: 4.1 kB in 4 messages per step (Call 4.1 kB), expected 4 B" in text
    rows = tuple(dataclasses.replace(row, partition=0) for row in plan.rows)
    for other, message in (
        (dataclasses.replace(plan, settings=settings(8)), "of 8 microbatches; expected 4"),
        (dataclasses.replace(plan, settings=settings(partitions=3)), "of 3 partitions; expected 2"),
        (dataclasses.replace(plan, rows=rows), "main/b, main/c elsewhere"),
        (report, "a report of steps that ran"),
    ):
        other.save(path)
        assert main([*_files(tmp_path), "--plan", path]) == 2
        assert message in capsys.readouterr().err


def test_a_validation_is_no_step_of_training() -> None:
    def without_way_back(step: StepRecord) -> StepRecord:
        stretches = tuple(each for each in step.stretches if each.phase == "F")
        sent = tuple(each._replace(num_bytes=1) for each in step.sent)
        return dataclasses.replace(step, stretches=stretches, sent=sent)

    recorded = records(WAY, settings(), steps=4)
    training = report_of_records(
        [dataclasses.replace(each, steps=each.steps[:2]) for each in recorded]
    )
    mixed = report_of_records([
        dataclasses.replace(
            each, steps=(*each.steps[:2], *(without_way_back(step) for step in each.steps[2:]))
        )
        for each in recorded
    ])  # fmt: skip
    assert mixed.expected == training.expected
    assert mixed.measured is not None
    assert training.measured is not None
    assert mixed.measured.sent == training.measured.sent
    assert (mixed.measured.num_steps, mixed.measured.num_others) == (1, 2)
    assert "1 step recorded (and 2 of another kind)" in str(mixed)


def test_replicas_are_pipelines_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = _files(tmp_path)
    for record in records(WAY, settings()):
        other = dataclasses.replace(record, rank=record.rank + 2, members=(2, 3), world_size=4)
        write_rank_record(tmp_path / f"report.{other.rank}.json", other)
        files.append(str(tmp_path / f"report.{other.rank}.json"))
    assert main(files) == 0
    assert "of replicas: --pipeline 1" in capsys.readouterr().out
    assert main([*files, "--pipeline", "1"]) == 0
    assert main([*files, "--pipeline", "2"]) == 2
    assert "expected one of 0 to 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[]", "is something else"),
        ('{"format": "smdistributed.modelparallel rank record", "version": 9}', "version 9"),
        (
            '{"format": "smdistributed.modelparallel rank record", "version": 1, "record": {}}',
            "is damaged",
        ),
    ],
)
def test_files_that_are_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    path = tmp_path / "report.0.json"
    if content is not None:
        path.write_text(content)
    assert main([str(path)]) == 2
    assert message in capsys.readouterr().err


def test_files_of_a_part_of_the_pipeline() -> None:
    with pytest.raises(ConfigurationError, match="Give all its files"):
        report_of_records(records(WAY, settings())[1:])
