# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Batons: threads hand each other the turn."""

import functools
import signal
import threading

import pytest

from smdistributed.collectives._native import Baton


def test_what_was_given_before_is_taken_at_once() -> None:
    baton = Baton()
    baton.give()
    baton.give()
    baton.take()
    baton.take()


def test_two_threads_take_turns() -> None:
    one, other = Baton(), Baton()
    turns: list[str] = []

    def run() -> None:
        other.take()
        for _ in range(1000):
            turns.append("other")
            other.pass_to(one)
        one.give()

    thread = threading.Thread(target=run)
    thread.start()
    for _ in range(1000):
        turns.append("one")
        one.pass_to(other)
    other.give()
    thread.join()
    assert turns == ["one", "other"] * 1000


@pytest.mark.parametrize("is_passing", [False, True])
def test_a_signal_ends_a_wait_and_nothing_is_taken(is_passing: bool) -> None:
    baton, other = Baton(), Baton()
    main = threading.get_ident()

    def interrupts() -> None:
        signal.pthread_kill(main, signal.SIGINT)

    timer = threading.Timer(0.2, interrupts)
    timer.start()
    waits = functools.partial(baton.pass_to, other) if is_passing else baton.take
    with pytest.raises(KeyboardInterrupt):
        waits()
    timer.join()
    if is_passing:
        other.take()  # it was given
    baton.give()
    baton.take()


def test_a_handler_that_returns_does_not_end_a_wait() -> None:
    baton = Baton()
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    main = threading.get_ident()

    def gives() -> None:
        signal.pthread_kill(main, signal.SIGUSR1)
        threading.Timer(0.2, baton.give).start()

    timer = threading.Timer(0.2, gives)
    try:
        timer.start()
        baton.take()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]
