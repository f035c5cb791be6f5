# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A partition in a file: written whole, readable, and refused where it does not fit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smdistributed.modelparallel import atomic_files
from smdistributed.modelparallel.decide.partition_file import read_partition, write_partition
from smdistributed.modelparallel.exceptions import ConfigError

PLACES = {"main": 0, "main/encoder": 1, "main/größe": 0, "main/decoder": 2}
NAMES = list(PLACES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with `PLACES` in three partitions."""
    path = tmp_path / "partition.json"
    write_partition(str(path), PLACES, 3)
    return path


def _changed(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    changed = change(content)
    path.write_text(json.dumps(content if changed is None else changed))


def test_what_was_written_is_read(path: Path) -> None:
    assert read_partition(str(path), NAMES, 3) == PLACES
    assert os.listdir(path.parent) == ["partition.json"]


def test_the_order_is_that_of_the_model(path: Path) -> None:
    names = [NAMES[0], *reversed(NAMES[1:])]
    assert list(read_partition(str(path), names, 3)) == names


def test_people_can_read_it(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == (
        "{\n"
        '  "format": "smdistributed.modelparallel partition",\n'
        '  "version": 1,\n'
        '  "partitions": 3,\n'
        '  "modules": {\n'
        '    "main": 0,\n'
        '    "main/encoder": 1,\n'
        '    "main/größe": 0,\n'
        '    "main/decoder": 2\n'
        "  }\n"
        "}\n"
    )


def test_a_partition_may_be_empty(path: Path) -> None:
    write_partition(str(path), dict.fromkeys(NAMES, 0), 3)
    assert set(read_partition(str(path), NAMES, 3).values()) == {0}


def test_a_file_is_replaced_whole_or_not_at_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Any, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files.OpenFile, "_write_some", fails)
    with pytest.raises(OSError, match=r"partition\.json could not be written: No space left"):
        write_partition(str(path), dict.fromkeys(NAMES, 0), 3)
    assert read_partition(str(path), NAMES, 3) == PLACES
    assert os.listdir(path.parent) == ["partition.json"]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"the directory .*no is not there"):
        write_partition(str(tmp_path / "no" / "partition.json"), PLACES, 3)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.json is missing; expected it on the host"):
        read_partition(str(tmp_path / "none.json"), NAMES, 3)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=r"could not be read: Is a directory; expected"):
        read_partition(str(tmp_path), NAMES, 3)


def test_another_number_of_partitions(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"partition into 3, but pipeline_parallel_degree is 2"):
        read_partition(str(path), NAMES, 2)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([*NAMES, "main/head"], r"it has no main/head; expected the 5 modules"),
        (NAMES[:3], r"it has main/decoder, which this model has not; expected the 3 modules"),
        (
            ["main", *(f"main/{number}" for number in range(7))],
            r"it has no main/0, .*, main/4 and 2 more, and it has main/encoder, main/größe, main/d",
        ),
    ],
)
def test_another_model(names: list[str], words: str, path: Path) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        read_partition(str(path), names, 3)
    assert "is of another model" in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: [], 'does not say "format"'),
        (lambda content: content.pop("format") and None, 'does not say "format"'),
        (lambda content: content.pop("modules") and None, 'no "modules"'),
        (lambda content: {**content, "modules": [0, 1]}, 'no "modules"'),
        (lambda content: {**content, "partitions": "3"}, "\"partitions\" is '3'"),
        (lambda content: {**content, "partitions": True}, '"partitions" is True'),
        (lambda content: content["modules"].update({"main/encoder": 3}), "expected 0 to 2"),
        (lambda content: content["modules"].update({"main/encoder": -1}), "partition -1"),
        (lambda content: content["modules"].update({"main/encoder": 1.0}), "partition 1.0"),
        (lambda content: content["modules"].update({"main/encoder": True}), "partition True"),
        (lambda content: content["modules"].update({"main/encoder": None}), "partition None"),
        (lambda content: content["modules"].update({"main": 1}), "where the root always is"),
    ],
)
def test_what_no_run_has_written(change: Callable[[Any], Any], words: str, path: Path) -> None:
    _changed(path, change)
    with pytest.raises(ConfigError, match="is damaged, or something else") as error:
        read_partition(str(path), NAMES, 3)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Expecting value"),
        (b'{"format": ', "Expecting value"),
        (b"\xff\xfe{}", "codec can't decode"),
        (b'{"modules": {"main": 0, "main": 1}}', "'main' is there twice"),
    ],
)
def test_what_is_no_json(content: bytes, words: str, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is damaged, or something else") as error:
        read_partition(str(path), NAMES, 3)
    assert words in str(error.value)


def test_any_piece_of_a_file_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(len(whole) - 2):  # the last newline may be missing
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match="is damaged"):
            read_partition(str(path), NAMES, 3)


def test_a_format_of_the_future(path: Path) -> None:
    _changed(path, lambda content: {**content, "version": 2})
    with pytest.raises(ConfigError, match=r"is of version 2 of its format; expected 1\. Use the"):
        read_partition(str(path), NAMES, 3)
