# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Clusters that tests ask for by name; where there can be none they are skipped in words.

One for all tests of a worker. Tests that break theirs make one of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.clusters.kubernetes_api import Kubernetes
    from tests.clusters.ray import Ray
    from tests.clusters.slurm import Slurm
    from tests.clusters.ssh import SshHosts


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Slurm]:
    """Slurm with the nodes n1 and n2, of 4 processors each; commands need its `environ`."""
    from tests.clusters.slurm import slurm, why_not

    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with slurm() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def two_ssh_hosts() -> Iterator[SshHosts]:
    """Machines host-0 and host-1, which share no temporary files and no home with this one."""
    from tests.clusters.ssh import ssh_hosts, why_not

    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with ssh_hosts() as hosts:
        yield hosts


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Ray]:
    """Ray with the nodes host-0 (the head) and host-1, of 2 processors each.

    It takes 10 s or more to start, and 800 MB.
    """
    from tests.clusters.ray import ray, why_not

    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with ray() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kubernetes_cluster() -> Iterator[Kubernetes]:
    """A stand-in for Kubernetes, with room for four pods."""
    from tests.clusters.kubernetes_api import kubernetes, why_not

    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with kubernetes(nodes=4) as cluster:
        yield cluster
