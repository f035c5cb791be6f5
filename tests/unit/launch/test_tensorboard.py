# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Event files without TensorFlow: the bytes. What TensorFlow reads in them is tested with it."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from smdistributed.launch import tensorboard
from smdistributed.launch.tensorboard import EventFile


def unmasked(checksum: bytes) -> int:
    turned = struct.unpack("<I", checksum)[0] - 0xA282EAD8 & 0xFFFFFFFF
    return turned >> 17 | turned << 15 & 0xFFFFFFFF


def lengths(content: bytes) -> tuple[list[int], int]:
    """Of the contents of whole records; and how many bytes are left."""
    found = []
    while len(content) >= 8 and len(content) >= 16 + (size := struct.unpack("<Q", content[:8])[0]):
        found.append(size)
        content = content[16 + size :]
    return found, len(content)


# RFC 3720, section B.4, and the usual check value.
@pytest.mark.parametrize(
    ("content", "crc"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_checksums_are_crc_32c(content: bytes, crc: int) -> None:
    assert unmasked(tensorboard._checksum(content)) == crc


@pytest.mark.parametrize(
    ("number", "expected"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")]
)
def test_numbers_of_variable_length(number: int, expected: bytes) -> None:
    assert tensorboard._varint(number) == expected


def test_there_is_no_file_before_the_first_value(tmp_path: Path) -> None:
    events = EventFile(tmp_path / "deep" / "algo-1", "algo-1")
    assert not (tmp_path / "deep").exists()
    events.add(1764244800.5, "loss", 0.5)
    (path,) = (tmp_path / "deep" / "algo-1").iterdir()
    assert path.name.startswith("events.out.tfevents.1764244800.algo-1.")


def test_a_second_file_of_a_moment_has_another_name(tmp_path: Path) -> None:
    for _ in range(2):
        EventFile(tmp_path, "algo-1").add(5.0, "loss", 0.5)
    assert len(list(tmp_path.iterdir())) == 2


def test_after_a_record_that_was_cut_off_another_file_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = EventFile(tmp_path, "algo-1")
    events.add(5.0, "loss", 0.5)
    append = tensorboard._append

    def cut(path: Path, content: bytes) -> None:
        append(path, content[:7])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tensorboard, "_append", cut)
        with pytest.raises(OSError, match="No space left"):
            events.add(6.0, "loss", 0.25)
    events.add(7.0, "loss", 0.125)
    events.add(8.0, "loss", 0.0625)
    first, second = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert lengths(first.read_bytes()) == ([24, 26], 7), "the cut one is the last of its file"
    assert lengths(second.read_bytes()) == ([24, 26, 26], 0)


def test_the_folder_of_a_job_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    events = EventFile(tmp_path / "job" / "tensorboard" / "algo-1", "algo-1")
    with pytest.raises(FileNotFoundError):
        events.add(5.0, "loss", 0.5)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "job").mkdir()
    events.add(6.0, "loss", 0.5)
    shutil.rmtree(tmp_path / "job")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            events.add(7.0, "loss", 0.5)
    assert list(tmp_path.iterdir()) == []
