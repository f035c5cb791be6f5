# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where one job runs in Kubernetes: its objects, and what its first pod tells."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import secrets
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.in_cluster.cluster import patience_s
from smdistributed.launch.backends.in_cluster.package import Package
from smdistributed.launch.backends.kubernetes.api import ASK_S, Api
from smdistributed.launch.backends.kubernetes.log import PodLog
from smdistributed.launch.backends.kubernetes.manifests import (
    TRAINER_GROUP,
    TRAINER_VERSION,
    Kind,
    PodJob,
    host_address,
    indexed_job,
    object_name,
    owned_by,
    secret,
    selector_of_name,
    service,
    train_job,
    training_runtime,
)
from smdistributed.launch.backends.kubernetes.pods import Life, PodState
from smdistributed.launch.backends.kubernetes.settings import KubernetesSettings
from smdistributed.launch.backends.limits import Limits
from smdistributed.launch.backends.plans import hosts_of
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.files import write_whole

__all__ = ["KubernetesCluster"]

_TICK_S = 0.5
_SEND_S = 60.0
# A job's process says what its hosts use, each minute. Who hears nothing asks anew.
_SILENT_S = 150.0
_PORT = 7770
# A name that is wrong, or a registry that is away for a moment.
_IMAGE_S = 60.0
# After the pods' own grace, what there is is saved.
_GRACE_S = 120 + 300
_BEGIN_S = 5
_END_S = 10.0  # from the last that the first pod tells to its end
_MARGIN_S = 3600
_POD = "smdistributed.launch.backends.kubernetes.pod"


class KubernetesCluster:
    """Where one job runs.

    Args:
        job: its directory.
    """

    def __init__(self, job: JobDirectory) -> None:
        self._job = job
        self._kept = job.path / "kubernetes.json"
        self._settings = KubernetesSettings.of(Home(job.path.parent.parent))
        self._api = Api(self._settings)
        self._name = ""
        self._first = ""  # the name of the pod whose log is followed
        self._kind = Kind.INDEXED_JOB
        self._state: PodState | None = None
        self._has_told = False
        self._is_stopped = False

    def start(self) -> None:
        """As of `Cluster`.

        Raises:
            BackendError: the cluster does not answer, or refuses the job.
            ConfigurationError: what the job needs is not here, or is too large.
        """
        try:
            kept = json.loads(self._kept.read_bytes())
            self._name, self._kind = kept["name"], Kind(kept["kind"])
            self._first = kept.get("first", "")
            # A job that had a first pod is never asked for anew: who has deleted it wants no other
            # one, and its pods may still save what there is.
            if self._first or self._is_there():
                return
        except FileNotFoundError:
            self._kind = self._api.kind()
            self._name = object_name(self._job.name)
        asked = self._asked_for()
        files = self._files(asked)
        # Who follows after this one finds it by its name, or asks for it under that name.
        self._keep()
        with self._api.asked("the job is refused"):
            owner = self._make_train_job(asked) if self._is_train_job else self._make_job(asked)
            self._api.core.create_namespaced_secret(
                self._api.space, owned_by(secret(asked, files), owner), _request_timeout=_SEND_S
            )

    def _keep(self) -> None:
        kept = {"name": self._name, "kind": self._kind.value, "first": self._first}
        write_whole(self._kept, json.dumps(kept).encode())

    @property
    def _is_train_job(self) -> bool:
        return self._kind is Kind.TRAIN_JOB

    def _is_there(self) -> bool:
        """Whether its last object is; what an earlier follower has made of the others goes."""
        with self._api.asked("its Secret cannot be looked for"):
            found = self._api.core.list_namespaced_secret(
                self._api.space,
                label_selector=selector_of_name(self._name),
                _request_timeout=ASK_S,
            )
        if not found.items:
            self._delete()
            self._name = object_name(self._job.name)
        return bool(found.items)

    def _make_train_job(self, asked: PodJob) -> Any:
        group = (TRAINER_GROUP, TRAINER_VERSION, self._api.space)
        create = self._api.custom.create_namespaced_custom_object
        create(*group, "trainingruntimes", training_runtime(asked), _request_timeout=ASK_S)
        return create(*group, "trainjobs", train_job(asked), _request_timeout=ASK_S)

    def _make_job(self, asked: PodJob) -> dict[str, Any]:
        space = self._api.space
        made = self._api.batch.create_namespaced_job(
            space, indexed_job(asked), _request_timeout=ASK_S
        )
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": made.metadata.name, "uid": made.metadata.uid},
        }
        self._api.core.create_namespaced_service(
            space, owned_by(service(asked), owner), _request_timeout=ASK_S
        )
        return owner

    def _asked_for(self) -> PodJob:
        settings = self._settings
        record = self._job.read()
        limits = Limits.of(record.request)
        longest = limits.max_wait_s or limits.max_run_s * (1 + limits.retries)
        return settings.pod_job(
            name=self._name,
            job=self._job.name,
            namespace=self._api.space,
            hosts=len(hosts_of(record)),
            module=[_POD],
            deadline_s=round(longest) + _MARGIN_S,
            grace_s=_GRACE_S,
        )

    def _files(self, asked: PodJob) -> dict[str, bytes]:
        first = host_address(asked, self._kind, 0)
        about = {"hosts": asked.hosts, "port": _PORT, "first": first}
        content = io.BytesIO()
        with tempfile.TemporaryDirectory(prefix="smd-") as folder:
            try:
                Package(self._job, self._settings.shared).write(Path(folder))
            except ConfigurationError as error:
                raise ConfigurationError(f"ClientError: {error}") from None
            with zipfile.ZipFile(
                content, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False
            ) as package:
                for path in sorted(Path(folder).rglob("*")):
                    package.write(path, path.relative_to(folder))
        return {
            "package.zip": content.getvalue(),
            "about.json": json.dumps(about).encode(),
            "secret": secrets.token_hex(32).encode(),
        }

    # --- the log ---------------------------------------------------------------------------------

    def text(self) -> Iterator[str | None]:
        """As of `Cluster`.

        Raises:
            BackendError: the pod cannot run, or the cluster does not answer for minutes.
        """
        answered_at = time.monotonic()
        stuck_since: float | None = None
        while True:
            pod = None
            try:
                pod = self._first_pod()
                answered_at = time.monotonic()
            except BackendError as error:
                if time.monotonic() - answered_at > patience_s(self._job):
                    raise BackendError(f"InternalServerError: {error}") from None
            if pod is not None:
                self._state = pod
                self._require_same(pod)
                is_stuck = pod.life is Life.STUCK
                stuck_since = (stuck_since or time.monotonic()) if is_stuck else None
                if stuck_since and time.monotonic() - stuck_since > _IMAGE_S:
                    raise BackendError(f"ClientError: pod {pod.name} cannot run: {pod.why}")
            if pod is not None and (pod.has_ended or pod.life is Life.RUNNING):
                yield None
                yield from self._text_of(pod)
                if pod.has_ended:
                    return
            elif pod is None and (self._first or self._is_stopped) and self._knows_none():
                return  # it was taken away
            yield ""
            time.sleep(_TICK_S)

    def _text_of(self, pod: PodState) -> Iterator[str]:
        """What a pod has printed, until nothing comes any more, or nothing for long."""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        log = PodLog(self._api, self._api.space, pod.name)
        came_at = time.monotonic()
        try:
            while (content := log.next(_TICK_S)) is not None:
                if content:
                    came_at = time.monotonic()
                    self._has_told = True
                elif time.monotonic() - came_at > _SILENT_S:
                    return  # the connection may be dead: a new one tells
                yield decode(content)
        finally:
            log.close()

    def _require_same(self, pod: PodState) -> None:
        """Another first pod begins the job anew: its log does not go on where the other one's ends.

        Raises:
            BackendError: it is another one.
        """
        if not self._first:
            self._first = pod.name
            self._keep()
        elif pod.name != self._first:
            raise BackendError(
                f"InternalServerError: the first pod of the job, {self._first}, was taken away."
                " resume() goes on from the checkpoints."
            )

    def _first_pod(self) -> PodState | None:
        """None: there is none yet, or no more."""
        pods = [each for each in self._pods() if each.index == 0]
        # One that was taken away may stay beside the one that came in its place.
        followed = [each for each in pods if each.name == self._first]
        return next(iter(followed or pods), None)

    def _pods(self) -> list[PodState]:
        with self._api.asked("its pods cannot be listed"):
            return [PodState.of(each) for each in self._api.pods(selector_of_name(self._name))]

    def _knows_none(self) -> bool:
        """Whether the cluster has answered that there is no such pod."""
        with contextlib.suppress(BackendError):
            return self._first_pod() is None
        return False

    def stop(self) -> None:
        """As of `Cluster`: the pods get SIGTERM, and their grace if the job has begun there."""
        self._is_stopped = True
        self._delete()
        if not self._has_told:  # the first process of a container hears no signal before it begins
            for pod in self._pods():
                with self._api.asked("a pod cannot be deleted", is_done_if_gone=True):
                    self._api.core.delete_namespaced_pod(
                        pod.name,
                        self._api.space,
                        grace_period_seconds=_BEGIN_S,
                        _request_timeout=ASK_S,
                    )

    def interrupt(self, reason: str) -> None:
        """As of `Cluster`: evictions are the cluster's to make; there is none by hand."""
        print("a job in Kubernetes is interrupted by its cluster: kubectl drain", flush=True)

    def close(self) -> None:
        """As of `Cluster`."""
        with contextlib.suppress(BackendError):  # it does not answer
            self._delete()

    def _delete(self) -> None:
        if not self._name:  # of no object: without a name all of the namespace would be meant
            return
        space = self._api.space
        if self._kind is not Kind.TRAIN_JOB:
            with self._api.asked("the job cannot be deleted", is_done_if_gone=True):
                self._api.batch.delete_namespaced_job(
                    self._name, space, propagation_policy="Background", _request_timeout=ASK_S
                )
            return
        for plural in ("trainjobs", "trainingruntimes"):
            with self._api.asked(f"of {plural} one cannot be deleted", is_done_if_gone=True):
                self._api.custom.delete_namespaced_custom_object(
                    *(TRAINER_GROUP, TRAINER_VERSION, space, plural, self._name),
                    propagation_policy="Background",
                    _request_timeout=ASK_S,
                )

    def why_taken_away(self) -> str:
        """As of `Cluster`. Who deletes the job's object by hand has it stop."""
        until = time.monotonic() + _END_S
        with contextlib.suppress(BackendError):
            while time.monotonic() < until:
                found = [each for each in self._pods() if each.name == self._first]
                if not found:
                    break
                self._state = found[0]
                if self._state.has_ended:
                    break
                time.sleep(_TICK_S)
            if self._is_wanted_there():
                return self.how_it_ended()
        return ""

    def _is_wanted_there(self) -> bool:
        """Whether nobody has deleted the job's object; raises BackendError if it is gone."""
        with self._api.asked("the job cannot be looked for"):
            if self._is_train_job:
                found = self._api.custom.get_namespaced_custom_object(
                    TRAINER_GROUP,
                    TRAINER_VERSION,
                    self._api.space,
                    "trainjobs",
                    self._name,
                    _request_timeout=ASK_S,
                )
                return "deletionTimestamp" not in found["metadata"]
            job = self._api.batch.read_namespaced_job(
                self._name, self._api.space, _request_timeout=ASK_S
            )
            return job.metadata.deletion_timestamp is None

    def how_it_ended(self) -> str:
        """As of `Cluster`."""
        pod = self._state
        if pod is None:
            return "Kubernetes has no pod of it"
        code = "" if pod.exit_code is None else f" with status {pod.exit_code}"
        words = pod.life.name.lower().replace("_", " ")
        return f"Kubernetes says of pod {pod.name}: {words}{code}. {pod.why}".rstrip()
