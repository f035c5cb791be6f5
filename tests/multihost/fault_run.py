# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One fault, made once: a job of 2 x 2 ranks, the strike, what each rank heard, what is left."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import re
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from harness import RankOutcome
from held_resources import read_resources

from tests.multihost.fault_ranks import Plan, Told
from tests.multihost.hosts import Host, network
from tests.multihost.placement import Milestones, running_ranks_on

LAYOUT = (2, 2)
RANKS = range(sum(LAYOUT))
DEADLINE_S = 100.0
STRANGER = Path(__file__).with_name("strangers.py")
_SYS_PIDFD_GETFD = 438
_ESTABLISHED = "01"
# Of /proc/net/tcp: what a program still holds. What the kernel keeps for itself for a while
# (TIME_WAIT, or unsent bytes of a dead process on a dead link) is no program's any more.
_HELD_STATES = {"01": "ESTABLISHED", "08": "CLOSE_WAIT", "0A": "LISTEN"}


@dataclasses.dataclass
class Scene:
    """A job under way, for those who strike.

    Attributes:
        hosts: two, with ranks 0 and 1 on the first.
        plan: what the ranks do.
        job: ends with the ranks' outcomes.
        struck_s: `time.monotonic()` when the strike began.
    """

    hosts: Sequence[Host]
    plan: Plan
    job: Future[list[Any]]
    struck_s: float = 0.0

    @property
    def folder(self) -> Path:
        """The plan's."""
        return Path(self.plan.folder)

    def pid(self, rank: int) -> int:
        """Process id of a rank."""
        return int((self.folder / f"pid-{rank}").read_text())

    def sign(self, name: str) -> None:
        """Give the ranks a sign."""
        (self.folder / name).touch()

    def go_on_and_stop(self, seconds: float = 1.0) -> None:
        """Let the ranks work for a while and come to their end."""
        time.sleep(seconds)
        self.sign("stop")

    def wait_until(self, name: str, ranks: Sequence[int] = RANKS) -> None:
        """Until the ranks have come to a milestone."""
        Milestones(self.plan.folder).wait_for(name, ranks, self.job)

    def signal_victim(self, number: signal.Signals) -> None:
        """Send it one."""
        os.kill(self.pid(self.plan.victim), number)

    def ports(self, rank: int) -> tuple[int, ...]:
        """What a rank listens on."""
        ports: tuple[int, ...] = read_resources(self.folder)[rank].ports
        return ports

    def stranger(self, *words: object) -> None:
        """Let strangers.py do something on the second host; raises if it was made welcome."""
        self.hosts[1].inside.run(shlex.join(map(str, (sys.executable, STRANGER, *words))))

    def reset_connections_of_victim(self) -> int:
        """Make the victim's kernel send RST on its connections to other hosts; how many.

        The process itself does nothing: its sockets are borrowed (pidfd_getfd), and connecting one
        to AF_UNSPEC resets it.
        """
        pid = self.pid(self.plan.victim)
        inodes = {
            words[9]
            for words in map(str.split, Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:])
            if words[3] == _ESTABLISHED
        }
        libc = ctypes.CDLL(None, use_errno=True)
        process = os.pidfd_open(pid)
        borrowed = []  # all before the first is reset: the process closes the others at once
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                inode = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}"))
                if inode is not None and inode[1] in inodes:
                    borrowed.append(libc.syscall(_SYS_PIDFD_GETFD, process, int(name), 0))
        nowhere = ctypes.create_string_buffer(socket.AF_UNSPEC.to_bytes(2, sys.byteorder), 16)
        reset = sum(libc.connect(descriptor, nowhere, 16) == 0 for descriptor in borrowed)
        for descriptor in borrowed:
            if descriptor >= 0:
                os.close(descriptor)
        os.close(process)
        return reset


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a rank must be told.

    Attributes:
        error: class of the exception; "" if the rank must come to the end of its work; None for
            any exception.
        parts: of its text, each. `{pid3}` stands for the process id of rank 3.
    """

    error: str | None = ""
    parts: tuple[str, ...] = ()


WELL = Verdict()
DEFAULT_PLAN = Plan("")


@dataclasses.dataclass(frozen=True)
class Fault:
    """A row of the table.

    Attributes:
        name: for people, and for `-k`.
        made_by: how it is made, a sentence's end.
        strike: makes it, while all ranks work; see `Scene`.
        verdicts: by rank; a rank that is not named dies, and says nothing.
        plan: what the ranks do; `folder` is filled in.
        ranks: the ranks' function, in fault_ranks.py.
        around: something to be in from before the ranks begin until they have ended.
        said: what must stand in the output of some rank, beside exceptions.
        is_long: takes more than ten seconds, and something like it runs in every test run.
        note: for the page, what is not plain from the texts.
    """

    name: str
    made_by: str
    strike: Callable[[Scene], object]
    verdicts: Mapping[int, Verdict]
    plan: Plan = DEFAULT_PLAN
    ranks: str = "adds"
    around: Callable[[Sequence[Host], Path], contextlib.AbstractContextManager[object]] | None = (
        None
    )
    said: str = ""
    is_long: bool = False
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Record:
    """What came of a fault.

    Attributes:
        told: by rank; None for one that died.
        output: by rank, what its process wrote.
        pids: by rank.
        seconds: from the strike until the last rank had its error; None if nobody had one.
        left: what was left behind, in words.
    """

    told: Sequence[Told | None]
    output: Sequence[str]
    pids: Mapping[int, int]
    seconds: float | None
    left: Sequence[str]


def run(fault: Fault, folder: Path) -> Record:
    """Make the fault on two hosts of its own. Raises if the ranks miss their deadline."""
    temporary = folder / "tmp"
    temporary.mkdir()
    shared_before = set(os.listdir("/dev/shm"))
    plan = dataclasses.replace(fault.plan, folder=str(folder))
    environment = {"SMDDP_TOKEN": "7" * 64, "TMPDIR": str(temporary)}
    with network(2, gbit=1) as hosts, contextlib.ExitStack() as stack:
        if fault.around is not None:
            stack.enter_context(fault.around(hosts, folder))
        with running_ranks_on(
            hosts,
            LAYOUT,
            f"tests.multihost.fault_ranks:{fault.ranks}",
            plan,
            env=environment,
            deadline_s=DEADLINE_S,
            check=False,
        ) as job:
            scene = Scene(hosts, plan, job)
            try:
                if not plan.limit:
                    scene.wait_until("running")
                scene.struck_s = time.monotonic()
                fault.strike(scene)
            except BaseException:
                scene.sign("stop")
                raise
            outcomes: list[RankOutcome] = job.result()
        late = [outcome for outcome in outcomes if outcome.exit_code is None]
        if late:
            raise AssertionError("\n".join(f"{o.rank}: {o.output}\n{o.stacks}" for o in late))
        pids = {rank: scene.pid(rank) for rank in RANKS if (folder / f"pid-{rank}").exists()}
        left = list(_left_behind(hosts, pids.values(), temporary, shared_before))
    told = [outcome.value for outcome in outcomes]
    for outcome in outcomes:
        if outcome.error is not None and outcome.rank != plan.victim:
            raise AssertionError(f"rank {outcome.rank}: {outcome.output}")
    heard_s = [each.at_s for each in told if each is not None and each.error]
    seconds = max(heard_s) - scene.struck_s if heard_s else None
    return Record(told, [o.output for o in outcomes], pids, seconds, left)


def check(fault: Fault, record: Record) -> None:
    """Raise AssertionError if a rank was told something else than it must be."""
    for rank, verdict in fault.verdicts.items():
        told = record.told[rank]
        assert told is not None, f"rank {rank} came to no end: {record.output[rank]}"
        as_expected = told.error if verdict.error is None else told.error == verdict.error
        assert as_expected, f"rank {rank}: {told}"
        for part in verdict.parts:
            expected = part.format(**{f"pid{r}": pid for r, pid in record.pids.items()})
            assert expected in told.text, f"rank {rank}: no {expected!r} in {told.text}"
    read = [*record.output, *(told.text for told in record.told if told is not None)]
    assert fault.said in "".join(read), read
    assert list(record.left) == []


def _left_behind(
    hosts: Sequence[Host], pids: Iterable[int], temporary: Path, shared_before: set[str]
) -> Iterator[str]:
    for pid in pids:
        if Path(f"/proc/{pid}").exists():
            yield f"process {pid}"
    for host in hosts:
        for line in host.inside.run("cat /proc/net/tcp").splitlines()[1:]:
            words = line.split()
            if words[3] in _HELD_STATES:
                yield f"a TCP socket on {host.name}, {_HELD_STATES[words[3]]} ({words[1]})"
        for line in host.inside.run("cat /proc/net/unix").splitlines()[1:]:
            if len(line.split()) == 8:
                yield f"a Unix socket on {host.name}: {line.split()[7]}"
    for name in sorted(set(os.listdir("/dev/shm")) - shared_before):
        if "smd" in name:
            yield f"/dev/shm/{name}"
    for path in sorted(temporary.rglob("*")):
        yield f"temporary file {path.name}"
