# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
r"""Lines of many ranks: whole, prefixed, and with usable progress bars."""

import collections
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed.launch.output import Console, LineAssembler, RankStream


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("chunks", "lines", "rest"),
    [
        ([b"one\ntwo\n"], [b"one", b"two"], None),
        ([b"o", b"ne\n", b"tw"], [b"one"], b"tw"),
        ([b"dos\r\n"], [b"dos"], None),
        ([b"\r 1%\r 2%", b"\r 3%\n"], [b" 3%"], None),
        ([b"1%\r2%\r"], [], b"2%"),
        ([b"\n\n"], [b"", b""], None),
        ([b"\xff\xfe\n"], [b"\xff\xfe"], None),
    ],
)
def test_lines(chunks: list[bytes], lines: list[bytes], rest: bytes | None) -> None:
    assembler = LineAssembler()
    assert [line for chunk in chunks for line in assembler.feed(chunk)] == lines
    assert assembler.finish() == rest


@given(st.lists(st.binary(max_size=20)))
def test_how_the_pipe_cuts_does_not_matter(chunks: list[bytes]) -> None:
    pieces, whole = LineAssembler(), LineAssembler()
    in_pieces = [line for chunk in chunks for line in pieces.feed(chunk)]
    assert in_pieces == whole.feed(b"".join(chunks))
    assert pieces.finish() == whole.finish()


def test_memory_is_bounded_and_plain_text_is_not_lost() -> None:
    assembler = LineAssembler()
    lines = [line for _ in range(300) for line in assembler.feed(b"x" * 1000)]
    assert sum(map(len, lines)) + len(assembler.finish() or b"") == 300_000
    for step in range(10_000):
        assert assembler.feed(b"\rstep %d of a long run" % step) == []
        assert len(assembler._pending) < 70_000
    assert assembler.finish() == b"step 9999 of a long run"


def make_streams(
    out: io.BytesIO, err: io.BytesIO, clock: Clock | None = None
) -> tuple[Console, list[RankStream]]:
    console = Console(out, err, clock or Clock())
    last: collections.deque[bytes] = collections.deque(maxlen=3)
    return console, [RankStream(console, rank, to_stderr=True, last_lines=last) for rank in (0, 1)]


def test_ranks_do_not_mix_within_a_line() -> None:
    err = io.BytesIO()
    _, (zero, one) = make_streams(io.BytesIO(), err)
    zero.feed(b"from ze")
    one.feed(b"from one\nand mo")
    zero.feed(b"ro\n")
    one.finish()
    assert err.getvalue() == b"[rank 1] from one\n[rank 0] from zero\n[rank 1] and mo\n"


def test_in_a_file_progress_becomes_a_line_now_and_then() -> None:
    err, clock = io.BytesIO(), Clock()
    _, (zero, one) = make_streams(io.BytesIO(), err, clock)
    for percent in range(50):
        clock.now = percent * 0.5
        zero.feed(b"\r%d%%" % percent)
        one.feed(b"\r%d%%" % percent)
    zero.feed(b"\r100%\n")
    one.feed(b"\r100%\n")
    assert err.getvalue().split(b"\n") == [
        b"[rank 0] 20%",
        b"[rank 0] 40%",
        b"[rank 0] 100%",
        b"[rank 1] 100%",
        b"",
    ]


def test_on_a_terminal_progress_is_drawn_below_the_lines_of_others() -> None:
    err = Terminal()
    console, (zero, one) = make_streams(io.BytesIO(), err)
    zero.feed(b"\r10%")
    one.feed(b"\r77%")
    one.feed(b"\nhello\n")
    zero.feed(b"\r20%")
    console.close()
    erase = b"\r\x1b[K"
    assert err.getvalue() == (
        b"[rank 0] 10%" + erase + b"[rank 1] 77%\n[rank 1] hello\n[rank 0] 20%" + erase
    )


def test_a_wide_progress_line_is_cut_so_that_it_can_be_erased(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    err = Terminal()
    _, (zero, _) = make_streams(io.BytesIO(), err)
    zero.feed(b"\r" + b"=" * 100)
    assert err.getvalue() == b"[rank 0] " + b"=" * 10
