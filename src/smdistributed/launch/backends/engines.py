# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which backend a job is of, and what brings its hosts up. One is imported when it is wanted.

Source: launch specification, section 11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.agent.ending import end_job
from smdistributed.launch.backends.backend import Backend
from smdistributed.launch.backends.hosts import Hosts
from smdistributed.launch.backends.in_cluster.cluster import Cluster
from smdistributed.launch.backends.local import LocalBackend
from smdistributed.launch.data.settings import BACKENDS, Settings
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.logs import JobLog
from smdistributed.launch.jobs.record import JobRecord

__all__ = ["BACKEND", "Backends", "chosen", "cluster_of", "hosts_for"]

BACKEND = "SMD_BACKEND"
"""Variable: where jobs run."""


def chosen(given: str | None, environ: Mapping[str, str], home: Home) -> str:
    """The backend of new jobs: what was given, else the environment, else the settings.

    Raises:
        ConfigurationError: there is none of that name, or the settings are wrong.
    """
    for what, name in (("backend", given), (BACKEND, environ.get(BACKEND))):
        if name:
            _require_known(what, name)
            return name
    return Settings.of(home).default_backend


def _require_known(what: str, name: str) -> None:
    if name not in BACKENDS:
        raise ConfigurationError(
            f"{what} is {name!r}; expected one of {', '.join(map(repr, BACKENDS))}, of which"
            " 'local' is this machine."
        )


def _backend_named(name: str) -> Backend:
    if name == "ssh":
        from smdistributed.launch.backends.ssh import SshBackend

        return SshBackend()
    if name == "slurm":
        from smdistributed.launch.backends.slurm.backend import SlurmBackend

        return SlurmBackend()
    if name == "ray":
        from smdistributed.launch.backends.ray.backend import RayBackend

        return RayBackend()
    if name == "kubernetes":
        from smdistributed.launch.backends.kubernetes.backend import KubernetesBackend

        return KubernetesBackend()
    return LocalBackend()


def hosts_for(job: JobDirectory) -> Callable[[], Hosts]:
    """What makes the hosts of each attempt of a job.

    Raises:
        ConfigurationError: its record cannot be read, or names no backend that is known.
    """
    name = _backend_of(job)
    if name == "ssh":
        from smdistributed.launch.backends.ssh import SshHosts

        return lambda: SshHosts(job)
    if name == "slurm":
        from smdistributed.launch.backends.slurm.nodes import SlurmNodes

        return lambda: SlurmNodes(job)
    from smdistributed.launch.backends.this_machine import ThisMachine

    return lambda: ThisMachine(job)


def cluster_of(job: JobDirectory) -> Cluster:
    """Where a job runs that a follower follows.

    Raises:
        ConfigurationError: as of `hosts_for`, or the settings of the cluster are wrong.
    """
    if _backend_of(job) == "kubernetes":
        from smdistributed.launch.backends.kubernetes.cluster import KubernetesCluster

        return KubernetesCluster(job)
    from smdistributed.launch.backends.ray.backend import RayCluster

    return RayCluster(job)


def _backend_of(job: JobDirectory) -> str:
    name = str(job.read().local.get("Backend", BACKENDS[0]))
    _require_known(f"the backend of job {job.name!r}", name)
    return name


class Backends:
    """All backends as one: each job is of the one that its record names.

    Args:
        choose: says of which new jobs are.
    """

    def __init__(self, choose: Callable[[], str]) -> None:
        self._choose = choose
        self._made: dict[str, Backend] = {}

    @property
    def name(self) -> str:
        """Of the backend of new jobs."""
        return self._choose()

    def submit(self, job: JobDirectory) -> None:
        """As of `Backend`.

        Raises:
            ConfigurationError: also if a rank is to have a terminal of this machine, elsewhere.
        """
        backend = self._of(job)
        if backend.name != BACKENDS[0] and job.read().local.get("debug_rank") is not None:
            why = (
                f"a rank is to be debugged at this terminal, and the job is of the backend"
                f" {backend.name!r}; expected 'local', as only ranks of this machine can have it."
            )
            end_job(job, [], f"ClientError: {why}")
            job.lock.release()
            raise ConfigurationError(why)
        backend.submit(job)

    def poll(self, job: JobDirectory) -> JobRecord:
        """As of `Backend`."""
        return self._of(job).poll(job)

    def stop(self, job: JobDirectory, reason: str) -> None:
        """As of `Backend`."""
        self._of(job).stop(job, reason)

    def logs(self, job: JobDirectory, host: str | None = None, rank: int | None = None) -> JobLog:
        """As of `Backend`."""
        return self._of(job).logs(job, host, rank)

    def clean(self, job: JobDirectory) -> None:
        """As of `Backend`."""
        self._of(job).clean(job)

    def _of(self, job: JobDirectory) -> Backend:
        name = _backend_of(job)
        if name not in self._made:
            self._made[name] = _backend_named(name)
        return self._made[name]
