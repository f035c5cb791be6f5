# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes as a backend: the job's process runs in the first pod, and a follower here.

Nothing here schedules: the cluster finds places for the pods, and queues (Kueue, by a label) are
its own. Not run on a cluster: what is tested is tested against a stand-in for its API.

Source: launch specification, section 11.
"""

from __future__ import annotations

from smdistributed.launch.backends.kubernetes.api import Api
from smdistributed.launch.backends.kubernetes.settings import KubernetesSettings
from smdistributed.launch.backends.local import LocalBackend
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory

__all__ = ["KubernetesBackend"]


class KubernetesBackend(LocalBackend):
    """Runs jobs in Kubernetes; a process here follows each."""

    name = "kubernetes"
    module = "smdistributed.launch.backends.in_cluster.follower"

    def require(self, job: JobDirectory) -> None:
        """The cluster has to answer, and to let this user ask for pods.

        Raises:
            BackendError: it does not.
            ConfigurationError: the settings are wrong.
        """
        Api(KubernetesSettings.of(Home(job.path.parent.parent))).require()

    def outlives(self, job: JobDirectory) -> bool:
        """A job goes on in the cluster without the process here."""
        return (job.path / "kubernetes.json").exists()
