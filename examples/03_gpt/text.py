# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Real English text without a download, and a vocabulary made from it.

Text comes from a file the user names; else from the King James Bible of the Debian package
``bible-kjv-text``, if it is installed; else from the language reference that is part of every
Python installation (``pydoc_data``). None of them needs more than the standard library.
"""

from __future__ import annotations

import collections
import itertools
import re
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

DEBIAN_FILE = Path("/usr/lib/bible.data")

_BIBLE_MAGIC = b"EC02Compressed Data File"
_NUM_PIECES_AT = 0x58  # in bytes; everything before is a title and zeros
_COMPRESS_MAGIC = b"\x1f\x9d\x90"  # what compress(1) writes first: block mode, 16-bit codes
_VERSE_REFERENCE = re.compile(r"^\d?[A-Z]\w*?\d+:\d+ ", re.MULTILINE)

# A word with the space before it, a number likewise, or any one character. Joined again, the pieces
# are the text.
_PIECE = re.compile(r" ?[A-Za-z]+| ?\d+|.", re.DOTALL)


class Text(NamedTuple):
    """A text, and where it is from, for a person to read."""

    content: str
    origin: str


def load(path: Path | None = None) -> Text:
    """The text of ``path`` (UTF-8, or Debian's ``bible.data``); without it, the best one at hand.

    Raises OSError when the file cannot be read, and ValueError when it is not text or is damaged.
    """
    if path is None:
        path = DEBIAN_FILE if DEBIAN_FILE.exists() else None
    if path is None:
        return Text(_python_reference(), "Python's language reference (pydoc_data)")
    data = path.read_bytes()
    if data.startswith(_BIBLE_MAGIC):
        return Text(_unpack_bible(data, path), f"King James Bible ({path})")
    try:
        return Text(data.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not text: byte {error.start} cannot be UTF-8; expected a text file in "
            "UTF-8 (or Debian's bible.data). Convert it, for instance with iconv."
        ) from None


def _python_reference() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def _unpack_bible(data: bytes, path: Path) -> str:
    """The file of Debian's ``bible-kjv-text``: a table of offsets, and 68 pieces by compress(1).

    Numbers are big-endian: the number of pieces, then the offset of each, then the length of the
    file. The pieces lack the three bytes that compress(1) would put first, except that the first
    piece has them before its offset. gzip(1) still reads the format, Python does not.
    """
    (num_pieces,) = struct.unpack_from(">I", data, _NUM_PIECES_AT)
    offsets = struct.unpack_from(f">{num_pieces + 1}I", data, _NUM_PIECES_AT + 4)
    unpacked = []
    for begin, end in itertools.pairwise(offsets):
        packed = _COMPRESS_MAGIC + data[begin:end]
        gzip = subprocess.run(["gzip", "-dc"], input=packed, capture_output=True)
        if gzip.returncode != 0:
            raise ValueError(
                f"{path} is damaged: bytes {begin} to {end} do not unpack "
                f"({gzip.stderr.decode(errors='replace').strip()}); expected the file of Debian's "
                "bible-kjv-text 4.38. Install the package again."
            )
        unpacked.append(gzip.stdout)
    text = b"".join(unpacked).decode("ascii")
    return _VERSE_REFERENCE.sub("", text.partition("\n")[2])  # the first line is a title


class Vocabulary:
    """The tokens of a text: all its characters, and its most frequent words.

    A word outside the vocabulary is spelt, character by character. So every text made of known
    characters has its tokens, and they give back exactly the same text.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = list(tokens)
        self._number_of = {token: number for number, token in enumerate(self.tokens)}

    @classmethod
    def of(cls, text: str, size: int) -> Vocabulary:
        """The vocabulary of ``size`` tokens for ``text``; the same on every rank that calls it."""
        characters = sorted(set(text))
        if size < len(characters):
            raise ValueError(
                f"a vocabulary of {size} tokens cannot hold the {len(characters)} different "
                "characters of the text; expected a token for each, and some words. Ask for "
                f"{len(characters) + 1000} tokens, or take a simpler text."
            )
        words = collections.Counter(p for p in _PIECE.findall(text) if len(p) > 1)
        frequent = [word for word, _ in words.most_common(size - len(characters))]
        return cls(characters + frequent)

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """Numbers of the tokens of ``text``. Raises ValueError at a character it does not know."""
        numbers: list[int] = []
        for piece in _PIECE.findall(text):
            number = self._number_of.get(piece)
            if number is not None:
                numbers.append(number)
                continue
            for character in piece:
                if character not in self._number_of:
                    raise ValueError(
                        f"the character {character!r} does not occur in the text that the "
                        "vocabulary was made from; expected only characters of it. Leave it out."
                    )
                numbers.append(self._number_of[character])
        return numbers

    def decode(self, numbers: Iterable[int]) -> str:
        return "".join(self.tokens[number] for number in numbers)
