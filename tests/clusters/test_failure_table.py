# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Failures of data, packages and disks on a real Slurm and a real Ray.

Each time: the status, a reason that names the URI or the file, and soon; and nothing is left, in
the cluster and on the disks of its nodes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled

from smdistributed.launch.backends.backend import Backend
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary, Status
from tests.clusters import test_ray_jobs, test_slurm
from tests.clusters.machine import Machine
from tests.clusters.object_store import Fault, FaultyServer, ObjectStore
from tests.conformance.backends.test_backends import BACKENDS, job_of, lines_of, made, wait_for_line
from tests.small_disks import mounted_disk

pytestmark = pytest.mark.slow

KNOWN_S = 15.0
SECRET = "SECRET-of-the-test"
LARGE = 40 << 20
COURIERS = Path.home() / ".smdistributed"

NEVER = 'print("it runs", flush=True)'
LISTS = """
import json, os
folder = os.environ["SM_CHANNEL_TRAIN"]
print("found", json.dumps(sorted(os.listdir(folder))), flush=True)
"""
SAVES = """
import os, time
print("saves", flush=True)
while not os.path.exists("/opt/ml/model/go") and {waits}:
    time.sleep(0.1)
with open("/opt/ml/{where}/large", "wb") as file:
    for _ in range({size} >> 20):
        file.write(os.urandom(1 << 20))
"""


@dataclasses.dataclass
class Engine:
    """A cluster with its backend.

    Attributes:
        name: of the backend.
        home: of its jobs.
        machines: its nodes.
        address: at which they reach this machine.
        require_empty: of the cluster.
        temporary: where processes of this machine put temporary files.
    """

    name: str
    home: Home
    machines: Sequence[Machine]
    address: str
    require_empty: Callable[[], None]
    temporary: Path

    @property
    def backend(self) -> Backend:
        return made(self.home)

    def files(self) -> set[str]:
        """What lies in the nodes' folders for temporary files and for jobs, and in those here."""
        found = {f"here: {each}" for each in os.listdir(self.temporary)}
        if self.name == "slurm":  # they have those of this machine
            return found
        for machine in self.machines:
            root = Path(f"/proc/{machine.pid}/root")
            for folder in (Path("/tmp"), Path("/dev/shm"), COURIERS / "hosts"):
                with contextlib.suppress(FileNotFoundError):
                    names = os.listdir(root / folder.relative_to("/"))
                    found |= {f"{machine.name}: {folder}/{each}" for each in names}
        # Ray's own: of its session, and of each worker that is alive.
        return {each for each in found if "/ray" not in each and "/.smd" not in each}

    def run(self, job: JobDirectory, while_it_runs: Callable[[], Any] = lambda: None) -> JobRecord:
        """The end of a job, which has failed soon. Nothing of it is left."""
        self.backend.submit(job)
        while_it_runs()
        record = self.ended(job)
        self.require_nothing_left()
        return record

    def ended(self, job: JobDirectory) -> JobRecord:
        until = time.monotonic() + scaled(90)
        while not (record := self.backend.poll(job)).status.is_terminal:
            assert time.monotonic() < until, record
            time.sleep(0.1)
        return record

    def require_nothing_left(self) -> None:
        self.require_empty()
        until = time.monotonic() + scaled(10)
        while left := self.files() - self.before:
            assert time.monotonic() < until, left
            time.sleep(0.1)

    def __post_init__(self) -> None:
        self.before = self.files()


def of_slurm(request: pytest.FixtureRequest, home: Home, temporary: Path) -> Engine:
    cluster = request.getfixturevalue("slurm_cluster")
    return Engine(
        "slurm",
        home,
        list(cluster.nodes.values()),
        "127.0.0.1",
        lambda: test_slurm.require_empty(cluster),
        temporary,
    )


def of_ray(request: pytest.FixtureRequest, home: Home, temporary: Path) -> Engine:
    cluster = request.getfixturevalue("ray_cluster")
    network = next(iter(cluster.links.values())).address.rpartition(".")[0]
    return Engine(
        "ray",
        home,
        list(cluster.machines.values()),
        f"{network}.254",
        lambda: test_ray_jobs.require_empty(cluster),
        temporary,
    )


@pytest.fixture(params=["slurm", "ray"])
def engine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Engine:
    home = Home(tmp_path / "home")
    home.make()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    settings = "\n".join(line.strip() for line in BACKENDS[request.param](request).splitlines())
    home.config.write_text(f'default_backend = "{request.param}"\n{settings}\n')
    monkeypatch.setenv("TMPDIR", str(temporary))
    return {"slurm": of_slurm, "ray": of_ray}[request.param](request, home, temporary)


def changed(job: JobDirectory, **request: Any) -> JobDirectory:
    """The request has more; of a job that was not submitted yet."""
    document = json.loads((job.path / "job.json").read_text())
    document["Request"] |= request
    (job.path / "job.json").write_text(json.dumps(document))
    return job


def with_channel(job: JobDirectory, uri: str) -> JobDirectory:
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated"}
    return changed(
        job, InputDataConfig=[{"ChannelName": "train", "DataSource": {"S3DataSource": source}}]
    )


def require_failed(record: JobRecord, *texts: str, has_run: bool = False) -> None:
    """Soon, before or after its script has run, and with these texts in the reason."""
    print(record.failure_reason)
    assert record.status is Status.FAILED
    for text in texts:
        assert text in record.failure_reason, record.failure_reason
    *_, before, end = record.transitions
    after_run = (Secondary.TRAINING, Secondary.UPLOADING)
    assert before.secondary in (after_run if has_run else (Secondary.DOWNLOADING,))
    assert (end.start - before.start).total_seconds() < scaled(KNOWN_S)
    assert Secondary.INTERRUPTED not in [each.secondary for each in record.transitions]


@contextlib.contextmanager
def small_disk(machines: Sequence[Machine], path: Path, size: str = "8m") -> Iterator[None]:
    """A folder of the machines that has room for so much."""
    with contextlib.ExitStack() as stack:
        for machine in machines:
            for command in (
                ["mkdir", "-p", str(path)],
                ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(path)],
            ):
                subprocess.run(machine.command(command), check=True)
            away = machine.command(["umount", "-l", str(path)])
            stack.callback(subprocess.run, away)  # with its folder it has gone already
        yield


# --- packages ----------------------------------------------------------------------------------


def test_packages_that_cannot_be_installed(engine: Engine) -> None:
    job = job_of(engine.home, NEVER, hosts=2)
    requirements = b"./nowhere-1.0-py3-none-any.whl\n"
    with tarfile.open(engine.home.buckets / "b" / "job.tar.gz", "w:gz") as tar:
        tar.add(engine.home.root / "train.py", "train.py")
        entry = tarfile.TarInfo("requirements.txt")
        entry.size = len(requirements)
        tar.addfile(entry, io.BytesIO(requirements))
    record = engine.run(job)
    require_failed(record, "InstallRequirementsError", "ExitCode 1", "nowhere-1.0")


# --- data --------------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["file:///nowhere/at/all", "s3://b/nothing/", "s3://nobody/data"])
def test_data_that_are_not_there(engine: Engine, uri: str) -> None:
    record = engine.run(with_channel(job_of(engine.home, NEVER, hosts=2), uri))
    what = "bucket 'nobody'" if uri == "s3://nobody/data" else "channel 'train'"
    require_failed(record, "ClientError: ", uri, what)


def test_an_empty_folder_is_an_empty_channel(engine: Engine) -> None:
    (engine.home.buckets / "b" / "empty").mkdir(parents=True)
    job = with_channel(job_of(engine.home, LISTS, hosts=2), "s3://b/empty/")
    assert engine.run(job).status is Status.COMPLETED
    assert sum("found []" in line for line in lines_of(engine.backend, job)) == 2


@contextlib.contextmanager
def store_of(engine: Engine, object_store: ObjectStore) -> Iterator[FaultyServer]:
    """An S3 store that nodes reach, with credentials where boto3 looks for them."""
    if engine.name == "ray":
        text = f"[default]\naws_access_key_id = mine\naws_secret_access_key = {SECRET}\n"
        script = f"umask 077; mkdir -p ~/.aws; printf '{text}' > ~/.aws/credentials"
        for machine in engine.machines:
            subprocess.run(machine.command(["sh", "-c", script]), check=True)
    with FaultyServer(object_store.url, engine.address) as server:
        with engine.home.config.open("a") as file:
            file.write(f'\n[s3]\nendpoint_url = "{server.url}"\n')
        yield server


@pytest.mark.parametrize("what", ["bucket", "prefix", "forbidden", "forbidden object"])
def test_objects_that_cannot_be_had(engine: Engine, object_store: ObjectStore, what: str) -> None:
    bucket = object_store.bucket()
    object_store.put(bucket, {"set/a": b"x"})
    uri, said = {
        "bucket": ("s3://no-such-bucket/set/", "has no bucket 'no-such-bucket'"),
        "prefix": (f"s3://{bucket}/empty/", "has nothing there"),
        "forbidden": (f"s3://{bucket}/set/", "may not be read or written with these credentials"),
        "forbidden object": (f"s3://{bucket}/set/", "may not be read"),
    }[what]
    with store_of(engine, object_store) as server:
        if what == "forbidden":
            server.fault_of = lambda request: Fault(403, "AccessDenied")
        elif what == "forbidden object":
            server.fault_of = lambda request: (
                Fault(403, "AccessDenied") if request.path.endswith("/set/a") else None
            )
        record = engine.run(with_channel(job_of(engine.home, NEVER, hosts=2), uri))
    named = f"s3://{bucket}/set/a" if what == "forbidden object" else uri.rstrip("/")
    require_failed(record, "ClientError: ", "channel 'train'", named, said)
    assert SECRET not in record.failure_reason


@pytest.mark.parametrize("what", ["set", "set/x"])
def test_data_that_a_node_does_not_have(engine: Engine, tmp_path: Path, what: str) -> None:
    """A folder that the user takes for a shared one; or the settings do, for Ray."""
    data = tmp_path / "data"
    (data / "set").mkdir(parents=True)
    (data / "set" / "x").write_text("x")
    job = with_channel(job_of(engine.home, NEVER, hosts=2), f"file://{data / what}")
    if engine.name == "ray":
        with engine.home.config.open("a") as file:
            file.write(f'shared = ["{data}"]\n')
        record, called = engine.run(job), f"file://{data / what}"
    else:
        hidden = data if what == "set" else data / "set"
        with small_disk(engine.machines[1:], hidden):
            record, called = engine.run(job), "on n2"
    require_failed(record, "ClientError:", "channel 'train'", str(data / what), called)


# --- full disks --------------------------------------------------------------------------------


def test_no_room_for_objects(engine: Engine, object_store: ObjectStore) -> None:
    bucket = object_store.bucket()
    object_store.put(bucket, {"set/large": bytes(LARGE)})
    job = with_channel(job_of(engine.home, NEVER, hosts=2), f"s3://{bucket}/set/")
    changed(job, RetryStrategy={"MaximumRetryAttempts": 2})
    full = COURIERS if engine.name == "ray" else job.path / "data"
    with store_of(engine, object_store), small_disk(engine.machines, full):
        record = engine.run(job)
    room = f"and 41,943,040 bytes of s3://{bucket}/ are to come; expected more room"
    require_failed(record, "ClientError: ", "channel 'train'", str(full), room)


def test_no_room_for_files(engine: Engine) -> None:
    """On Slurm they are links to what is shared."""
    data = engine.home.buckets / "b" / "train"
    data.mkdir(parents=True)
    (data / "large").write_bytes(bytes(LARGE))
    job = with_channel(job_of(engine.home, LISTS, hosts=2), "s3://b/train/")
    changed(job, RetryStrategy={"MaximumRetryAttempts": 2})
    full = COURIERS if engine.name == "ray" else job.path / "data"
    with small_disk(engine.machines[1:], full):
        record = engine.run(job)
    if engine.name == "slurm":
        assert record.status is Status.COMPLETED
        return
    require_failed(record, "ClientError: ", "host-1", "No space left", "large")


def saving(engine: Engine, where: str, *, waits: bool = False, size: int = LARGE) -> JobDirectory:
    job = job_of(engine.home, SAVES.format(where=where, size=size, waits=waits))
    kept = {"S3Uri": "s3://b/run", "LocalPath": "/opt/ml/checkpoints"}
    return changed(job, CheckpointConfig=kept, RetryStrategy={"MaximumRetryAttempts": 2})


@pytest.mark.parametrize("where", ["model", "output/data", "checkpoints"])
def test_no_room_for_what_a_script_writes(engine: Engine, where: str) -> None:
    job = saving(engine, where)
    full = COURIERS if engine.name == "ray" else job.path / "hosts"
    with small_disk(engine.machines, full):
        record = engine.run(job)
    require_failed(record, "AlgorithmError", "No space left", has_run=True)


@pytest.mark.parametrize("where", ["model", "output/data", "checkpoints"])
def test_no_room_where_results_are_kept(engine: Engine, where: str) -> None:
    """On the disk that is shared with Slurm's nodes; on this machine's, if Ray's bring them."""
    store = engine.home.buckets / "b"
    full = store / ("run" if where == "checkpoints" else "out")
    job = saving(engine, where)
    with contextlib.ExitStack() as stack:
        if engine.name == "slurm":
            stack.enter_context(small_disk(engine.machines, full))
        else:
            stack.enter_context(mounted_disk(full, "size=8m"))
        record = engine.run(job)
        assert [each for each in full.rglob("*") if each.is_file()] == []
    require_failed(record, "ClientError: ", "No space left", str(full), has_run=True)


@pytest.mark.parametrize("engine", ["ray"], indirect=True)
def test_no_room_where_a_driver_packs(engine: Engine) -> None:
    """On the head. A job on Slurm has no such folder of its own."""
    job = saving(engine, "model", waits=True)
    head = engine.machines[0]
    used = "$(df --output=used -k /tmp | tail -1)"
    fill = head.command(["sh", "-c", f"mount -o remount,size=$(({used} + 8192))k /tmp"])

    def go_on() -> None:
        wait_for_line(engine.backend, job, "saves")
        subprocess.run(fill, check=True)
        for machine in engine.machines:
            folders = Path(f"/proc/{machine.pid}/root", *COURIERS.parts[1:], "hosts")
            for folder in folders.glob("*/hosts/algo-1/ml/model"):
                (folder / "go").touch()

    try:
        record = engine.run(job, go_on)
    finally:
        subprocess.run(head.command(["mount", "-o", "remount,size=4g", "/tmp"]), check=True)
    require_failed(record, "ClientError: ", "No space left", "model", has_run=True)
