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

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.in_cluster.cluster import patience_s
from smdistributed.launch.backends.in_cluster.package import Package
from smdistributed.launch.backends.kubernetes.api import Api
from smdistributed.launch.backends.kubernetes.log import PodLog
from smdistributed.launch.backends.kubernetes.manifests import (
    Kind,
    PodJob,
    host_address,
    object_name,
)
from smdistributed.launch.backends.kubernetes.objects import Objects
from smdistributed.launch.backends.kubernetes.pods import Life, PodState
from smdistributed.launch.backends.kubernetes.settings import KubernetesSettings
from smdistributed.launch.backends.limits import Limits
from smdistributed.launch.backends.plans import hosts_of
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.files import write_whole

__all__ = ["KubernetesCluster"]

_TICK_S = 0.5
# A job's process says what its hosts use, each minute. Who hears nothing asks anew.
_SILENT_S = 150.0
_PORT = 7770
# A name that is wrong, or a registry that is away for a moment.
_IMAGE_S = 60.0
# After the pods' own grace, what there is is saved.
_GRACE_S = 120 + 300
_BEGIN_S = 5
_END_S = 10.0  # from the last that the first pod tells to its end
# What is left without the first pod: ranks end by themselves, as nobody is heard any more.
_LEFT_S = 30
_GONE_S = 600.0
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
        self._objects = Objects(self._api, Kind.INDEXED_JOB, "")
        self._first = ""  # the name of the pod whose log is followed
        self._state: PodState | None = None
        self._is_gone = False  # that pod
        self._has_told = False
        self._is_stopped = False

    def start(self) -> None:
        """As of `Cluster`.

        Raises:
            BackendError: the cluster does not answer, or refuses the job.
            ConfigurationError: what the job needs is not here, or is too large.
        """
        self._remember()
        # A job that had a first pod is not asked for anew: who has deleted it wants no other one,
        # and its pods may still save what there is. One that is lost is cleared before.
        if self._first or (self._objects.name and self._objects.are_all_there()):
            return
        self._objects.delete()  # what an earlier follower has made of it
        self._objects = Objects(self._api, self._api.kind(), object_name(self._job.name))
        asked = self._asked_for()
        files = self._files(asked)
        # Who follows after this one finds it by its name, or asks for it under that name.
        self._keep()
        self._objects.make(asked, files)

    def _remember(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            kept = json.loads(self._kept.read_bytes())
            self._objects = Objects(self._api, Kind(kept["kind"]), kept["name"])
            self._first = kept.get("first", "")

    def _keep(self) -> None:
        objects = self._objects
        kept = {"name": objects.name, "kind": objects.kind.value, "first": self._first}
        write_whole(self._kept, json.dumps(kept).encode())

    def _asked_for(self) -> PodJob:
        settings = self._settings
        record = self._job.read()
        limits = Limits.of(record.request)
        longest = limits.max_wait_s or limits.max_run_s * (1 + limits.retries)
        return settings.pod_job(
            name=self._objects.name,
            job=self._job.name,
            namespace=self._api.space,
            hosts=len(hosts_of(record)),
            module=[_POD],
            deadline_s=round(longest) + _MARGIN_S,
            grace_s=_GRACE_S,
        )

    def _files(self, asked: PodJob) -> dict[str, bytes]:
        first = host_address(asked, self._objects.kind, 0)
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
                if not self._first:
                    self._first = pod.name
                    self._keep()
                # Another one begins the job anew: its log does not go on where that one's ends.
                if pod.name != self._first:
                    return
                self._state = pod
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

    def _first_pod(self) -> PodState | None:
        """None: there is none yet, or no more."""
        pods = [each for each in self._objects.pods() if each.index == 0]
        # One that was taken away may stay beside the one that came in its place.
        followed = [each for each in pods if each.name == self._first]
        return next(iter(followed or pods), None)

    def _knows_none(self) -> bool:
        """Whether the cluster has answered that there is no such pod."""
        with contextlib.suppress(BackendError):
            return self._first_pod() is None
        return False

    def stop(self) -> None:
        """As of `Cluster`: the pods get SIGTERM, and their grace if the job has begun there."""
        self._is_stopped = True
        self._objects.delete()
        if not self._has_told:  # the first process of a container hears no signal before it begins
            self._objects.end_pods(self._objects.pods(), _BEGIN_S)

    def interrupt(self, reason: str) -> None:
        """As of `Cluster`: evictions are the cluster's to make; there is none by hand."""
        print("a job in Kubernetes is interrupted by its cluster: kubectl drain", flush=True)

    def close(self) -> None:
        """As of `Cluster`. A first pod that was made in the place of one is of no use."""
        with contextlib.suppress(BackendError):  # it does not answer
            self._objects.delete()
            others = [each for each in self._objects.pods() if each.index == 0]
            self._objects.end_pods((each for each in others if each.name != self._first), _BEGIN_S)

    def clear(self) -> None:
        """As of `Cluster`. The cluster may have made another first pod by then, which goes too."""
        self._remember()
        if self._objects.name and not self._wait_until_gone():
            return
        self._objects = Objects(self._api, self._objects.kind, "")
        self._first, self._state = "", None
        self._is_gone = self._has_told = False
        self._keep()

    def _wait_until_gone(self) -> bool:
        """Returns: whether nothing is left; else the job is to stop."""
        told: set[str] = set()
        left: list[PodState] = []
        began = answered_at = time.monotonic()
        while self._job.stop_reason() is None:
            try:
                self._objects.delete(is_last_one_waited_for=True)
                left = self._objects.pods()
                if not left and self._objects.owner() is None:
                    return True
                for pod in left:
                    if pod.name not in told:
                        told.add(pod.name)
                        self._objects.end_pods([pod], _LEFT_S if pod.index else _BEGIN_S)
                answered_at = time.monotonic()
            except BackendError:
                if time.monotonic() - answered_at > patience_s(self._job):
                    raise
            if time.monotonic() - began > _GONE_S:
                names = ", ".join(each.name for each in left) or self._objects.name
                raise BackendError(
                    f"{names} was deleted, and is still there after {_GONE_S:g} s: its node may be"
                    " lost, and it may run there. resume() goes on from the checkpoints, once it is"
                    " gone."
                )
            time.sleep(_TICK_S)
        return False

    def why_lost(self, *, has_stopped: bool) -> str:
        """As of `Cluster`. Who deletes the job's object by hand has it stop."""
        answered_at = time.monotonic()
        while True:
            try:
                self._look_for_end()
                owner = self._objects.owner()
                break
            except BackendError:
                if time.monotonic() - answered_at > patience_s(self._job):
                    return ""
            time.sleep(_TICK_S)
        is_wanted = owner is not None and "deletionTimestamp" not in owner
        was_lost = self._is_gone or (self._state is not None and self._state.was_lost)
        return self.how_it_ended() if is_wanted and (has_stopped or was_lost) else ""

    def _look_for_end(self) -> None:
        """Of the first pod, which has told its own."""
        until = time.monotonic() + _END_S
        while time.monotonic() < until:
            found = [each for each in self._objects.pods() if each.name == self._first]
            self._is_gone = not found
            if found:
                self._state = found[0]
            if not found or found[0].has_ended:
                return
            time.sleep(_TICK_S)

    def how_it_ended(self) -> str:
        """As of `Cluster`."""
        pod = self._state
        if self._is_gone:
            why = "" if pod is None else pod.why
            return f"Kubernetes has pod {self._first} no more. {why}".rstrip()
        if pod is None:
            return "Kubernetes has no pod of it"
        code = "" if pod.exit_code is None else f" with status {pod.exit_code}"
        words = pod.life.name.lower().replace("_", " ")
        return f"Kubernetes says of pod {pod.name}: {words}{code}. {pod.why}".rstrip()
