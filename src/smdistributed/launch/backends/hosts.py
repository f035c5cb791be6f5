# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a job's process asks of an engine: hosts for an attempt, and an agent on each.

    reach     machines, and what they say of themselves, from which the plans of hosts are made
    start     the agent of one host
    bring     what the hosts have at /opt/ml, once the job has ended
    close     nothing of it is left

An engine is a class that does these: `this_machine` starts processes, others reach further.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from smdistributed._common.errors import SmdistributedError
from smdistributed.launch.agent.plan import End, HostDirectory, Plan

__all__ = ["HostAgent", "Hosts", "Machine", "UnreachableError"]


class UnreachableError(SmdistributedError):
    """Machines are not there now; another attempt may find them, or others."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """Where a host of a job runs.

    Attributes:
        address: at which the other hosts reach it.
        interface: of the network, which has that address.
        num_gpus: that the host may use; of all hosts on the machine together if they share it.
        ports: two that are free there, and given to no other host of the job.
        index, count: the host is number `index` of `count` on this machine.
    """

    address: str
    interface: str
    num_gpus: int
    ports: tuple[int, int]
    index: int = 0
    count: int = 1


class HostAgent(Protocol):
    """The agent of a host, as the job's process sees it."""

    @property
    def directory(self) -> HostDirectory:
        """What is known of the host, in the job's directory."""

    def has_ended(self) -> bool:
        """Whether nothing is to be heard of it any more."""

    def silent_s(self) -> float:
        """For how many seconds nothing was heard of it. 0: a look at it says whether it lives."""

    def how_it_ended(self) -> str:
        """What became of it, in words that go on after 'the agent of host algo-1'."""

    def tell_to_end(self, end: End) -> None:
        """It is to end its ranks, as the file in the job's directory says, if it sees that.

        Args:
            end: what the file says.
        """

    def terminate(self) -> None:
        """It is to end its ranks, though that file could not be written."""

    def kill(self) -> None:
        """Ends it, and with it its ranks, at once."""

    def wait(self, timeout_s: float) -> bool:
        """Waits until it has ended. Returns: whether it has."""


class Hosts(Protocol):
    """Of one attempt of a job."""

    def reach(
        self,
        names: Sequence[str],
        environment: Mapping[str, str],
        is_unwanted: Callable[[], bool],
    ) -> list[Machine]:
        """Brings machines up, in the order of the hosts.

        Args:
            names: of the hosts.
            environment: further variables of the ranks, which may hide GPUs.
            is_unwanted: asked now and then; once it says so, what comes back is of no use.

        Raises:
            ConfigurationError: there are no such machines, and another try would not find them.
            UnreachableError: they are not there now.
        """

    def start(self, plan: Plan) -> HostAgent:
        """Starts the agent of a host, with a clean folder.

        Raises:
            OSError: it cannot be started.
            SmdistributedError: there is one already.
        """

    def own_processes(self) -> list[int]:
        """Numbers of processes that this one has started for it, and reaps itself."""

    def bring(self, *, has_model: bool) -> None:
        """Brings what the hosts have at `/opt/ml` to their folders in the job's directory.

        After all agents have ended, of the last attempt.

        Args:
            has_model: the model is wanted; else the other output alone.

        Raises:
            SmdistributedError: some of it is lost; says what, and of which host.
        """

    def close(self) -> None:
        """Takes away what is left, after all agents have ended."""
