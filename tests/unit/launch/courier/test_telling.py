# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is told of files: all that is new, and nothing that only could not be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from smdistributed.launch.courier import telling
from smdistributed.launch.courier.messages import Dropped, Grown, Kept
from smdistributed.launch.courier.telling import Growth, Tree


def test_growth_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "hosts" / "log"
    growth = Growth(tmp_path, most=2)
    assert list(growth.news(path)) == []
    path.parent.mkdir()
    path.write_bytes(b"123")
    assert list(growth.news(path)) == [Grown("hosts/log", 0, b"12"), Grown("hosts/log", 2, b"3")]
    assert list(growth.news(path)) == []
    with path.open("ab") as file:
        file.write(b"45678")
    first = next(iter(growth.news(path)))  # the others are for the next time
    assert first == Grown("hosts/log", 3, b"45")
    assert [each.offset for each in growth.news(path)] == [5, 7]
    assert list(Growth(tmp_path, known=[path]).news(path)) == []


def test_trees_tell_what_is_other(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    tree = Tree("s", tmp_path, most=2)
    assert list(tree.changes()) == []
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "new").write_text("new")
    (tmp_path / "a" / "new").chmod(0o640)
    (tmp_path / "a" / ".smd-half").write_text("half")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "old").unlink()
    *kept, dropped = tree.changes()
    assert dropped == Dropped("s", "old")
    assert [(each.path, each.offset, each.body, each.is_last) for each in kept] == [
        ("a/new", 0, b"ne", False),
        ("a/new", 2, b"w", True),
    ]
    assert {each.mode for each in kept} == {0o640}
    assert list(tree.changes()) == []


def test_what_is_replaced_goes_when_the_new_is_told_unless_it_is_in_the_way(tmp_path: Path) -> None:
    """A host that is lost between the two would leave none."""
    (tmp_path / "a").mkdir()
    for name in ("a/x", "b", "old"):
        (tmp_path / name).write_text(name)
    tree = Tree("s", tmp_path)
    for name in ("a/x", "b", "old"):
        (tmp_path / name).unlink()
    (tmp_path / "a").rmdir()
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_text("2")
    told = [(type(each), each.path) for each in tree.changes()]
    assert sorted(told[:2], key=str) == [(Dropped, "a/x"), (Dropped, "b")]
    assert sorted(told[2:4], key=str) == [(Kept, "a"), (Kept, "b/x")]
    assert told[4:] == [(Dropped, "old")]


def test_what_cannot_be_looked_at_was_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first version a process without descriptors told that all checkpoints were gone."""
    (tmp_path / "kept").write_text("x")
    tree = Tree("s", tmp_path)

    def fails(path: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(telling.os, "scandir", fails)
        assert list(tree.some()) == []
        with pytest.raises(OSError, match="Too many"):
            list(tree.changes())
    assert list(tree.changes()) == []


def test_what_somebody_takes_away_was_not_theirs_to_remove(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    (tmp_path / "other").write_text("x")
    is_whole = True
    tree = Tree("s", tmp_path, is_whole=lambda: is_whole)
    (tmp_path / "other").unlink()
    assert list(tree.changes()) == [Dropped("s", "other")]
    is_whole = False
    (tmp_path / "kept").unlink()
    assert list(tree.changes()) == []
    tmp_path.rmdir()
    assert list(tree.changes()) == []


def test_a_file_that_is_replaced_while_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tree = Tree("s", tmp_path, most=2)
    path.write_text("1234")
    pieces = tree.changes()
    first = next(pieces)
    (tmp_path / "beside").write_text("5678")
    os.replace(tmp_path / "beside", path)
    kept = [first, *pieces]
    assert b"".join(each.body for each in kept if isinstance(each, Kept)) == b"1234"
    assert b"".join(each.body for each in tree.changes() if isinstance(each, Kept)) == b"5678"
