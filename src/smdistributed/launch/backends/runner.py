# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The process of a job: `python -m smdistributed.launch.backends.runner FOLDER LOCK`.

    hosts      machines for an attempt, by the engine of the job's backend
    plan       what each host's agent is to do
    agents     one for each host
    watch      until all have ended; has them end together when one fails, or somebody says stop
    again      after a failure of the agents, not of the script: as often as the request says; and
               after an interruption, of a job on spot instances
    end        artifacts and record

Nobody waits for this process: who has started the job may be gone, and reads the job's directory.
LOCK is the descriptor of the job's lock, which who has made the job took: somebody has it always.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from smdistributed._common.errors import SmdistributedError
from smdistributed.launch.agent.ending import end_job, has_model, host_directories, now
from smdistributed.launch.agent.plan import End, Plan
from smdistributed.launch.agent.strays import end_strays
from smdistributed.launch.backends.attempt import Attempt
from smdistributed.launch.backends.engines import hosts_for
from smdistributed.launch.backends.fate import Fate
from smdistributed.launch.backends.hosts import Hosts, Machine, UnreachableError
from smdistributed.launch.backends.limits import OUR_FAILURE, Limits, num_retries
from smdistributed.launch.backends.plans import (
    environment_of,
    hosts_of,
    plans_of,
    prepare_stores,
)
from smdistributed.launch.backends.signals import note_from_now_on
from smdistributed.launch.data.stores.store import StoreError
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.files import write_whole
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary
from smdistributed.launch.orphans import adopt_orphans

__all__ = ["JobRunner", "main"]

_POLL_S = 0.05
_STOP_GRACE_S = 120.0
_SPOT_PAUSE_S = 1.0


class JobRunner:
    """Of one job.

    Args:
        job: its directory.
        make_hosts: makes what brings the hosts of an attempt up.
        ask_fate: tells what becomes of this process, when a signal or a failure asks for it.
    """

    def __init__(
        self,
        job: JobDirectory,
        make_hosts: Callable[[], Hosts],
        ask_fate: Callable[[], Fate] = lambda: Fate.STAYS,
    ) -> None:
        self._job = job
        self._make_hosts = make_hosts
        self._ask_fate = ask_fate
        self._fate = Fate.STAYS
        self._hosts: Hosts | None = None
        self._home = Home(job.path.parent.parent)
        self._stopped: Secondary | None = None
        self._failure = ""
        self._signal = 0
        self._limits: Limits | None = None
        self._num_attempts = 0
        self._num_retries = 0
        self._interruption = ""
        self._created_s = time.monotonic()  # about: this process starts at once
        self._began: float | None = None  # this one, to train
        self._trained_before_s = 0.0

    def run(self) -> None:
        """Does all of it."""
        note_from_now_on(self._note_signal)
        adopt_orphans()  # what the ranks of an agent leave behind that was killed
        self._go_on()
        try:
            if self._stopped is None:
                self._try()
            while self._is_tried_again() or (not self._bring() and self._is_tried_again()):
                self._try()
        finally:
            self._close_hosts()
        if not self._starts_again():
            end_job(self._job, host_directories(self._job), self._failure, self._stopped)
        self._job.lock.release()

    def _go_on(self) -> None:
        """Counts what the job has done before, if another process began it."""
        record = self._job.read()
        age = now() - record.created
        self._created_s -= max(0.0, age.total_seconds())
        if record.secondary is Secondary.STOPPING:
            self._stopped = Secondary.STOPPED
            return
        if record.secondary is Secondary.INTERRUPTED:
            self._job.forget_interruption()
            self._move(Secondary.STARTING)
            record = self._job.read()
        did = [each.secondary for each in record.transitions]
        self._num_attempts = did.count(Secondary.STARTING) - 1
        self._num_retries = num_retries(record)
        if Secondary.TRAINING in did:
            self._trained_before_s = float(record.training_seconds(now()))

    def _try(self) -> None:
        """One attempt, from the plans to the end of its agents."""
        self._close_hosts()
        self._hosts = hosts = self._make_hosts()
        attempt = Attempt(hosts)
        self._num_attempts += 1
        self._interruption = ""
        failure = ""
        try:
            record = self._job.read()
            self._limits = Limits.of(record.request)
            names = hosts_of(record)
            machines = hosts.reach(names, environment_of(record), self._is_over)
            if self._ends_before_it_begins():
                return
            self._move(Secondary.DOWNLOADING)
            plans = self._planned(record, machines)
            if plans is None:
                self._ends_before_it_begins()
                return
            write_whole(self._job.path / "token", secrets.token_hex(32).encode())
            for plan in plans:
                attempt.start(dataclasses.replace(plan, attempt=self._num_attempts))
            self._watch(attempt)
        except UnreachableError as error:
            if (end := self._end_of_time()) is not None:  # nobody waited for them any more
                self._note_stop(*end)
            else:
                failure = f"InternalServerError: {error}"
        except StoreError as error:
            kind = OUR_FAILURE if error.is_passing else "ClientError"
            failure = f"{kind}: {error}"
        except SmdistributedError as error:
            failure = f"ClientError: {error}"
        except Exception as error:
            failure = f"InternalServerError: {type(error).__name__}: {error}"
        finally:
            self._trained_before_s, self._began = self._trained_s(), None
            attempt.close()
            end_strays(hosts.own_processes())
            self._failure = attempt.failure or failure

    def _bring(self) -> bool:
        """What the hosts have at `/opt/ml` is wanted here, as no other attempt follows.

        Returns: whether the job's failure is the same after it.
        """
        if self._hosts is None or self._starts_again():
            return True
        before = self._failure
        try:
            self._hosts.bring(has_model=has_model(self._failure, self._stopped))
        except UnreachableError as error:
            self._failure = self._failure or f"InternalServerError: {error}"
        except SmdistributedError as error:
            self._failure = self._failure or f"ClientError: {error}"
        return self._failure == before

    def _close_hosts(self) -> None:
        if self._hosts is not None:
            self._hosts.close()
            self._hosts = None

    def _is_tried_again(self) -> bool:
        """Whether another attempt follows; the job is Starting then, after a pause.

        What failed was a process of ours, and not the script; or its hosts were taken away.
        """
        self._look_at_fate()
        if self._stopped is not None or self._limits is None or self._starts_again():
            return False
        pause_s, message = _SPOT_PAUSE_S, self._interruption
        if not message:
            if not self._failure.startswith(OUR_FAILURE):
                return False
            if self._num_retries >= self._limits.retries:
                return False
            self._num_retries += 1
            pause_s, message = self._limits.pause_s(self._num_retries), self._failure
        try:
            self._move(Secondary.INTERRUPTED, message)
            until = time.monotonic() + pause_s
            while (end := self._end_of_time()) is None and time.monotonic() < until:
                time.sleep(_POLL_S)
            if self._starts_again():
                return False
            if end is not None:
                self._failure = ""
                self._note_stop(*end)
                return False
            self._job.forget_interruption()
            self._move(Secondary.STARTING)
        except (OSError, SmdistributedError):  # the disk is full, or the directory is gone
            return False
        return True

    def _look_at_fate(self) -> None:
        """A job that lost its agents may have been cancelled, or is to start again elsewhere."""
        if self._stopped is not None or not self._failure.startswith(OUR_FAILURE):
            return
        self._note_fate(self._ask_fate())
        if self._starts_again():
            with contextlib.suppress(OSError):  # who starts it again notes it, too
                self._move(Secondary.INTERRUPTED, self._fate.value)
        elif self._fate is not Fate.STAYS:
            self._failure = ""
            self._note_stop(self._fate.called, self._fate.value)

    def _starts_again(self) -> bool:
        """Whether another process goes on with the job."""
        return self._fate is Fate.TAKEN_AWAY

    def _note_fate(self, fate: Fate) -> None:
        if self._fate is Fate.STAYS:
            self._fate = fate

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    def _move(self, following: Secondary, message: str = "") -> None:
        self._job.write(self._job.read().moved(following, now(), message))
        self._job.note("state", now(), state=str(following))

    def _watch(self, attempt: Attempt) -> None:
        """Until all agents have ended; has them end together when one fails, or time is over."""
        assert self._limits is not None
        while True:
            attempt.look()
            if self._began is None and attempt.is_training:
                with contextlib.suppress(OSError):  # a full disk: again, when there is room
                    if not attempt.is_ending:
                        self._move(Secondary.TRAINING)
                    self._began = time.monotonic()
            end = self._end_of_time()
            is_told = self._stopped is not None or bool(self._interruption)
            if not is_told and (end is None or attempt.is_ending or attempt.is_over):
                attempt.judge()
            if attempt.is_over:
                return
            if not attempt.is_ending:
                if self._starts_again():
                    self._interruption = self._fate.value
                    self._move(Secondary.INTERRUPTED, self._interruption)
                    attempt.end(End(self._interruption, _STOP_GRACE_S))
                elif end is not None:
                    self._note_stop(*end)
                    attempt.end(End(end[1], _STOP_GRACE_S))
                elif self._limits.is_spot and (reason := self._job.interruption()) is not None:
                    self._interruption = reason or "interrupted"
                    self._job.note("interrupted", now(), reason=reason)
                    attempt.end(End(reason, _STOP_GRACE_S))
            time.sleep(_POLL_S)

    def _end_of_time(self) -> tuple[Secondary, str] | None:
        """What the job is called from now on, and why, if it is to stop."""
        assert self._limits is not None
        if self._signal and self._fate is Fate.STAYS:
            fate = self._ask_fate()
            self._note_fate(Fate.STOPPED if fate is Fate.STAYS else fate)
        if self._starts_again():
            return None
        if self._signal:
            return self._fate.called, f"signal {signal.Signals(self._signal).name}"
        if (reason := self._job.stop_reason()) is not None:
            return Secondary.STOPPED, reason
        if self._trained_s() > self._limits.max_run_s:
            why = f"it has run for {self._limits.max_run_s:g} s, max_run"
            return Secondary.MAX_RUNTIME_EXCEEDED, why
        most = self._limits.max_wait_s
        if most is not None and time.monotonic() - self._created_s > most:
            return Secondary.MAX_WAIT_TIME_EXCEEDED, f"it was there for {most:g} s, max_wait"
        return None

    def _ends_before_it_begins(self) -> bool:
        """Whether no agent need be started any more; the job is called so then."""
        if (end := self._end_of_time()) is not None:
            self._note_stop(*end)
            return True
        if self._starts_again():
            self._move(Secondary.INTERRUPTED, self._fate.value)
            return True
        return False

    def _planned(self, record: JobRecord, machines: Sequence[Machine]) -> list[Plan] | None:
        """The plans; None if nobody wants them any more: a stop waits for no store."""
        planned: concurrent.futures.Future[list[Plan]] = concurrent.futures.Future()

        def plan() -> None:
            try:
                prepare_stores(record, self._home, self._job.path)
                planned.set_result(plans_of(record, self._home, machines))
            except BaseException as error:
                planned.set_exception(error)

        threading.Thread(target=plan, name="plans", daemon=True).start()
        while not concurrent.futures.wait([planned], _POLL_S).done:
            if self._is_over():
                return None
        return planned.result()

    def _is_over(self) -> bool:
        return self._end_of_time() is not None or self._starts_again()

    def _trained_s(self) -> float:
        """Seconds of training, in all attempts."""
        now_s = time.monotonic()
        return self._trained_before_s + (0.0 if self._began is None else now_s - self._began)

    def _note_stop(self, called: Secondary, reason: str) -> None:
        self._stopped = called
        self._move(Secondary.STOPPING)
        self._job.note("stopping", now(), reason=reason)


def main() -> int:
    """Runs the job of the directory that is the argument."""
    job = JobDirectory(Path(sys.argv[1]))
    job.lock.adopt(int(sys.argv[2]))
    JobRunner(job, hosts_for(job)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
