# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The end of a job: its artifacts are saved, and its record says how it ended.

Done by the job's process, or by an agent if that one is gone.

Source: launch specification, sections 6.1 and 7.4.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from smdistributed.launch.agent.plan import HostDirectory, Report
from smdistributed.launch.contract.archives import copy_directories, pack_directories
from smdistributed.launch.contract.failures import NOT_THE_SCRIPTS, failure_reason
from smdistributed.launch.contract.paths import Paths
from smdistributed.launch.data.places import S3Place, kept_settings, s3_place
from smdistributed.launch.data.stores.folder import files_below
from smdistributed.launch.data.stores.store import StoreError
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.files import copy_whole
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary
from smdistributed.launch.storage import TEMPORARY, local_path

__all__ = [
    "end_job",
    "end_orphaned_job",
    "first_failure",
    "has_model",
    "host_directories",
    "last_metrics",
    "now",
    "when_failed",
]

# How long the agents of other hosts have to end theirs.
_OTHERS_S = 20.0
_POLL_S = 0.1
# How failures begin that are no script's: what was asked for was wrong, or we are.


def now() -> dt.datetime:
    """The time, in UTC."""
    return dt.datetime.now(dt.UTC)


def host_directories(job: JobDirectory) -> list[HostDirectory]:
    """Of all hosts, in the order of their ranks."""
    found = [HostDirectory(path) for path in (job.path / "hosts").glob("algo-*/")]
    return sorted(found, key=lambda each: int(each.name.removeprefix("algo-")))


def end_job(
    job: JobDirectory,
    hosts: Sequence[HostDirectory],
    failure: str = "",
    stopped: Secondary | None = None,
) -> JobRecord:
    """Saves artifacts and writes the record's end. The caller holds the job's lock.

    Args:
        job: that has ended on all hosts.
        hosts: of it.
        failure: what stands in the file `failure`, or why the job could not go on; empty: it has
            not failed.
        stopped: what it is called if it was stopped, whatever its ranks said; None: it was not.
    """
    record = job.read()
    problem = ""
    try:
        model = _save(job, record, hosts, has_model(failure, stopped))
    except Exception as error:  # whatever it is: a job that has ended must not look as if it ran
        model, problem = "", f"ClientError: artifacts could not be saved: {error}"
    last = Secondary.COMPLETED
    reason = ""
    if stopped is not None and not problem:
        last = stopped
    elif failure:
        is_scripts = not failure.startswith(NOT_THE_SCRIPTS)
        last = Secondary.FAILED
        reason = failure_reason(failure) if is_scripts else failure
        reason += f"\n({problem})" if problem else ""
    elif problem:
        last, reason = Secondary.FAILED, problem
    if stopped is not None and record.secondary is not Secondary.STOPPING:
        record = record.moved(Secondary.STOPPING, now())
    if last is Secondary.COMPLETED and record.secondary is Secondary.TRAINING:
        record = record.moved(Secondary.UPLOADING, now())
    shutil.rmtree(job.path / "data", ignore_errors=True)  # what was brought from a store
    record = record.moved(last, now(), reason=reason)
    record = record.with_end(model, last_metrics(hosts), job.size())
    job.give_room()
    job.write(record)
    job.note("ended", now(), status=str(record.status), reason=reason)
    return record


def has_model(failure: str, stopped: Secondary | None) -> bool:
    """Whether the model of a job that has ended so is of use: its script has not failed."""
    return stopped is not None or not failure or failure.startswith(NOT_THE_SCRIPTS)


def _save(
    job: JobDirectory, record: JobRecord, hosts: Sequence[HostDirectory], has_model: bool
) -> str:
    """Returns: the URI of the model; empty if there is none."""
    home = Home(job.path.parent.parent)
    uri = f"{record.request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{record.name}/output"
    place = s3_place(uri, home, kept_settings(job.path))
    # What goes to a store is packed here first, and stays here if it cannot be put there.
    folder = local_path(uri, home) if place is None else job.path / "output"
    paths = [Paths(each.ml) for each in hosts]
    bases = [each.ml for each in hosts]
    model = ""
    model_name, is_folder = "model.tar.gz", False
    if record.request["OutputDataConfig"].get("CompressionType") == "NONE":
        model_name, is_folder = "model", True
    for name, directories, is_wanted in (
        (model_name, [each.model for each in paths], has_model),
        ("output.tar.gz", [each.output_data for each in paths], True),
    ):
        if not is_wanted:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{TEMPORARY}{name}.*"):  # of somebody who was killed while packing
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink(missing_ok=True)
        save = copy_directories if is_folder and name == model_name else pack_directories
        has_any, clashes = save(folder / name, directories, bases)
        if not has_any:
            continue
        if clashes:
            job.note("clash", now(), archive=name, names=clashes[:100])
        if name == model_name:
            if _lacks_saved_model(record, directories):
                job.note("no-saved-model", now())
            model = f"{uri}/{name}/" if is_folder else f"{uri}/{name}"
            if (
                uri.startswith("file://") and not is_folder
            ):  # there too: where the SDK's local mode puts it
                copy_whole(folder / name, folder.parent.parent / name)
    if place is not None and folder.is_dir():
        _put(folder, place, job)
    return model


def _put(folder: Path, place: S3Place, job: JobDirectory) -> None:
    """Puts what was packed into its store, and takes it away here.

    Raises:
        StoreError: it cannot be put; says where it is.
    """
    store = place.store(place.folder)
    try:
        for key in sorted(files_below(folder)):
            store.put(folder / key, key)
    except StoreError as error:
        raise StoreError(
            f"{error} They are whole in {folder}: copy them from there, such as by"
            f" Session().upload_data({str(folder)!r}, ...)."
        ) from None
    shutil.rmtree(folder, ignore_errors=True)
    job.note("uploaded", now(), uri=store.uri())


def _lacks_saved_model(record: JobRecord, directories: Sequence[Path]) -> bool:
    """Whether it is a model of TensorFlow that no endpoint will find.

    Source: launch specification, section 6.2.
    """
    if record.local.get("Framework") != "tensorflow":
        return False
    return not any(
        path.parent.name.isdecimal()
        for directory in directories
        for path in directory.rglob("saved_model.pb")
    )


def last_metrics(hosts: Sequence[HostDirectory]) -> list[tuple[str, float, dt.datetime]]:
    """The last value of each metric, of all hosts: name, value, and when."""
    last: dict[str, tuple[float, float]] = {}
    for host in hosts:
        try:
            lines = host.metrics.read_bytes().splitlines()
        except OSError:
            continue
        of_host: dict[str, tuple[float, float]] = {}  # in the order of its lines, not of its clock
        for line in lines:
            with contextlib.suppress(ValueError, LookupError, TypeError):  # its writer was killed
                point = json.loads(line)
                of_host[point["name"]] = float(point["time"]), float(point["value"])
        for name, (when, value) in of_host.items():
            last[name] = max(last.get(name, (when, value)), (when, value))
    return [
        (name, value, dt.datetime.fromtimestamp(when, dt.UTC))
        for name, (when, value) in sorted(last.items())
    ]


def first_failure(reports: Sequence[Report | None], before: float = float("inf")) -> str:
    """Of hosts that have failed: that of the one whose rank did so before all others.

    Args:
        reports: of the hosts.
        before: failures after it do not count; seconds of the machine's monotonic clock.
    """
    failed = [
        each
        for each in reports
        if each is not None and each.failure and when_failed(each) <= before
    ]
    failed.sort(key=when_failed)
    return failed[0].failure if failed else ""


def when_failed(report: Report) -> float:
    """When a rank of a host has failed by itself; seconds of the machine's monotonic clock.

    Infinity: none has.
    """
    return min((rank.ended_at for rank in report.ranks if rank.failed_first), default=float("inf"))


def end_orphaned_job(path: Path) -> None:
    """Ends a job whose process is gone, when all its agents are. Of several agents one does it."""
    job = JobDirectory(path)
    hosts = host_directories(job)
    until = time.monotonic() + _OTHERS_S
    while any(each.lock.is_held_elsewhere() for each in hosts) and time.monotonic() < until:
        time.sleep(_POLL_S)
    if not job.lock.acquire():
        return
    try:
        if not job.read().status.is_terminal:
            end_job(
                job,
                hosts,
                "InternalServerError: the process of the job is gone (killed, or the machine was"
                " restarted); its agents ended the ranks and saved what there was.",
            )
    finally:
        job.lock.release()
