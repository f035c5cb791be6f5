# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Objects of a Kubernetes API as it keeps them: versions, watches, owners, and errors in its words.

Sources: Kubernetes API concepts (resource versions, watches, 410 Gone); API conventions (Status);
API reference of the objects.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Object = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Resource:
    """A kind of objects that is served.

    Attributes:
        group, version, plural: as in a path; the core group is empty.
        kind: of its objects.
        model: of `kubeflow_trainer_api`, which is made from the OpenAPI schema.
    """

    group: str
    version: str
    plural: str
    kind: str
    model: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


_CORE, _TRAINER = ("", "v1"), ("trainer.kubeflow.org", "v1alpha1")
PODS = Resource(*_CORE, "pods", "Pod", "IoK8sApiCoreV1Pod")
SERVICES = Resource(*_CORE, "services", "Service", "IoK8sApiCoreV1Service")
SECRETS = Resource(*_CORE, "secrets", "Secret", "IoK8sApiCoreV1Secret")
CONFIG_MAPS = Resource(*_CORE, "configmaps", "ConfigMap", "IoK8sApiCoreV1ConfigMap")
JOBS = Resource("batch", "v1", "jobs", "Job", "IoK8sApiBatchV1Job")
RUNTIMES = Resource(
    *_TRAINER, "trainingruntimes", "TrainingRuntime", "TrainerV1alpha1TrainingRuntime"
)
TRAIN_JOBS = Resource(*_TRAINER, "trainjobs", "TrainJob", "TrainerV1alpha1TrainJob")
INDEX = "batch.kubernetes.io/job-completion-index"
RESOURCES = (PODS, SERVICES, SECRETS, CONFIG_MAPS, JOBS, RUNTIMES, TRAIN_JOBS)


class ApiError(Exception):
    """What the API answers with a `Status`."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            **({"details": details} if details else {}),
            "code": code,
        }


def time_text(seconds: float | None = None) -> str:
    """A time as objects of the API have it, in whole seconds."""
    when = dt.datetime.fromtimestamp(time.time() if seconds is None else seconds, dt.UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def stamp_text(at_ns: int) -> str:
    """A time as lines of logs have it."""
    return f"{time_text(at_ns // 10**9)[:-1]}.{at_ns % 10**9:09}Z"


@dataclasses.dataclass(frozen=True)
class _Event:
    version: int
    kind: str  # ADDED, MODIFIED, DELETED
    resource: Resource
    object: Object


class Store:
    """All objects. `changed` is notified of each change; its lock is the store's."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.is_closed = False
        self._objects: dict[tuple[Resource, str, str], Object] = {}
        self._events: list[_Event] = []
        self._version = 1000
        self._oldest = 1000  # events up to this version are forgotten

    # --- what clients ask for --------------------------------------------------------------------

    def create(self, resource: Resource, namespace: str, given: Object) -> Object:
        with self.changed:
            made = copy.deepcopy(given)
            metadata = made.setdefault("metadata", {})
            name = metadata.get("name") or f"{metadata['generateName']}{uuid.uuid4().hex[:5]}"
            if (resource, namespace, name) in self._objects:
                raise ApiError(
                    409,
                    "AlreadyExists",
                    f'{_named(resource)} "{name}" already exists',
                    name=name,
                    group=resource.group,
                    kind=resource.plural,
                )
            made.update(apiVersion=resource.api_version, kind=resource.kind)
            metadata.update(
                name=name,
                namespace=namespace,
                uid=str(uuid.uuid4()),
                creationTimestamp=time_text(),
            )
            return self._put("ADDED", resource, namespace, name, made)

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        with self.changed:
            found = self._objects.get((resource, namespace, name))
            if found is None:
                raise ApiError(
                    404,
                    "NotFound",
                    f'{_named(resource)} "{name}" not found',
                    name=name,
                    group=resource.group,
                    kind=resource.plural,
                )
            return copy.deepcopy(found)

    def select(
        self, resource: Resource, namespace: str, holds: Callable[[Object], bool] = bool
    ) -> tuple[int, list[Object]]:
        """All that hold, by name, and the version of the list."""
        with self.changed:
            found = [
                copy.deepcopy(each)
                for (kind, space, _), each in sorted(
                    self._objects.items(), key=lambda item: (item[0][1], item[0][2])
                )
                if kind == resource and space == namespace and holds(each)
            ]
            return self._version, found

    def update(
        self, resource: Resource, namespace: str, name: str, change: Callable[[Object], object]
    ) -> Object:
        """Changes an object in place; nothing is told if nothing was changed."""
        with self.changed:
            before = self.get(resource, namespace, name)
            after = copy.deepcopy(before)
            change(after)
            if after == before:
                return before
            return self._put("MODIFIED", resource, namespace, name, after)

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        """At once, whatever it owns; nothing if it is not there."""
        with self.changed:
            gone = self._objects.pop((resource, namespace, name), None)
            if gone is not None:
                self._tell("DELETED", resource, gone)

    def watch(
        self,
        resource: Resource,
        namespace: str,
        holds: Callable[[Object], bool],
        version: int | None,
        until: float,
    ) -> Iterator[Object]:
        """Events after a version, or all objects first if it is None; None: nothing for a second.

        Yields also an ERROR with code 410 where the version is forgotten, and ends then.
        """
        with self.changed:
            if version is None:
                version, first = self.select(resource, namespace, holds)
            else:
                first = []
                if version < self._oldest:
                    text = f"too old resource version: {version} ({self._oldest})"
                    yield {"type": "ERROR", "object": ApiError(410, "Expired", text).status}
                    return
        for each in first:
            yield {"type": "ADDED", "object": each}
        while time.monotonic() < until:
            with self.changed:
                new = [each for each in self._events if each.version > version]
                if not new:
                    self.changed.wait(min(0.5, max(0.0, until - time.monotonic())))
                if self.is_closed:
                    return
            for event in new:
                version = event.version
                its = event.object
                is_here = its["metadata"]["namespace"] == namespace
                if event.resource == resource and is_here and holds(its):
                    yield {"type": event.kind, "object": copy.deepcopy(its)}

    def forget_events(self) -> None:
        """Whoever watches from an older version is told 410, as after a compaction."""
        with self.changed:
            self._version += 1
            self._oldest = self._version
            self._events.clear()

    def names(self) -> list[tuple[Resource, str, str]]:
        """Resource, namespace and name of all objects."""
        with self.changed:
            return list(self._objects)

    # --- owners ----------------------------------------------------------------------------------

    def owned(self, owner: Object) -> list[tuple[Resource, Object]]:
        """What goes with an object."""
        uid = owner["metadata"]["uid"]
        with self.changed:
            return [
                (resource, copy.deepcopy(each))
                for (resource, _, _), each in self._objects.items()
                if any(ref["uid"] == uid for ref in each["metadata"].get("ownerReferences", []))
            ]

    def _put(self, kind: str, resource: Resource, namespace: str, name: str, new: Object) -> Object:
        self._objects[resource, namespace, name] = new
        self._tell(kind, resource, new)
        return copy.deepcopy(new)

    def _tell(self, kind: str, resource: Resource, each: Object) -> None:
        self._version += 1
        each["metadata"]["resourceVersion"] = str(self._version)
        self._events.append(_Event(self._version, kind, resource, copy.deepcopy(each)))
        self.changed.notify_all()


def _named(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def merged(old: Any, patch: Any) -> Any:
    """A merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    found = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def phase_of(pod: Object) -> str:
    """Of a pod's life."""
    return str(pod.get("status", {}).get("phase", "Pending"))


def condition(kind: str, reason: str, message: str, status: str = "True") -> Object:
    """One of those that a status has."""
    condition = {"type": kind, "status": status, "lastTransitionTime": time_text()}
    return {**condition, **({"reason": reason, "message": message} if reason else {})}
