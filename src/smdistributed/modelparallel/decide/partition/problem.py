# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is to be decided, whatever the framework: groups, what they weigh, what flows between them.

A *group* stays together. Groups are numbered in the order in which a forward pass first uses them.
A *flow* is what one group produces and others use. It crosses once to each partition that uses it
and does not have it, however many groups use it there.

Source: our choice.
"""

import dataclasses
import functools
from collections.abc import Sequence

__all__ = ["Flow", "Problem"]


@dataclasses.dataclass(frozen=True)
class Flow:
    """A tensor, or several with the same ends.

    Attributes:
        producer: its group.
        consumers: the other groups that use it, in increasing order; one or more.
        size_bytes: of one crossing.
        cost: of one crossing, to the sender and to the receiver each, as a share of the model's.
    """

    producer: int
    consumers: tuple[int, ...]
    size_bytes: float
    cost: float = 0.0


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a placement is of.

    Attributes:
        weights: by group, as shares of the model's cost.
        flows: between groups.
    """

    weights: Sequence[float]
    flows: Sequence[Flow]

    @functools.cached_property
    def pairs(self) -> list[dict[int, float]]:
        """By group, the groups that it alone sends to or receives from, and the cost for each end.

        A flow to one group costs both ends the same, so one sum for both directions is enough.
        """
        pairs: list[dict[int, float]] = [{} for _ in self.weights]
        for flow in self.flows:
            if len(flow.consumers) == 1:
                (consumer,) = flow.consumers
                for near, far in ((flow.producer, consumer), (consumer, flow.producer)):
                    pairs[near][far] = pairs[near].get(far, 0.0) + flow.cost
        return pairs

    @functools.cached_property
    def fans(self) -> list[Flow]:
        """The flows to several groups."""
        return [flow for flow in self.flows if len(flow.consumers) > 1]

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return len(self.weights)

    def crossing_bytes(self, places: Sequence[int]) -> float:
        """What crosses if the groups are in these partitions."""
        return sum(
            flow.size_bytes
            * len({places[group] for group in flow.consumers} - {places[flow.producer]})
            for flow in self.flows
        )
