# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Controllers of the stand-in for Kubernetes: what becomes of objects (`kubernetes_api.py`).

They make pods of Jobs, and Jobs of TrainJobs, say how these end, and take away what has no owner.

Sources: Kubernetes documentation, "Jobs", "Pod failure policy" and "Garbage collection"; JobSet.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import threading
import time
from collections.abc import Mapping
from typing import Any

from tests.clusters.kubernetes_nodes import Nodes
from tests.clusters.kubernetes_store import (
    INDEX,
    JOBS,
    PODS,
    RUNTIMES,
    TRAIN_JOBS,
    ApiError,
    Object,
    Resource,
    Store,
    condition,
    phase_of,
    time_text,
)

_LOOK_S = 0.05


class Controllers:
    """Of a store, whose pods run on nodes."""

    def __init__(self, store: Store, nodes: Nodes) -> None:
        self._store = store
        self._nodes = nodes
        self._began: dict[str, float] = {}
        self._counted: set[str] = set()
        self._num_failed: collections.Counter[str] = collections.Counter()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._control, daemon=True)
        nodes.count = self._count

    def __enter__(self) -> Controllers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        with self._store.changed:
            self._store.changed.notify_all()
        self._thread.join()

    def _count(self, namespace: str) -> None:
        for job in self._store.select(JOBS, namespace)[1]:
            self._control_job(job)

    def delete(
        self, resource: Resource, namespace: str, name: str, options: Mapping[str, Any]
    ) -> Object:
        """Deletes an object, and what it owns as its propagation policy says."""
        store = self._store
        with store.changed:
            found = store.get(resource, namespace, name)
            if resource == PODS:
                grace = options.get("gracePeriodSeconds")
                usual = found["spec"].get("terminationGracePeriodSeconds", 30)
                return self._nodes.delete(found, float(usual if grace is None else grace))
            # Jobs have the default of their first days, when nothing was collected.
            policy = options.get("propagationPolicy")
            policy = policy or ("Orphan" if resource == JOBS else "Background")
            if policy == "Foreground":
                return store.update(resource, namespace, name, _begin_foreground)
            if policy == "Orphan":
                for kind, each in store.owned(found):
                    store.update(
                        kind,
                        namespace,
                        each["metadata"]["name"],
                        lambda one: one["metadata"].pop("ownerReferences"),
                    )
            store.remove(resource, namespace, name)
            details = {"name": name, "group": resource.group, "kind": resource.plural}
            details["uid"] = found["metadata"]["uid"]
            return {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": details,
            }

    def _control(self) -> None:
        while not self._is_over.is_set():
            with self._store.changed:
                for namespace in self._namespaces():
                    self._collect(namespace)
                    for each in self._store.select(TRAIN_JOBS, namespace)[1]:
                        self._control_train_job(each)
                    for each in self._store.select(JOBS, namespace)[1]:
                        self._control_job(each)
                self._nodes.write_names()
                self._store.changed.wait(_LOOK_S)

    def _namespaces(self) -> set[str]:
        return {namespace for _, namespace, _ in self._store.names()}

    def _collect(self, namespace: str) -> None:
        """Objects whose owner is gone go, and those that wait for what they own."""
        store = self._store
        alive = {uid for _, space, uid in self._uids() if space == namespace}
        for resource, _, name in [each for each in store.names() if each[1] == namespace]:
            with contextlib.suppress(ApiError):
                each = store.get(resource, namespace, name)
                owners = each["metadata"].get("ownerReferences", [])
                if owners and not any(ref["uid"] in alive for ref in owners):
                    self._delete_once(resource, each)
                if "foregroundDeletion" in each["metadata"].get("finalizers", []):
                    owned = store.owned(each)
                    for kind, one in owned:
                        self._delete_once(kind, one)
                    if not owned:
                        store.remove(resource, namespace, name)

    def _uids(self) -> list[tuple[Resource, str, str]]:
        return [
            (resource, namespace, self._store.get(resource, namespace, name)["metadata"]["uid"])
            for resource, namespace, name in self._store.names()
        ]

    def _delete_once(self, resource: Resource, each: Object) -> None:
        metadata = each["metadata"]
        if "deletionTimestamp" not in metadata:
            options = {} if resource == PODS else {"propagationPolicy": "Foreground"}
            self.delete(resource, metadata["namespace"], metadata["name"], options)

    def _control_train_job(self, train_job: Object) -> None:
        store, metadata = self._store, train_job["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        job_name = f"{name}-node-0"
        try:
            job = store.get(JOBS, namespace, job_name)
        except ApiError:
            with contextlib.suppress(ApiError):  # there is no such runtime yet
                reference = train_job["spec"]["runtimeRef"]["name"]
                runtime = store.get(RUNTIMES, namespace, reference)
                if "deletionTimestamp" not in metadata:
                    store.create(JOBS, namespace, _job_of(train_job, runtime, job_name))
            return
        conditions = [
            {**each, "reason": each.get("reason") or "JobsCompleted", "message": "all jobs"}
            for each in job.get("status", {}).get("conditions", [])
            if each["type"] in ("Complete", "Failed")
        ]
        if conditions:
            store.update(
                TRAIN_JOBS,
                namespace,
                name,
                lambda each: each.setdefault("status", {}).update(conditions=conditions),
            )

    def _control_job(self, job: Object) -> None:
        store, metadata, spec = self._store, job["metadata"], job["spec"]
        namespace, name = metadata["namespace"], metadata["name"]
        status = copy.deepcopy(job.get("status", {}))
        if any(each["type"] in ("Complete", "Failed") for each in status.get("conditions", [])):
            return
        status.setdefault("startTime", time_text())
        pods = [each for kind, each in store.owned(job) if kind == PODS]
        failure = self._judge(job, pods)
        began = self._began_s(metadata["uid"])
        limit_s = spec.get("activeDeadlineSeconds")
        if limit_s is not None and time.monotonic() > began + limit_s:
            failure = ("DeadlineExceeded", "Job was active longer than specified deadline")
        phases: dict[int, set[str]] = collections.defaultdict(set)
        for pod in pods:
            phases[int(pod["metadata"]["annotations"][INDEX])].add(phase_of(pod))
        wanted = range(spec.get("completions", 1))
        done = [index for index in wanted if "Succeeded" in phases[index]]
        status.update(
            succeeded=len(done),
            failed=self._num_failed[metadata["uid"]],
            active=sum("Pending" in each or "Running" in each for each in phases.values()),
            completedIndexes=",".join(map(str, done)),
        )
        if failure is not None:
            reason, message = failure
            status["conditions"] = [condition("Failed", reason, message)]
            for pod in pods:
                if phase_of(pod) in ("Pending", "Running"):
                    self._delete_once(PODS, pod)
        elif len(done) == len(wanted):
            status["conditions"] = [condition("Complete", "CompletionsReached", "")]
            status["completionTime"] = time_text()
        elif "deletionTimestamp" not in metadata:
            for index in wanted:
                if not phases[index] & {"Pending", "Running", "Succeeded"}:
                    self._create_pod(job, index)
        store.update(JOBS, namespace, name, lambda each: each.update(status=status))

    def _began_s(self, uid: str) -> float:
        return self._began.setdefault(uid, time.monotonic())

    def _judge(self, job: Object, pods: list[Object]) -> tuple[str, str] | None:
        """Why the job has failed, if a pod that has makes it so."""
        uid = job["metadata"]["uid"]
        for pod in pods:
            if phase_of(pod) != "Failed" or pod["metadata"]["uid"] in self._counted:
                continue
            self._counted.add(pod["metadata"]["uid"])
            self._num_failed[uid] += 1
            action, rule = _action_of(job, pod)
            name = pod["metadata"]["name"]
            if action == "FailJob":
                code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
                return "PodFailurePolicy", (
                    f"Container {pod['spec']['containers'][0]['name']} for pod"
                    f" {pod['metadata']['namespace']}/{name} failed with exit code {code} matching"
                    f" FailJob rule at index {rule}"
                )
            if action == "Ignore":
                self._num_failed[uid] -= 1
            elif self._num_failed[uid] > job["spec"].get("backoffLimit", 6):
                return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        return None

    def _create_pod(self, job: Object, index: int) -> None:
        metadata = job["metadata"]
        template = copy.deepcopy(job["spec"]["template"])
        labels = {
            "batch.kubernetes.io/job-name": metadata["name"],
            "batch.kubernetes.io/controller-uid": metadata["uid"],
            INDEX: str(index),
        }
        template["metadata"].setdefault("labels", {}).update(labels)
        template["metadata"].setdefault("annotations", {})[INDEX] = str(index)
        template["metadata"].update(
            generateName=f"{metadata['name']}-{index}-",
            ownerReferences=[
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        )
        template["spec"]["hostname"] = f"{metadata['name']}-{index}"
        field = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
        for container in template["spec"]["containers"]:
            container.setdefault("env", []).append(
                {"name": "JOB_COMPLETION_INDEX", "valueFrom": field}
            )
        template["status"] = {"phase": "Pending"}
        pod = self._store.create(PODS, metadata["namespace"], template)
        self._nodes.start(pod)


def _job_of(train_job: Object, runtime: Object, name: str) -> Object:
    """What Kubeflow Trainer and JobSet make of a TrainJob."""
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    template = copy.deepcopy(node["template"])
    count = train_job["spec"].get("trainer", {}).get("numNodes")
    count = count or runtime["spec"]["mlPolicy"]["numNodes"]
    metadata, spec = template["metadata"], template["spec"]
    spec.update(completions=count, parallelism=count)
    owner = train_job["metadata"]
    labels = {
        "jobset.sigs.k8s.io/jobset-name": owner["name"],
        "jobset.sigs.k8s.io/replicatedjob-name": node["name"],
    }
    spec["template"].setdefault("metadata", {}).setdefault("labels", {}).update(labels)
    spec["template"]["spec"]["subdomain"] = owner["name"]
    reference = {"apiVersion": train_job["apiVersion"], "kind": "TrainJob"}
    metadata.update(
        name=name,
        ownerReferences=[{**reference, "name": owner["name"], "uid": owner["uid"]}],
    )
    return {"metadata": metadata, "spec": spec}


def _action_of(job: Object, pod: Object) -> tuple[str, int]:
    """What the first rule says that fits a pod which has failed, and which it is."""
    status = pod["status"]
    code = status["containerStatuses"][0]["state"].get("terminated", {}).get("exitCode", 0)
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    for number, rule in enumerate(job["spec"].get("podFailurePolicy", {}).get("rules", [])):
        codes = rule.get("onExitCodes")
        if (
            codes is not None
            and code != 0
            and (code in codes["values"]) == (codes["operator"] == "In")
        ):
            return rule["action"], number
        for pattern in rule.get("onPodConditions", []):
            if conditions.get(pattern["type"]) == pattern.get("status", "True"):
                return rule["action"], number
    return "Count", -1


def _begin_foreground(each: Object) -> None:
    each["metadata"].setdefault("deletionTimestamp", time_text())
    each["metadata"]["finalizers"] = ["foregroundDeletion"]
