# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster as a backend: the job's process runs in it, sent there by Ray's Jobs API.

The job belongs to the cluster, and not to the machine that has started it, which may go. Nothing
here starts or stops a cluster.

Source: launch specification, section 11.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import secrets
import shlex
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError, SmdistributedError
from smdistributed.launch.agent.ending import end_job
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.in_cluster.package import Package
from smdistributed.launch.backends.local import LocalBackend
from smdistributed.launch.backends.ray.settings import RaySettings
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.files import write_whole

__all__ = ["RayBackend", "RayCluster"]

_REACH_S = 8.0
_TICK_S = 0.5
_ASK_S = 2.0
_GIVE_UP_S = 300.0
# Ray's own is 3 s: the ranks have 120 s, and what there is is saved.
_STOP_WAIT_S = 600
_DRIVER = ("-P", "-m", "smdistributed.launch.backends.ray.driver")


def _client(settings: RaySettings) -> Any:
    """Of the Jobs API.

    Raises:
        BackendError: it cannot be reached, or is of another version; or Ray is not installed here.
    """
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise BackendError(
            f"the backend 'ray' needs Ray on this machine ({error});"
            " pip install 'smdistributed-open[ray]', of the cluster's version."
        ) from None
    made: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def connect() -> None:
        try:
            made.put(JobSubmissionClient(settings.address))
        except Exception as error:
            made.put(error)

    threading.Thread(target=connect, daemon=True).start()  # it has no time limit of its own
    try:
        client = made.get(timeout=_REACH_S)
    except queue.Empty:
        client = TimeoutError(f"it did not answer in {_REACH_S:g} s")
    if isinstance(client, Exception):
        raise BackendError(
            f"Ray's Jobs API at {settings.address} cannot be used: {client}. Try by hand:"
            f" ray job list --address {shlex.quote(settings.address)}"
        )
    return client


class RayBackend(LocalBackend):
    """Runs jobs in a Ray cluster; a process here follows each."""

    name = "ray"
    module = "smdistributed.launch.backends.in_cluster.follower"

    def submit(self, job: JobDirectory) -> None:
        """Starts a job, once it is known that the cluster answers.

        Raises:
            OSError: as of `LocalBackend`.
            BackendError: it does not answer, or is of another version.
            ConfigurationError: the settings are wrong.
        """
        try:
            _client(RaySettings.of(Home(job.path.parent.parent)))
        except SmdistributedError as error:
            end_job(job, [], f"ClientError: {error}")
            job.lock.release()
            raise
        super().submit(job)

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
        self._client: Any = None
        self._id = ""

    def start(self) -> None:
        """As of `Cluster`.

        Raises:
            BackendError: the cluster does not answer, or refuses the job.
            ConfigurationError: what the job needs is not here.
        """
        with contextlib.suppress(FileNotFoundError):
            kept = json.loads(self._kept.read_bytes())
            self._id = kept["submission_id"]
            self._client = _client(self._settings)
            return
        self._client = _client(self._settings)
        self._id = f"{self._job.name}-{secrets.token_hex(4)}"
        command = [self._settings.python, *_DRIVER]
        command += [str(self._settings.cpus_per_host), str(self._settings.gpus_per_host)]
        with tempfile.TemporaryDirectory(prefix="smd-") as folder:
            try:
                Package(self._job, self._settings.shared).write(Path(folder))
                self._client.submit_job(
                    entrypoint=shlex.join(command),
                    submission_id=self._id,
                    runtime_env={
                        "working_dir": folder,
                        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_WAIT_S)},
                    },
                    metadata={"smdistributed_job": self._job.name},
                    entrypoint_num_cpus=0,
                )
            except SmdistributedError as error:
                raise ConfigurationError(f"ClientError: {error}") from None
            except (RuntimeError, ValueError, OSError) as error:
                raise BackendError(
                    f"ClientError: Ray at {self._settings.address} has refused the job: {error}"
                ) from None
        write_whole(self._kept, json.dumps({"submission_id": self._id}).encode())

    def text(self) -> Iterator[str]:
        """As of `Cluster`."""
        known, silent_since = 0, time.monotonic()
        while True:
            pieces: queue.SimpleQueue[str | Exception | None] = queue.SimpleQueue()
            threading.Thread(target=self._tail, args=(pieces,), daemon=True).start()
            seen = 0
            while True:
                try:
                    piece = pieces.get(timeout=_TICK_S)
                except queue.Empty:
                    yield ""
                    continue
                if piece is None or isinstance(piece, Exception):
                    break
                silent_since = time.monotonic()
                # After a lost connection all comes again.
                seen += len(piece)
                if seen > known:
                    yield piece[len(piece) - (seen - known) :]
                    known = seen
            if piece is None and self._has_ended():
                return
            if time.monotonic() - silent_since > _GIVE_UP_S:
                raise BackendError(
                    f"InternalServerError: Ray at {self._settings.address} did not answer for"
                    f" {_GIVE_UP_S:g} s ({piece}). The job {self._id} may go on there: ray job"
                    f" status --address {self._settings.address} {self._id}"
                )
            yield ""
            time.sleep(_ASK_S)

    def _tail(self, pieces: queue.SimpleQueue[str | Exception | None]) -> None:
        async def follow() -> None:
            async for piece in self._client.tail_job_logs(self._id):
                pieces.put(piece)

        try:
            asyncio.run(follow())
            pieces.put(None)
        except Exception as error:
            pieces.put(error)

    def _has_ended(self) -> bool:
        try:
            return bool(self._client.get_job_status(self._id).is_terminal())
        except Exception:
            return False

    def stop(self) -> None:
        """As of `Cluster`."""
        with contextlib.suppress(Exception):  # it has ended, or does not answer
            self._client.stop_job(self._id)

    def interrupt(self, reason: str) -> None:
        """As of `Cluster`: a small job of its own tells the driver."""
        command = [self._settings.python, *_DRIVER, "--interrupt", self._job.name, reason]
        with contextlib.suppress(Exception):
            self._client.submit_job(entrypoint=shlex.join(command), entrypoint_num_cpus=0)

    def how_it_ended(self) -> str:
        """As of `Cluster`."""
        try:
            found = self._client.get_job_info(self._id)
            return f"Ray says {found.status}: {found.message}"
        except Exception as error:
            return f"Ray knows nothing of it: {error}"
