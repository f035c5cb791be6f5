# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Slurm as a backend: it finds nodes, our process on the first of them does the rest.

The job's directory is the truth, and lies on a file system that all nodes share. Slurm is asked
only if the job's process gives no sign of life: it waits for nodes then, or is gone.

Source: launch specification, section 11.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
import time

from smdistributed._common.error_text import error_text
from smdistributed._common.errors import ConfigurationError
from smdistributed._common.log import get_logger
from smdistributed.launch.agent.ending import end_job, host_directories, now
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.heartbeat import MOST_SILENT_S, Heartbeat
from smdistributed.launch.backends.limits import Limits
from smdistributed.launch.backends.local import remove
from smdistributed.launch.backends.plans import hosts_of
from smdistributed.launch.backends.slurm import commands
from smdistributed.launch.backends.slurm.commands import SlurmJob, State
from smdistributed.launch.backends.slurm.files import SlurmFiles, note_interruption
from smdistributed.launch.backends.slurm.options import SlurmOptions
from smdistributed.launch.backends.slurm.waiting import (
    can_never_run,
    could_not_begin,
    why_it_stands,
)
from smdistributed.launch.contract.failures import failure_text
from smdistributed.launch.data.settings import Settings
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.logs import JobLog
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary

__all__ = ["SlurmBackend"]

_log = get_logger()

# Slurm is asked no more often, for one job.
_ASK_S = 2.0
# A job that has ended for Slurm may have written its end on another node a moment ago.
_SEEN_S = 3.0
# Its process gives signs of life once a second.
_QUIET_S = 4.0
# By the clocks of two machines.
_OLD_S = 30.0
_UNSUBMITTED_S = 60.0
_LAST_LINES_S = 10.0
_KILL_S = 2.0
_LOOK_S = 0.1
_LAST_WORDS = 500


class _Watched:
    """What this process has seen of a job.

    Args:
        job: its directory.
    """

    def __init__(self, job: JobDirectory) -> None:
        self.alive = Heartbeat(SlurmFiles(job).alive)
        self.asked_at = float("-inf")
        self.is_warned = False
        self.loss = ""  # why it was cancelled here
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """Says something once; nothing if it is empty."""
        if text and text not in self._said:
            _log.warning("%s", text)
        self._said.add(text)


class SlurmBackend:
    """Runs jobs on a cluster with Slurm, whose commands are on PATH."""

    name = "slurm"

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def submit(self, job: JobDirectory) -> None:
        """Gives a job to Slurm that was just made: this process has its lock.

        Raises:
            OSError: its files cannot be written; the job has failed then.
            BackendError: Slurm does not answer, or refuses the job; it has failed then, too.
            ConfigurationError: the settings are wrong; likewise.
        """
        record = job.read()
        files = SlurmFiles(job)
        try:
            settings = SlurmOptions.of(Settings.of(Home(job.path.parent.parent)))
            options = settings.of_job(
                job.name, len(hosts_of(record)), Limits.of(record.request), files.log
            )
            files.write_script()
            number = commands.submit(options, str(files.script), [sys.executable, str(job.path)])
            try:
                files.write_number(number)
            except BaseException:
                commands.cancel(number)
                raise
            job.note("submitted", now(), slurm=number)
        except BaseException as error:
            why = f"the job could not be given to Slurm: {error_text(error)}"
            end_job(job, [], f"InternalServerError: {why}")
            raise
        finally:
            job.lock.release()

    def poll(self, job: JobDirectory) -> JobRecord:
        """The job's record, which is ended here if Slurm says that its process is gone."""
        record = job.read()
        if record.status.is_terminal:
            self._watched.pop(str(job.path), None)
            return record
        watched = self._watched.setdefault(str(job.path), _Watched(job))
        silent_s = watched.alive.silent_s()
        files = SlurmFiles(job)
        age_s = _age_s(files)
        if age_s < _OLD_S and silent_s < _QUIET_S:
            return record
        if time.monotonic() - watched.asked_at < _ASK_S:
            return record
        watched.asked_at = time.monotonic()
        number = files.number()
        if number is None:
            return self._poll_unsubmitted(job, record)
        try:
            known = commands.look_at(number)
            watched.is_warned = False
            watched.say(why_it_stands(job, known))
            if known.state is State.PENDING:
                return self._poll_pending(job, record, known)
            if known.state is State.SUSPENDED:
                watched.alive = Heartbeat(files.alive)  # it is silent, and should be
                if job.stop_reason() is not None:
                    commands.cancel(number)
                return record
        except BackendError as error:  # it is no news about the job
            if not watched.is_warned:
                watched.is_warned = True
                _log.warning("job %s: Slurm could not be asked: %s", job.name, error)
            return record
        if known.state is State.RUNNING:
            if silent_s > MOST_SILENT_S:
                return self._end_silent(job, known, watched)
            return record
        return self._end_gone(job, known, watched)

    def _poll_unsubmitted(self, job: JobDirectory, record: JobRecord) -> JobRecord:
        """Who has made it was killed before it was submitted; or is about to."""
        age_s = (dt.datetime.now(dt.UTC) - record.created).total_seconds()
        if job.is_alive() or age_s < _UNSUBMITTED_S:
            return record
        why = "it was never given to Slurm: the process that made it is gone."
        return _end(job, f"InternalServerError: {why}")

    def _poll_pending(self, job: JobDirectory, record: JobRecord, known: SlurmJob) -> JobRecord:
        """It waits for nodes: for the first time, or again."""
        if record.secondary not in (Secondary.STARTING, Secondary.INTERRUPTED):
            record = _interrupted(job, f"Slurm has taken the nodes away ({known.said})")
        if (reason := job.stop_reason()) is not None:
            commands.cancel(known.number)
            return _end(job, "", Secondary.STOPPED, reason)
        limits = Limits.of(record.request)
        age_s = (dt.datetime.now(dt.UTC) - record.created).total_seconds()
        if limits.max_wait_s is not None and age_s > limits.max_wait_s:
            commands.cancel(known.number)
            why = f"it was there for {limits.max_wait_s:g} s, max_wait"
            return _end(job, "", Secondary.MAX_WAIT_TIME_EXCEEDED, why)
        if could_not_begin(known):
            commands.cancel(known.number)
            return _end(job, _not_begun(known))
        if not can_never_run(job, known, len(hosts_of(record))):
            return record
        commands.cancel(known.number)
        return _end(
            job,
            f"ClientError: Slurm can never run this job: {known.reason}. It asks for"
            f" {len(hosts_of(record))} nodes and max_run={limits.max_run_s:g} s, and an hour more,"
            f" of partition {known.partition}. Ask for less, or set another partition, or fewer"
            f" cpus_per_node, under [slurm] in config.toml; check it by hand: sinfo; scontrol show"
            f" partition {known.partition}",
        )

    def _end_silent(self, job: JobDirectory, known: SlurmJob, watched: _Watched) -> JobRecord:
        """Its process gives no sign of life, and Slurm does not know: its node is down."""
        record = job.read()
        if Limits.of(record.request).is_spot and job.stop_reason() is None:
            commands.requeue(known.number)
            return _interrupted(job, f"its node ({known.nodes}) gave no sign of life")
        with contextlib.suppress(BackendError):  # the node does not answer
            # One that was stopped would go on, and say that somebody has cancelled it.
            commands.cancel(known.number, "--signal=KILL", "--batch", most_s=_KILL_S)
        commands.cancel(known.number)
        watched.loss = (
            f"InternalServerError: the job's process on the first of the nodes {known.nodes} gave"
            f" no sign of life for {MOST_SILENT_S:g} s: its node is down, or it was stopped."
            f" {_last_words(SlurmFiles(job))}"
        )
        return _end(job, watched.loss)  # a process that is stopped has the lock until it is killed

    def _end_gone(self, job: JobDirectory, known: SlurmJob, watched: _Watched) -> JobRecord:
        """Slurm says that it is over, and it has not said so itself."""
        until = time.monotonic() + _SEEN_S
        while not (record := job.read()).status.is_terminal and time.monotonic() < until:
            time.sleep(_LOOK_S)
        if record.status.is_terminal:
            return record
        if watched.loss:
            return _end(job, watched.loss)
        what = f"Slurm says of its job {known.number}: {known.said or 'unknown'}"
        if known.reason and known.reason != "None":
            what += f", {known.reason}"
        if known.exit_code and known.exit_code != "0:0":
            what += f", exit code {known.exit_code}"
        is_asked_to_stop = job.stop_reason() is not None
        has_waited = record.secondary in (Secondary.STARTING, Secondary.INTERRUPTED)
        if has_waited and could_not_begin(known) and not is_asked_to_stop:
            return _end(job, _not_begun(known))
        if known.state is State.CANCELLED or (
            known.state is not State.UNKNOWN and is_asked_to_stop
        ):
            return _end(job, "", Secondary.STOPPED, f"it was cancelled; {what}")
        if known.state is State.TIMEOUT:
            return _end(job, "", Secondary.MAX_RUNTIME_EXCEEDED, what)
        if known.state is State.OUT_OF_MEMORY:
            return _end(
                job, failure_text("ExecuteUserScriptError", 137, f"out of memory: {what}", [])
            )
        words = _last_words(SlurmFiles(job))
        return _end(
            job,
            f"InternalServerError: the job's process is gone. {what}. {words} If nothing was said:"
            f" expected {job.path} to be there on each node, since all nodes must share it.",
        )

    def stop(self, job: JobDirectory, reason: str) -> None:
        """Has a job stop; what has ended stays as it is.

        Raises:
            ConfigurationError: this user may not.
            BackendError: the job waits for nodes, perhaps, and Slurm does not answer.
        """
        if self.poll(job).status.is_terminal:
            return
        job.ask_to_stop(reason)
        number = SlurmFiles(job).number()
        if number is not None and not SlurmFiles(job).alive.exists():
            commands.cancel(number, "--state=PENDING")  # one that runs hears of it by itself
            if (watched := self._watched.get(str(job.path))) is not None:
                watched.asked_at = float("-inf")

    def logs(self, job: JobDirectory, host: str | None = None, rank: int | None = None) -> JobLog:
        """What its hosts have logged so far, and will.

        Args:
            host, rank: of these alone; None: of all.
        """
        return JobLog(job.path, host=host, rank=rank)

    def clean(self, job: JobDirectory) -> None:
        """Removes the directory of a job that has ended; Slurm's job too, if it hangs.

        Raises:
            ConfigurationError: it has not ended, or this user may not.
        """
        record = self.poll(job)
        if record.status.is_terminal and (number := SlurmFiles(job).number()) is not None:
            self._wait_until_over(number)
        remove(job, record)

    def _wait_until_over(self, number: str) -> None:
        """When the record has ended the job writes last lines, and its tasks end."""
        until = time.monotonic() + _LAST_LINES_S
        try:
            while not commands.look_at(number).state.is_over:
                if time.monotonic() > until:
                    commands.cancel(number)
                    return
                time.sleep(_LOOK_S)
        except BackendError as error:  # it is over, as far as its directory says
            _log.warning("job %s of Slurm could not be looked at: %s", number, error)


def _age_s(files: SlurmFiles) -> float:
    """How long ago the job's process gave a sign of life; infinity: it never did, or has ended."""
    try:
        return max(0.0, time.time() - files.alive.stat().st_mtime)
    except OSError:
        return float("inf")


def _not_begun(known: SlurmJob) -> str:
    return (
        f"InternalServerError: Slurm could not begin its job {known.number}: {known.said},"
        f" {known.reason}. A prolog of the site has failed on a node, perhaps; check it by hand:"
        " sinfo --list-reasons"
    )


def _interrupted(job: JobDirectory, message: str) -> JobRecord:
    """The record of a job that waits for nodes again, unless another process changes it."""
    if not job.lock.acquire():
        return job.read()
    try:
        return note_interruption(job, message, SlurmFiles(job).seen_at())
    finally:
        job.lock.release()


def _end(
    job: JobDirectory, failure: str, stopped: Secondary | None = None, why: str = ""
) -> JobRecord:
    """Ends the record of a job whose process is gone, unless another process does."""
    if not job.lock.acquire():
        return job.read()
    try:
        record = job.read()
        if record.status.is_terminal:
            return record
        if why:
            job.note("stopping", now(), reason=why)
        return end_job(job, host_directories(job), failure, stopped)
    except OSError as error:
        raise ConfigurationError(
            f"the end of job {job.name!r} cannot be written to {job.path}: {error}; expected room"
            " on that disk. Make some, and ask again."
        ) from None
    finally:
        job.lock.release()


def _last_words(files: SlurmFiles) -> str:
    try:
        text = files.log.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        text = ""
    return f"It said: {' '.join(text[-_LAST_WORDS:].split())}." if text else "It said nothing."
