# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The command `smd run`: an estimator, made of options."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.contract.hyperparameters import decode
from smdistributed.launch.debugging import own_terminal, terminal_kept
from smdistributed.sagemaker.estimator import Estimator, EstimatorBase
from smdistributed.sagemaker.exceptions import UnexpectedStatusException
from smdistributed.sagemaker.job import TrainingJob
from smdistributed.sagemaker.pytorch import PyTorch
from smdistributed.sagemaker.session import Session
from smdistributed.sagemaker.tensorflow import TensorFlow
from smdistributed.smd.application import FAILED, application

__all__ = ["run"]


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
    argument: Annotated[
        list[str] | None,
        typer.Option(
            "--argument",
            "-a",
            help="NAME=VALUE, any other argument of the estimator, such as max_retry_attempts=3.",
        ),
    ] = None,
    cpu_shim: Annotated[
        bool, typer.Option(help="On CPUs, the shims for scripts that were written for GPUs.")
    ] = True,
    emulate_gpus: Annotated[
        bool, typer.Option("--emulate-gpus", help="SM_NUM_GPUS is the number of processes.")
    ] = False,
    backend: Annotated[
        str | None,
        typer.Option(help="Where it runs; else as SMD_BACKEND or config.toml say."),
    ] = None,
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
        _refuse_others(context, "job", "name", "wait", "backend")
        session = Session(backend=backend)
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
        "sagemaker_session": Session(backend=backend),
    }
    distribution = _distribution(data_parallel, processes_per_host)
    if distribution is not None:
        arguments["distribution"] = distribution
    estimator = _estimator(framework, {**arguments, **_others(argument, arguments)})
    if debug is not None:
        if not wait:
            raise ConfigurationError("--debug needs this command to stay; expected no --no-wait.")
        estimator.debugged = {"debug_rank": debug, "terminal": own_terminal()}
    inputs: Any = {each: _uri(uri) for each, uri in _channels(channel).items()} or None
    estimator.fit(inputs, wait=False, job_name=name)
    assert estimator.latest_training_job is not None
    return _followed(estimator.latest_training_job, wait, keeps_terminal=debug is not None)


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


def _others(given: Sequence[str] | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that have no option of their own."""
    others = decode(_pairs("--argument", given))
    for name in others:
        if name in arguments or name in ("framework_version", "py_version"):
            raise ConfigurationError(
                f"--argument {name} says what an option says already; expected another name."
            )
    return others


def _estimator(framework: str, arguments: dict[str, Any]) -> EstimatorBase:
    try:
        if framework == "pytorch":
            return PyTorch(**{**_versions("torch"), **arguments}, strict=True)
        if framework == "tensorflow":
            return TensorFlow(**{**_versions("tensorflow"), **arguments}, strict=True)
        if framework == "none" and "distribution" not in arguments:
            return Estimator(**arguments, strict=True)
    except TypeError as error:  # an argument that nobody knows
        raise ConfigurationError(str(error)) from None
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
