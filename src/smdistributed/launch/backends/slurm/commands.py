# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Slurm's own commands: `sbatch`, `scontrol`, `scancel`. They work without accounting.

Source: launch specification, section 11.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import subprocess
from collections.abc import Sequence

from smdistributed.launch.backends.backend import BackendError

__all__ = [
    "SlurmJob",
    "State",
    "cancel",
    "look_at",
    "most_cpus",
    "most_nodes",
    "partitions",
    "requeue",
    "submit",
]

_MOST_S = 9.0
_CHECK = "Check it by hand: scontrol ping; sinfo"
_NO_SUCH_JOB = "Invalid job id"
# Options of `sbatch` that have no opposite to be given instead.
_OF_OURS = ("SBATCH_ARRAY_INX", "SBATCH_ERROR", "SBATCH_INPUT", "SBATCH_WAIT")


class State(enum.Enum):
    """What Slurm says of a job. States that mean the same to us are one."""

    PENDING = enum.auto()
    RUNNING = enum.auto()  # or it is about to, or about to be over
    SUSPENDED = enum.auto()  # its processes are stopped, until somebody has them go on
    CANCELLED = enum.auto()
    TIMEOUT = enum.auto()
    OUT_OF_MEMORY = enum.auto()
    NODE_LOST = enum.auto()
    PREEMPTED = enum.auto()
    OVER = enum.auto()  # its script has ended, somehow
    UNKNOWN = enum.auto()  # Slurm has forgotten the job, or never knew it

    @property
    def is_over(self) -> bool:
        """Whether no process of the job is left."""
        return self not in (State.PENDING, State.RUNNING, State.SUSPENDED)


_STATES = {
    "PENDING": State.PENDING,
    "REQUEUED": State.PENDING,
    "REQUEUE_HOLD": State.PENDING,
    "REQUEUE_FED": State.PENDING,
    "SPECIAL_EXIT": State.PENDING,
    "RESV_DEL_HOLD": State.PENDING,
    "CONFIGURING": State.RUNNING,
    "RUNNING": State.RUNNING,
    "COMPLETING": State.RUNNING,
    "SIGNALING": State.RUNNING,
    "STAGE_OUT": State.RUNNING,
    "STOPPED": State.SUSPENDED,
    "SUSPENDED": State.SUSPENDED,
    "RESIZING": State.RUNNING,
    "CANCELLED": State.CANCELLED,
    "REVOKED": State.CANCELLED,
    "TIMEOUT": State.TIMEOUT,
    "DEADLINE": State.TIMEOUT,
    "OUT_OF_MEMORY": State.OUT_OF_MEMORY,
    "NODE_FAIL": State.NODE_LOST,
    "BOOT_FAIL": State.NODE_LOST,
    "PREEMPTED": State.PREEMPTED,
    "COMPLETED": State.OVER,
    "FAILED": State.OVER,
}


@dataclasses.dataclass(frozen=True)
class SlurmJob:
    """A job as Slurm knows it.

    Attributes:
        number: of the job.
        state: what it does.
        said: Slurm's word for that.
        reason: why it waits, or has ended; Slurm's word.
        restarts: how often it was requeued.
        exit_code: of its script, as Slurm writes it: status and signal, such as `1:0`.
        nodes: that it has, in Slurm's form; empty: none.
        partition: where it runs.
        is_preempted: it has to go, for another job.
    """

    number: str
    state: State
    said: str = ""
    reason: str = ""
    restarts: int = 0
    exit_code: str = ""
    nodes: str = ""
    partition: str = ""
    is_preempted: bool = False

    @classmethod
    def of_text(cls, number: str, text: str) -> SlurmJob:
        """Reads what `scontrol --oneliner show job` prints.

        Raises:
            BackendError: it is no such text.
        """
        fields: dict[str, str] = {}
        for name, value in re.findall(r"(?:^|\s)([A-Za-z][\w/:]*)=(\S*)", text):
            fields.setdefault(name, value)  # paths of the user's come last, whatever is in them
        said = fields.get("JobState", "")
        if said not in _STATES:
            raise BackendError(
                f"scontrol says of job {number} that it is {said!r} ({text[:200]!r}); expected a"
                f" state of Slurm's, such as RUNNING. {_CHECK}"
            )
        nodes = fields.get("NodeList", "")
        return cls(
            number,
            _STATES[said],
            said,
            fields.get("Reason", ""),
            int(fields.get("Restarts", "0") or "0"),
            fields.get("ExitCode", ""),
            "" if nodes == "(null)" else nodes,
            fields.get("Partition", ""),
            fields.get("PreemptTime", "None") not in ("", "None"),
        )


def submit(options: Sequence[str], script: str, arguments: Sequence[str]) -> str:
    """Gives a script to Slurm. Returns: the job's number.

    Args:
        options: of `sbatch`.
        script: a file.
        arguments: of the script.

    Raises:
        BackendError: Slurm does not answer, or refuses; has its words.
    """
    said = _run(["sbatch", "--parsable", *options, script, *arguments])
    number = said.strip().split(";")[0]  # the name of a cluster may follow
    if not number.isdecimal():
        raise BackendError(f"sbatch said {said!r}; expected the number of a job. {_CHECK}")
    return number


def look_at(number: str) -> SlurmJob:
    """What Slurm knows of a job.

    Raises:
        BackendError: Slurm does not answer.
    """
    try:
        text = _run(["scontrol", "--oneliner", "show", "job", number])
    except _RefusedError as error:
        if _NO_SUCH_JOB in str(error):
            return SlurmJob(number, State.UNKNOWN)
        raise
    return SlurmJob.of_text(number, text)


def most_nodes(partitions: str) -> int | None:
    """How many nodes a job may have at most; None: Slurm does not say.

    Args:
        partitions: in one of which it is to run, with commas.

    Raises:
        BackendError: Slurm does not answer.
    """
    found = []
    for each in partitions.split(","):
        text = _run(["scontrol", "--oneliner", "show", "partition", each])
        of_partition = re.findall(r"\b(?:MaxNodes|TotalNodes)=(\d+)", text)
        if not of_partition:
            return None
        found.append(min(map(int, of_partition)))
    return max(found)


def most_cpus(partitions: str) -> int | None:
    """Processors of the node that has the most; None: Slurm does not say.

    Args:
        partitions: as of `most_nodes`.

    Raises:
        BackendError: Slurm does not answer.
    """
    text = _run(["sinfo", "--noheader", "--Node", f"--partition={partitions}", "--format=%c"])
    return max((int(each) for each in text.split() if each.isdecimal()), default=None)


def partitions() -> str:
    """The partitions and how many of their nodes are in which state, in Slurm's words.

    Raises:
        BackendError: Slurm does not answer.
    """
    lines = _run(["sinfo", "--noheader", "--format=%P %a: %D nodes %T"]).splitlines()
    return "; ".join(" ".join(each.split()) for each in lines if each.strip()) or "no partition"


def cancel(number: str, *options: str, most_s: float = _MOST_S) -> None:
    """Has Slurm end a job, or a step of it. What has ended stays as it is.

    Args:
        number: of a job, or of a step, such as `17.0`.
        options: of `scancel`.
        most_s: seconds to wait for an answer. A step on a node that is down gives none.

    Raises:
        BackendError: Slurm does not answer, or refuses.
    """
    try:
        _run(["scancel", *options, number], most_s)
    except _RefusedError as error:
        if _NO_SUCH_JOB not in str(error):
            raise


def requeue(number: str) -> None:
    """Has Slurm end a job, and start it again on what nodes there are.

    Raises:
        BackendError: Slurm does not answer, or refuses.
    """
    _run(["scontrol", "requeue", number])


def _is_an_option(name: str) -> bool:
    """Whether commands would take a variable for an option that nobody has given.

    A job of Slurm's has such ones, in which this process may be; and people have, for commands of
    their own. For `sbatch` they may have them, but for what makes a job one of ours.
    """
    if name in _OF_OURS:
        return True
    is_of_one = name.startswith(("SLURM_", "SCANCEL_", "SCONTROL_", "SINFO_", "SRUN_"))
    return is_of_one and name not in ("SLURM_CONF", "SLURM_CLUSTERS")


class _RefusedError(BackendError):
    """The command has failed; has its words."""


def _run(command: Sequence[str], most_s: float = _MOST_S) -> str:
    """What a command prints."""
    environ = {each: text for each, text in os.environ.items() if not _is_an_option(each)}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=most_s,
            check=False,
            env=environ,
        )
    except FileNotFoundError:
        raise BackendError(
            f"{command[0]} was not found on PATH; expected Slurm's commands, as on the login node"
            " of a cluster. Start the job there, or choose another backend."
        ) from None
    except OSError as error:
        raise BackendError(f"{command[0]} could not be started: {error}. {_CHECK}") from None
    except subprocess.TimeoutExpired:
        raise BackendError(
            f"{command[0]} gave no answer for {most_s:g} s; expected one of slurmctld, which may"
            f" be down. {_CHECK}"
        ) from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"it ended with status {done.returncode}"
        raise _RefusedError(f"{command[0]}: {said}. {_CHECK}")
    return done.stdout
