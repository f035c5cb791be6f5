# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Programs made by hand, for ranks that test the driver: a chain of products.

Rank p multiplies by its weight: y = w * x. The last one's sum of y is the loss; then gradients go
back: dx = w * dy, and the gradient of a weight is the sum of x * dy. Everything is exact.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from smdistributed import collectives
from smdistributed._common.settings import process_settings
from smdistributed.dataparallel.engine_errors import ENGINE_ERRORS
from smdistributed.modelparallel.tensorflow.run.bridge import Bridges
from smdistributed.modelparallel.tensorflow.run.driver import Driver
from smdistributed.modelparallel.tensorflow.run.members import members_of
from smdistributed.modelparallel.tensorflow.run.program import (
    Argument,
    Kept,
    Program,
    Received,
    SegmentCall,
    Send,
)

SHAPE = [4]


@dataclasses.dataclass
class Rank:
    """Of a job of hand-made programs."""

    rank: int
    size: int
    group: Any
    driver: Driver
    bridges: Bridges


@contextlib.contextmanager
def a_job(rank: int, world_size: int) -> Iterator[tuple[Rank]]:
    """For `around_checks`: a group with a driver."""
    with a_rank() as each:
        yield (each,)


@contextlib.contextmanager
def a_rank() -> Iterator[Rank]:
    """A group of all ranks, and a driver on it."""
    with collectives.init(errors=ENGINE_ERRORS) as group:
        members = members_of(group.topology(), range(group.world_size))
        driver = Driver(group.native, group.rank, members, process_settings().timeout_s)
        bridges = Bridges(driver)
        yield Rank(group.rank, group.world_size, group, driver, bridges)
        bridges.close()


class Chain:
    """The program of one rank, with its weight, which begins as rank + 2.

    Args:
        fault: called in each segment as fault(phase, microbatch); eager.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        microbatches: int = 4,
        *,
        number: int = 1,
        name: str = "train",
        dtype: Any = tf.float32,
        fault: Callable[[str, int], None] = lambda phase, microbatch: None,
    ) -> None:
        self.weight = tf.Variable(tf.cast(rank + 2, dtype), name=f"weight_{rank}")
        self.calls = tf.Variable(0, name="calls")  # as the statistics of a BatchNorm layer
        self._fault = fault
        self._counts = {"forward": 0, "backward": 0}
        is_first, is_last = rank == 0, rank == size - 1
        x = Argument(0) if is_first else Received(rank, rank - 1)
        forward = SegmentCall(
            name=f"m/dense_{rank}",
            phase="forward",
            partition=rank,
            call=lambda tensors: self._call("forward", self._forward, tensors),
            inputs=(x,),
            sends=() if is_last else (Send(0, rank + 1, (rank + 1,)),),
            keeps=((2, 0),) + (((0, 1),) if is_last else ()),
            results=((1, 0),),
        )
        backward = SegmentCall(
            name=f"m/dense_{rank}",
            phase="backward",
            partition=rank,
            call=lambda tensors: self._call("backward", self._backward, tensors),
            inputs=(Kept(0), Kept(1) if is_last else Received(size + rank + 1, rank + 1)),
            sends=() if is_first else (Send(0, size + rank, (rank - 1,)),),
            results=((1, 1),),
        )
        spec = tf.TensorSpec([None], dtype)
        self.program = Program(
            number=number,
            name=name,
            microbatches=microbatches,
            segments={"f": forward, "b": backward},
            turns=_one_forward_one_backward(size - rank, microbatches),
            arguments=[spec],
            results=[tf.TensorSpec([], dtype), tf.TensorSpec([], dtype)],
            changed=[self.calls],
        )
        self.touched = [self.weight, self.calls]
        self._is_last = is_last

        @tf.function(autograph=False)
        def run_forward(x: Any) -> Any:
            self.calls.assign_add(1)
            y = self.weight * x
            return y, tf.reduce_sum(y), x

        @tf.function(autograph=False)
        def run_backward(x: Any, dy: Any) -> Any:
            dy = tf.ones_like(dy) if is_last else dy
            return self.weight * dy, tf.reduce_sum(x * dy)

        self._forward, self._backward = run_forward, run_backward

    def _call(self, phase: str, function: Any, tensors: list[Any]) -> Any:
        self._fault(phase, self._counts[phase])
        self._counts[phase] += 1
        return function(*tensors)

    def fail_from_now_on(self, fault: Callable[[str, int], None]) -> None:
        """In each segment, as fault(phase, calls of the phase before)."""
        self._counts = {"forward": 0, "backward": 0}
        self._fault = fault


def _one_forward_one_backward(warm_up: int, microbatches: int) -> list[tuple[str, int]]:
    turns = [("f", each) for each in range(min(warm_up, microbatches))]
    for each in range(microbatches):
        turns.append(("b", each))
        if each + warm_up < microbatches:
            turns.append(("f", each + warm_up))
    return turns


def pieces_of(microbatches: int, scale: int = 1, dtype: Any = tf.float32) -> list[list[Any]]:
    """The argument of each microbatch, [4]: its number and the element's."""
    return [
        [tf.cast(tf.range(4) + 10 * microbatch, dtype) * tf.cast(scale, dtype)]
        for microbatch in range(microbatches)
    ]


def expected_of(rank: int, size: int, microbatches: int, scale: int = 1) -> list[list[float]]:
    """What `Chain` returns: sum of y and gradient of the weight, with weights as they begin."""
    sums = [scale * (6.0 + 40.0 * microbatch) for microbatch in range(microbatches)]
    before = after = 1.0
    for other in range(size):
        before *= other + 2 if other < rank else 1
        after *= other + 2 if other > rank else 1
    return [[each * before * (rank + 2), each * before * after] for each in sums]


def numbers_of(results: list[list[Any]]) -> list[list[float]]:
    """Results as plain numbers."""
    return [[float(tensor) for tensor in each] for each in results]
