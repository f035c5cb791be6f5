# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Measures training steps of DistributedDataParallel, interleaved in one run. See README.md.

Loop:  for ranks: start the ranks, with one process group per backend
         for model: every column builds its copy (and verifies its gradients)
           for round: for column, in an order that turns by one each round: probe, measure, probe
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from columns import COLUMNS, reference_of
from common.command_line import add_names, add_turns, rank_counts
from common.result_files import ResultFile
from common.rounds import in_turn, slowest
from machine import Floor, OtherLoad
from ranks import Ranks, RanksFailed
from ratios import paired, summarise
from shared import (
    COMPARABLE_TAGS,
    CannotBuild,
    CoreProbe,
    CoreStates,
    LibraryAbsent,
    ProbeSample,
)

MODELS = ("gpt", "resnet18", "mlp")
MAX_STEPS_PER_TURN = 400
# Above this share of the processors' time in other programs' hands a turn counts as disturbed.
NOISE_SHARE = 0.10
HERE = Path(__file__).resolve().parent
FLOOR = "floor"


@dataclass(frozen=True)
class _Measured:
    """What came of one turn; `turn_cpu_seconds` is of all ranks, warm-up included."""

    seconds: list[float]
    cpu_seconds_per_step: float
    turn_cpu_seconds: float


@dataclass
class Turn:
    """One column's steps in one round."""

    round: int
    seconds: list[float]
    before: ProbeSample | None
    after: ProbeSample | None
    other_load: float
    cpu_seconds: float  # of one step on one rank, all threads together

    def to_json(self, states: CoreStates) -> dict[str, Any]:
        """The record of the result file."""
        tag = "noisy" if self.other_load > NOISE_SHARE else states.tag_turn(self.before, self.after)
        return {
            "round": self.round,
            "tag": tag,
            "other_load": round(self.other_load, 3),
            "steps": len(self.seconds),
            "best_ms": round(min(self.seconds) * 1e3, 5),
            "median_ms": round(median(self.seconds) * 1e3, 5),
            "cpu_ms": round(self.cpu_seconds * 1e3, 5),
        }


@dataclass
class Case:
    """One model with one number of ranks: what each column gave."""

    model: str
    ranks: int
    gradient_bytes: int = 0
    tensors: int = 0
    step_seconds: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    turns: dict[str, list[Turn]] = field(default_factory=dict)

    def to_json(self, states: CoreStates) -> dict[str, Any]:
        """The record of the result file."""
        turns = {name: [turn.to_json(states) for turn in kept] for name, kept in self.turns.items()}
        columns: dict[str, Any] = {name: {"absent": words} for name, words in self.absent.items()}
        for name, kept in turns.items():
            by_tag = {
                tag: summarise(found)
                for tag in sorted({turn["tag"] for turn in kept})
                if (found := [turn for turn in kept if turn["tag"] == tag])
            }
            columns[name] = {"by_tag": by_tag, "turns": kept}
            if name != FLOOR and (reference := turns.get(reference_of(name))):
                columns[name]["to_free"] = paired(kept, reference)
        return {
            "model": self.model,
            "ranks": self.ranks,
            "gradient_bytes": self.gradient_bytes,
            "gradient_tensors": self.tensors,
            "columns": columns,
        }


class Run:
    """Everything measured so far, and the file that holds it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self.file = ResultFile(HERE, arguments.out, "quick" if arguments.quick else "full")
        self._probe = _make_probe()
        self._probes: list[ProbeSample] = []
        self._cases: list[Case] = []
        self._versions: dict[str, str] = {}

    def measure(self, size: int) -> None:
        """All models with `size` ranks. Raises `RanksFailed`."""
        ranks = Ranks(size)
        self._versions["torch"] = ranks.version
        try:
            for model in self._arguments.models:
                self._measure_model(ranks, model)
                self.save()
        finally:
            ranks.stop()

    def _measure_model(self, ranks: Ranks, model: str) -> None:
        begin = time.monotonic()
        case = Case(model, ranks.size)
        for name in self._arguments.columns:
            answers = ranks.ask("prepare", model=model, name=name)
            if "absent" in answers[0]:
                case.absent[name] = answers[0]["absent"]
                continue
            case.step_seconds[name] = max(answer["seconds"] for answer in answers)
            case.gradient_bytes = answers[0]["gradient_bytes"]
            case.tensors = answers[0]["tensors"]
        floor = self._make_floor(case)
        for round_number in range(self._arguments.rounds):
            names = list(case.step_seconds)
            for name in in_turn(names, round_number):
                steps = self._steps(case.step_seconds[name])
                self._take_turn(
                    case,
                    name,
                    round_number,
                    lambda name=name, steps=steps: _steps_of(ranks, name, steps),
                )
            if floor is not None:
                self._take_turn(case, FLOOR, round_number, lambda: _floor_turn(floor))
        if floor is not None:
            floor.stop()
        for name in case.step_seconds:
            ranks.ask("verify", name=name)
        ranks.ask("release")
        self._cases.append(case)
        self._print(case, time.monotonic() - begin)

    def _steps(self, seconds: float) -> int:
        wanted = round(self._arguments.turn_ms * 1e-3 / seconds)
        return min(MAX_STEPS_PER_TURN, max(2, wanted))

    def _make_floor(self, case: Case) -> Floor | None:
        if case.ranks != 2:
            return None
        try:
            return Floor(case.gradient_bytes)
        except LibraryAbsent as reason:
            case.absent[FLOOR] = str(reason)
            return None

    def _take_turn(
        self,
        case: Case,
        name: str,
        round_number: int,
        act: Callable[[], _Measured],
    ) -> None:
        before = self._sample()
        load = OtherLoad()
        measured = act()
        share = 0.0 if name == FLOOR else load.share(measured.turn_cpu_seconds)
        after = self._sample()
        turn = Turn(
            round_number, measured.seconds, before, after, share, measured.cpu_seconds_per_step
        )
        case.turns.setdefault(name, []).append(turn)

    def _sample(self) -> ProbeSample | None:
        sample = self._probe.sample() if self._probe is not None else None
        if sample is not None:
            self._probes.append(sample)
        return sample

    def _print(self, case: Case, seconds: float) -> None:
        record = case.to_json(CoreStates(self._probes))
        print(
            f"\n{case.model}, {case.ranks} ranks: {case.gradient_bytes / 1e6:.2f} MB of gradients"
            f" in {case.tensors} tensors ({seconds:.0f} s)"
        )
        for name, found in record["columns"].items():
            if "absent" in found:
                print(f"  {name:14} left out: {found['absent']}")
                continue
            for tag, figures in found["by_tag"].items():
                line = (
                    f"  {name:14} {tag:6} best {figures['best_ms']:9.3f} ms, median"
                    f" {figures['median_ms']:9.3f} ms, cpu {figures['cpu_ms']:9.3f} ms, spread"
                    f" {figures['spread']:.2f} ({figures['turns']} turns)"
                )
                ratio = found.get("to_free", {}).get(tag)
                if ratio is not None and tag in COMPARABLE_TAGS:
                    line += (
                        f"; to free: best {ratio['best']:.3f}, median {ratio['median']:.3f},"
                        f" p10-p90 {ratio['p10']:.3f}-{ratio['p90']:.3f} ({ratio['pairs']} pairs)"
                        f", cpu {ratio['cpu']:.3f}"
                    )
                print(line, flush=True)

    def save(self) -> None:
        """Write the result file."""
        arguments = self._arguments
        states = CoreStates(self._probes)
        self.file.write(
            rounds=arguments.rounds,
            turn_ms=arguments.turn_ms,
            noise_share=NOISE_SHARE,
            probes=len(self._probes),
            core_states=states.to_json(),
            results=[case.to_json(states) for case in self._cases],
        )

    def stop(self) -> None:
        """End the probe."""
        if self._probe is not None:
            self._probe.stop()


def _steps_of(ranks: Ranks, name: str, steps: int) -> _Measured:
    warm_up = max(1, min(20, steps // 4))
    answers = ranks.ask("run", name=name, warm_up=warm_up, steps=steps)
    return _Measured(
        slowest([answer["seconds"] for answer in answers]),
        sum(answer["cpu_seconds"] for answer in answers) / steps / ranks.size,
        sum(answer["turn_cpu_seconds"] for answer in answers),
    )


def _floor_turn(floor: Floor) -> _Measured:
    seconds = floor.seconds()
    return _Measured([seconds], seconds, 0.0)  # it spins: processor time is wall time


def _make_probe() -> CoreProbe | None:
    try:
        return CoreProbe()
    except CannotBuild as error:
        print(f"no probe of the core state: {error}")
        return None


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Training steps of DDP over smddp and Gloo, beside a free collective.",
        epilog="Without options: 2 ranks, all models and columns, some 10 minutes.",
    )
    columns = tuple(column.name for column in COLUMNS)
    parser.add_argument("--quick", action="store_true", help="5 short rounds, some 3 minutes")
    add_names(parser, "--models", MODELS)
    add_names(parser, "--columns", columns)
    parser.add_argument(
        "--ranks",
        type=rank_counts(2),
        default=[2],
        metavar="N,...",
        help="such as 2,4; default 2",
    )
    add_turns(parser)
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    arguments = parser.parse_args(argv)
    arguments.rounds = arguments.rounds or (5 if arguments.quick else 21)
    arguments.turn_ms = arguments.turn_ms or (200.0 if arguments.quick else 400.0)
    return arguments


def main() -> int:
    """Measure what the command line asks for; the exit status is 0 if all of it was measured."""
    arguments = _parse(sys.argv[1:])
    run = Run(arguments)
    try:
        for size in arguments.ranks:
            run.measure(size)
    except RanksFailed as failure:
        print(f"stopped: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the models that were complete are in the result file")
        return 130
    finally:
        run.stop()
    print(f"\nresults: {run.file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
