# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of `smd`. Each is one call of an estimator, a session or a job, and prints."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.metadata
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.agent.mounts import available_step
from smdistributed.launch.contract.hyperparameters import Hyperparameters, decode
from smdistributed.launch.contract.processes import is_distributed
from smdistributed.launch.debugging import own_terminal, terminal_kept
from smdistributed.launch.environment import usable_cores, visible_accelerators
from smdistributed.launch.jobs.directory import JobDirectory, job_names
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Status
from smdistributed.launch.points import points_of
from smdistributed.launch.serve.endpoints import missing_packages
from smdistributed.sagemaker.estimator import Estimator, EstimatorBase
from smdistributed.sagemaker.exceptions import UnexpectedStatusException
from smdistributed.sagemaker.job import LogFollower, TrainingJob
from smdistributed.sagemaker.pytorch import PyTorch
from smdistributed.sagemaker.session import Session
from smdistributed.sagemaker.tensorflow import TensorFlow
from smdistributed.smd.application import JsonOption, application, console, print_json

__all__ = ["FAILED"]

FAILED = 1
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
def run(
    context: typer.Context,
    script: Annotated[
        Path | None, typer.Argument(help="The script to be trained; a file here.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="JOB: instead of a script, one that was stopped or lost goes on."),
    ] = None,
    job: Annotated[
        Path | None,
        typer.Option(help="FILE: instead of a script, a request CreateTrainingJob as JSON."),
    ] = None,
    source_dir: Annotated[
        Path | None, typer.Option(help="Directory that goes to the job with the script.")
    ] = None,
    framework: Annotated[str, typer.Option(help="pytorch, tensorflow or none.")] = "pytorch",
    instance_count: Annotated[int, typer.Option(help="Hosts.")] = 1,
    instance_type: Annotated[
        str, typer.Option(help="Such as ml.p3.16xlarge: says how many processes, without GPUs.")
    ] = "local",
    processes_per_host: Annotated[
        int | None, typer.Option(help="Ranks on each host, by MPI's rules.")
    ] = None,
    data_parallel: Annotated[
        bool, typer.Option("--data-parallel", help="distribution: smdistributed dataparallel.")
    ] = False,
    hyperparameter: Annotated[
        list[str] | None,
        typer.Option("--hyperparameter", "-p", help="NAME=VALUE; a VALUE that is JSON is a value."),
    ] = None,
    channel: Annotated[
        list[str] | None,
        typer.Option("--channel", "-c", help="NAME=URI, or a path here; or a URI alone."),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="NAME=REGEX, with a group for the value.")
    ] = None,
    environment: Annotated[
        list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE, a variable of the job.")
    ] = None,
    output_path: Annotated[str | None, typer.Option(help="URI for the results.")] = None,
    checkpoints: Annotated[
        str | None, typer.Option(help="URI where checkpoints are kept, and found again.")
    ] = None,
    max_run: Annotated[int, typer.Option(help="Seconds that the script may run.")] = 86400,
    cpu_shim: Annotated[
        bool, typer.Option(help="On CPUs, the shims for scripts that were written for GPUs.")
    ] = True,
    emulate_gpus: Annotated[
        bool, typer.Option("--emulate-gpus", help="SM_NUM_GPUS is the number of processes.")
    ] = False,
    debug: Annotated[
        int | None,
        typer.Option(min=0, help="RANK: it keeps this terminal; breakpoint() works in it."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the job; else one is made.")] = None,
    wait: Annotated[bool, typer.Option(help="Follow the job until it has ended.")] = True,
) -> int:
    """Train a script: its job goes on without this command."""
    if resume is not None:
        _refuse_others(context, "resume", "name", "wait")
        session = Session()
        return _followed(TrainingJob(session, session.resume_training_job(resume, name)), wait)
    if job is not None:
        _refuse_others(context, "job", "name", "wait")
        session = Session()
        made = session.create_training_job(_document(job), name)
        return _followed(TrainingJob(session, made), wait)
    if script is None:
        raise ConfigurationError(
            "there is no script; expected smd run SCRIPT, --resume JOB, or --job FILE."
        )
    arguments: dict[str, Any] = {
        "entry_point": str(script),
        "source_dir": str(source_dir) if source_dir is not None else None,
        "instance_count": instance_count,
        "instance_type": instance_type,
        "hyperparameters": decode(_pairs("--hyperparameter", hyperparameter)),
        "metric_definitions": [
            {"Name": each, "Regex": regex} for each, regex in _pairs("--metric", metric).items()
        ],
        "environment": _pairs("--env", environment),
        "output_path": output_path,
        "checkpoint_s3_uri": checkpoints,
        "max_run": max_run,
        "cpu_shim": cpu_shim,
        "emulate_gpus": emulate_gpus,
    }
    estimator = _estimator(framework, arguments, _distribution(data_parallel, processes_per_host))
    if debug is not None:
        if not wait:
            raise ConfigurationError("--debug needs this command to stay; expected no --no-wait.")
        estimator.debugged = {"debug_rank": debug, "terminal": own_terminal()}
    inputs: Any = {each: _uri(uri) for each, uri in _channels(channel).items()} or None
    estimator.fit(inputs, wait=False, job_name=name)
    assert estimator.latest_training_job is not None
    return _followed(estimator.latest_training_job, wait, keeps_terminal=debug is not None)


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
    """Say what jobs find on this machine."""
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
    }
    if json_:
        print_json(found)
        return
    for what, value in found.items():
        print(f"{what:<11} {value}")


# --- helpers --------------------------------------------------------------------------------------


def _followed(job: TrainingJob, wait: bool, *, keeps_terminal: bool = False) -> int:
    """The exit status of a command that has started a job."""
    if not wait:
        print(job.name)
        return 0
    try:
        with terminal_kept(0) if keeps_terminal else contextlib.nullcontext():
            job.follow()
    except UnexpectedStatusException as error:
        print(f"smd: {error}", file=sys.stderr)
        return FAILED
    return 0


def _document(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--job {file} cannot be read ({error}); expected a JSON file, a request"
            " CreateTrainingJob."
        ) from None


def _refuse_others(context: typer.Context, what: str, *known: str) -> None:
    """Options that have no meaning beside that one."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in (what, *known):
            option = "SCRIPT" if name == "script" else f"--{name.replace('_', '-')}"
            raise ConfigurationError(
                f"--{what} and {option} are both given; expected --{what} alone, with"
                f" {' and '.join(f'--{each}' for each in known)} at most: it says all else."
            )


def _estimator(
    framework: str, arguments: dict[str, Any], distribution: dict[str, Any] | None
) -> EstimatorBase:
    if framework == "pytorch":
        return PyTorch(**arguments, **_versions("torch"), distribution=distribution)
    if framework == "tensorflow":
        return TensorFlow(**arguments, **_versions("tensorflow"), distribution=distribution)
    if framework == "none" and distribution is None:
        return Estimator(**arguments)
    raise ConfigurationError(
        f"--framework is {framework!r}; expected pytorch, tensorflow, or (without ranks) none."
    )


def _versions(package: str) -> dict[str, Any]:
    """Of what is installed: the script is meant for it."""
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return {"framework_version": version, "py_version": f"py3{sys.version_info.minor}"}


def _distribution(data_parallel: bool, processes: int | None) -> dict[str, Any] | None:
    distribution: dict[str, Any] = {}
    if processes is not None:
        distribution["mpi"] = {"enabled": True, "processes_per_host": processes}
    if data_parallel:
        distribution["smdistributed"] = {"dataparallel": {"enabled": True}}
    return distribution or None


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    pairs = {}
    for each in given or ():
        name, is_set, value = each.partition("=")
        if not is_set or not name:
            raise ConfigurationError(f"{option} {each!r}: expected NAME=VALUE.")
        if name in pairs:
            raise ConfigurationError(f"{option} {name} is given twice; expected it once.")
        pairs[name] = value
    return pairs


def _channels(given: Sequence[str] | None) -> dict[str, str]:
    """By name; a URI or a path alone is the channel `training`."""
    channels = {}
    for each in given or ():
        name, is_set, uri = each.partition("=")
        is_named = is_set and "/" not in name and ":" not in name
        name, uri = (name, uri) if is_named else ("training", each)
        if name in channels:
            raise ConfigurationError(f"--channel {name} is given twice; expected it once.")
        channels[name] = uri
    return channels


def _uri(given: str) -> str:
    return given if "://" in given else f"file://{Path(given).absolute()}"


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
