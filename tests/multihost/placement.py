# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Run one function as ranks on test hosts; what `harness.run_ranks` is on one."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import run_ranks

from tests.multihost.hosts import Host
from tests.multihost.namespaces import Namespaces

_POLL_S = 0.02


@dataclasses.dataclass(frozen=True)
class PlaceOnHost:
    """Where one rank runs, for the harness; see `harness.Place`."""

    inside: Namespaces
    variables: dict[str, str]

    def enter(self) -> None:
        """Move the calling process to its host."""
        self.inside.enter()


def places_on(hosts: Sequence[Host], ranks_per_host: Sequence[int]) -> list[PlaceOnHost]:
    """By rank: `ranks_per_host[h]` ranks on `hosts[h]`, in order, meeting on the first host."""
    if len(ranks_per_host) > len(hosts):
        raise ValueError(
            f"ranks for {len(ranks_per_host)} hosts, and there are {len(hosts)}; make more hosts,"
            " or name the ranks of at most that many."
        )
    return [
        PlaceOnHost(
            host.inside,
            {
                "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(local_world_size),
                "GROUP_RANK": str(host.index),
                "MASTER_ADDR": hosts[0].address,
                # Gloo asks for the address of the host's name, which nobody resolves here.
                "GLOO_SOCKET_IFNAME": host.nics[0].name,
            },
        )
        for host, local_world_size in zip(hosts, ranks_per_host, strict=False)
        for local_rank in range(local_world_size)
    ]


def run_ranks_on(
    hosts: Sequence[Host],
    ranks_per_host: Sequence[int],
    target: Callable[..., Any] | str,
    *args: Any,
    **kwargs: Any,
) -> list[Any]:
    """`run_ranks(target, sum(ranks_per_host), *args, **kwargs)` with the ranks on `hosts`."""
    places = places_on(hosts, ranks_per_host)
    return run_ranks(target, len(places), *args, places=places, **kwargs)


@contextlib.contextmanager
def running_ranks_on(
    hosts: Sequence[Host],
    ranks_per_host: Sequence[int],
    target: Callable[..., Any] | str,
    *args: Any,
    **kwargs: Any,
) -> Iterator[Future[list[Any]]]:
    """`run_ranks_on` in the background, to do something to the hosts meanwhile.

    On leaving, the ranks have ended: by themselves or at their deadline.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool.submit(run_ranks_on, hosts, ranks_per_host, target, *args, **kwargs)


@dataclasses.dataclass(frozen=True)
class Milestones:
    """How far ranks have come, told through files: hosts share those whatever their links do."""

    folder: str

    def reach(self, name: str, rank: int) -> None:
        """Say, in a rank, that it has come to `name`."""
        Path(self.folder, f"{name}-{rank}").touch()

    def wait_for(self, name: str, ranks: Sequence[int], job: Future[list[Any]]) -> None:
        """Return once all of `ranks` have come to `name`. Raises what ended `job` before that."""
        while not all(Path(self.folder, f"{name}-{rank}").exists() for rank in ranks):
            if job.done():
                job.result()
                raise AssertionError(f"the job ended before ranks {list(ranks)} came to {name!r}")
            time.sleep(_POLL_S)
