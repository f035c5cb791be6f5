# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Files that come in pieces are whole or not there, and lie where they may."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed.launch.courier.files import Arriving, below, pieces_of
from smdistributed.launch.courier.messages import ProtocolError

ROOT = Path("/root/of/all")


@given(st.text(alphabet="ab./\0\n", max_size=12))
def test_paths_stay_below(path: str) -> None:
    try:
        found = below(ROOT, path)
    except ProtocolError:
        return
    assert Path(os.path.normpath(found)) == found
    assert found.is_relative_to(ROOT)
    assert found != ROOT


@pytest.mark.parametrize("path", ["", "/", "/a", "a/", "..", "a/../b", ".", "a//b", "a\0"])
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(ProtocolError, match="no path below"):
        below(ROOT, path)


@given(st.binary(max_size=20), st.integers(1, 7))
def test_pieces_follow_one_another(content: bytes, most: int) -> None:
    pieces = list(pieces_of(io.BytesIO(content), most))
    assert b"".join(body for _, body, _ in pieces) == content
    assert [is_last for *_, is_last in pieces] == [False] * (len(pieces) - 1) + [True]
    for offset, body, _ in pieces:
        assert content[offset : offset + len(body)] == body


def add(arriving: Arriving, path: Path, offset: int, body: bytes, *, is_last: bool) -> bool:
    return arriving.add(path, offset, body, is_last=is_last, modified_ns=10**18, mode=0o640)


def test_a_file_is_there_when_it_is_whole(tmp_path: Path) -> None:
    arriving = Arriving("x")
    path = tmp_path / "a" / "file"
    assert not add(arriving, path, 0, b"12", is_last=False)
    assert not path.exists()
    assert add(arriving, path, 2, b"3", is_last=True)
    assert path.read_bytes() == b"123"
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.stat().st_mtime_ns == 10**18
    assert os.listdir(path.parent) == ["file"]


def test_a_file_that_was_given_up_begins_again(tmp_path: Path) -> None:
    """It would have had the begin of the one that was given up."""
    arriving = Arriving("x")
    add(arriving, tmp_path / "file", 0, b"old", is_last=False)
    assert add(arriving, tmp_path / "file", 0, b"new", is_last=True)
    assert (tmp_path / "file").read_bytes() == b"new"
    add(arriving, tmp_path / "other", 0, b"old", is_last=False)
    arriving.drop()
    assert os.listdir(tmp_path) == ["file"]


def test_pieces_that_follow_none_are_refused(tmp_path: Path) -> None:
    arriving = Arriving("x")
    with pytest.raises(ProtocolError, match="follows none"):
        add(arriving, tmp_path / "file", 3, b"x", is_last=True)
    add(arriving, tmp_path / "file", 0, b"12", is_last=False)
    with pytest.raises(ProtocolError, match="follows none"):
        add(arriving, tmp_path / "file", 3, b"x", is_last=True)
    add(arriving, tmp_path / "file", 0, b"12", is_last=True)
    with pytest.raises(ProtocolError, match="follows none"):
        add(arriving, tmp_path / "file", 2, b"x", is_last=True)
    assert (tmp_path / "file").read_bytes() == b"12"


def test_the_rest_of_a_file_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    arriving = Arriving("x")
    (tmp_path / "a").write_text("a file where a folder is needed")
    with pytest.raises(FileExistsError):
        add(arriving, tmp_path / "a" / "file", 0, b"12", is_last=False)
    assert not add(arriving, tmp_path / "a" / "file", 2, b"3", is_last=True)
    assert add(arriving, tmp_path / "b", 0, b"", is_last=True)


def test_links_are_not_written_through(tmp_path: Path) -> None:
    arriving = Arriving("x")
    (tmp_path / "file").symlink_to(tmp_path / "elsewhere")
    (tmp_path / ".smd-arriving-x").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        add(arriving, tmp_path / "file", 0, b"12", is_last=True)
    (tmp_path / ".smd-arriving-x").unlink(missing_ok=True)
    add(arriving, tmp_path / "file", 0, b"12", is_last=True)
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "file").is_symlink()


def test_names_of_any_length(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127)  # 254 bytes
    assert add(Arriving("x"), path, 0, b"1", is_last=True)


def test_what_another_process_has_left_is_swept(tmp_path: Path) -> None:
    add(Arriving("x"), tmp_path / "a" / "file", 0, b"12", is_last=False)
    add(Arriving("y"), tmp_path / "a" / "file", 0, b"12", is_last=False)
    Arriving("x").sweep(tmp_path)
    assert os.listdir(tmp_path / "a") == [".smd-arriving-y"]
