# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of `smd`. Each is one call of a session or a job, and prints."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import sys
import time
from typing import Annotated, Any

import typer
from rich.table import Table

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.agent.mounts import available_step
from smdistributed.launch.agent.plan import HostDirectory
from smdistributed.launch.backends.answers import answers
from smdistributed.launch.contract.hyperparameters import Hyperparameters, decode
from smdistributed.launch.contract.processes import is_distributed
from smdistributed.launch.environment import usable_cores, visible_accelerators
from smdistributed.launch.jobs.directory import JobDirectory, job_names
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Status
from smdistributed.launch.points import points_of
from smdistributed.launch.serve.endpoints import missing_packages
from smdistributed.sagemaker.job import LogFollower
from smdistributed.sagemaker.session import Session
from smdistributed.smd.application import FAILED, JsonOption, application, console, print_json

__all__ = ["clean", "describe", "doctor", "jobs", "logs", "metrics", "stop"]

_POLL_S = 0.2
_GIB = 1 << 30

_Job = Annotated[str, typer.Argument(help="Name of the job; see `smd jobs`.")]


@application.callback(invoke_without_command=True)
def begin(context: typer.Context) -> int | None:
    """Without a command: what there is, and what to do next."""
    if context.invoked_subcommand is not None:
        return None
    names = job_names(Session().home)
    if names:
        print(f"{len(names)} jobs: smd jobs lists them, smd --help has all commands.")
    else:
        print("No jobs yet. Start one: smd run train.py (smd run --help has its options).")
    return 0


@application.command()
def jobs(json_: JsonOption = False) -> None:
    """List jobs, the newest first."""
    session = Session()
    records = [_record(session, name) for name in job_names(session.home)]
    known = sorted(
        (record for record in records if record is not None),
        key=lambda record: record.created,
        reverse=True,
    )
    if json_:
        now = dt.datetime.now(dt.UTC)
        print_json([_summary(record, now) for record in known])
        return
    if not known:
        print("No jobs yet. Start one: smd run train.py (smd run --help has its options).")
        return
    table = Table(box=None)
    for heading in ("JOB", "STATUS", "HOSTS", "BEGAN", "TOOK", "SIZE"):
        table.add_column(heading, no_wrap=heading == "JOB")
    for record in known:
        began = f"{record.created.astimezone():%Y-%m-%d %H:%M:%S}"
        config = record.request["ResourceConfig"]
        hosts = config.get("InstanceCount") or sum(
            each["InstanceCount"] for each in config["InstanceGroups"]
        )
        size = _size_text(record.size) if record.size else ""
        table.add_row(record.name, str(record.secondary), str(hosts), began, _took(record), size)
    console().print(table)


@application.command()
def describe(job: _Job, json_: JsonOption = True) -> None:
    """Print all that is known of a job: the response of DescribeTrainingJob, always as JSON."""
    print_json(Session().describe_training_job(job))


@application.command()
def logs(
    job: _Job,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the job ends.")] = False,
    host: Annotated[str | None, typer.Option(help="Such as algo-1: of that host alone.")] = None,
    rank: Annotated[int | None, typer.Option(help="Of that rank alone.")] = None,
    json_: JsonOption = False,
) -> int:
    """Print what the ranks of a job have printed."""
    session = Session()
    directory = session.job(job)
    hosts = sorted(path.name for path in (directory.path / "hosts").glob("algo-*"))
    if host is not None and host not in hosts:
        raise ConfigurationError(
            f"job {job!r} has no host {host!r}; expected one of: {', '.join(hosts) or 'none yet'}."
        )
    if rank is not None and not _has_ranks(directory):
        raise ConfigurationError(
            f"job {job!r} has one process on each host, and no ranks; expected --host instead."
        )
    if rank is not None and hosts:
        plan = HostDirectory(directory.host(hosts[0])).read_plan()
        count = plan.processes * plan.num_hosts
        if not 0 <= rank < count:
            raise ConfigurationError(
                f"job {job!r} has no rank {rank}; expected one from 0 to {count - 1}."
            )
    follower = LogFollower(session.backend.logs(directory, host, rank), as_json=json_)
    record = session.backend.poll(directory)
    follower.print_new()
    while follow and not record.status.is_terminal:
        time.sleep(_POLL_S)
        record = session.backend.poll(directory)
        follower.print_new()
    if record.status is Status.FAILED:
        print(f"smd: the job has failed. {record.failure_reason}", file=sys.stderr)
    return FAILED if follow and record.status is Status.FAILED else 0


@application.command()
def stop(
    job: _Job,
    wait: Annotated[bool, typer.Option(help="Return when it has ended.")] = True,
    json_: JsonOption = False,
) -> None:
    """Stop a job: its ranks have 120 s, and what there is is saved."""
    session = Session()
    directory = session.job(job)
    session.stop_training_job(job)
    while wait and not session.backend.poll(directory).status.is_terminal:
        time.sleep(_POLL_S)
    record = session.backend.poll(directory)
    if json_:
        print_json(_summary(record, dt.datetime.now(dt.UTC)))
    else:
        print(f"{job}: {record.secondary}")


@application.command()
def metrics(
    job: _Job,
    json_: JsonOption = False,
    system: Annotated[
        bool, typer.Option("--system", help="What its hosts used of the machine instead.")
    ] = False,
) -> None:
    """Print the values that were found in what a job has printed."""
    directory = Session().job(job)
    points = points_of(directory.path, "system_metrics.jsonl" if system else "metrics.jsonl")
    if json_:
        print_json([point._asdict() for point in points])
        return
    for point in points:
        when = dt.datetime.fromtimestamp(point.time, dt.UTC).astimezone()
        print(f"{when:%H:%M:%S.%f} {point.host} {point.name} {point.value:g}")


@application.command()
def clean(
    older_than: Annotated[str, typer.Option(help="7d, 12h or 30m: ended longer ago.")] = "7d",
    keep_checkpoints: Annotated[
        bool,
        typer.Option(
            "--keep-checkpoints",
            help="Leave jobs whose checkpoints are in their directory alone, in no bucket.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove; else only say what would be.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Remove the directories of jobs that have ended. Results and checkpoints in buckets stay."""
    session = Session()
    limit = dt.datetime.now(dt.UTC) - min(_duration(older_than), dt.timedelta(days=36_500))
    sizes = {}
    for name in job_names(session.home):
        record = _record(session, name)
        if record is None or not record.status.is_terminal or record.transitions[-1].start > limit:
            continue
        directory = session.job(name)
        if keep_checkpoints and _has_checkpoints(directory, record):
            if not json_:
                print(f"keeping {name}: its checkpoints are nowhere else")
            continue
        sizes[name] = directory.size()
        if not json_:
            print(f"{'removing' if yes else 'would remove'} {name}: {_size_text(sizes[name])}")
        if yes:
            session.backend.clean(directory)
    if json_:
        print_json({"Removed": yes, "SizeInBytes": sizes})
        return
    total = _size_text(sum(sizes.values()))
    print(f"{len(sizes)} jobs, {total}" + ("" if yes else "; remove with --yes"))


@application.command()
def doctor(json_: JsonOption = False) -> None:
    """Say what jobs find on this machine, and on those where they run."""
    session = Session()
    home = session.home
    home.jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
    step, why = available_step(home.jobs)
    free = shutil.disk_usage(home.root).free
    found = {
        "home": f"{home.root} ({free / _GIB:.1f} GiB free)",
        "jobs": str(len(job_names(home))),
        "processors": str(usable_cores()),
        "GPUs": str(visible_accelerators(os.environ)),
        "/opt/ml": step.value + (f"; {why}" if why else ""),
        "endpoints": _endpoints_text(),
        "Python": f"{sys.version.split()[0]} at {sys.executable}",
        "backend": session.backend.name,
        **answers(session.backend.name, home),
    }
    if json_:
        print_json(found)
        return
    for what, value in found.items():
        print(f"{what:<11} {value}")


# --- helpers --------------------------------------------------------------------------------------


def _record(session: Session, name: str) -> JobRecord | None:
    """Of a job; None, with a line that says why, if it cannot be read."""
    try:
        return session.backend.poll(session.job(name))
    except ConfigurationError as error:
        print(f"smd: {error}", file=sys.stderr)
        return None


def _summary(record: JobRecord, now: dt.datetime) -> dict[str, Any]:
    described = record.describe(now)
    keys = (
        "TrainingJobName", "TrainingJobArn", "CreationTime", "TrainingEndTime",
        "LastModifiedTime", "TrainingJobStatus", "SecondaryStatus", "FailureReason",
    )  # fmt: skip
    return {**{key: described[key] for key in keys if key in described}, "SizeInBytes": record.size}


def _has_ranks(directory: JobDirectory) -> bool:
    framework = Hyperparameters.of(
        decode(directory.read().request.get("HyperParameters", {}))
    ).framework
    return is_distributed(framework)


def _took(record: JobRecord) -> str:
    last = record.transitions[-1]
    end = last.start if record.status.is_terminal else dt.datetime.now(dt.UTC)
    seconds = max(0, round((end - record.created).total_seconds()))
    return str(dt.timedelta(seconds=seconds))


def _duration(text: str) -> dt.timedelta:
    units = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
    number, unit = text[:-1], text[-1:]
    if unit not in units or not re.fullmatch("[0-9]{1,6}", number):
        raise ConfigurationError(f"--older-than is {text!r}; expected such as 7d, 12h or 30m.")
    return dt.timedelta(**{units[unit]: int(number)})


def _endpoints_text() -> str:
    missing = missing_packages()
    if missing:
        return f"not here: {' and '.join(missing)} are missing (the extra serve)"
    return "fastapi and uvicorn are there"


def _has_checkpoints(directory: JobDirectory, record: JobRecord) -> bool:
    """Whether a host has any that were copied nowhere."""
    if "CheckpointConfig" in record.request:
        return False
    return any(directory.path.glob("hosts/*/ml/checkpoints/*"))


def _size_text(size: int) -> str:
    """Such as `512 B` or `3.1 GB`."""
    if size < 1000:
        return f"{size} B"
    units = ("kB", "MB", "GB", "TB")
    power = min(len(units), (len(str(size)) - 1) // 3)
    return f"{size / 1000**power:.1f} {units[power - 1]}"
