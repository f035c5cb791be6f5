# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Files that TensorBoard reads: metrics as scalars, one after the other, while a job runs.

A file is a row of records: length, checksum of the length, content, checksum of the content. The
content is the protocol buffer `Event` of TensorFlow, of which a few fields are needed. So no
package is needed.

Source: launch specification, section 8.2.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

__all__ = ["EventFile"]

_VERSION = b"brain.Event:2"

# Numbers and kinds of the fields, each in the byte that comes before it.
_EVENT_WALL_TIME = b"\x09"  # 1, double
_EVENT_STEP = b"\x10"  # 2, int64
_EVENT_FILE_VERSION = b"\x1a"  # 3, text
_EVENT_SUMMARY = b"\x2a"  # 5, message
_SUMMARY_VALUE = b"\x0a"  # 1, message
_VALUE_TAG = b"\x0a"  # 1, text
_VALUE_SIMPLE = b"\x15"  # 2, float

_numbers = itertools.count()


class EventFile:
    """Of one host. It is made when the first value comes. Not for several threads.

    Args:
        folder: where it lies; made if it is not there, and so is the one it lies in.
        host: ends its name.
        counted: names of values that an earlier file of the host has, once for each: steps go on.
    """

    def __init__(self, folder: Path, host: str, counted: Iterable[str] = ()) -> None:
        self._folder = folder
        self._host = host
        self._steps = Counter(counted)
        self._path: Path | None = None

    def add(self, time: float, name: str, value: float) -> None:
        """Adds a value; its step is the number of values of that name before it.

        Args:
            time: in seconds since 1970.
            name: of the series.
            value: it becomes a float of 32 bits, and infinite if it is too great for one.

        Raises:
            OSError: it cannot be written.
        """
        path, self._path = self._path, None  # what is cut off is read up to there: another begins
        if path is None:
            for each in (self._folder.parent, self._folder):  # no more: a job may be removed
                each.mkdir(mode=0o700, exist_ok=True)
            # TensorBoard knows files by this name, and takes those of a folder in its order.
            unique = f"{int(time):010d}.{self._host}.{os.getpid()}.{next(_numbers)}"
            path = self._folder / f"events.out.tfevents.{unique}"
            _append(path, _record(_event(time, _EVENT_FILE_VERSION + _sized(_VERSION))))
        step = self._steps[name]
        self._steps[name] += 1
        scalar = _VALUE_TAG + _sized(name.encode(errors="replace")) + _VALUE_SIMPLE + _float(value)
        summary = _EVENT_SUMMARY + _sized(_SUMMARY_VALUE + _sized(scalar))
        _append(path, _record(_event(time, _EVENT_STEP + _varint(step) + summary)))
        self._path = path


def _append(path: Path, content: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        if file.write(content) != len(content):
            raise OSError(errno.ENOSPC, "a record was cut off", str(path))


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _event(time: float, rest: bytes) -> bytes:
    return _EVENT_WALL_TIME + struct.pack("<d", time) + rest


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Seven bits in each byte, the lowest first; the eighth says that there are more."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _float(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _crc_table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_CRC_TABLE = _crc_table()


def _checksum(content: bytes) -> bytes:
    """CRC-32C, turned and shifted, so that a checksum of checksums is none of them."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    turned = crc >> 15 | crc << 17 & 0xFFFFFFFF
    return struct.pack("<I", turned + 0xA282EAD8 & 0xFFFFFFFF)
