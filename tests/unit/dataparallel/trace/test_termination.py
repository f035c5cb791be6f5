# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Last words on SIGTERM, wherever the main thread is, and beside programs with plans of their own.

Source: our choice; docs/tracing.md, "Record".
"""

import signal
import subprocess
import sys
import textwrap

import pytest
from machine_speed import scaled

PRELUDE = """\
import asyncio, ctypes, os, signal, sys, threading, time
from smdistributed.dataparallel.trace.termination import TerminationWatch

def say(text):
    os.write(1, text.encode() + b"\\n")

def terminate():
    os.kill(os.getpid(), signal.SIGTERM)

watch = TerminationWatch(lambda: say("last words"))
"""
WAIT_S = scaled(60)
# Longer than the deadline: a test that gets here fails by it.
STAY = f"time.sleep({10 * WAIT_S})"


def run(script: str) -> tuple[int, list[str]]:
    """Returns the exit status, negative for a signal, and the lines that were printed."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    return done.returncode, done.stdout.splitlines()


def test_python_code_ends_by_the_signal_after_the_words() -> None:
    assert run(f"watch.start(); terminate(); {STAY}") == (-signal.SIGTERM, ["last words"])


def test_a_main_thread_that_never_comes_back_from_c_ends_too() -> None:
    # A lock taken twice. Other calls that block return when a signal comes.
    script = """
    watch.start()
    threading.Timer(0.2, terminate).start()
    lock = ctypes.create_string_buffer(256)  # zeros: PTHREAD_MUTEX_INITIALIZER
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)
    """
    assert run(script) == (-signal.SIGTERM, ["last words"])


def test_words_that_fail_do_not_save_the_process() -> None:
    script = f"""
    sys.stderr = open(os.devnull, "w")
    TerminationWatch(lambda: 1 / 0).start()
    terminate()
    {STAY}
    """
    assert run(script) == (-signal.SIGTERM, [])


def test_words_are_said_once_and_to_the_end_however_often_the_signal_comes() -> None:
    script = f"""
    def words():
        say("begin")
        for _ in range(3):
            terminate()
            time.sleep(0.05)
        say("end")

    TerminationWatch(words).start()
    terminate()
    {STAY}
    """
    assert run(script) == (-signal.SIGTERM, ["begin", "end"])


def test_words_may_wait_for_a_lock_that_the_main_thread_holds() -> None:
    script = f"""
    lock = threading.Lock()

    def words():
        with lock:
            say("words")

    TerminationWatch(words).start()
    with lock:
        terminate()
        time.sleep(0.1)
        say("done")
    {STAY}
    """
    assert run(script) == (-signal.SIGTERM, ["done", "words"])


def test_a_process_that_leaves_meanwhile_ends_by_the_signal() -> None:
    script = """
    def words():
        time.sleep(0.3)
        say("words")

    watch = TerminationWatch(words)
    watch.start()
    terminate()
    watch.stop()
    say("not reached")
    """
    assert run(script) == (-signal.SIGTERM, ["words"])


def test_after_stop_there_are_no_words() -> None:
    script = f"""
    watch.start()
    watch.stop()
    watch.stop()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1
    terminate()
    {STAY}
    """
    assert run(script) == (-signal.SIGTERM, [])


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_handler_of_the_script_is_left_alone(order: str) -> None:
    install = "signal.signal(signal.SIGTERM, lambda *_: say('theirs'))"
    steps = [install, "watch.start()"] if order == "before" else ["watch.start()", install]
    script = "; ".join([*steps, "terminate()", "time.sleep(0.2)", "watch.stop()", "terminate()"])
    assert run(script) == (0, ["theirs", "theirs"])


def test_what_is_ignored_stays_ignored() -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN); watch.start(); terminate(); say('on')"
    assert run(script) == (0, ["on"])


@pytest.mark.parametrize(("stop", "words"), [("", ["last words"]), ("watch.stop()", [])])
def test_a_handler_of_the_script_may_go_on_to_ours(stop: str, words: list[str]) -> None:
    script = f"""
    watch.start()
    ours = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *args: (say("theirs"), ours(*args)))
    {stop}
    terminate()
    {STAY}
    """
    assert run(script) == (-signal.SIGTERM, ["theirs", *words])


def test_a_program_keeps_the_wakeup_descriptor_that_it_has() -> None:
    script = f"""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    watch.start()
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.raise_signal(signal.SIGUSR1)
    assert os.read(read_end, 8) == bytes([signal.SIGUSR1])
    terminate()
    {STAY}
    """
    assert run(script) == (-signal.SIGTERM, ["last words"])


def test_asyncio_may_take_the_wakeup_descriptor_later() -> None:
    script = f"""
    watch.start()

    async def main():
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, say, "theirs")
        signal.raise_signal(signal.SIGUSR1)
        await asyncio.sleep(0.1)
        terminate()
        await asyncio.sleep({10 * WAIT_S})

    asyncio.run(main())
    """
    assert run(script) == (-signal.SIGTERM, ["theirs", "last words"])


def test_other_signals_mean_nothing() -> None:
    script = """
    watch.start()
    signal.signal(signal.SIGUSR1, lambda *_: say("theirs"))
    signal.raise_signal(signal.SIGUSR1)
    time.sleep(0.2)
    """
    assert run(script) == (0, ["theirs"])


@pytest.mark.parametrize("forker", ["main", "another"])
def test_a_forked_child_ends_alone_and_says_nothing(forker: str) -> None:
    script = f"""
    watch.start()

    def fork():
        child = os.fork()
        if child == 0:
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
            {STAY}
        time.sleep(0.1)
        os.kill(child, signal.SIGTERM)
        say(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])

    if {forker!r} == "main":
        fork()
    else:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
    time.sleep(0.2)
    say("parent")
    terminate()
    {STAY}
    """
    assert run(script) == (-signal.SIGTERM, ["-15", "parent", "last words"])


def test_a_child_that_is_ended_while_it_is_made_does_not_end_its_parent() -> None:
    # The hooks of a child run in the order of registration: this one comes before the watch's.
    script = """
    os.register_at_fork(after_in_child=terminate)
    watch.start()
    child = os.fork()
    if child == 0:
        os._exit(0)
    say(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    time.sleep(0.2)
    """
    assert run(script) == (0, ["-15"])


def test_a_forked_child_may_watch_for_itself() -> None:
    script = f"""
    watch.start()
    child = os.fork()
    if child == 0:
        watch.start()
        terminate()
        {STAY}
    say(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    """
    assert run(script) == (0, ["last words", "-15"])


def test_another_thread_cannot_start_it() -> None:
    script = """
    thread = threading.Thread(target=watch.start)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    """
    assert run(script) == (0, [])
