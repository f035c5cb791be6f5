# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster as a backend: the job's process runs in it, sent there by Ray's Jobs API.

The job belongs to the cluster, and not to the machine that has started it, which may go. Nothing
here starts or stops a cluster.

Source: launch specification, section 11.
"""

from __future__ import annotations

import codecs
import contextlib
import http.client
import json
import queue
import secrets
import shlex
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.in_cluster.cluster import patience_s
from smdistributed.launch.backends.in_cluster.package import Package
from smdistributed.launch.backends.local import LocalBackend
from smdistributed.launch.backends.ray.api import HEAD_IS_DEAD, TERMINAL, RayApi, how_it_ended
from smdistributed.launch.backends.ray.settings import RaySettings
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.files import write_whole

__all__ = ["RayBackend", "RayCluster"]

_TICK_S = 0.5
_ASK_S = 2.0
# The log of a job that has ended is asked for again for so long, if it cannot be read.
_LAST_S = 15.0
_MOST_READ = 1 << 16
# Ray's own is 3 s: the ranks have 120 s, and then what there is is saved.
_STOP_WAIT_S = 600
# What Ray says of a driver whose supervisor, an actor, is gone with its node.
_ITS_NODE_IS_LOST = "JOB_SUPERVISOR_ACTOR_DIED"
_SIGNALLED = 128
_GONE_S = 3.0
_DRIVER = ("-P", "-m", "smdistributed.launch.backends.ray.driver")


class RayBackend(LocalBackend):
    """Runs jobs in a Ray cluster; a process here follows each."""

    name = "ray"
    module = "smdistributed.launch.backends.in_cluster.follower"

    def require(self, job: JobDirectory) -> None:
        """The cluster has to answer.

        Raises:
            BackendError: it does not.
            ConfigurationError: the settings are wrong.
        """
        RayApi(RaySettings.of(Home(job.path.parent.parent)).address).require()

    def outlives(self, job: JobDirectory) -> bool:
        """A job goes on in the cluster without the process here."""
        return (job.path / "ray.json").exists()


class RayCluster:
    """Where one job runs.

    Args:
        job: its directory.
    """

    def __init__(self, job: JobDirectory) -> None:
        self._job = job
        self._kept = job.path / "ray.json"
        self._settings = RaySettings.of(Home(job.path.parent.parent))
        self._api = RayApi(self._settings.address)
        self._id = ""
        self._dead_node = ""

    def start(self) -> None:
        """As of `Cluster`.

        Raises:
            BackendError: the cluster does not answer, or refuses the job.
            ConfigurationError: what the job needs is not here, or is too large.
        """
        with contextlib.suppress(FileNotFoundError):
            kept = json.loads(self._kept.read_bytes())
            self._id = kept["submission_id"]
            if kept["is_submitted"] or (self._id and self._api.job(self._id) is not None):
                return
        # Who follows after this one finds it, or submits it under this name again: Ray takes it
        # once, also if an answer of Ray's was lost.
        self._id = self._id or f"{self._job.name}-{secrets.token_hex(4)}"
        self._keep(is_submitted=False)
        self._api.submit(
            {
                "entrypoint": f"exec {self._driver(self._id, *self._bundle)}",
                "submission_id": self._id,
                "runtime_env": {
                    "working_dir": self._sent_package(),
                    "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_WAIT_S)},
                },
                "metadata": {"smdistributed_job": self._job.name},
                "entrypoint_num_cpus": 0,
            }
        )
        self._keep(is_submitted=True)

    @property
    def _bundle(self) -> tuple[int, int]:
        return self._settings.cpus_per_host, self._settings.gpus_per_host

    def _keep(self, *, is_submitted: bool) -> None:
        kept = {"submission_id": self._id, "is_submitted": is_submitted}
        write_whole(self._kept, json.dumps(kept).encode())

    def _driver(self, *arguments: Any) -> str:
        return shlex.join([self._settings.python, *_DRIVER, *map(str, arguments)])

    def _sent_package(self) -> str:
        with (
            tempfile.TemporaryDirectory(prefix="smd-") as folder,
            tempfile.TemporaryFile() as file,
        ):
            Package(self._job, self._settings.shared).write(Path(folder))
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as made:
                for path in sorted(Path(folder).rglob("*")):
                    made.write(path, path.relative_to(folder))
            size = file.tell()
            file.seek(0)
            return self._api.send_package(f"_ray_pkg_{secrets.token_hex(16)}.zip", file, size)

    def text(self) -> Iterator[str | None]:
        """As of `Cluster`.

        Raises:
            BackendError: it does not answer for minutes.
        """
        answered_at = time.monotonic()
        while True:
            decode = codecs.getincrementaldecoder("utf-8")("replace").decode
            log = _Log(self._api, self._id)
            has_ended, node = False, ""
            asked_at = time.monotonic()
            try:
                while not has_ended:
                    content = log.next(_TICK_S)
                    now_s = time.monotonic()
                    if content:
                        answered_at = now_s
                        yield decode(content)
                        continue
                    yield ""
                    if now_s - asked_at > _ASK_S:
                        asked_at = now_s
                        with contextlib.suppress(BackendError):
                            found = self._api.job(self._id)
                            answered_at = now_s
                            has_ended = found is None or found.get("status") in TERMINAL
                            node = str((found or {}).get("driver_node_id") or "")
                    is_silent = now_s - answered_at > patience_s(self._job)
                    if (content is None or is_silent) and not has_ended:
                        break
            finally:
                log.close()
            if has_ended:
                if node:
                    yield from self._whole_log(node)
                return
            if self._is_node_dead():
                return
            if time.monotonic() - answered_at > (patience := patience_s(self._job)):
                raise BackendError(
                    f"InternalServerError: Ray at {self._settings.address} did not answer for"
                    f" {patience:g} s. The job {self._id} may go on there: ray job status"
                    f" --address {shlex.quote(self._settings.address)} {shlex.quote(self._id)}"
                )
            yield None

    def _whole_log(self, node: str) -> Iterator[str | None]:
        """That of a job that has ended: a stream that is silent may only be slow."""
        until = time.monotonic() + _LAST_S
        while True:
            yield None
            decode = codecs.getincrementaldecoder("utf-8")("replace").decode
            try:
                with self._api.log(self._id, node, is_whole=True) as answer:
                    while content := answer.read1(_MOST_READ):
                        yield decode(content)
                return
            except (OSError, http.client.HTTPException, BackendError) as error:
                if time.monotonic() > until:
                    if self._is_node_dead():
                        return
                    raise BackendError(
                        f"InternalServerError: the job has ended, and its log cannot be read:"
                        f" {error}. {self.how_it_ended()}"
                    ) from None
            time.sleep(_TICK_S)

    def _is_node_dead(self) -> bool:
        """Of the process. Where nothing is left that would say it of the job, it runs for ever."""
        with contextlib.suppress(BackendError):
            node = (self._api.job(self._id) or {}).get("driver_node_id")
            self._dead_node = self._api.dead_node(str(node)) if node else ""
        return bool(self._dead_node)

    def stop(self) -> None:
        """As of `Cluster`."""
        if self._id:
            self._api.stop(self._id)

    def interrupt(self, reason: str) -> None:
        """As of `Cluster`: a small job of its own tells the driver."""
        command = self._driver("--interrupt", self._id, reason)
        self._api.submit({"entrypoint": f"exec {command}", "entrypoint_num_cpus": 0})

    def close(self) -> None:
        """As of `Cluster`: Ray keeps the log of its job, which is its own."""

    def why_lost(self, *, has_stopped: bool) -> str:
        """As of `Cluster`. A job of Ray gets SIGTERM by somebody's stop alone."""
        asked_at = time.monotonic()
        while not has_stopped:
            try:
                found = self._api.job(self._id)
                break
            except BackendError:
                if time.monotonic() - asked_at > patience_s(self._job):
                    return ""
            time.sleep(_TICK_S)
        else:
            return ""
        if self._dead_node:
            is_head = self._dead_node == HEAD_IS_DEAD
            return "" if is_head else f"of {self._id} {self._dead_node}"
        if found is None or found["status"] != "FAILED":
            return ""
        code = found.get("driver_exit_code")
        is_killed = isinstance(code, int) and (code < 0 or code > _SIGNALLED)
        is_lost = is_killed or found.get("error_type") == _ITS_NODE_IS_LOST
        return f"of {self._id} {how_it_ended(found, self._settings.python)}" if is_lost else ""

    def clear(self) -> None:
        """As of `Cluster`: Ray says of a process that it has failed when it is gone."""
        time.sleep(_GONE_S)  # that of a node which lives is killed by a watcher, that looks each s
        self._id = self._dead_node = ""
        self._keep(is_submitted=False)

    def how_it_ended(self) -> str:
        """As of `Cluster`."""
        if self._dead_node:
            return self._dead_node
        try:
            found = self._api.job(self._id)
        except BackendError as error:
            return str(error)
        return how_it_ended(found, self._settings.python)


class _Log:
    """What comes of a driver's log, read on a thread of its own."""

    def __init__(self, api: RayApi, submission_id: str) -> None:
        self._api = api
        self._id = submission_id
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_closed = threading.Event()
        threading.Thread(target=self._read, name="log", daemon=True).start()

    def next(self, timeout_s: float) -> bytes | None:
        """What has come; empty: nothing in that time; None: nothing comes any more."""
        try:
            return self._pieces.get(timeout=timeout_s)
        except queue.Empty:
            return b""

    def _read(self) -> None:
        # The stream has no end of its own: this thread goes when this process does.
        with contextlib.suppress(Exception):
            while not self._is_closed.is_set():
                found = self._api.job(self._id)
                node = found and found.get("driver_node_id")
                if node:
                    break
                time.sleep(_TICK_S)
            with self._api.log(self._id, str(node)) as answer:
                while not self._is_closed.is_set() and (content := answer.read1(_MOST_READ)):
                    self._pieces.put(content)
        time.sleep(_TICK_S)  # it may not be there yet
        self._pieces.put(None)

    def close(self) -> None:
        """Nothing more is read."""
        self._is_closed.set()
