# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Follows a job in a cluster: `python -m ...backends.in_cluster.follower FOLDER LOCK`.

The job's own process runs there (`driver`), and tells by its log; this one keeps what it tells in
the job's directory, which is the truth for all who look. It hands on that the job is to stop. If it
is killed the job goes on, and another follower reads all of it again.

A process that is lost there costs an attempt, as a host does: another one goes on with what is here
(`submission`), if there are retries left.

LOCK is as of `runner`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
import time
from pathlib import Path

from smdistributed._common.errors import ConfigurationError, SmdistributedError
from smdistributed.launch.agent.ending import end_job, host_directories, last_metrics, now
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.engines import cluster_of
from smdistributed.launch.backends.in_cluster.cluster import Cluster, patience_s
from smdistributed.launch.backends.in_cluster.package import JOB_FILES, stores_of
from smdistributed.launch.backends.in_cluster.submission import Submission, end_lines, note_loss
from smdistributed.launch.backends.limits import OUR_FAILURE, Limits, num_retries
from smdistributed.launch.backends.signals import note_from_now_on
from smdistributed.launch.courier.files import Arriving, below
from smdistributed.launch.courier.lines import message_of
from smdistributed.launch.courier.messages import Dropped, Grown, Kept, Message, ProtocolError
from smdistributed.launch.data.stores.store import StoreError
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.files import copy_whole
from smdistributed.launch.jobs.record import MOST_REASON, JobRecord
from smdistributed.launch.jobs.states import Secondary

__all__ = ["Follower", "main"]

_GROWING = re.compile(
    r"events\.jsonl|hosts/algo-\d+/(agent\.log|log|metrics\.jsonl|system_metrics\.jsonl)"
    r"|tensorboard/algo-\d+/[^/]+"
)
_WHOLE = re.compile(rf"(hosts/algo-\d+/)?({'|'.join(map(re.escape, JOB_FILES))})")

# A cluster that was not told of a stop is told again so long after it.
_AGAIN_S = 2.0
_LOOK_S = 0.05


class Follower:
    """Of one job.

    Args:
        job: its directory.
        cluster: where it runs.
    """

    def __init__(self, job: JobDirectory, cluster: Cluster) -> None:
        self._job = job
        self._cluster = cluster
        self._record = job.read()
        self._home = Home(job.path.parent.parent)
        self._stores = stores_of(self._record.request, job.name, self._home)
        self._arriving = {
            store: Arriving(f"{job.name}-{store}") for store in (*self._stores, "job")
        }
        self._submission = Submission.of(job.path)
        self._why_lost = ""
        self._problem = ""
        self._rest = ""
        self._num_taken = 0
        self._damage = ""
        self._is_stopping = False
        self._hand_on_at = 0.0
        self._has_ended = False

    def run(self) -> None:
        """Follows it to its end."""
        # A stop of this process is none of the job: it goes on, and so may this.
        note_from_now_on(lambda number, frame: None)
        failure = ""
        try:
            while self._begin():
                self._follow()
                if self._has_ended or not self._is_tried_again():
                    break
        except ConfigurationError as error:
            is_passing = isinstance(error, StoreError) and error.is_passing
            failure = f"{'InternalServerError' if is_passing else 'ClientError'}: {error}"
        except SmdistributedError as error:
            failure = str(error)
        except Exception as error:
            failure = f"InternalServerError: {type(error).__name__}: {error}"
        for each in self._arriving.values():
            each.drop()
        if not self._job.read().status.is_terminal:
            self._end(failure)
        self._cluster.close()
        self._job.lock.release()

    def _begin(self) -> bool:
        """Has the process start there, after one that was lost.

        Returns: whether it does; else the job is to stop.

        Raises:
            SmdistributedError: it cannot be.
        """
        lost = self._submission.lost
        try:
            if lost and not self._take_leave(lost):
                return False
            return self._start()
        except SmdistributedError as error:
            last = self._job.read().transitions[-1]
            is_next = self._submission.number > 1 and last.secondary is Secondary.INTERRUPTED
            why = lost or (last.message if is_next else "")
            if not why:
                raise
            raise BackendError(f"{why} It could not be tried again: {error}") from None

    def _take_leave(self, lost: str) -> bool:
        """Of a process that is lost; a follower that is killed meanwhile leaves it to the next."""
        self._cluster.clear()
        note_loss(self._job, lost)
        record = self._job.read()
        until = time.monotonic() + Limits.pause_s(num_retries(record))
        while self._job.stop_reason() is None and time.monotonic() < until:
            time.sleep(_LOOK_S)
        if self._job.stop_reason() is not None:
            return False
        for each in self._arriving.values():
            each.drop()
        self._rest = self._damage = self._why_lost = ""
        self._num_taken = 0
        told = [
            path
            for path in self._job.path.rglob("*")
            if _GROWING.fullmatch(str(path.relative_to(self._job.path)))
        ]
        bases = end_lines(self._job.path, told)
        self._submission = Submission(self._submission.number + 1, bases=bases)
        self._submission.write(self._job.path)
        return True

    def _start(self) -> bool:
        """Has it run there. What it needs of this machine comes there first."""
        began = time.monotonic()
        while True:
            try:
                self._cluster.start()
                return True
            except ConfigurationError:
                record = self._job.read()
                if record.secondary is Secondary.STARTING:
                    self._job.write(record.moved(Secondary.DOWNLOADING, now()))
                raise
            except BackendError:
                # What has taken the process away may have taken more.
                is_late = time.monotonic() - began > patience_s(self._job)
                if self._submission.number == 1 or is_late:
                    raise
            if self._job.stop_reason() is not None:
                with contextlib.suppress(BackendError):
                    self._cluster.stop()  # what there may be of it
                return False
            time.sleep(_AGAIN_S)

    def _follow(self) -> None:
        for text in self._cluster.text():
            self._take_text(text)
            if self._has_ended or self._why_lost:  # all else was told before
                return
            self._hand_on()

    def _is_tried_again(self) -> bool:
        """Whether another process goes on with the job, as this one is lost."""
        why = self._why_lost or self._cluster.why_lost(has_stopped=False)
        if not why or not self._has_retries():
            return False
        lost = f"{OUR_FAILURE}: the job's process was taken away: {why}"[:MOST_REASON]
        self._submission = dataclasses.replace(self._submission, lost=lost)
        self._submission.write(self._job.path)
        return True

    def _has_retries(self) -> bool:
        record = self._job.read()
        is_wanted = self._job.stop_reason() is None
        return is_wanted and num_retries(record) < Limits.of(record.request).retries

    def _end(self, failure: str) -> None:
        """The process there has ended, and not the job; or this one cannot follow it any more."""
        if failure:
            with contextlib.suppress(BackendError):  # the failure says where it may go on
                self._cluster.stop()  # nobody would hear of it
        hosts = host_directories(self._job)
        if self._job.stop_reason() is not None and (not failure or self._is_stopping):
            end_job(self._job, hosts, "", Secondary.STOPPED)
            return
        failure = failure or f"the job's process is gone: {self._cluster.how_it_ended()}"
        kind = "" if failure.startswith(("ClientError", "Internal")) else "InternalServerError: "
        end_job(self._job, hosts, kind + failure)

    def _hand_on(self) -> None:
        """What somebody asks of the job here; again, if the cluster could not be told."""
        if time.monotonic() < self._hand_on_at:
            return
        try:
            if not self._is_stopping and self._job.stop_reason() is not None:
                self._cluster.stop()
                self._is_stopping = True
            reason = self._job.interruption()
            if reason is not None:
                self._cluster.interrupt(reason)
                self._job.forget_interruption()
        except BackendError as error:
            self._hand_on_at = time.monotonic() + _AGAIN_S
            print(f"the cluster could not be told: {error}", flush=True)

    # --- what is told ----------------------------------------------------------------------------

    def _take_text(self, text: str | None) -> None:
        if text is None:
            self._rest = ""
            return
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            try:
                found = message_of(line)
            except ProtocolError as error:  # it comes again, or its number is missed
                self._damage = str(error)
                continue
            if found is not None:
                self._take_line(*found)
            elif line.strip():
                print(line, flush=True)  # into this process's own log

    def _take_line(self, number: int, message: Message) -> None:
        if number <= self._num_taken:
            return  # the log is read again
        if number > self._num_taken + 1:
            raise ProtocolError(
                f"of what the job's process has told, lines {self._num_taken + 1} to {number - 1}"
                f" are missing: {self._damage or 'its log was rotated before they were read.'}"
            )
        self._take(message)
        self._num_taken, self._damage = number, ""

    def _take(self, message: Message) -> None:
        if isinstance(message, Grown):
            self._take_growth(message)
        elif isinstance(message, Kept) and message.store == "job":
            self._take_file(message)
        elif isinstance(message, Dropped) and message.store == "job":
            pass  # an attempt begins: what the last one has told stays until there is more
        elif isinstance(message, Kept | Dropped):
            self._keep(message)
        else:
            raise ProtocolError(f"{type(message).__name__} is not for a follower.")

    def _take_growth(self, message: Grown) -> None:
        if not _GROWING.fullmatch(message.path):
            raise ProtocolError(f"{message.path!r:.100} is no file that grows.")
        path = below(self._job.path, message.path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab") as file:
            known = file.tell() - message.offset - self._submission.bases.get(message.path, 0)
            if known < 0:
                raise ProtocolError(f"{message.path} has {-known:,} bytes that were not told.")
            file.write(message.body[known:])  # of an earlier follower there may be some already

    def _take_file(self, message: Kept) -> None:
        if not _WHOLE.fullmatch(message.path):
            raise ProtocolError(f"{message.path!r:.100} is no file that is told.")
        is_record = message.path == "job.json"
        path = below(self._job.path, "told.json" if is_record else message.path)
        is_whole = self._arriving["job"].add(
            path,
            message.offset,
            message.body,
            is_last=message.is_last,
            modified_ns=message.modified_ns,
        )
        if is_whole and is_record:
            self._take_record(JobRecord.of_json(json.loads(path.read_bytes())))
            path.unlink()

    def _take_record(self, told: JobRecord) -> None:
        """What became of the job; its request is as it was here."""
        before = self._job.read()
        self._has_ended = before.status.is_terminal
        if before.status.is_terminal or len(told.transitions) < len(before.transitions):
            return  # an earlier follower has read on
        away = ""
        if told.secondary is Secondary.STOPPED and self._job.stop_reason() is None:
            # It heard a signal, and could not know whose it was.
            away = self._cluster.why_lost(has_stopped=True)
            if away and self._has_retries():
                self._why_lost = away
                return
        if told.status.is_terminal:
            self._copy_model(told)
        base, here = told.request["OutputDataConfig"], before.request["OutputDataConfig"]
        model = told.model_artifacts.replace(base["S3OutputPath"], here["S3OutputPath"], 1)
        reason = told.failure_reason
        transitions = told.transitions
        if told.status.is_terminal and self._problem:
            reason = f"{reason}\n({self._problem})" if reason else f"ClientError: {self._problem}"
            transitions = (
                *transitions[:-1],
                dataclasses.replace(transitions[-1], secondary=Secondary.FAILED),
            )
            model = ""
        if away:
            reason = f"{OUR_FAILURE}: the job's process was taken away: {away}"
            last = dataclasses.replace(transitions[-1], secondary=Secondary.FAILED)
            transitions, model = (*transitions[:-1], last), ""
        metrics = told.metrics
        if told.status.is_terminal and self._submission.number > 1:  # it knows of its own alone
            metrics = tuple(last_metrics(host_directories(self._job)))
        record = dataclasses.replace(
            before,
            transitions=transitions,
            failure_reason=reason,
            model_artifacts=model,
            metrics=metrics,
            size=told.size,
        )
        if told.status.is_terminal:
            self._job.give_room()
        self._job.write(record)
        self._has_ended = told.status.is_terminal

    def _copy_model(self, told: JobRecord) -> None:
        """There too, where the SDK's local mode puts it (`agent.ending`)."""
        output = self._stores["output"]
        uri = self._record.request["OutputDataConfig"]["S3OutputPath"]
        if uri.startswith("file://") and told.model_artifacts.endswith("/model.tar.gz"):
            with contextlib.suppress(OSError):
                copy_whole(output / "model.tar.gz", output.parent.parent / "model.tar.gz")

    def _keep(self, message: Kept | Dropped) -> None:
        root = self._stores.get(message.store)
        if root is None:
            raise ProtocolError(f"{message.store!r} is no store of this job.")
        path = below(root, message.path)
        try:
            if isinstance(message, Kept):
                self._arriving[message.store].add(
                    path,
                    message.offset,
                    message.body,
                    is_last=message.is_last,
                    modified_ns=message.modified_ns,
                    mode=message.mode,
                )
            else:
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    while path.parent != root:
                        path = path.parent
                        path.rmdir()
        except OSError as error:
            self._problem = (
                f"{path} could not be written: {error}; expected room on that disk, and a folder"
                " that this user may write."
            )


def main() -> int:
    """Follows the job of the directory that is the argument."""
    job = JobDirectory(Path(sys.argv[1]))
    job.lock.adopt(int(sys.argv[2]))
    Follower(job, cluster_of(job)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
