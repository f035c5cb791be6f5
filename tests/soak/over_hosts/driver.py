# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The rounds: lets ranks work, lets a fault happen, and judges what the ranks make of it."""

from __future__ import annotations

import os
import queue
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.multihost.hosts import Host
from tests.soak.over_hosts.faults import KINDS, Fault, Scene, draw
from tests.soak.over_hosts.rank_process import Mail, RankProcess
from tests.soak.over_hosts.report import Report, Round
from tests.soak.usage import Usage, growth

# Whoever says nothing for so long hangs. On a machine that does other things too, waiting for a
# host that does not answer takes some 15 s, and all else less.
BOUND_S = 90.0
_SETTLE_S = 0.3  # of work after something has passed
_PARTED_SHARE = 0.4  # of rounds without an error, after which groups are made anew all the same
_LOG_LINES = 40


class SoakFailed(Exception):
    """Something that the soak is there to find."""


@dataclass(frozen=True)
class Options:
    """What a soak does.

    Attributes:
        seconds: how long.
        rounds: how many, whatever time they take; None for as many as there is time for.
        first: number of the first round.
        seed: of all that is random.
        kinds: keys of `KINDS` to draw from.
        ranks_per_host: by host.
        environment: of the ranks.
    """

    seconds: float
    rounds: int | None
    first: int
    seed: int
    kinds: Sequence[str]
    ranks_per_host: Sequence[int]
    environment: dict[str, str]


class Soak:
    """The ranks of one job on `hosts`, through all its lives."""

    def __init__(self, hosts: Sequence[Host], options: Options, folder: Path) -> None:
        self._hosts, self._options, self._folder = hosts, options, folder
        self._mail: Mail = queue.SimpleQueue()
        self._ranks: list[RankProcess] = []
        self._history: dict[int, list[Usage]] = {}  # by pid
        self._stores = 0
        self._lives = 0
        self._token = ""
        self.report = Report(options.seconds)

    def run(self) -> None:
        """All rounds, and the end of all processes. Raises `SoakFailed`."""
        number = self._options.first
        try:
            self._begin_life()
            while not self._is_last(number):
                self._round(number)
                number += 1
            self._end_life()
        except SoakFailed as failure:
            repeat = f"--seed {self._options.seed} --first {number} --rounds 1"
            raise SoakFailed(f"{failure}\n(round {number}; repeat it with {repeat})") from None
        finally:
            for process in self._ranks:
                process.end()

    def _is_last(self, number: int) -> bool:
        done = number - self._options.first
        if self._options.rounds is not None:
            return done >= self._options.rounds
        return self.report.elapsed_s >= self._options.seconds

    # --- lives ------------------------------------------------------------------------------------

    def _begin_life(self) -> None:
        self._lives += 1
        self._stores += 1
        self._token = secrets.token_hex(32)
        count = sum(self._options.ranks_per_host)
        self._ranks = [self._start(rank) for rank in range(count)]
        self._await("ready", self._ranks)

    def _start(self, rank: int) -> RankProcess:
        places = [
            (host, local_rank, local_size)
            for host, local_size in zip(self._hosts, self._options.ranks_per_host, strict=True)
            for local_rank in range(local_size)
        ]
        host, local_rank, local_size = places[rank]
        environment = {
            **os.environ,
            **self._options.environment,
            "RANK": str(rank),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(local_size),
            "GROUP_RANK": str(host.index),
            "SMDDP_TOKEN": self._token,
            "OMP_NUM_THREADS": "1",
        }
        log = self._folder / f"rank-{rank}.log"
        return RankProcess(rank, host, environment, log, self._options.seed, self._mail)

    def _end_life(self) -> None:
        for process in self._ranks:
            process.tell("end")
        for process in self._ranks:
            status = process.wait()
            if status != 0:
                raise SoakFailed(
                    f"rank {process.rank} ended with status {status}; expected 0 after all work."
                    f" {self._log_of(process)}"
                )
        self._ranks = []
        for host in self._hosts:
            if left := host.inside.others():
                raise SoakFailed(f"processes are left on {host.name}: {left}")

    # --- a round ----------------------------------------------------------------------------------

    def _round(self, number: int) -> None:
        size = (len(self._hosts), len(self._ranks))
        fault = draw(self._options.seed, number, size, self._options.kinds)
        kind, scene = KINDS[fault.kind], Scene(self._hosts, self._ranks)
        words = kind.words.format(host=f"host-{fault.host}", victim=fault.victim)
        if fault.lasts_s:
            words += f" ({fault.lasts_s:.1f} s)"
        for host in self._hosts:
            host.set_rate(fault.gbit, both_ways=True)
        store = self._folder / f"store-{self._stores}"
        for process in self._ranks:
            process.tell("round", number=number, store=str(store))
        self._await("running", self._ranks)
        time.sleep(fault.delay_s)

        gone = kind.hits(scene, fault)
        alive = [process for process in self._ranks if process.rank not in gone]
        struck = time.monotonic()
        kind.strike(scene, fault)
        if kind.outcome == "error":
            done = self._await("done", alive)
            kind.heal(scene, fault)
        else:
            time.sleep(fault.lasts_s)
            kind.heal(scene, fault)
            for process in self._ranks:
                if complaint := process.await_helpers():
                    raise SoakFailed(complaint)
            time.sleep(_SETTLE_S)
            self._ranks[0].tell("stop")
            done = self._await("done", alive)
        self._judge(fault, words, done)
        errors = [each for answer in done.values() for each in answer["ended"] if each["error"]]
        failed = [
            rank for rank, answer in done.items() if any(each["error"] for each in answer["ended"])
        ]
        self.report.add(
            Round(
                number,
                fault.kind,
                words,
                len(failed),
                max((each["at"] for each in errors), default=struck) - struck if errors else None,
                sum(answer["calls"] for answer in done.values()),
                sum(answer["bytes"] for answer in done.values()),
            )
        )
        if kind.restarts:
            for process in self._ranks:
                process.end()
            self._begin_life()
        else:
            if errors or (number % 10) < 10 * _PARTED_SHARE:
                self._part(alive)
            for rank in gone:
                self._ranks[rank].wait()
                self._ranks[rank] = self._start(rank)
            self._await("ready", [self._ranks[rank] for rank in gone])

    def _part(self, alive: Sequence[RankProcess]) -> None:
        """Let all leave their groups, and look at what they hold then."""
        self._stores += 1
        for process in alive:
            process.tell("part")
        parted = self._await("parted", alive)
        usages = []
        for process in alive:
            usage = Usage(**parted[process.rank]["usage"])
            history = self._history.setdefault(process.pid, [])
            history.append(usage)
            usages.append((process.rank, usage))
            if words := growth(history):
                raise SoakFailed(f"rank {process.rank}: {words}")
        self.report.hold(usages)

    def _judge(self, fault: Fault, words: str, done: dict[int, dict[str, Any]]) -> None:
        """Raise `SoakFailed` unless every rank has what it must have after `fault`."""
        kind = KINDS[fault.kind]
        victims = {fault.victim, *kind.hits(Scene(self._hosts, self._ranks), fault)}
        for rank, answer in done.items():
            errors = [each for each in answer["ended"] if each["error"]]
            for each in errors:
                told = f"rank {rank} said {each['error']}: {each['text']}"
                if kind.outcome == "right":
                    raise SoakFailed(f"{words}: right results were expected, and {told}")
                if rank in victims:
                    continue  # what the one who did it reads is its own affair, and torch's
                if not each["module"].startswith("smdistributed"):
                    raise SoakFailed(f"{words}: an error of this library was expected, and {told}")
                if not self._names_culprit(fault, rank, each["text"]):
                    raise SoakFailed(f"{words}: nobody, or the wrong one, is named: {told}")
            if kind.outcome == "error" and not errors:
                raise SoakFailed(f"{words}: an error was expected, and rank {rank} had none")

    def _names_culprit(self, fault: Fault, rank: int, text: str) -> bool:
        others = [each.pid for each in self._ranks if each.host != self._ranks[rank].host]
        hit = KINDS[fault.kind].hits(Scene(self._hosts, self._ranks), fault) or [fault.victim]
        values = {
            "{others}": "|".join(map(str, others)),
            "{anyone}": "|".join(str(each.pid) for each in self._ranks),
            "{victims}": "|".join(str(self._ranks[each].pid) for each in hit),
            "{victim}": str(fault.victim),
        }
        for pattern in KINDS[fault.kind].culprit:
            for name, value in values.items():
                pattern = pattern.replace(name, value)
            if re.search(pattern, text, re.DOTALL):
                return True
        return False

    # --- words ------------------------------------------------------------------------------------

    def _await(self, what: str, ranks: Iterable[RankProcess]) -> dict[int, dict[str, Any]]:
        """By rank: what each of `ranks` tells as `what`."""
        awaited = list(ranks)
        told: dict[int, dict[str, Any]] = {}
        give_up = time.monotonic() + BOUND_S
        while missing := [process for process in awaited if process.rank not in told]:
            try:
                process, message = self._mail.get(timeout=max(0.0, give_up - time.monotonic()))
            except queue.Empty:
                raise SoakFailed(self._hang(what, missing)) from None
            if process not in missing:
                continue  # of a life that is over, or one that was hit
            if message["tell"] == what:
                told[process.rank] = message
            elif message["tell"] == "gone":
                raise SoakFailed(
                    f"rank {process.rank} is gone (status {process.end()}); it was expected to"
                    f" tell {what!r}. {self._log_of(process)}"
                )
        return told

    def _hang(self, what: str, missing: Sequence[RankProcess]) -> str:
        names = ", ".join(str(process.rank) for process in missing)
        text = f"no {what!r} within {BOUND_S:.0f} s from ranks {names}; they hang."
        stacks = "\n".join(process.stacks() for process in self._ranks)
        time.sleep(1.0)  # Python's stacks go to the logs
        return "\n".join([text, stacks, *(self._log_of(process) for process in self._ranks)])

    def _log_of(self, process: RankProcess) -> str:
        lines = process.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join([f"Its log ends with (rank {process.rank}):", *lines])
