# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the table `kubernetes` of the settings says.

    [kubernetes]
    image = "registry.example/training:1"    # has this package; without: the job cannot run
    context = "gpus"                         # of the kubeconfig; without: its current one
    namespace = "team-a"                     # without: that of the context
    python = "python"                        # which has this package, in the image
    cpus_per_host = 8                        # without: as the cluster has it
    memory_per_host = "64Gi"                 # likewise
    gpus_per_host = 8                        # without: none
    gpu_resource = "nvidia.com/gpu"          # what they are called
    service_account = "trainer"
    priority_class = "low"
    pull_secrets = ["registry"]

    [kubernetes.claims]                      # volumes, by where pods see them
    "/mnt/fsx" = "fsx-claim"
    "/mnt/data" = "data-claim:ro"            # nobody writes to it

    [kubernetes.node_selector]
    gpu = "a100"

    [kubernetes.labels]                      # of all objects; likewise `annotations`
    "kueue.x-k8s.io/queue-name" = "queue"

    [[kubernetes.tolerations]]
    key = "nvidia.com/gpu"
    operator = "Exists"

Source: launch specification, section 11.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.kubernetes.manifests import Claim, PodJob
from smdistributed.launch.data.settings import Settings
from smdistributed.launch.home import Home

__all__ = ["KubernetesSettings"]

_TEXT, _COUNT, _TEXTS = "text", "a whole number from 0", "a list of texts"
_MAP, _TABLES = "a table whose values are texts", "a list of tables"
_KEYS = {
    "image": _TEXT,
    "context": _TEXT,
    "namespace": _TEXT,
    "python": _TEXT,
    "cpus_per_host": _COUNT,
    "memory_per_host": _TEXT,
    "gpus_per_host": _COUNT,
    "gpu_resource": _TEXT,
    "service_account": _TEXT,
    "priority_class": _TEXT,
    "pull_secrets": _TEXTS,
    "claims": _MAP,
    "node_selector": _MAP,
    "labels": _MAP,
    "annotations": _MAP,
    "tolerations": _TABLES,
}
_READ_ONLY = ":ro"


@dataclasses.dataclass(frozen=True)
class KubernetesSettings:
    """Attributes are as in the module's text; what is not said there is empty, or 0."""

    image: str
    context: str = ""
    namespace: str = ""
    python: str = "python"
    cpus_per_host: int = 0
    memory_per_host: str = ""
    gpus_per_host: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    service_account: str = ""
    priority_class: str = ""
    pull_secrets: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, home: Home) -> KubernetesSettings:
        """Reads them.

        Args:
            home: has the settings.

        Raises:
            ConfigurationError: they are wrong, or there is no image; says which key.
        """
        settings = Settings.of(home)
        found: dict[str, Any] = {}
        for key, value in settings.tables["kubernetes"].items():
            expected = _KEYS.get(key)
            if expected is None:
                raise ConfigurationError(
                    f"kubernetes.{key} in {settings.file} is a key that nobody knows; expected one"
                    f" of {', '.join(_KEYS)}. Remove it, or correct its name."
                )
            if not _is(value, expected):
                raise ConfigurationError(
                    f"kubernetes.{key} in {settings.file} is {value!r:.200}; expected {expected}."
                )
            found[key] = tuple(value) if isinstance(value, list) else value
        if not found.get("image"):
            raise ConfigurationError(
                f"{settings.file} names no image for the pods of jobs; expected one that has this"
                " package, as image under [kubernetes]. Add it."
            )
        claims = found.get("claims", {}).items()
        found["claims"] = tuple(_claim(path, name, settings.file) for path, name in claims)
        return cls(**found)

    @property
    def shared(self) -> list[Path]:
        """Folders that all pods have, and need not be sent."""
        return [Path(each.path) for each in self.claims]

    def pod_job(
        self,
        *,
        name: str,
        job: str,
        namespace: str,
        hosts: int,
        module: Sequence[str],
        deadline_s: int | None = None,
        grace_s: int = 120,
    ) -> PodJob:
        """A job's pods.

        Args:
            name, job, namespace, hosts, deadline_s, grace_s: as of `PodJob`.
            module: what Python runs in a pod: a module, and its arguments.
        """
        given = {
            "cpu": self.cpus_per_host,
            "memory": self.memory_per_host,
            self.gpu_resource: self.gpus_per_host,
        }
        return PodJob(
            name=name,
            job=job,
            namespace=namespace,
            hosts=hosts,
            image=self.image,
            command=[self.python, "-P", "-m", *module],
            resources={key: str(value) for key, value in given.items() if value},
            claims=self.claims,
            deadline_s=deadline_s,
            grace_s=grace_s,
            service_account=self.service_account,
            pull_secrets=self.pull_secrets,
            priority_class=self.priority_class,
            node_selector=self.node_selector,
            tolerations=self.tolerations,
            labels=self.labels,
            annotations=self.annotations,
        )


def _is(value: Any, expected: str) -> bool:
    if expected is _TEXT:
        return isinstance(value, str)
    if expected is _COUNT:
        return type(value) is int and value >= 0
    if expected is _MAP:
        return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    kind = dict if expected is _TABLES else str
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)


def _claim(path: str, name: str, file: Path) -> Claim:
    where = PurePosixPath(path)
    claim = name.removesuffix(_READ_ONLY)
    if not where.is_absolute() or ".." in where.parts or not claim or ":" in claim:
        raise ConfigurationError(
            f"kubernetes.claims in {file} has {path!r} = {name!r}; expected an absolute path, and"
            f' the name of a claim, perhaps with {_READ_ONLY} at its end: "/mnt/data" = "claim".'
        )
    return Claim(claim, where, is_read_only=name.endswith(_READ_ONLY))
