# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Every fault of docs/faults.md, as data: how it is made, and what every rank must be told of it.

Two hosts with two ranks each: ranks 0 and 1 on host-0, 2 and 3 on host-1. Where one rank is struck,
it is rank 3.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.multihost.fault_ranks import Plan
from tests.multihost.fault_run import RANKS, STRANGER, WELL, Fault, Scene, Verdict
from tests.multihost.hosts import Host
from tests.multihost.wire import BadWire

_LOST, _LATE, _WRONG = "PeerLostError", "CollectiveTimeoutError", "SMDDPConfigInvalid"
_VICTIM = "rank 3 (host host-1, pid {pid3})"
_SILENT_FOR = "has not answered for some 10 s"
_READ_LOG = "Read the log of rank 3 first"
_ONE_SIDE_FIRST = (
    "The side that gives up first closes its connections, and what it sends still arrives: so the"
    " other side may read of a connection that was closed, or reset, instead of the silence."
)
_RECORDING = "handshake.json"

ALL_WELL: Mapping[int, Verdict] = dict.fromkeys(RANKS, WELL)


def others(error: str, *parts: str) -> Mapping[int, Verdict]:
    """All ranks but the victim are told the same."""
    return dict.fromkeys((0, 1, 2), Verdict(error, (_VICTIM, "all_reduce #", *parts)))


def parted(text: str = _SILENT_FOR) -> Mapping[int, Verdict]:
    """The ranks of each host name one of the other."""
    return {
        rank: Verdict(_LOST, (f"(host host-{1 if rank < 2 else 0}, pid", "all_reduce #", text))
        for rank in RANKS
    }


# --- strikes -------------------------------------------------------------------------------------


def kill(scene: Scene) -> None:
    time.sleep(0.3)  # into some operation
    scene.struck_s = time.monotonic()
    scene.signal_victim(signal.SIGKILL)


def leave(scene: Scene) -> None:
    scene.sign("leave")


def stop_for(seconds: float) -> Callable[[Scene], None]:
    """SIGSTOP, and SIGCONT after a while."""

    def strike(scene: Scene) -> None:
        scene.signal_victim(signal.SIGSTOP)
        time.sleep(seconds)
        scene.signal_victim(signal.SIGCONT)
        scene.go_on_and_stop()

    return strike


def stop_until_others_gave_up(scene: Scene) -> None:
    scene.signal_victim(signal.SIGSTOP)
    scene.wait_until("told", [0, 1, 2])
    scene.signal_victim(signal.SIGCONT)


def stop_nine_tenths_of_the_time(scene: Scene) -> None:
    for _ in range(20):
        scene.signal_victim(signal.SIGSTOP)
        time.sleep(0.18)
        scene.signal_victim(signal.SIGCONT)
        time.sleep(0.02)
    scene.go_on_and_stop(0)


def silence_while_idle(scene: Scene) -> None:
    scene.hosts[1].silence()
    scene.wait_until("told", [0, 1])
    scene.sign("go on")


def reset(scene: Scene) -> None:
    if scene.reset_connections_of_victim() == 0:
        raise AssertionError("rank 3 has no connection to reset")


def interrupt(seconds: float) -> Callable[[Scene], None]:
    """Pull the cable, and put it back before the host is given up.

    TCP tries again 6 s after the first loss, and then after 13: what pulls the cable must not wait
    for a processor meanwhile.
    """

    def strike(scene: Scene) -> None:
        with _ahead_of_others():
            scene.hosts[1].unplug()
            time.sleep(seconds)
            scene.hosts[1].heal()
        scene.go_on_and_stop()

    return strike


@contextlib.contextmanager
def _ahead_of_others() -> Iterator[None]:
    """This thread, and the programs that it starts, get a processor at once, where they may."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


def congest(scene: Scene) -> None:
    """The switch's port to host-1 gets slower than the sender, and has next to no queue."""
    scene.hosts[1].set_rate(0.5, both_ways=True, port_queue_bytes=40_000)
    scene.go_on_and_stop(3)


def work_for_a_while(scene: Scene) -> None:
    scene.go_on_and_stop(3)


def pester(kind: str) -> Callable[[Scene], None]:
    """A stranger speaks to every port of rank 0."""

    def strike(scene: Scene) -> None:
        for port in scene.ports(0):
            scene.stranger(kind, scene.hosts[0].address, port, 0, len(RANKS))
        scene.go_on_and_stop()

    return strike


def play_back(scene: Scene) -> None:
    scene.stranger("replay", scene.folder / _RECORDING)
    scene.go_on_and_stop()


def nothing(scene: Scene) -> None:
    """The fault is in the job itself."""


# --- surroundings --------------------------------------------------------------------------------


def bad_wire(hosts: Sequence[Host], folder: Path) -> BadWire:
    return BadWire(hosts, lost=0.01, swapped=0.05, repeated=0.01)


@contextlib.contextmanager
def recorder(hosts: Sequence[Host], folder: Path) -> Iterator[None]:
    """Writes down the first handshake that arrives at host-0."""
    path = folder / _RECORDING
    command = [sys.executable, str(STRANGER), "record", "eth0", str(path)]
    process = subprocess.Popen(hosts[0].command(command), process_group=0)
    try:
        while not path.with_suffix(".ready").exists():
            if process.poll() is not None:
                raise AssertionError("nothing can be recorded")
            time.sleep(0.02)
        yield
    finally:
        process.kill()
        process.wait()


# --- the table -----------------------------------------------------------------------------------

FAULTS = (
    # Processes.
    Fault(
        "SIGKILL while sending",
        "`kill -KILL` of rank 3 in the middle of sums of 4 MiB",
        kill,
        others(_LOST, _READ_LOG),
    ),
    Fault(
        "SIGKILL while idle",
        "`kill -KILL` of rank 3 while it computes and the others wait for it",
        kill,
        others(_LOST, _READ_LOG),
        Plan("", is_idle=True),
    ),
    Fault(
        "SIGKILL beside a forked child",
        "the same; a forked child of rank 3, such as a DataLoader's worker, outlives it",
        kill,
        others(_LOST, _READ_LOG),
        Plan("", forks=True),
    ),
    Fault(
        "crash",
        "rank 3 ends with status 1 and closes nothing (`os._exit(1)`)",
        leave,
        others(_LOST, _READ_LOG),
        Plan("", leave="os._exit(1)"),
    ),
    Fault(
        "exception",
        "rank 3 raises, its group is closed on the way out, it ends with status 1",
        leave,
        others(_LOST, "left", _READ_LOG),
        Plan("", leave="exception"),
    ),
    Fault(
        "early end",
        "rank 3 ends with status 0, a batch before the others",
        leave,
        others(_LOST, "left", _READ_LOG),
        Plan("", leave="sys.exit(0)"),
    ),
    Fault(
        "SIGSTOP for 3 s",
        "`kill -STOP` of rank 3, and `kill -CONT`",
        stop_for(3),
        ALL_WELL,
    ),
    Fault(
        "SIGSTOP for longer than a host may be silent",
        "`kill -STOP` of rank 3, and `kill -CONT` 14 s later; its kernel goes on answering",
        stop_for(14),
        ALL_WELL,
    ),
    Fault(
        "SIGSTOP beyond the timeout",
        "`kill -STOP` of rank 3; the group's timeout is 4 s",
        stop_until_others_gave_up,
        dict.fromkeys(RANKS, Verdict(_LATE, ("all_reduce #", "rank 3"))),
        Plan("", timeout_s=4.0),
        note="The first rank whose time is over speaks for all. One on the other host may wait for"
        " ranks that wait for rank 3 themselves; then the table below its text says so.",
    ),
    Fault(
        "slow reader",
        "rank 3 is stopped nine tenths of the time for 4 s; windows fill, senders wait",
        stop_nine_tenths_of_the_time,
        ALL_WELL,
    ),
    # Links.
    Fault(
        "half-open connections",
        "all packets of host-1 vanish in the switch; carriers stay, nothing is closed",
        lambda scene: scene.hosts[1].silence(),
        parted(),
    ),
    Fault(
        "half-open connections while idle",
        "the same; rank 3 computes until host-0 has noticed, the others wait for it",
        silence_while_idle,
        parted(),
        Plan("", is_idle=True),
    ),
    Fault(
        "one direction only",
        "packets from host-0 to host-1 vanish, the others arrive",
        lambda scene: scene.hosts[0].lose_packets_to(scene.hosts[1]),
        parted(""),
        note=_ONE_SIDE_FIRST,
        is_long=True,
    ),
    Fault(
        "cable pulled",
        "the switch's port to host-1 goes down: host-1 loses its carrier",
        lambda scene: scene.hosts[1].unplug(),
        parted(),
        is_long=True,
    ),
    Fault(
        "cable moved",
        "the same, for 4 s",
        interrupt(4),
        ALL_WELL,
    ),
    Fault(
        "interface down",
        "`ip link set eth0 down` on host-0; its routes go too",
        lambda scene: scene.hosts[0].take_down(),
        parted(),
        is_long=True,
    ),
    Fault(
        "no route",
        "host-0's kernel finds host-1 unreachable, and says so to whoever sends",
        lambda scene: scene.hosts[0].refuse(scene.hosts[1]),
        parted(""),
        note=_ONE_SIDE_FIRST,
        is_long=True,
    ),
    Fault(
        "connections reset",
        "rank 3's kernel sends RST on all its connections, as a firewall or a NAT that forgets may",
        reset,
        {rank: Verdict(_LOST, ("all_reduce #", "closed the connection")) for rank in RANKS},
        note="No process is at fault: the rank that is named is at one end of a connection that was"
        " reset, and rank 3 at the other. `Connection reset by peer` beside a rank that is alive"
        " points to the network.",
    ),
    Fault(
        "congestion",
        "the switch sends 0.5 Gbit/s to host-1 (tbf), queues 40 kB, and drops the rest",
        congest,
        ALL_WELL,
    ),
    Fault(
        "loss, reordering, repetition",
        "a process carries the packets: of 100 segments it loses 1, repeats 1, lets 5 be overtaken",
        work_for_a_while,
        ALL_WELL,
        around=bad_wire,
    ),
    # Resources.
    Fault(
        "disk full",
        "the disk fills up while rank 0 writes a checkpoint (examples/03_gpt/checkpoint.py)",
        leave,
        {
            0: Verdict("OSError", ("No space left on device",)),
            **dict.fromkeys(
                (1, 2, 3), Verdict(_LOST, ("rank 0 (host host-0, pid {pid0})", "left"))
            ),
        },
        Plan("", victim=0),
        ranks="saves",
    ),
    Fault(
        "no descriptors left",
        "rank 3 may hardly open another file (`ulimit -n`) when it joins",
        nothing,
        dict.fromkeys(RANKS, Verdict(None)),
        Plan("", timeout_s=8.0, limit="descriptors"),
        said="Too many open files",
        note="The others see a rank that does not answer, and wait for it, since files may be"
        " closed again: they give up at their timeout (here 8 s), unless rank 3 needs a file for a"
        " connection of its own: then it raises at once, and they read that it is gone. The cause"
        " stands in rank 3's output from the beginning, or in its error.",
    ),
    Fault(
        "files limited to 64 KiB",
        "so is rank 3 (`ulimit -f`), so it cannot make shared memory",
        work_for_a_while,
        ALL_WELL,
        Plan("", limit="size of files"),
    ),
    # Strangers.
    Fault(
        "wrong token",
        "rank 3 has another SMDDP_TOKEN",
        nothing,
        dict.fromkeys(RANKS, Verdict(_WRONG, (_VICTIM, "same SMDDP_TOKEN"))),
        Plan("", tokens=("a" * 64, "a" * 64, "a" * 64, "b" * 64)),
        ranks="joins",
    ),
    Fault(
        "missing token",
        "rank 3 has no SMDDP_TOKEN",
        nothing,
        dict.fromkeys(RANKS, Verdict(_WRONG, (_VICTIM, "has none", "same SMDDP_TOKEN"))),
        Plan("", tokens=("a" * 64, "a" * 64, "a" * 64, None)),
        ranks="joins",
    ),
    Fault(
        "guessed token",
        "a stranger on host-1 says it is a rank, and proves it with a token of its own",
        pester("guess"),
        ALL_WELL,
        said="refused a connection from 10.77.0.2",
    ),
    Fault(
        "replayed handshake",
        "a handshake between two ranks is recorded on the wire, and played back to the same port",
        play_back,
        ALL_WELL,
        around=recorder,
        said="refused a connection from 10.77.0.2",
    ),
    Fault(
        "truncated handshake",
        "a stranger's connections end within the hello, after it, and within the proof",
        pester("truncated"),
        ALL_WELL,
    ),
    Fault(
        "garbage",
        "a stranger sends zeros, HTTP and random bytes to the port of rank 0",
        pester("garbage"),
        ALL_WELL,
        said="refused a connection from 10.77.0.2",
    ),
)
