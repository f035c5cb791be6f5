# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What discovery finds out: the place of this process in the job."""

import dataclasses

from smdistributed._common.errors import ConfigurationError

__all__ = ["Claim", "Membership"]


@dataclasses.dataclass(frozen=True)
class Claim:
    """What one source (a launcher, a scheduler) says about this process.

    A claim always has rank and world size; everything else is `None` where the source is silent.
    Ranges are checked here, so that a claim in hand can be trusted.

    Raises:
        ConfigurationError: a number is out of its range; names the variable and its value.
    """

    source: str
    title: str
    rank_name: str
    size_name: str
    rank: int
    world_size: int
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    num_nodes: int | None = None
    local_rank_name: str = "the local rank"
    local_size_name: str = "the local size"

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ConfigurationError(
                f"{self.size_name}={self.world_size} is not a world size; expected an integer of "
                f"at least 1. Set {self.size_name} to the number of processes of the job."
            )
        if not 0 <= self.rank < self.world_size:
            raise ConfigurationError(
                f"{self.rank_name}={self.rank} is out of range for {self.size_name}="
                f"{self.world_size}; expected 0 to {self.world_size - 1}. Correct the two "
                "variables, or unset them and let the launcher set them."
            )
        local_size = self.local_world_size
        if local_size is not None and not 1 <= local_size <= self.world_size:
            raise ConfigurationError(
                f"{self.local_size_name}={local_size} is out of range for {self.size_name}="
                f"{self.world_size}; expected 1 to {self.world_size}. Correct the two variables."
            )
        limit = self.world_size if local_size is None else local_size
        if self.local_rank is not None and not 0 <= self.local_rank < limit:
            raise ConfigurationError(
                f"{self.local_rank_name}={self.local_rank} is out of range; expected 0 to "
                f"{limit - 1}, as {limit} processes run here. Correct {self.local_rank_name}."
            )
        if self.node_rank is not None and not 0 <= self.node_rank < (self.num_nodes or 1 << 31):
            hosts = "0 or more" if self.num_nodes is None else f"0 to {self.num_nodes - 1}"
            raise ConfigurationError(
                f"{self.title} gives host index {self.node_rank}; expected {hosts}. Correct "
                "NODE_RANK or GROUP_RANK, or let the launcher set them."
            )

    def describes_same_process_as(self, other: "Claim") -> bool:
        """True if both sources mean the same job: they agree on rank and world size."""
        return (self.rank, self.world_size) == (other.rank, other.world_size)


@dataclasses.dataclass(frozen=True)
class Membership:
    """The place of this process in the job, and where its ranks meet.

    Attributes:
        rank: global rank, from 0.
        world_size: number of processes.
        local_rank: rank within the host, or `None`: to be agreed on through the rendezvous.
        local_world_size: processes on this host, or `None` as above.
        node_rank: index of this host, or `None` as above.
        num_nodes: number of hosts, or `None` as above.
        master_addr: host of rank 0, or `None` if nothing tells; see `require_master`.
        master_port: port to meet at (1 to 65535), or `None` if any free port will do, which is
            only so for a single process.
        source: "torch", "openmpi", "mvapich", "pmi", "ray", "slurm", "sagemaker" or "none".
        warnings: sentences to log, once for the job.
        overrules_torch: `RANK` and `WORLD_SIZE` were given, but per host; they are to be replaced.

    Source: dataparallel specification, sections 3.2 and 3.3.
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    node_rank: int | None
    num_nodes: int | None
    master_addr: str | None
    master_port: int | None
    source: str
    warnings: tuple[str, ...] = ()
    overrules_torch: bool = False

    def require_master(self) -> tuple[str, int]:
        """Returns the rendezvous address and port.

        Raises:
            ConfigurationError: nothing in the environment names the rendezvous host.
        """
        if self.master_addr is None:
            hosts = "an unknown number of" if self.num_nodes is None else str(self.num_nodes)
            raise ConfigurationError(
                f"cannot find the rendezvous host for {self.world_size} processes on {hosts} "
                "hosts; set MASTER_ADDR to the name or address of the host of rank 0, the same on "
                "every rank"
            )
        if self.master_port is None:
            raise ConfigurationError(
                f"no rendezvous port is set for {self.world_size} process(es); set MASTER_PORT to "
                "a free port between 1 and 65535, the same on every rank"
            )
        return self.master_addr, self.master_port
