# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a job is in Kubernetes, as documents for its API. Nothing here talks to a cluster.

    Indexed Job       a pod for each host, and with it a headless Service, by which pods have names
    TrainJob          the same pods where Kubeflow Trainer is served: queues and gangs are its own.
                      It needs a TrainingRuntime, which has the template of the pods
    Secret            the files that pods need, below `FILES` in each

All of them have the name that `object_name` makes. The pod of host number i has the completion
index i, and so the host name that `host_address` says.

Words: object - what has a name in Kubernetes; manifest - the document that asks for one.

Sources: Kubernetes API reference, batch/v1 Job and core/v1 Pod, Secret and Service; "Handling
retriable and non-retriable pod failures with Pod failure policy"; Kubeflow Trainer, TrainingRuntime
and TrainJob of trainer.kubeflow.org/v1alpha1; launch specification, section 11.
"""

from __future__ import annotations

import base64
import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.contract.paths import OPT_ML

__all__ = [
    "FILES",
    "MOST_IN_SECRET",
    "Claim",
    "Kind",
    "PodJob",
    "host_address",
    "indexed_job",
    "labels_of",
    "object_name",
    "owned_by",
    "secret",
    "selector_of",
    "selector_of_name",
    "service",
    "train_job",
    "training_runtime",
]

FILES = PurePosixPath("/var/run/smdistributed")
"""Where pods see the files of the Secret."""

MOST_IN_SECRET = 1_000_000
"""Bytes of all files of a Secret: the API takes 1 MiB, names and all."""

TRAINER_GROUP = "trainer.kubeflow.org"
TRAINER_VERSION = "v1alpha1"

_JOB_LABEL = "smdistributed-open/job"
_OBJECT_LABEL = "smdistributed-open/object"
# That of Kubeflow Trainer's runtimes: the job and the container of this name are the nodes.
_NODE = "node"
# A name has 63 characters. Trainer's pods add "-node-0-", and both kinds their number.
_MOST_OF_NAME = 36
_MOST_HOSTS = 9999


class Kind(Enum):
    """What a job is asked for as."""

    INDEXED_JOB = "Job"
    TRAIN_JOB = "TrainJob"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A volume that the cluster has already.

    Attributes:
        name: of the PersistentVolumeClaim.
        path: where pods see it.
        is_read_only: nobody may write to it there.
    """

    name: str
    path: PurePosixPath
    is_read_only: bool = True


@dataclasses.dataclass(frozen=True)
class PodJob:
    """A job, as far as its manifests say it.

    Attributes:
        name: of its objects, as `object_name` makes it.
        job: the job's own name.
        namespace: where its objects are.
        hosts: how many pods.
        image: of the container.
        command: that each pod runs; nothing secret, and nothing that the user has written.
        resources: of each pod, by Kubernetes' names (`cpu`, `memory`, `nvidia.com/gpu`).
        claims: volumes for channels.
        deadline_s: when the cluster ends the pods whatever they do, from when it has begun to look
            for places. It is the safety net: the job itself ends sooner.
        grace_s: what pods have between SIGTERM and SIGKILL.
        service_account, pull_secrets, priority_class, node_selector, tolerations: as in a pod;
            empty ones are left out.
        labels, annotations: further ones of all objects and pods, such as those of a queue.
    """

    name: str
    job: str
    namespace: str
    hosts: int
    image: str
    command: Sequence[str]
    resources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    claims: Sequence[Claim] = ()
    deadline_s: int | None = None
    grace_s: int = 120
    service_account: str = ""
    pull_secrets: Sequence[str] = ()
    priority_class: str = ""
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= _MOST_HOSTS:
            raise ConfigurationError(
                f"the job asks for {self.hosts} hosts; expected 1 to {_MOST_HOSTS} on Kubernetes."
            )


def object_name(job: str, token: str | None = None) -> str:
    """The name of a job's objects: a DNS label (RFC 1035) that no other job has.

    Jobs may have capital letters, a digit in front and 63 characters, of which names of Kubernetes
    have none. What tells jobs apart is the token, since two homes may have a job of one name each.

    Args:
        job: its name.
        token: 8 hexadecimal digits; None: random ones.
    """
    token = secrets.token_hex(4) if token is None else token
    return f"smd-{job.lower()[:_MOST_OF_NAME].rstrip('-')}-{token}"


def host_address(job: PodJob, kind: Kind, index: int) -> str:
    """The name by which pods of the job reach that of a host.

    Args:
        job: the job.
        kind: what it was asked for as.
        index: of the host.
    """
    middle = f"-{_NODE}-0" if kind is Kind.TRAIN_JOB else ""
    return f"{job.name}{middle}-{index}.{job.name}"


def labels_of(job: PodJob) -> dict[str, str]:
    """Labels of all objects and pods of a job."""
    return {
        **job.labels,
        "app.kubernetes.io/managed-by": "smdistributed-open",
        _JOB_LABEL: job.job,
        _OBJECT_LABEL: job.name,
    }


def selector_of(job: PodJob) -> str:
    """What selects the pods of a job, and nothing else, as `labelSelector`."""
    return selector_of_name(job.name)


def selector_of_name(name: str) -> str:
    """As `selector_of`, by the name of the job's objects."""
    return f"{_OBJECT_LABEL}={name}"


def indexed_job(job: PodJob) -> dict[str, Any]:
    """The manifest of an Indexed Job; it needs its `service`."""
    spec = {**_job_spec(job), "completions": job.hosts, "parallelism": job.hosts}
    spec["template"]["spec"]["subdomain"] = job.name
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(job), "spec": spec}


def service(job: PodJob) -> dict[str, Any]:
    """The manifest of the headless Service that gives pods of an Indexed Job their names.

    They have them before they are ready, since they look for one another to become so.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job),
        "spec": {
            "clusterIP": "None",
            "selector": {_OBJECT_LABEL: job.name},
            "publishNotReadyAddresses": True,
        },
    }


def training_runtime(job: PodJob) -> dict[str, Any]:
    """The manifest of the TrainingRuntime that has the template of a TrainJob's pods.

    Kubeflow's own runtimes have templates of their own, with another policy for failures and no
    Secret. JobSet, on which it stands, gives pods their names.
    """
    step = {f"{TRAINER_GROUP}/trainjob-ancestor-step": "trainer"}
    template = {"metadata": {"labels": {**labels_of(job), **step}}, "spec": _job_spec(job)}
    return {
        "apiVersion": f"{TRAINER_GROUP}/{TRAINER_VERSION}",
        "kind": "TrainingRuntime",
        "metadata": _metadata(job),
        "spec": {
            "mlPolicy": {"numNodes": job.hosts},
            "template": {
                "spec": {
                    "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                    "replicatedJobs": [{"name": _NODE, "template": template}],
                }
            },
        },
    }


def train_job(job: PodJob) -> dict[str, Any]:
    """The manifest of a TrainJob; its `training_runtime` must be there before."""
    return {
        "apiVersion": f"{TRAINER_GROUP}/{TRAINER_VERSION}",
        "kind": "TrainJob",
        "metadata": _metadata(job),
        "spec": {
            "runtimeRef": {
                "apiGroup": TRAINER_GROUP,
                "kind": "TrainingRuntime",
                "name": job.name,
            },
            "trainer": {"numNodes": job.hosts},
        },
    }


def secret(job: PodJob, files: Mapping[str, bytes]) -> dict[str, Any]:
    """The manifest of the Secret with the files that pods need.

    Args:
        job: the job.
        files: by their names, without folders.

    Raises:
        ConfigurationError: they are larger than a Secret may be.
    """
    size = sum(map(len, files.values()))
    if size > MOST_IN_SECRET:
        raise ConfigurationError(
            f"what the job needs of this machine has {size:,} bytes; expected at most"
            f" {MOST_IN_SECRET:,} on Kubernetes, where a Secret carries it. Put sources and data"
            " into an S3 store, or on a volume (claims under [kubernetes])."
        )
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job),
        "type": "Opaque",
        "immutable": True,
        "data": data,
    }


def owned_by(manifest: Mapping[str, Any], owner: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of an object that goes with another one.

    Args:
        manifest: its own.
        owner: the other one, as the API has returned it.
    """
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


def _metadata(job: PodJob) -> dict[str, Any]:
    return {"name": job.name, "namespace": job.namespace, **_labels_and_annotations(job)}


def _labels_and_annotations(job: PodJob) -> dict[str, Any]:
    annotations = {"annotations": dict(job.annotations)} if job.annotations else {}
    return {"labels": labels_of(job), **annotations}


def _job_spec(job: PodJob) -> dict[str, Any]:
    """Of a Job with a pod for each host. A pod that fails is not tried again: the job decides.

    One that was taken away (evicted, preempted, its node drained) comes again.
    """
    return {
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
            ]
        },
        **({} if job.deadline_s is None else {"activeDeadlineSeconds": job.deadline_s}),
        "template": {"metadata": _labels_and_annotations(job), "spec": _pod_spec(job)},
    }


def _pod_spec(job: PodJob) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [
        {"name": "files", "secret": {"secretName": job.name, "defaultMode": 0o400}},
        {"name": "opt-ml", "emptyDir": {}},
        # What a pod has by itself is 64 MiB, too little for loaders of data.
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "files", "mountPath": str(FILES), "readOnly": True},
        {"name": "opt-ml", "mountPath": str(OPT_ML)},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    for number, claim in enumerate(job.claims):
        name, read_only = f"claim-{number}", {"readOnly": True} if claim.is_read_only else {}
        source = {"claimName": claim.name, **read_only}
        volumes.append({"name": name, "persistentVolumeClaim": source})
        mounts.append({"name": name, "mountPath": str(claim.path), **read_only})
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    container: dict[str, Any] = {
        "name": _NODE,
        "image": job.image,
        "command": list(job.command),
        "env": [{"name": "SMD_POD_IP", "valueFrom": address}],
        "volumeMounts": mounts,
    }
    if job.resources:
        container["resources"] = {"requests": dict(job.resources), "limits": dict(job.resources)}
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.grace_s,
        "containers": [container],
        "volumes": volumes,
        # The environment of a rank is ours: no variables of all services of the namespace.
        "enableServiceLinks": False,
        # Nothing in a pod asks the API.
        "automountServiceAccountToken": False,
        "serviceAccountName": job.service_account,
        "priorityClassName": job.priority_class,
        "imagePullSecrets": [{"name": each} for each in job.pull_secrets],
        "nodeSelector": dict(job.node_selector),
        "tolerations": [dict(each) for each in job.tolerations],
    }
    return {name: value for name, value in spec.items() if value not in ("", [], {})}
