# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""This machine as a backend: nothing to install, no daemon, no container.

Each job has a process of its own, which outlives who has started it. That it lives is told by its
lock on the job's directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping

from smdistributed._common.error_text import error_text
from smdistributed._common.errors import ConfigurationError, SmdistributedError
from smdistributed._common.log import get_logger
from smdistributed.launch.agent.ending import end_job, host_directories
from smdistributed.launch.backends.signals import held_back
from smdistributed.launch.environment import usable_cores
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory, running_jobs
from smdistributed.launch.jobs.files import make_writable
from smdistributed.launch.jobs.logs import JobLog
from smdistributed.launch.jobs.record import JobRecord

__all__ = ["LocalBackend", "remove"]

_log = get_logger()

_LAST_LINES_S = 5.0
_LOOK_S = 0.02


class LocalBackend:
    """Runs jobs on this machine."""

    name = "local"
    module = "smdistributed.launch.backends.runner"
    """The process of a job."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def submit(self, job: JobDirectory) -> None:
        """Starts a job that was just made: this process has its lock, and hands it over.

        Raises:
            OSError: the process could not be started; the job has failed then.
            SmdistributedError: as of `require`; likewise.
        """
        try:
            self.require(job)
        except BaseException as error:
            is_told = isinstance(error, SmdistributedError)
            why = str(error) if is_told else f"{type(error).__name__}: {error}"
            end_job(job, [], f"{'ClientError' if is_told else 'InternalServerError'}: {why}")
            job.lock.release()
            raise
        try:
            self._started.append(_start(job, self.module))  # it is ours to reap
        except BaseException as error:
            why = f"the process of the job could not be started: {error_text(error)}"
            end_job(job, [], f"InternalServerError: {why}")
            job.lock.release()
            raise
        job.lock.hand_over()
        others = [each for each in running_jobs(Home(job.path.parent.parent)) if each != job.name]
        if others and self.name == LocalBackend.name:  # others have machines of their own
            _log.warning(
                "job %s shares the %d processors of this machine with %s",
                job.name,
                usable_cores(),
                ", ".join(others),
            )

    def require(self, job: JobDirectory) -> None:
        """Finds out whether there is where the job can run. This machine is there.

        Raises:
            SmdistributedError: not so; says what to do.
        """

    def poll(self, job: JobDirectory) -> JobRecord:
        """The job's record, which is ended here if nobody is left to do it."""
        self._started = [each for each in self._started if each.poll() is None]
        record = job.read()
        if record.status.is_terminal or job.is_alive():
            return record
        hosts = host_directories(job)
        if any(each.lock.is_held_elsewhere() for each in hosts) or not job.lock.acquire():
            return record
        try:
            record = job.read()
            if record.status.is_terminal:
                return record
            if self.outlives(job):
                self._started.append(_start(job, self.module))
                job.lock.hand_over()
                return record
            return end_job(
                job,
                hosts,
                "InternalServerError: the process of the job and its agents are gone (killed, or"
                " the machine was restarted, or its disk is full).",
            )
        except OSError as error:
            raise ConfigurationError(
                f"the end of job {job.name!r} cannot be written to {job.path}: {error}; expected"
                " room on that disk. Make some, and ask again."
            ) from None
        finally:
            job.lock.release()

    def outlives(self, job: JobDirectory) -> bool:
        """Whether a job goes on elsewhere though its process here is gone: it gets another one."""
        return False

    def stop(self, job: JobDirectory, reason: str) -> None:
        """Has a job stop; what has ended stays as it is.

        Raises:
            ConfigurationError: this user may not.
        """
        if not self.poll(job).status.is_terminal:
            job.ask_to_stop(reason)

    def logs(self, job: JobDirectory, host: str | None = None, rank: int | None = None) -> JobLog:
        """What its hosts have logged so far, and will.

        Args:
            host, rank: of these alone; None: of all.
        """
        return JobLog(job.path, host=host, rank=rank)

    def clean(self, job: JobDirectory) -> None:
        """Removes the directory of a job that has ended.

        Raises:
            ConfigurationError: it has not ended, or this user may not.
        """
        remove(job, self.poll(job))


def remove(job: JobDirectory, record: JobRecord) -> None:
    """Removes the directory of a job that has ended.

    Raises:
        ConfigurationError: it has not ended, or this user may not.
    """
    if not record.status.is_terminal:
        raise ConfigurationError(
            f"job {job.name!r} is {record.secondary}; expected one that has ended, to be"
            " removed. Stop it first."
        )
    _wait_for_its_processes(job)
    try:
        make_writable(job.path)
        shutil.rmtree(job.path)
    except OSError as error:
        raise ConfigurationError(
            f"the directory of job {job.name!r} cannot be removed: {error}; expected one that"
            " this user may write."
        ) from None


def _wait_for_its_processes(job: JobDirectory) -> None:
    """When the record has ended they write last lines, and would do so while it is removed."""
    locks = [job.lock, *(each.lock for each in host_directories(job))]
    until = time.monotonic() + _LAST_LINES_S
    while any(each.is_held_elsewhere() for each in locks) and time.monotonic() < until:
        time.sleep(_LOOK_S)


def _start(job: JobDirectory, module: str) -> subprocess.Popen[bytes]:
    """The process of a job, which has the job's lock too."""
    lock = job.lock.descriptor
    with (job.path / "job.log").open("ab") as file, held_back():
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", module),
                *(str(job.path), str(lock)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            pass_fds=(lock,),
            env=_with_absolute_paths(os.environ),
        )


def _with_absolute_paths(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables; paths of modules as they are in this directory: the job works in another."""
    given = environ.get("PYTHONPATH")
    if not given:
        return dict(environ)
    paths = [os.path.abspath(each) for each in given.split(os.pathsep) if each]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}
