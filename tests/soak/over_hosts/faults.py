# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The faults, as data: what is done to the hosts and ranks, and what they must make of it."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.multihost.hosts import Host
from tests.soak.over_hosts.rank_process import RankProcess

Outcome = Literal["right", "error", "either"]

# What a host may be silent for, and no connection is given up: below the 10 s of
# native/transport/tcp/silence.h by what TCP may take to try again (it doubles its pauses).
WITHIN_LIMIT_S = 4.0
_UNTIL_KNOWN = (0.0, 0.0)  # such a fault ends once all ranks have told what they make of it
_SLOW_GBIT = 0.05
_SHALLOW_QUEUE_BYTES = 100_000
_RATES_GBIT = (0.2, 1.0, 5.0)


@dataclass(frozen=True)
class Scene:
    """Where a fault happens: the hosts, and the ranks on them by rank."""

    hosts: Sequence[Host]
    ranks: Sequence[RankProcess]

    def ranks_on(self, host: int) -> list[RankProcess]:
        return [process for process in self.ranks if process.host.index == host]


@dataclass(frozen=True)
class Fault:
    """One thing that happens in one round.

    Attributes:
        kind: a key of `KINDS`.
        host: index of the host that it happens to, for faults of hosts and links.
        victim: the rank, for faults of processes and for wrong calls.
        delay_s: seconds from when all ranks are at work.
        lasts_s: seconds until it is undone, for those that pass; 0 for the others.
        gbit: rate of every link in the round, Gbit/s.
    """

    kind: str
    host: int
    victim: int
    delay_s: float
    lasts_s: float
    gbit: float


def _nothing(scene: Scene, fault: Fault) -> None:
    """There is nothing to do."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        words: what happens, with `{host}` and `{victim}`.
        outcome: whether results must be right all the same, or all ranks must get an error, or
            either of them is right.
        strike: makes it happen.
        heal: undoes it, after `lasts_s` or, of faults that must end in errors, once all know.
        lasts_s: seconds between which it lasts, for those that pass.
        weight: how often it is drawn. What ends processes comes less often: whether anything
            grows shows in those that live long.
        culprit: regular expressions, one of which an error must contain. In them `{victim}` is the
            rank; `{victims}` are the pids of the ranks that are hit, `{others}` those on other
            hosts than the one who tells, `{anyone}` all.
        hits: the ranks that are gone afterwards, of which no word is expected.
        restarts: whether the whole job is ended afterwards, and begun again.
    """

    words: str
    outcome: Outcome
    strike: Callable[[Scene, Fault], None] = _nothing
    heal: Callable[[Scene, Fault], None] = _nothing
    lasts_s: tuple[float, float] = _UNTIL_KNOWN
    weight: int = 2
    culprit: tuple[str, ...] = ()
    hits: Callable[[Scene, Fault], list[int]] = lambda scene, fault: []
    restarts: bool = False


def _other(scene: Scene, fault: Fault) -> Host:
    return scene.hosts[(fault.host + 1) % len(scene.hosts)]


def _unplug(scene: Scene, fault: Fault) -> None:
    scene.hosts[fault.host].unplug()


def _silence(scene: Scene, fault: Fault) -> None:
    scene.hosts[fault.host].silence()


def _take_down(scene: Scene, fault: Fault) -> None:
    scene.hosts[fault.host].take_down()


def _lose(scene: Scene, fault: Fault) -> None:
    scene.hosts[fault.host].lose_packets_to(_other(scene, fault))


def _refuse(scene: Scene, fault: Fault) -> None:
    scene.hosts[fault.host].refuse(_other(scene, fault))


def _heal(scene: Scene, fault: Fault) -> None:
    scene.hosts[fault.host].heal()


def _slow_down(scene: Scene, fault: Fault) -> None:
    scene.hosts[fault.host].set_rate(
        _SLOW_GBIT, both_ways=True, port_queue_bytes=_SHALLOW_QUEUE_BYTES
    )


def _speed_up(scene: Scene, fault: Fault) -> None:
    scene.hosts[fault.host].set_rate(fault.gbit, both_ways=True)


def _signal(number: int) -> Callable[[Scene, Fault], None]:
    return lambda scene, fault: scene.ranks[fault.victim].send_signal(number)


def _signal_host(number: int) -> Callable[[Scene, Fault], None]:
    def strike(scene: Scene, fault: Fault) -> None:
        for process in scene.ranks_on(fault.host):
            process.send_signal(number)

    return strike


def _tell(what: str) -> Callable[[Scene, Fault], None]:
    return lambda scene, fault: scene.ranks[fault.victim].tell(what)


def _knock(scene: Scene, fault: Fault) -> None:
    # From the other host, as a stranger would come.
    victim = scene.ranks[fault.victim]
    from_host = scene.hosts[(victim.host.index + 1) % len(scene.hosts)]
    victim.send_strangers(from_host, fault.lasts_s, seed=fault.victim)


def _victim(scene: Scene, fault: Fault) -> list[int]:
    return [fault.victim]


def _all_on_host(scene: Scene, fault: Fault) -> list[int]:
    return [process.rank for process in scene.ranks_on(fault.host)]


def _briefly(low: float, high: float) -> tuple[float, float]:
    return (low, high)


_SILENT = (r"pid (?:{others})\) .*has not answered",)
# Where words get through one way, or again, those of the other host are heard as well.
_EITHER_SILENT = (
    r"pid (?:{anyone})\) .*(?:has not answered|gave the group up|closed the connection)",
)
_GONE = (r"pid (?:{victims})\)",)

KINDS: Mapping[str, Kind] = {
    "calm": Kind("nothing happens", "right", weight=3),
    # Links.
    "blink": Kind(
        "{host} is unplugged for a moment",
        "right",
        _unplug,
        _heal,
        _briefly(0.1, WITHIN_LIMIT_S),
        weight=4,
    ),
    "silent blink": Kind(
        "packets of {host} vanish for a moment",
        "right",
        _silence,
        _heal,
        _briefly(0.1, WITHIN_LIMIT_S),
    ),
    "about the limit": Kind(
        "{host} is unplugged for about as long as is allowed",
        "either",
        _unplug,
        _heal,
        _briefly(WITHIN_LIMIT_S, 14.0),
        culprit=_EITHER_SILENT,
    ),
    "cut": Kind("{host} is unplugged", "error", _unplug, _heal, culprit=_SILENT),
    "half-open": Kind("packets of {host} vanish", "error", _silence, _heal, culprit=_SILENT),
    "interface down": Kind(
        "the interface of {host} goes down", "error", _take_down, _heal, culprit=_SILENT
    ),
    "one way": Kind(
        "packets of {host} to the next host vanish", "error", _lose, _heal, culprit=_EITHER_SILENT
    ),
    "unreachable": Kind(
        "{host} cannot reach the next host", "error", _refuse, _heal, culprit=_EITHER_SILENT
    ),
    "slow and lossy": Kind(
        "the link of {host} becomes slow and drops packets",
        "right",
        _slow_down,
        _speed_up,
        _briefly(0.5, 3.0),
        weight=3,
    ),
    # Processes.
    "stopped": Kind(
        "rank {victim} is stopped for a moment",
        "right",
        _signal(signal.SIGSTOP),
        _signal(signal.SIGCONT),
        _briefly(0.1, 3.0),
        weight=3,
    ),
    "stopped for long": Kind(
        "rank {victim} is stopped for longer than a host may be silent",
        "right",
        _signal(signal.SIGSTOP),
        _signal(signal.SIGCONT),
        _briefly(12.0, 15.0),
        weight=1,
    ),
    "host stopped": Kind(
        "all ranks of {host} are stopped for a moment",
        "right",
        _signal_host(signal.SIGSTOP),
        _signal_host(signal.SIGCONT),
        _briefly(0.1, 2.0),
    ),
    "asked": Kind(
        "rank {victim} gets SIGUSR1", "right", _signal(signal.SIGUSR1), lasts_s=_briefly(0.1, 0.3)
    ),
    "killed": Kind(
        "rank {victim} is killed and replaced",
        "error",
        _signal(signal.SIGKILL),
        weight=3,
        culprit=_GONE,
        hits=_victim,
    ),
    "exit": Kind(
        "rank {victim} ends without a word",
        "error",
        _tell("exit"),
        weight=2,
        culprit=_GONE,
        hits=_victim,
    ),
    "host dies": Kind(
        "all ranks of {host} are killed at once",
        "error",
        _signal_host(signal.SIGKILL),
        weight=1,
        culprit=_GONE,
        hits=_all_on_host,
    ),
    "new life": Kind(
        "rank {victim} is killed, and the job begun again",
        "error",
        _signal(signal.SIGKILL),
        weight=1,
        culprit=_GONE,
        hits=_victim,
        restarts=True,
    ),
    "strangers": Kind(
        "strangers knock at rank {victim}", "right", _knock, lasts_s=_briefly(0.3, 2.0), weight=4
    ),
    # Wrong usage.
    "leave": Kind(
        "rank {victim} leaves its groups in the middle of its work",
        "error",
        _tell("leave"),
        weight=4,
        culprit=_GONE,
    ),
    "abort": Kind(
        "rank {victim} aborts",
        "error",
        _tell("abort"),
        weight=4,
        culprit=("the soak aborts on rank {victim}",),
    ),
    "mismatch": Kind(
        "rank {victim} makes another call than the others",
        "error",
        _tell("mismatch"),
        weight=4,
        culprit=(r"rank {victim} called",),
    ),
}


def draw(seed: int, number: int, scene_size: tuple[int, int], kinds: Sequence[str]) -> Fault:
    """The fault of round `number`, one of `kinds`: the same in every run.

    Args:
        seed: of the soak.
        number: of the round.
        scene_size: hosts and ranks.
        kinds: keys of `KINDS`.
    """
    chance = random.Random(f"fault/{seed}/{number}")
    kind = chance.choices(list(kinds), [KINDS[name].weight for name in kinds])[0]
    return Fault(
        kind,
        host=chance.randrange(scene_size[0]),
        victim=chance.randrange(scene_size[1]),
        delay_s=round(chance.uniform(0.0, 0.8), 3),
        lasts_s=round(chance.uniform(*KINDS[kind].lasts_s), 3),
        gbit=chance.choice(_RATES_GBIT),
    )
