# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Starts the processes of a job on this machine, watches them, and ends them together.

One thread does all of it, around one selector: pipes of the ranks, and a socket through which
signals arrive. A single thread makes it safe to run code between fork and exec, and makes the death
of this process the death of "the parent thread", which is what the kernel watches for the ranks.

How a job ends:

    every rank exits with 0          what they left running is ended; status 0
    a rank fails                     SIGTERM to the other ranks, after `grace_s` SIGKILL to all
                                     process groups; status of the first failure, 128 + n if
                                     signal n killed it
    Ctrl-C, SIGTERM or SIGHUP here   passed on; after `interrupt_grace_s` SIGKILL to all groups;
                                     status 128 + n, or 0 if every rank took it in good order
    the same a second time           SIGKILL to all groups at once
    SIGUSR1 here                     does not end it: passed on to the ranks that handle it, which
                                     print their flight records
    nobody reads our output          as if a rank had failed, with status 141 as for SIGPIPE
    SIGKILL to this process          see `orphans`

SIGTERM goes to the rank only, as it may be writing a checkpoint with the help of its workers; what
is left of its group gets SIGTERM after it. Ctrl-C goes to the whole group, as from a terminal.

Every rank leads a process group of its own, so that it can be signalled together with its workers
and a terminal's signals reach this process only. All are in our session: see `terminal`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import NamedTuple

from smdistributed.launch.debugging import DebuggedRank
from smdistributed.launch.orphans import Guardian, adopt_orphans, die_with_parent
from smdistributed.launch.output import Console, RankStream
from smdistributed.launch.terminal import leave_terminal

__all__ = ["CommandError", "EndedRank", "Supervisor"]

GRACE_S = 10.0
INTERRUPT_GRACE_S = 30.0

# What a rank that ended well has left running gets this long after its SIGTERM.
_LEFTOVER_GRACE_S = 2.0
_POLL_S = 0.02
# Nothing depends on it: signals wake the loop. It bounds the harm of a lost one.
_IDLE_S = 1.0
_READ_BYTES = 64 * 1024
_NUM_LAST_LINES = 10
_OUTPUT_LOST_STATUS = 128 + signal.SIGPIPE

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPORT = signal.SIGUSR1


class CommandError(Exception):
    """The command cannot be executed; `status` is what a shell would return."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class EndedRank(NamedTuple):
    """How a rank has ended.

    Attributes:
        rank: of this machine.
        returncode: its exit status; -n if signal n ended it.
        failed_first: the job was ended because of it.
        last_lines: what it has printed last.
        ended_at: when; seconds of the machine's monotonic clock.
    """

    rank: int
    returncode: int
    failed_first: bool
    last_lines: list[str]
    ended_at: float


@dataclasses.dataclass
class _Rank:
    rank: int
    process: subprocess.Popen[bytes]
    last_stdout: collections.deque[bytes]
    last_stderr: collections.deque[bytes]
    status: int | None = None
    ended_at: float = 0.0

    @property
    def pid(self) -> int:
        """Process id and, as every rank is started as the leader of one, id of its group."""
        return self.process.pid


class Supervisor:
    """Runs one command once per environment.

    Args:
        command: words of the command.
        environments: one per rank, by rank.
        console: where the output of the ranks goes.
        say: prints a line of the supervisor's own.
        grace_s: seconds between SIGTERM and SIGKILL after a failure.
        interrupt_grace_s: seconds that ranks have after a signal that was passed on.
        directory: in which the command runs; None: this process's.
        prefix_of: what comes before a line of a rank, by the rank and whether it is of standard
            error; None: "[rank 3] ".
        debugged: the rank whose input and output are a terminal's; None: there is none.
        each_second: is called about once a second while ranks, or what they have left, run; it may
            call `end`.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        console: Console,
        say: Callable[[str], None],
        *,
        grace_s: float = GRACE_S,
        interrupt_grace_s: float = INTERRUPT_GRACE_S,
        directory: str | None = None,
        prefix_of: Callable[[int, bool], bytes] | None = None,
        debugged: DebuggedRank | None = None,
        each_second: Callable[[], None] | None = None,
    ) -> None:
        self._command = list(command)
        self._environments = environments
        self._console = console
        self._say = say
        self._grace_s = grace_s
        self._interrupt_grace_s = interrupt_grace_s
        self._directory = directory
        self._prefix_of = prefix_of
        self._debugged = debugged
        self._each_second = each_second
        self._last_second = 0.0
        self._is_told_to_end = False
        self._ranks: list[_Rank] = []
        self._selector = selectors.DefaultSelector()
        self._first_failure: _Rank | None = None
        self._interrupt: int | None = None
        self._kill_deadline: float | None = None
        self._output_is_lost = False

    def run(self) -> int:
        """Runs the job to its end and returns its exit status. To be called once.

        Raises:
            CommandError: the command does not exist or cannot be executed.
        """
        adopt_orphans()
        guardian = Guardian()
        try:
            with _signals_as_bytes() as signals:
                self._selector.register(signals, selectors.EVENT_READ)
                try:
                    for rank, environment in enumerate(self._environments):
                        guardian.watch(self._start(rank, environment).pid)
                    while any(one.status is None for one in self._ranks):
                        self._step(signals)
                finally:
                    self._end_groups(guardian, signals)
                self._drain()
        finally:
            guardian.dismiss()
            self._selector.close()
        self._console.close()
        return self._conclude()

    def end(self, grace_s: float, *, to_groups: bool = False) -> None:
        """Ends the ranks: SIGTERM now, SIGKILL to all groups after `grace_s`, or sooner as said."""
        deadline = time.monotonic() + grace_s
        self._is_told_to_end = True
        if self._kill_deadline is None:
            (self._signal_groups if to_groups else self._signal_ranks)(signal.SIGTERM)
            self._kill_deadline = deadline
        self._kill_deadline = min(self._kill_deadline, deadline)

    @property
    def has_lost_output(self) -> bool:
        """Whether the ranks were ended as their output could not be written."""
        return self._output_is_lost

    @property
    def interrupted_by(self) -> int | None:
        """The signal by which this process was told to end; None if it was not."""
        return self._interrupt

    def ended(self) -> list[EndedRank]:
        """The ranks that have ended, by rank."""
        return [
            EndedRank(
                one.rank,
                one.process.returncode,
                one is self._first_failure,
                [line.decode(errors="replace") for line in one.last_stderr or one.last_stdout],
                one.ended_at,
            )
            for one in self._ranks
            if one.status is not None
        ]

    def _start(self, rank: int, environment: Mapping[str, str]) -> _Rank:
        own_pid = os.getpid()

        def prepare() -> None:
            """Runs in the rank, before its command."""
            die_with_parent(own_pid)
            leave_terminal()

        streams: tuple[int | None, ...] = (subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE)
        if self._debugged is not None and self._debugged.rank == rank:
            streams = self._debugged[1:]
        stdin, stdout, stderr = streams
        try:
            process = subprocess.Popen(
                self._command,
                env=dict(environment),
                cwd=self._directory,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                bufsize=0,
                process_group=0,
                preexec_fn=prepare,
            )
        except OSError as error:
            found = not isinstance(error, FileNotFoundError)
            raise CommandError(
                f"cannot run {self._command[0]!r} ({error.strerror}); expected a program on PATH, "
                "a path, or a script that ends in .py. Check the spelling and the permissions.",
                126 if found else 127,
            ) from error
        started = _Rank(
            rank,
            process,
            collections.deque(maxlen=_NUM_LAST_LINES),
            collections.deque(maxlen=_NUM_LAST_LINES),
        )
        self._ranks.append(started)
        for pipe, to_stderr, last_lines in (
            (process.stdout, False, started.last_stdout),
            (process.stderr, True, started.last_stderr),
        ):
            if pipe is None:  # the terminal has it
                continue
            os.set_blocking(pipe.fileno(), False)
            prefix = self._prefix_of(rank, to_stderr) if self._prefix_of else None
            stream = RankStream(
                self._console, rank, to_stderr=to_stderr, last_lines=last_lines, prefix=prefix
            )
            self._selector.register(pipe, selectors.EVENT_READ, stream)
        return started

    def _step(self, signals: socket.socket) -> None:
        """Waits for one batch of events and handles it."""
        wait_s = _IDLE_S
        if self._kill_deadline is not None:
            wait_s = min(wait_s, max(0.0, self._kill_deadline - time.monotonic()))
        for key, _ in self._selector.select(wait_s):
            if key.data is None:
                for number in signals.recv(4096):
                    if number in _PASSED_ON:
                        self._pass_on(number)
                    elif number == _REPORT:
                        self._ask_for_reports()
            else:
                self._read(key.fd, key.data)
        self._reap()
        self._tick()
        if self._kill_deadline is not None and time.monotonic() >= self._kill_deadline:
            self._kill_deadline = None
            self._signal_groups(signal.SIGKILL)

    def _tick(self) -> None:
        if self._each_second is not None and time.monotonic() - self._last_second >= 1.0:
            self._last_second = time.monotonic()
            self._each_second()

    def _read(self, descriptor: int, stream: RankStream) -> bool:
        """Passes on what a pipe holds; returns False when it is empty or at its end."""
        try:
            chunk = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        try:
            if chunk:
                stream.feed(chunk)
            else:
                stream.finish()
        except OSError:
            self._lose_output()
        if not chunk:
            self._selector.unregister(descriptor)
        return bool(chunk)

    def _lose_output(self) -> None:
        if self._output_is_lost:
            return
        self._output_is_lost = True
        self._console.abandon()
        self._begin_end()

    def _reap(self) -> None:
        ended: list[_Rank] = []
        for one in self._ranks:
            if one.status is None and (code := one.process.poll()) is not None:
                one.status = code if code >= 0 else 128 - code
                one.ended_at = time.monotonic()
                ended.append(one)
        # When several are found dead at once, a signal from outside is the likelier origin than an
        # error that a rank could still report itself.
        failed = sorted((one for one in ended if one.status), key=lambda one: one.status or 0)
        if failed and self._first_failure is None and self._interrupt is None:
            # Once ranks are told to end, or killed, their ends are no failures of theirs.
            if self._kill_deadline is None and not self._is_told_to_end:
                self._first_failure = failed[-1]
            self._begin_end()

    def _begin_end(self) -> None:
        if self._kill_deadline is None:
            self._kill_deadline = time.monotonic() + self._grace_s
            self._signal_ranks(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._interrupt is not None:
            self._say(f"{name} again: killing all ranks")
            self._kill_deadline = time.monotonic()
            return
        self._interrupt = number
        self._kill_deadline = time.monotonic() + self._interrupt_grace_s
        self._say(
            f"{name}: passed on to all ranks, which have {self._interrupt_grace_s:g} s to end; "
            "send it again to kill them at once"
        )
        if number == signal.SIGINT:
            self._signal_groups(number)
        else:
            self._signal_ranks(number)

    def _ask_for_reports(self) -> None:
        running = [one for one in self._ranks if one.status is None]
        asked = [one for one in running if _handles(one.pid, _REPORT)]
        for one in asked:
            one.process.send_signal(_REPORT)
        self._say(
            f"{_REPORT.name}: passed on to {len(asked)} of {len(running)} running rank(s); it would"
            " end those that have no group yet, or that run under a shell"
            if len(asked) < len(running)
            else f"{_REPORT.name}: passed on to all ranks, which print their last operations"
        )

    def _signal_ranks(self, number: int) -> None:
        for one in self._ranks:
            if one.status is None:
                one.process.send_signal(number)

    def _signal_groups(self, number: int) -> None:
        for one in self._ranks:
            if one.status is None and not _signal_group(one.pid, number):
                # It has moved to another group, or has changed its user.
                with contextlib.suppress(PermissionError):
                    one.process.send_signal(number)

    def _end_groups(self, guardian: Guardian, signals: socket.socket) -> None:
        """Ends what the ranks have left running, and any rank that still runs."""
        self._signal_ranks(signal.SIGKILL)
        for one in self._ranks:
            one.process.wait()
        left = [one for one in self._ranks if _signal_group(one.pid, signal.SIGTERM)]
        deadline = max(time.monotonic() + _LEFTOVER_GRACE_S, self._kill_deadline or 0.0)
        while left:
            for one in left:
                _reap_group(one.pid)
            left = [one for one in left if _signal_group(one.pid, 0)]
            if not left:
                break
            if time.monotonic() >= deadline:
                for one in left:
                    _signal_group(one.pid, signal.SIGKILL)
                deadline = float("inf")
            self._tick()
            # Keeps the pipes moving, so that nobody blocks on a full one while ending.
            for key, _ in self._selector.select(_POLL_S):
                if key.data is not None:
                    self._read(key.fd, key.data)
                elif any(number in _PASSED_ON for number in signals.recv(4096)):
                    deadline = time.monotonic()
        for one in self._ranks:
            guardian.forget(one.pid)

    def _drain(self) -> None:
        """Reads what is left in the pipes; a process that escaped its group may keep them open."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                while self._read(key.fd, key.data):
                    pass
        with contextlib.suppress(OSError):
            for key in list(self._selector.get_map().values()):
                if key.data is not None:
                    key.data.finish()
        for one in self._ranks:
            for pipe in (one.process.stdout, one.process.stderr):
                if pipe is not None:
                    pipe.close()

    def _conclude(self) -> int:
        if self._output_is_lost:
            return _OUTPUT_LOST_STATUS
        if self._first_failure is not None:
            self._summarise(self._first_failure)
            return self._first_failure.status or 1
        if self._interrupt is not None and any(one.status for one in self._ranks):
            return 128 + self._interrupt
        return 0

    def _summarise(self, failed: _Rank) -> None:
        code = failed.process.returncode
        if code < 0:
            how = f"was killed by {_signal_name(-code)} (exit status {failed.status})"
            if -code == signal.SIGKILL:
                how += "; if nobody sent it, the machine may have run out of memory"
        else:
            how = f"failed with exit status {code}"
        others = len(self._ranks) - 1
        ended = f"; it failed first, the other {others} rank(s) were ended" if others else ""
        lines = list(failed.last_stderr or failed.last_stdout)
        last = " Its last lines:" if lines else " It had written nothing."
        if failed.process.stdout is None:
            last = " What it has written is on its terminal."
        self._say(f"rank {failed.rank} (pid {failed.pid}) {how}{ended}.{last}")
        for line in lines:
            self._say(f"  | {line.decode(errors='replace')}")


@contextlib.contextmanager
def _signals_as_bytes() -> Iterator[socket.socket]:
    """Turns signals into bytes on a socket; each byte is a signal's number."""
    read_end, write_end = socket.socketpair()
    read_end.setblocking(False)
    write_end.setblocking(False)

    def ignore(number: int, frame: FrameType | None) -> None:
        """Python's handler does nothing: the C handler has written the byte by then."""

    old_descriptor = signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
    old_handlers = {}
    for number in (*_PASSED_ON, _REPORT, signal.SIGCHLD):
        # What is ignored stays so: that is how nohup protects a job from SIGHUP.
        if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGCHLD:
            old_handlers[number] = signal.signal(number, ignore)
    try:
        yield read_end
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_descriptor)
        read_end.close()
        write_end.close()


def _handles(pid: int, number: int) -> bool:
    """Whether a process catches or ignores a signal whose default action would end it."""
    try:
        with open(f"/proc/{pid}/status") as status:
            masks = dict(line.split(":\t", 1) for line in status if line.startswith("Sig"))
    except OSError:
        return False
    handled = int(masks.get("SigCgt", "0"), 16) | int(masks.get("SigIgn", "0"), 16)
    return bool(handled >> (number - 1) & 1)


def _signal_group(process_group: int, number: int) -> bool:
    """Sends a signal to a group; 0 only asks. Returns False if the group has no members."""
    try:
        os.killpg(process_group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # A member has changed its user. It cannot be ended by us; the others have been.
        return False
    return True


def _reap_group(process_group: int) -> None:
    """Reaps adopted members of a group whose leader has been reaped."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-process_group, os.WNOHANG) != (0, 0):
            pass


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
