# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What Slurm's words for a job that waits mean: it goes on by itself, needs somebody, or never."""

from __future__ import annotations

from smdistributed.launch.backends.slurm import commands
from smdistributed.launch.backends.slurm.commands import SlurmJob, State
from smdistributed.launch.backends.slurm.options import SlurmOptions
from smdistributed.launch.data.settings import Settings
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory

__all__ = ["can_never_run", "could_not_begin", "why_it_stands"]

# Why jobs wait, if that can never pass. With these sbatch may accept a job, and it waits for ever.
_NEVER = frozenset(
    {
        "AccountNotAllowed",
        "AssocMaxCpuPerJobLimit",
        "AssocMaxGRESPerJob",
        "AssocMaxNodePerJobLimit",
        "AssocMaxWallDurationPerJobLimit",
        "BadConstraints",
        "DependencyNeverSatisfied",
        "InvalidAccount",
        "InvalidQOS",
        "PartitionTimeLimit",
        "QOSMaxCpuPerJobLimit",
        "QOSMaxGRESPerJob",
        "QOSMaxNodePerJobLimit",
        "QOSMaxWallDurationPerJobLimit",
        "QOSNotAllowed",
    }
)
# Of a job that waits until somebody releases it: reasons, and words for its state.
_HELD = frozenset(
    {"JobHeldUser", "JobHeldAdmin", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"},
)
# Also if nodes are down for a while: then they can pass.
_TOO_MANY_NODES = "PartitionNodeLimit"
_TOO_MUCH_OF_A_NODE = "PartitionConfig"
# Of one that it has tried to begin on nodes, and does not try again.
_GIVEN_UP = frozenset({"launch_failed_requeued_held", "JobHoldMaxRequeue"})


def could_not_begin(known: SlurmJob) -> bool:
    """Whether Slurm has given it nodes on which it did not begin, as if their prolog has failed.

    It holds such a job for ever, or calls it cancelled, though nobody has cancelled it.
    """
    if known.state is State.PENDING:
        return known.reason in _GIVEN_UP
    # One that ran, and that somebody has cancelled, has ended by a signal.
    is_given = bool(known.nodes) and known.exit_code == "0:0"
    return known.state is State.CANCELLED and is_given


def why_it_stands(job: JobDirectory, known: SlurmJob) -> str:
    """What somebody has to do before it goes on; empty: nobody has."""
    what = f"job {job.name}: Slurm says of its job {known.number}: {known.said}, {known.reason};"
    if known.state is State.SUSPENDED:
        is_stopped = known.said == "STOPPED"  # by a signal
        way = "scancel --batch --signal=CONT" if is_stopped else "scontrol resume"
        return f"{what} it goes on after: {way} {known.number}"
    if known.state is not State.PENDING:
        return ""
    if known.reason in _HELD or known.said in _HELD:
        return f"{what} it begins after: scontrol release {known.number}"
    if known.reason in _NEVER and _is_of_several(known):
        return (
            f"{what} so it is in one of the partitions {known.partition}. Should it be so in all of"
            " them, it waits for ever: scontrol show partition"
        )
    return ""


def _is_of_several(known: SlurmJob) -> bool:
    """Whether a job waits in several partitions: its reason is that of one of them."""
    return "," in known.partition


def can_never_run(job: JobDirectory, known: SlurmJob, num_hosts: int) -> bool:
    """Whether no node or partition will ever be enough for it.

    Args:
        job: its directory.
        known: what Slurm says of it.
        num_hosts: that it asks for.

    Raises:
        BackendError: Slurm does not answer.
    """
    if known.reason in _NEVER and not _is_of_several(known):
        return True
    most: int | None = None
    asked = 0
    if known.reason == _TOO_MANY_NODES:
        asked, most = num_hosts, commands.most_nodes(known.partition)
    elif known.reason == _TOO_MUCH_OF_A_NODE:
        settings = SlurmOptions.of(Settings.of(Home(job.path.parent.parent)))
        asked, most = settings.cpus_per_node or 0, commands.most_cpus(known.partition)
    return most is not None and asked > most
