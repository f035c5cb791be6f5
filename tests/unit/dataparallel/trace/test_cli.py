# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The command `smddptrace`, as it is typed."""

import json
from pathlib import Path

import pytest

from smdistributed.dataparallel.trace.cli import main
from smdistributed.dataparallel.trace.files import write_rank_trace
from tests.unit.dataparallel.trace.synthetic import Host, simulate


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Traces of three ranks on two hosts."""
    traces = simulate([Host("a"), Host("a"), Host("b", 10**12, 1e-5)], num_collectives=50)
    paths = [tmp_path / str(trace.path) for trace in traces]
    for path, trace in zip(paths, traces, strict=True):
        write_rank_trace(path, trace.info, trace.events)
    return [str(path) for path in paths]


def test_merge_writes_one_file_and_says_how_good_it_is(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    merged = tmp_path / "out" / "all.json"
    assert main(["merge", "-o", str(merged), *files]) == 0
    document = json.loads(merged.read_text())
    assert {event["pid"] for event in document["traceEvents"]} == {0, 1, 2}
    assert document["smddp"]["files"] == files
    printed = capsys.readouterr().out
    assert printed.startswith(f"{merged}: 3 rank(s), 50 collectives matched\n")
    assert "host b (ranks 2): aligned by 50 collectives, within" in printed


def test_the_order_of_files_does_not_matter(files: list[str], tmp_path: Path) -> None:
    outputs = [tmp_path / "one.json", tmp_path / "other.json"]
    for output, given in zip(outputs, (files, files[::-1]), strict=True):
        assert main(["merge", "-o", str(output), *given]) == 0
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_summary_prints_tables(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", *files]) == 0
    printed = capsys.readouterr().out
    for heading in ("3 of 3 rank(s)", "Operations", "Who comes last", "Ranks"):
        assert heading in printed


def test_a_refusal_is_one_line_and_status_2(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", str(tmp_path / "none.json")]) == 2
    assert main(["merge", "-o", files[0], *files]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    first, second = printed.err.splitlines()
    assert "Check the path" in first
    assert "one of the files to merge; expected another name after -o" in second


def test_missing_ranks_are_told(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["merge", "-o", str(tmp_path / "all.json"), *files[:2]]) == 0
    assert "no trace of rank(s) 2" in capsys.readouterr().out


def test_a_place_that_cannot_be_written_to_is_status_1(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["merge", "-o", f"{files[0]}/all.json", *files]) == 1
    assert "could not be written (File exists)" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["merge", "--help"], ["summary", "--help"]])
def test_help_teaches(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: smddptrace")
    if arguments == ["--help"]:
        assert "smddprun --trace" in printed
        assert "https://ui.perfetto.dev" in printed
