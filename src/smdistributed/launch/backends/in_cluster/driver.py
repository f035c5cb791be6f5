# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A job's process that runs in a cluster: it does what it does elsewhere, and tells by its log.

What it writes to the job's directory, and what is to be kept, goes as lines to standard output. On
the machine that has started the job a follower reads them (`follower`). Nothing depends on it: the
job goes on without, and another one can read all of it again.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from smdistributed._common.version import __version__
from smdistributed.launch.agent.ending import end_job, host_directories
from smdistributed.launch.backends.hosts import Hosts
from smdistributed.launch.backends.in_cluster.package import JOB_FILES, stores_of
from smdistributed.launch.backends.runner import JobRunner
from smdistributed.launch.courier.lines import MOST_OF_LINE, line_of
from smdistributed.launch.courier.messages import Message
from smdistributed.launch.courier.telling import Growth, Tree
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory, job_names

__all__ = ["LogLines", "drive"]

_TELL_S = 0.3
_AGAIN_S = 0.3
_GIVE_UP_S = 60.0


def drive(package: Path, hosts_of: Callable[[JobDirectory], Callable[[], Hosts]]) -> None:
    """Runs the job of a package to its end.

    Args:
        package: as `package` has made it.
        hosts_of: what brings the hosts of its attempts up.
    """
    with tempfile.TemporaryDirectory(prefix="smd-", ignore_cleanup_errors=True) as folder:
        home = Home(Path(folder, "home"))
        with tarfile.open(package / "home.tar") as tar:
            tar.extractall(folder, filter="fully_trusted")  # who has started the job made it
        for path in (home.root, home.jobs, home.buckets):
            path.chmod(0o700)
        (name,) = job_names(home)
        job = JobDirectory(home.jobs / name)
        job.keep_room()
        job.lock.acquire()
        telling = _Telling(job)
        version = (package / "version").read_text()
        if version != __version__:
            end_job(
                job,
                [],
                f"ClientError: the cluster has version {__version__} of smdistributed-open, and"
                f" who has started the job {version}; expected the same on both.",
            )
            telling.tell()
            return
        runner = JobRunner(job, hosts_of(job))
        telling.begin()
        try:
            runner.run()
        finally:
            telling.end()


class _Telling:
    """Of what is new in a job's directory, and in what is to be kept."""

    def __init__(self, job: JobDirectory) -> None:
        self._path = job.path
        record = job.read()
        home = Home(job.path.parent.parent)
        self._growth = Growth(job.path, MOST_OF_LINE)
        self._files = Tree("job", job.path, MOST_OF_LINE, is_known=False, names=JOB_FILES)
        self._trees = [
            Tree(store, folder, MOST_OF_LINE)
            for store, folder in stores_of(record.request, record.name, home).items()
        ]
        self._job = job
        self._num_told = 0
        self._is_over = threading.Event()
        self._log = LogLines(sys.stdout.fileno(), self._is_over)
        self._thread = threading.Thread(target=self._run, name="telling", daemon=True)

    def begin(self) -> None:
        """Tells from now on, on a thread of its own."""
        self._thread.start()

    def end(self) -> None:
        """Tells the rest."""
        self._is_over.set()
        self._thread.join()
        self.tell()

    def _run(self) -> None:
        while not self._is_over.wait(_TELL_S):
            with contextlib.suppress(OSError):  # what cannot be read now is told the next time
                self.tell()

    def tell(self) -> None:
        """Tells what is new."""
        # The record is read first and told last: whoever sees the job's end has all the rest.
        files = sorted(self._files.changes(), key=_is_of_record)
        for message in self._news():
            self._print(message)
        for message in files:
            self._print(message)

    def _news(self) -> Iterator[Message]:
        yield from self._growth.news(self._path / "events.jsonl")
        for host in host_directories(self._job):
            for path in (host.path / "agent.log", host.log, host.metrics, host.system_metrics):
                yield from self._growth.news(path)
            with contextlib.suppress(OSError):
                for path in sorted((self._path / "tensorboard" / host.name).iterdir()):
                    yield from self._growth.news(path)
        for tree in self._trees:
            yield from tree.changes()

    def _print(self, message: Message) -> None:
        self._num_told += 1
        self._log.write(line_of(message, self._num_told))


class LogLines:
    """Lines to a log to which others write, too. Each is written at once.

    Args:
        descriptor: of the log.
        is_over: the job has ended: who cannot write gives up, some time later.
    """

    def __init__(self, descriptor: int, is_over: threading.Event) -> None:
        self._descriptor = descriptor
        self._is_over = is_over
        self._give_up_at = float("inf")
        self._is_closed = False

    def write(self, line: str) -> None:
        """Writes a line. Waits while the disk is full, as a line that is lost ends the job.

        Raises:
            OSError: the job has ended, and for a minute nothing could be written.
        """
        # What somebody has written before need not end with a line feed.
        content = f"\n{line}\n".encode()
        while not self._is_closed:
            try:
                if os.write(self._descriptor, content) == len(content):
                    return
            except BrokenPipeError:  # nobody reads: the job goes on
                self._is_closed = True
            except OSError:
                if self._is_late():
                    raise
            # All of it comes again: a part of a line counts for nothing.
            time.sleep(_AGAIN_S)

    def _is_late(self) -> bool:
        if self._is_over.is_set() and self._give_up_at == float("inf"):
            self._give_up_at = time.monotonic() + _GIVE_UP_S
        return time.monotonic() > self._give_up_at


def _is_of_record(message: Message) -> bool:
    return getattr(message, "path", "") == "job.json"
