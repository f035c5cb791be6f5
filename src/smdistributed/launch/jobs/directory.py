# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A job's directory: the truth about it, whatever a scheduler says or forgets.

    job.json       the record; whole or not there
    events.jsonl   what happened, a line each
    lock           held by the job's process while it lives
    stop           somebody wants the job to stop; what is in it says who and why
    interrupt      somebody wants its attempt to end, as if its hosts were taken away
    reserve        room for the last record, if the disk is full by then

Only the job's process changes the record, once it has the lock. Others read, and ask by `stop`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import difflib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.files import (
    Lock,
    append_line,
    one_at_a_time,
    write_or_make,
    write_whole,
)
from smdistributed.launch.jobs.names import check_name
from smdistributed.launch.jobs.record import JobRecord

__all__ = ["JobDirectory", "create_job", "find_job", "job_names", "require_own", "running_jobs"]

_RESERVED = 64 << 10


class JobDirectory:
    """Of one job.

    Args:
        path: the directory.

    Attributes:
        path: as given.
        lock: of the job's process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = Lock(path / "lock")
        self._record = path / "job.json"
        self._events = path / "events.jsonl"
        self._stop = path / "stop"
        self._interrupt = path / "interrupt"
        self._reserve = path / "reserve"

    @property
    def name(self) -> str:
        """Of the job."""
        return self.path.name

    def host(self, name: str) -> Path:
        """The folder of a host, such as `algo-1`."""
        return self.path / "hosts" / name

    # --- the record ------------------------------------------------------------------------------

    def read(self) -> JobRecord:
        """The record as it is now.

        Raises:
            ConfigurationError: it cannot be read; says why, and what to do.
        """
        try:
            return JobRecord.of_json(json.loads(self._record.read_bytes()))
        except FileNotFoundError:
            raise ConfigurationError(
                f"job {self.name!r} has no record: {self._record} is not there; expected what every"
                " job writes first. Its directory was removed, or it is no job's."
            ) from None
        except OSError as error:
            raise ConfigurationError(
                f"the record of job {self.name!r} cannot be read: {error}; expected a file that"
                " this user may read. Other jobs are not affected."
            ) from None
        except ConfigurationError as error:
            raise ConfigurationError(
                f"the record of job {self.name!r} ({self._record}) cannot be used: {error}"
            ) from None
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"the record of job {self.name!r} ({self._record}) is damaged"
                f" ({type(error).__name__}: {error}); expected JSON as this library writes it."
                " Other jobs are not affected; remove the directory if the job is of no more use."
            ) from None

    def write(self, record: JobRecord) -> None:
        """Makes this the record. Of the job's process alone, or of who creates the job.

        Raises:
            OSError: it cannot be written; the former one is unchanged.
        """
        content = json.dumps(record.to_json(), indent=1, ensure_ascii=False)
        write_whole(self._record, content.encode("utf-8", "surrogatepass"))

    def keep_room(self) -> None:
        """Keeps some room on the disk, for the end of the record."""
        with contextlib.suppress(OSError):
            self._reserve.write_bytes(bytes(_RESERVED))

    def give_room(self) -> None:
        """Gives back what was kept: now is the end."""
        with contextlib.suppress(OSError):
            self._reserve.unlink(missing_ok=True)

    def size(self) -> int:
        """Bytes of the files in it. What cannot be read counts nothing."""
        total, folders = 0, [self.path]
        while folders:
            with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        return total

    # --- events ----------------------------------------------------------------------------------

    def note(self, event: str, now: dt.datetime, **details: Any) -> None:
        """Adds a line to the events.

        Args:
            event: its kind, in lower case, such as `rank-ended`.
            now: when.
            details: what else is known; what JSON takes.
        """
        time = now.astimezone(dt.UTC).isoformat(timespec="milliseconds")
        append_line(self._events, json.dumps({"time": time, "event": event, **details}).encode())

    def events(self) -> Iterator[dict[str, Any]]:
        """What happened, in order. A line that was not written to its end is left out."""
        try:
            content = self._events.read_bytes()
        except FileNotFoundError:
            return
        for line in content.split(b"\n"):
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event

    # --- life ------------------------------------------------------------------------------------

    def is_alive(self) -> bool:
        """Whether the job's process lives."""
        return self.lock.is_held_elsewhere()

    def ask_to_stop(self, reason: str) -> None:
        """Has the job's process stop the job. Once is as good as twice.

        Raises:
            ConfigurationError: this user may not.
        """
        try:
            if not self._stop.exists():
                write_or_make(self._stop, reason.encode())
        except OSError as error:
            raise ConfigurationError(
                f"job {self.name!r} cannot be asked to stop: {error}; expected the user who has"
                " started it, and a disk that is not full."
            ) from None

    def stop_reason(self) -> str | None:
        """Why it is to stop; None if nobody has asked."""
        try:
            return self._stop.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def ask_to_interrupt(self, reason: str) -> None:
        """Has the job's process end this attempt, and begin another one.

        Raises:
            ConfigurationError: this user may not.
        """
        try:
            write_or_make(self._interrupt, reason.encode())
        except OSError as error:
            raise ConfigurationError(
                f"job {self.name!r} cannot be interrupted: {error}; expected the user who has"
                " started it, and a disk that is not full."
            ) from None

    def interruption(self) -> str | None:
        """Why its attempt is to end; None if nobody has asked since `forget_interruption`."""
        try:
            return self._interrupt.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def forget_interruption(self) -> None:
        """The attempt that was to end has ended."""
        self._interrupt.unlink(missing_ok=True)


def create_job(
    home: Home, names: Sequence[str], record_of: Callable[[str], JobRecord]
) -> JobDirectory:
    """Makes the directory of a new job, with its record. This process holds its lock.

    It is never there without a record: it is made beside, and gets its name when it is complete.
    Nor without somebody who holds the lock: else who looks at it would take the job for dead.

    Args:
        home: where jobs lie.
        names: to be tried in this order, until one is free.
        record_of: makes the record of a job with a name.

    Raises:
        ConfigurationError: all names are taken, or one is not valid; or the home cannot be written.
    """
    try:
        home.make()
        require_own(home.jobs)
        # What a record names, such as the packed sources, must not be replaced by another job's.
        with one_at_a_time(home.jobs / ".creating"):
            for name in names:
                path = home.jobs / check_name(name)
                if not path.exists():
                    return _made(path, record_of(name))
    except OSError as error:
        raise ConfigurationError(
            f"the directory of a new job cannot be made in {home.jobs}: {error}; expected a"
            " directory of this user, on a disk that is not full. Set SMD_HOME to another one."
        ) from None
    raise ConfigurationError(
        f"there is a job of the name {names[0]!r} in {home.jobs}"
        + (f", and of the {len(names) - 1} names after it" if len(names) > 1 else "")
        + "; expected a new name. Leave job_name out to have one made, or remove the old job."
    )


def _made(path: Path, record: JobRecord) -> JobDirectory:
    beside = path.parent / f".new-{record.name}-{os.getpid()}-{os.urandom(4).hex()}"
    beside.mkdir(mode=0o700)
    job = JobDirectory(path)
    begun = JobDirectory(beside)
    try:
        begun.write(record)
        begun.keep_room()
        begun.lock.acquire()
        os.rename(beside, path)
    except BaseException:
        begun.lock.release()
        shutil.rmtree(beside, ignore_errors=True)
        raise
    job.lock.take_over(begun.lock)
    return job


def require_own(jobs: Path) -> None:
    """Refuses a directory that others may write to, as what is in it is run.

    Raises:
        ConfigurationError: it is another user's, or others may write to it.
    """
    found = jobs.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigurationError(
            f"{jobs} belongs to user {found.st_uid} with mode {found.st_mode & 0o777:o}; expected a"
            " directory of this user that nobody else may write to, as what is in it is run. Set"
            " SMD_HOME to another one."
        )


def find_job(home: Home, name: str) -> JobDirectory:
    """The directory of a job.

    Raises:
        ConfigurationError: there is no such job; names those that are called nearly so.
    """
    check_name(name)
    path = home.jobs / name
    try:
        if path.is_dir():
            return JobDirectory(path)
    except PermissionError as error:
        raise ConfigurationError(
            f"job {name!r} cannot be looked at: {error}; expected a job of this user. Set SMD_HOME"
            " to where this user's jobs are, or ask the user whose job it is."
        ) from None
    near = difflib.get_close_matches(name, job_names(home), n=3)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    raise ConfigurationError(
        f"could not find job {name!r} in {home.jobs}; expected the name of one that was started"
        f" there.{hint}"
    )


def running_jobs(home: Home) -> list[str]:
    """Names of all whose process lives, sorted."""
    return [name for name in job_names(home) if JobDirectory(home.jobs / name).is_alive()]


def job_names(home: Home) -> list[str]:
    """Of all jobs, sorted."""
    try:
        with os.scandir(home.jobs) as entries:
            return sorted(
                entry.name
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            )
    except FileNotFoundError:
        return []
