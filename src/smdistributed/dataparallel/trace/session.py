# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Starts and ends the recording of this process: at most one at a time, of Python and engine.

Two ways in: `start` and `stop`, which are `start_profiler` and `stop_profiler`; and the variable
`SMDDP_TRACE`, which records from the registration of the backend to the end of the process.
"""

from __future__ import annotations

import atexit
import dataclasses
import multiprocessing.util
import os
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from smdistributed._common.discovery import discover
from smdistributed._common.errors import ConfigurationError
from smdistributed._common.log import get_logger
from smdistributed._common.settings import Settings
from smdistributed._common.trace_path import rank_path
from smdistributed._common.version import __version__
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPError
from smdistributed.dataparallel.trace.chrome import document_events
from smdistributed.dataparallel.trace.files import write_rank_trace
from smdistributed.dataparallel.trace.model import REDUCTIONS, Operation, RankInfo
from smdistributed.dataparallel.trace.recorder import CAPACITY, recorder
from smdistributed.dataparallel.trace.termination import TerminationWatch

__all__ = ["Session", "clock_name", "session"]

_BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE_PATH: Final = Path("/proc/self/ns/time")


@dataclasses.dataclass(frozen=True)
class _Recording:
    path: Path
    append_rank: bool
    from_environment: bool
    started_ns: int


class Session:
    """The recording of this process, and what is known about its job.

    Thread rule: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recording: _Recording | None = None
        self._membership: tuple[int, int] | None = None
        self._job = ""
        self._groups: dict[str, list[int]] = {}
        self._ends_with_process = False
        self._termination = TerminationWatch(self._stop_or_log)

    def start(
        self, path: str | os.PathLike[str], append_rank: bool = True, *, at_exit: bool = False
    ) -> None:
        """Record from now on, for a file at `path`.

        Args:
            path: of the file; its folder is created.
            append_rank: put the rank before the suffix of the path.
            at_exit: this is the recording of `SMDDP_TRACE`: it ends with the process at the latest,
                and gives way to one that the script starts.

        Raises:
            SMDDPError: a recording runs already.
            SMDDPConfigInvalid: the path cannot be that of a file, or the environment does not say
                which rank this is.
        """
        path = Path(os.fspath(path))
        with self._lock:
            if self._recording is not None:
                if not self._recording.from_environment:
                    raise SMDDPError(
                        f"a profiler is running and will write to {self._recording.path}; expected "
                        "none when start_profiler() is called. Call stop_profiler() first."
                    )
                get_logger().warning(
                    "start_profiler(%r) ends the trace of SMDDP_TRACE=%s early, as there can be"
                    " one at a time; unset the variable, or do not call start_profiler()",
                    str(path),
                    self._recording.path,
                )
                self._finish()
            self._where_am_i()
            _make_folder(path)
            # Imported now: `import smdistributed.dataparallel` must work without the engine.
            from smdistributed.collectives import _native

            self._recording = _Recording(path, append_rank, at_exit, time.monotonic_ns())
            recorder.start()
            _native.start_trace(CAPACITY)
            if at_exit:
                self._end_with_process()

    def start_from_environment(self) -> None:
        """Start what `SMDDP_TRACE` asks for, unless a recording runs already.

        Raises: as `start`.
        """
        if self._recording is not None or "SMDDP_TRACE" not in os.environ:
            return
        try:
            # Not those of the process: it reads its settings once, and may set others before that.
            path = Settings.from_environ().trace
        except ConfigurationError as error:
            raise SMDDPConfigInvalid(str(error)) from None
        if path is not None:
            self.start(path, at_exit=True)

    def stop(self) -> Path | None:
        """Write what was recorded. Returns the file, or None if no recording runs.

        Raises:
            SMDDPError: the file cannot be written; the recording has ended all the same.
        """
        with self._lock:
            return self._finish()

    def note_job(self, rank: int, world_size: int, job: str = "") -> None:
        """Say where this process stands, once that is certain; discovery's answer serves before.

        Args:
            rank, world_size: in the job.
            job: equal on all ranks of one job and on no other; empty if unknown.
        """
        self._membership = (rank, world_size)
        self._job = job

    def note_group(self, name: str, ranks: Sequence[int]) -> None:
        """Say which ranks of the job a group of the engine has, by rank in the group."""
        self._groups[name] = list(ranks)

    def _finish(self) -> Path | None:
        recording, self._recording = self._recording, None
        if recording is None:
            return None
        from smdistributed.collectives import _native

        spans, dropped_spans = recorder.stop()
        records, dropped_operations = _native.stop_trace()
        operations = [_complete(Operation(*record)) for record in records]
        stopped_ns = time.monotonic_ns()
        moments = [op.queued_ns for op in operations] + [event.started_ns for event in spans]
        rank, world_size = self._where_am_i()
        info = RankInfo(
            rank=rank,
            world_size=world_size,
            job=self._job,
            host=socket.gethostname(),
            pid=os.getpid(),
            clock=clock_name(),
            origin_ns=min(moments, default=recording.started_ns),
            wall_offset_ns=time.time_ns() - time.monotonic_ns(),
            started_ns=recording.started_ns,
            stopped_ns=stopped_ns,
            dropped_operations=dropped_operations,
            dropped_spans=dropped_spans,
            groups=dict(self._groups),
            version=__version__,
        )
        path = rank_path(recording.path, rank) if recording.append_rank else recording.path
        try:
            write_rank_trace(path, info, document_events(info, spans, operations))
        except OSError as error:
            raise SMDDPError(
                f"the trace could not be written to {path} ({error.strerror}); expected a folder "
                "with room for it that may be written to. Nothing was left behind: make room, or "
                "give another path, and record again."
            ) from error
        return path

    def _where_am_i(self) -> tuple[int, int]:
        if self._membership is not None:
            return self._membership
        try:
            membership = discover()
        except ConfigurationError as error:
            raise SMDDPConfigInvalid(str(error)) from None
        return membership.rank, membership.world_size

    def _end_with_process(self) -> None:
        """Arrange that the trace is written however the script ends, short of being killed."""
        if self._ends_with_process:
            return
        self._ends_with_process = True
        # Children of multiprocessing leave without running atexit's functions (until Python 3.13),
        # but run these; `torch.multiprocessing.spawn` starts such ranks.
        multiprocessing.util.Finalize(None, self._finish_at_exit, exitpriority=0)
        atexit.register(self._finish_at_exit, os.getpid())
        # A launcher sends SIGTERM to the other ranks when one has failed: then most of all is the
        # trace wanted.
        self._termination.start()

    def _finish_at_exit(self, pid: int | None = None) -> None:
        if pid is not None and pid != os.getpid():
            return  # a forked child that leaves through sys.exit()
        self._stop_or_log()
        self._termination.stop()

    def _stop_or_log(self) -> None:
        try:
            self.stop()
        except SMDDPError as error:
            get_logger().error("%s", error)

    def _forget_after_fork(self) -> None:
        self._lock = threading.Lock()
        self._recording = None
        self._ends_with_process = False


def _complete(operation: Operation) -> Operation:
    """Give an operation that failed before it began the times it lacks; drop what means nothing."""
    started_ns = operation.started_ns or operation.finished_ns
    return operation._replace(
        reduce_op=operation.reduce_op if operation.kind in REDUCTIONS else "",
        queued_ns=min(operation.queued_ns or started_ns, started_ns),
        started_ns=started_ns,
    )


def _make_folder(path: Path) -> None:
    cause = "it is a folder" if path.is_dir() else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass  # told now, not when the job has run
    except OSError as error:
        cause = error.strerror or str(error)
    if cause:
        raise SMDDPConfigInvalid(
            f"a trace cannot be written to {str(path)!r} ({cause}); expected the path of a file "
            "in a folder of your own, such as runs/trace.json. Give another path."
        )


def clock_name(
    boot_id_path: Path = _BOOT_ID_PATH, time_namespace_path: Path = _TIME_NAMESPACE_PATH
) -> str:
    """Returns a text that two processes share exactly if their CLOCK_MONOTONIC is the same.

    It counts from the start of the host; a time namespace adds an offset of its own.
    """
    try:
        boot_id = boot_id_path.read_text(encoding="ascii").strip()
    except OSError:
        boot_id = socket.gethostname()
    try:
        namespace = os.readlink(time_namespace_path)
    except OSError:
        namespace = "time:"
    return f"{boot_id} {namespace}"


session: Final = Session()
os.register_at_fork(after_in_child=session._forget_after_fork)
