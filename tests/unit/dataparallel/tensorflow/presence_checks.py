# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The book of agreed patterns: who asks when, and that ranks in one place come to one answer.

Source: dataparallel specification, sections 6.5 and 7.6.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from smdistributed.dataparallel.tensorflow.presence import (
    Kind,
    Pattern,
    PatternBook,
    look_up_or_ask,
)
from tests.multiprocess.with_tensorflow.tf_ranks import no_job

around_checks = no_job
LETTERS = {"-": Kind.ABSENT, "s": Kind.SPARSE, "d": Kind.DENSE}


def pattern(text: str) -> Pattern:
    return tuple(LETTERS[letter] for letter in text)


def never() -> tuple[Pattern, Pattern]:
    raise AssertionError("asked, where the others may not answer")


def answer(*patterns: str) -> tuple[Pattern, Pattern]:
    columns = list(zip(*map(pattern, patterns), strict=True))
    return tuple(map(min, columns)), tuple(map(max, columns))


def check_what_all_had_alike_is_not_asked_again(rank: int, size: int) -> None:
    book = PatternBook()
    assert look_up_or_ask(book, pattern("d-d"), lambda: answer("d-d", "d-d")) == pattern("d-d")
    assert look_up_or_ask(book, pattern("d-d"), never) == pattern("d-d")


def check_another_pattern_of_all_ranks_is_asked_for_and_stays_what_it_is(
    rank: int, size: int
) -> None:
    book = PatternBook()
    book.add(*answer("dd", "dd"))
    assert look_up_or_ask(book, pattern("-d"), lambda: answer("-d", "-d")) == pattern("-d")
    assert look_up_or_ask(book, pattern("dd"), never) == pattern("dd")
    assert look_up_or_ask(book, pattern("-d"), never) == pattern("-d")


def check_after_a_difference_nobody_asks_for_what_the_joint_pattern_covers(
    rank: int, size: int
) -> None:
    book = PatternBook()
    assert look_up_or_ask(book, pattern("d-s-"), lambda: answer("d-s-", "-ds-")) == pattern("dds-")
    for covered in ("-ds-", "----", "dd--", "ss--"):
        assert look_up_or_ask(book, pattern(covered), never) == pattern("dds-")
    joint = look_up_or_ask(book, pattern("---d"), lambda: answer("---d", "d---"))
    assert joint == pattern("ddsd"), "what was agreed on stays within"


@settings(deadline=None)
@given(
    st.lists(st.lists(st.text("-sd", min_size=3, max_size=3), min_size=3, max_size=3), max_size=12)
)
def check_ranks_that_trace_together_ask_together_or_follow_covering_patterns(
    rank: int,
    size: int,
    traces: list[list[str]],
) -> None:
    """Each trace: the patterns of three ranks at one place of the program."""
    books = [PatternBook() for _ in range(3)]
    for texts in traces:
        known = [book.find(pattern(text)) for book, text in zip(books, texts, strict=True)]
        if any(each is None for each in known) and not all(each is None for each in known):
            return  # the engine reports that the ranks do different things
        if None in known:
            for book in books:
                book.add(*answer(*texts))
        after = [book.find(pattern(text)) for book, text in zip(books, texts, strict=True)]
        for text, found in zip(texts, after, strict=True):
            assert found is not None
            assert all(own <= joint for own, joint in zip(pattern(text), found, strict=True))
        if None in known:
            assert len(set(after)) == 1, "who asked together builds the same collectives"
