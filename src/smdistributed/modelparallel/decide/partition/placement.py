# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A partition for each group, the loads that follow, and moves.

Source: our choice.
"""

from collections.abc import Sequence

from smdistributed.modelparallel.decide.partition.problem import Flow, Problem

__all__ = ["Placement"]

# Of the norm of all loads that is minimised: large, so that it is nearly the largest load, yet
# loads below it count, and a search is led over plateaus.
_POWER = 12


class Placement:
    """A partition for each group; loads count what crosses, for its sender and for its receiver."""

    def __init__(self, problem: Problem, places: Sequence[int], partitions: int) -> None:
        self.problem = problem
        self.places = list(places)
        self.loads = [0.0] * partitions
        for group, place in enumerate(self.places):
            self.loads[place] += problem.weights[group]
            self.loads[place] += sum(
                cost for far, cost in problem.pairs[group].items() if self.places[far] != place
            )
        self._fans: list[list[_Fan]] = [[] for _ in places]  # by group
        for flow in problem.fans:
            fan = _Fan(flow, self.places, partitions)
            fan.charge(self.loads, 1)
            for group in (flow.producer, *flow.consumers):
                self._fans[group].append(fan)

    def copy(self) -> "Placement":
        """One that moves on its own."""
        return Placement(self.problem, self.places, len(self.loads))

    def badness(self) -> float:
        """What is minimised."""
        return sum(load**_POWER for load in self.loads)

    def move(self, group: int, target: int) -> int:
        """Returns where the group was."""
        source = self.places[group]
        if source == target:
            return source
        loads, places = self.loads, self.places
        weight = self.problem.weights[group]
        loads[source] -= weight
        loads[target] += weight
        for far, cost in self.problem.pairs[group].items():
            place = places[far]
            if place == source:  # they part
                loads[source] += cost
                loads[target] += cost
            elif place == target:  # they meet
                loads[source] -= cost
                loads[target] -= cost
            else:
                loads[source] -= cost
                loads[target] += cost
        for fan in self._fans[group]:
            fan.charge(loads, -1)
        places[group] = target
        for fan in self._fans[group]:
            fan.move(group, source, target)
            fan.charge(loads, 1)
        return source


class _Fan:
    """A flow to several groups, and where its ends are."""

    __slots__ = ("_cost", "_home", "_producer", "_uses")

    def __init__(self, flow: Flow, places: Sequence[int], partitions: int) -> None:
        self._producer = flow.producer
        self._cost = flow.cost
        self._home = places[flow.producer]
        self._uses = [0] * partitions  # how many consumers are there
        for group in flow.consumers:
            self._uses[places[group]] += 1

    def move(self, group: int, source: int, target: int) -> None:
        """After one of its groups has moved."""
        if group == self._producer:
            self._home = target
        else:
            self._uses[source] -= 1
            self._uses[target] += 1

    def charge(self, loads: list[float], times: int) -> None:
        """Adds what it costs, or takes that away: once for each partition that it is sent to."""
        cost = times * self._cost
        for partition, uses in enumerate(self._uses):
            if uses and partition != self._home:
                loads[partition] += cost
                loads[self._home] += cost
