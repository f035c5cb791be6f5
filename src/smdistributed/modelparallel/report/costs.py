# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a pipeline is made of: its settings, the rows of its partition, what its modules cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.schedules import schedule_named
from smdistributed.modelparallel.decide.schedules.schedule import Schedule

__all__ = [
    "OUTSIDE_ROW",
    "BackwardLevel",
    "ForwardLevel",
    "Holder",
    "Message",
    "Piece",
    "Profile",
    "Row",
    "Settings",
    "settings_of",
]


OUTSIDE_ROW = "(outside of modules)"
"""The path of what runs in no module of its partition: the step function, losses."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Parameters of `smp.init()` that decide what a pipeline does.

    Attributes:
        active_microbatches: the effective value: never more than there are microbatches.
        is_active_set: by the user; else it follows from the number of partitions.
        framework: "torch" or "tensorflow", whose words a report uses.
    """

    partitions: int
    microbatches: int
    active_microbatches: int
    pipeline: str = "interleaved"
    auto_partition: bool = True
    memory_weight: float = 0.8
    is_active_set: bool = False
    framework: str = "torch"

    def schedule(self) -> Schedule:
        """The rules of a step."""
        return schedule_named(self.pipeline, self.microbatches, self.active_microbatches)

    def with_microbatches(self, microbatches: int) -> Settings:
        """The same with another number of microbatches."""
        bound = self.active_microbatches
        if not self.is_active_set:
            bound = max(bound, self.partitions + 2)
        return dataclasses.replace(
            self, microbatches=microbatches, active_microbatches=min(bound, microbatches)
        )


def settings_of(config: Config) -> Settings:
    """What of the parameters a report needs."""
    partitions = config.partitions
    return Settings(
        partitions=partitions,
        microbatches=config.microbatches,
        active_microbatches=config.active_microbatches,
        pipeline=config.pipeline,
        auto_partition=config.auto_partition and not config.load_partition,
        memory_weight=config.memory_weight,
        is_active_set=config.active_microbatches != min(partitions + 2, config.microbatches),
        framework=config.framework,
    )


@dataclasses.dataclass(frozen=True)
class Row:
    """A module with all below it that has no row of its own; of TensorFlow a layer.

    Attributes:
        path: `main/...`.
        partition: where it is.
        parameters: elements.
        why: it is there, in words; empty if nobody said.
        can_move: to another partition without anything else.
        forward_s, backward_s: of one microbatch.
    """

    path: str
    partition: int
    parameters: int
    why: str = ""
    can_move: bool = False
    forward_s: float = 0.0
    backward_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Of one microbatch, both ways."""
        return self.forward_s + self.backward_s


class Piece(NamedTuple):
    """A time spent in one module, without a break."""

    path: str
    seconds: float


class ForwardLevel(NamedTuple):
    """Bytes of tensors that live while one module computes, without a break: relative to any zero.

    Attributes:
        begin, end: when it begins and ends; more at the end is what it keeps.
        peak: meanwhile.
    """

    path: str
    begin: int
    peak: int
    end: int


class BackwardLevel(NamedTuple):
    """The same of a backward pass, without gradients of parameters; and with them.

    Attributes:
        peak: at most, gradients of parameters left out.
        peak_with: at most, those counted in that have been computed since `begin`.
        gradients: computed meanwhile.
    """

    path: str
    begin: int
    peak: int
    peak_with: int
    gradients: int


@dataclasses.dataclass(frozen=True)
class Holder:
    """A module that holds parameters or buffers itself, or has some below it.

    Attributes:
        parameters: elements that it holds itself; shared ones are counted where they are first.
        parameter_bytes, gradient_bytes, buffer_bytes: likewise.
        shares: whether another module uses them, too.
    """

    path: str
    parameters: int = 0
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    buffer_bytes: int = 0
    shares: bool = False


class Message(NamedTuple):
    """What one module computes and others compute with, in one microbatch's forward.

    Attributes:
        source: who makes it; the root, of what the model is called with.
        dests: who uses it.
        returns_bytes: of a gradient on the way back.
    """

    source: str
    dests: tuple[str, ...]
    num_bytes: int
    returns_bytes: int

    def crossings(self, partition_of: Mapping[str, int]) -> set[int]:
        """The partitions that it goes to from its own."""
        return {partition_of[dest] for dest in self.dests} - {partition_of[self.source]}


@dataclasses.dataclass(frozen=True)
class Profile:
    """What one microbatch costs, module by module, wherever the modules are.

    Attributes:
        holders: in the order of the model.
        forward, backward: who computes, in order, by path of a holder.
        forward_levels, backward_levels: memory, likewise.
        messages: between holders.
    """

    holders: tuple[Holder, ...]
    forward: tuple[Piece, ...]
    backward: tuple[Piece, ...]
    forward_levels: tuple[ForwardLevel, ...]
    backward_levels: tuple[BackwardLevel, ...]
    messages: tuple[Message, ...]

    def seconds(self) -> tuple[dict[str, float], dict[str, float]]:
        """By path, forward and backward."""
        totals: tuple[dict[str, float], dict[str, float]] = {}, {}
        for sums, pieces in zip(totals, (self.forward, self.backward), strict=True):
            for path, seconds in pieces:
                sums[path] = sums.get(path, 0.0) + seconds
        return totals
