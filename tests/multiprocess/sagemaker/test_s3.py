# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose data and results are in an S3 store (launch specification, sections 5 and 6)."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled

from smdistributed.sagemaker.exceptions import UnexpectedStatusException
from smdistributed.sagemaker.inputs import ShuffleConfig, TrainingInput
from smdistributed.sagemaker.session import Session
from tests.clusters.object_store import Fault, FaultyServer, ObjectStore, Request, filled
from tests.multiprocess.sagemaker.test_attempts import (
    AGAIN,
    FIRST,
    TRAINS,
    kill_agent,
    log_of,
    states,
    uninterrupted_loss,
    wait_for,
)
from tests.multiprocess.sagemaker.test_fit import (
    describe,
    ended,
    estimator,
    path_of,
    processes_of,
    wait_for_line,
)

SECRET = "SECRET-of-the-test"


@pytest.fixture
def store(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The store that jobs are told of."""
    monkeypatch.setenv("S3_ENDPOINT_URL", object_store.url)
    return object_store


@pytest.fixture
def front(faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> FaultyServer:
    """The same, with a server in front with which things go wrong."""
    monkeypatch.setenv("S3_ENDPOINT_URL", faulty.url)
    return faulty


@pytest.fixture
def no_secrets(tmp_path: Path) -> Iterator[None]:
    """Nothing that a job writes has the secret in it, and no command."""
    yield
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert SECRET.encode() not in path.read_bytes(), path


READS = """
    import hashlib, json, os, sys
    base = os.environ["SM_INPUT_DIR"] + "/data/"
    def digest(content):
        return hashlib.md5(content).hexdigest()
    def files(channel):
        found = {}
        for above, _, names in os.walk(base + channel, followlinks=True):
            for name in names:
                path = os.path.join(above, name)
                found[os.path.relpath(path, base + channel)] = digest(open(path, "rb").read())
        return found
    told = {name: files(name) for name in ("train", "shares", "listed")}
    told["epochs"] = [digest(open(base + f"pipe_{epoch}", "rb").read()) for epoch in range(3)]
    half = open(base + "pipe_3", "rb")
    half.read(10)
    half.close()
    told["packed"] = digest(open(base + "packed_0", "rb").read())
    host = os.environ["SM_CURRENT_HOST"]
    print("told " + json.dumps({"host": host, **told}), flush=True)
    with open(os.environ["SM_MODEL_DIR"] + "/model", "w") as file:
        file.write("weights")
    with open(os.environ["SM_OUTPUT_DATA_DIR"] + "/" + host, "w") as file:
        file.write("report")
    os.makedirs(os.environ["SM_OUTPUT_INTERMEDIATE_DIR"], exist_ok=True)
    with open(os.environ["SM_OUTPUT_INTERMEDIATE_DIR"] + "/" + host, "w") as file:
        file.write("meanwhile")
"""


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def test_two_hosts_from_s3_to_s3(
    session: Session, source: Path, object_store: ObjectStore, front: FaultyServer, no_secrets: None
) -> None:
    data, results = object_store.bucket(), object_store.bucket()
    pieces = {f"set/{number:02}": filled(50_000 + number, number) for number in range(9)}
    zipped = {f"zip/{number}": gzip.compress(piece) for number, piece in enumerate(pieces.values())}
    manifest = [{"prefix": f"s3://{data}/set/"}, "07", "02"]
    document = {"lists/manifest": json.dumps(manifest).encode()}
    object_store.put(data, {**pieces, **zipped, **document, "set/": b"", "settings": b"x"})
    place = f"s3://{data}/set/"
    made = estimator(
        source,
        session,
        READS,
        hosts=2,
        output_path=f"s3://{results}/out",
        code_location=f"s3://{results}/code",
        hyperparameters={"sagemaker_s3_output": f"s3://{results}/meanwhile"},
    )
    made.fit(
        {
            "train": place,
            "shares": TrainingInput(place, distribution="ShardedByS3Key"),
            "listed": TrainingInput(f"s3://{data}/lists/manifest", s3_data_type="ManifestFile"),
            "pipe": TrainingInput(place, input_mode="Pipe", shuffle_config=ShuffleConfig(5)),
            "packed": TrainingInput(f"s3://{data}/zip/", input_mode="Pipe", compression="Gzip"),
        }
    )
    lines = [log_of(made, host).partition("told ")[2] for host in ("algo-1", "algo-2")]
    first, second = (json.loads(line.splitlines()[0]) for line in lines)
    wanted = {key.removeprefix("set/"): md5(piece) for key, piece in pieces.items()}
    assert first["train"] == second["train"] == wanted
    assert sorted([*first["shares"], *second["shares"]]) == sorted(wanted), "each once"
    assert {**first["shares"], **second["shares"]} == wanted
    assert first["listed"] == {key: wanted[key] for key in ("02", "07")}
    assert first["packed"] == md5(b"".join(pieces.values()))
    assert first["epochs"] == second["epochs"], "all hosts have the same order"
    assert len(set(first["epochs"])) == 3, "and another one in each epoch"
    assert f"channel 'train' is here: 9 objects, 0.5 MB of s3://{data}" in log_of(made)
    # What hosts of one machine share comes once: for `train`; and for `listed` two of them.
    gets = [each.path for each in front.requests if each.method == "GET"]
    assert gets.count(f"/{data}/set/02") == gets.count(f"/{data}/set/03") + 1
    job = path_of(made).name
    kept = object_store.contents(results)
    assert sorted(kept) == sorted(
        [
            f"code/{job}/source/sourcedir.tar.gz",
            f"meanwhile/{job}/output/intermediate/algo-1",
            f"meanwhile/{job}/output/intermediate/algo-2",
            f"out/{job}/output/model.tar.gz",
            f"out/{job}/output/output.tar.gz",
        ]
    )
    assert made.model_data == f"s3://{results}/out/{job}/output/model.tar.gz"
    with tarfile.open(fileobj=io.BytesIO(kept[f"out/{job}/output/model.tar.gz"])) as tar:
        assert tar.getnames() == ["model"]
    assert not (path_of(made) / "data").exists()
    assert not (path_of(made) / "output").exists()
    assert SECRET not in json.dumps(describe(made), default=str)
    assert all(each.startswith("AWS4-HMAC") and SECRET not in each for each in front.authorizations)


def test_results_that_cannot_be_put_stay_where_the_reason_says(
    session: Session, source: Path, object_store: ObjectStore, front: FaultyServer, no_secrets: None
) -> None:
    results = object_store.bucket()
    script = "import os; open(os.environ['SM_MODEL_DIR'] + '/m', 'w').write('weights')"
    made = estimator(source, session, script, output_path=f"s3://{results}/out")
    front.fault_of = lambda request: Fault(403, "AccessDenied") if request.method == "PUT" else None
    with pytest.raises(UnexpectedStatusException, match="artifacts could not be saved") as error:
        made.fit()
    folder = path_of(made) / "output"
    assert f"They are whole in {folder}" in str(error.value)
    assert "may not be read or written with these credentials" in str(error.value)
    with tarfile.open(folder / "model.tar.gz") as tar:
        assert tar.getnames() == ["m"]
    assert made.model_data is None
    assert object_store.contents(results) == {}


@pytest.mark.parametrize(
    ("inputs", "output", "text"),
    [
        ("s3://no-such-bucket/x", None, r"has no bucket 'no-such-bucket'"),
        ("s3://DATA/nothing", None, r"channel 'training' is s3://.*/nothing, and the S3 store at"),
        (None, "s3://no-such-bucket/x", r"the bucket 'no-such-bucket' is not there"),
    ],
)
def test_what_is_not_there_is_told_before_anything_runs(
    session: Session, source: Path, store: ObjectStore, inputs: Any, output: str | None, text: str
) -> None:
    data = store.bucket()
    made = estimator(source, session, "print('it runs')", output_path=output)
    with pytest.raises(UnexpectedStatusException, match=rf"Reason: ClientError: .*{text}"):
        made.fit(inputs and inputs.replace("DATA", data))
    assert states(made) == ["Starting", "Downloading", "Failed"]


def test_an_agent_that_is_killed_while_it_downloads_goes_on_where_it_was(
    session: Session, source: Path, object_store: ObjectStore, front: FaultyServer
) -> None:
    data = object_store.bucket()
    content = filled(2 << 20)
    object_store.put(data, {"a/big": content, "a/small": b"x"})
    stalled = threading.Event()

    def stall(request):
        if request.path.endswith("big") and request.start == 0 and not stalled.is_set():
            stalled.set()
            return Fault(stall_after=1 << 20)
        return None

    front.fault_of = stall
    script = """
        import os
        print(len(open(os.environ["SM_CHANNEL_TRAINING"] + "/big", "rb").read()), flush=True)
    """
    made = estimator(source, session, script, max_retry_attempts=1)
    made.fit(f"s3://{data}/a/", wait=False)
    assert stalled.wait(60)
    state = path_of(made) / "data"
    wait_for(
        lambda: [
            path for path in state.glob("*/training/*/*.part") if path.stat().st_size >= 1 << 20
        ]
    )
    workers = processes_of("data.stores.process")
    kill_agent(made, "algo-1")
    made.latest_training_job.wait()
    assert states(made) == [*FIRST[:2], *AGAIN, "Uploading", "Completed"]
    assert front.sent[f"/{data}/a/big"] == len(content), "each byte came once"
    assert f"{len(content)}" in log_of(made)
    assert not workers.keys() & processes_of("data.stores.process").keys()


@pytest.mark.slow  # it waits as long as the store is given
def test_a_store_that_is_down_for_a_while_costs_an_attempt(
    session: Session, source: Path, object_store: ObjectStore, front: FaultyServer
) -> None:
    data = object_store.bucket()
    object_store.put(data, {"a": b"a", "b": b"b"})
    with_b = f"/{data}/b"
    front.fault_of = lambda request: (
        Fault(500, "InternalError") if request.path == with_b and request.number < 6 else None
    )
    made = estimator(source, session, "print('it runs')", max_retry_attempts=1)
    made.fit(f"s3://{data}/")
    assert states(made) == [*FIRST[:2], *AGAIN, "Uploading", "Completed"]
    gets = [each.path for each in front.requests if each.method == "GET"]
    assert gets.count(f"/{data}/a") == 1, "what is there is not read again"


def stalls_at_a(front: FaultyServer) -> threading.Event:
    """The object `a` stalls in its middle. Returns: it does so now."""
    stalled = threading.Event()

    def stall(request: Request) -> Fault | None:
        if request.method == "GET" and request.path.endswith("/a"):
            stalled.set()
            return Fault(stall_after=1000)
        return None

    front.fault_of = stall
    return stalled


def test_a_job_that_is_stopped_while_it_downloads_stops(
    session: Session, source: Path, object_store: ObjectStore, front: FaultyServer
) -> None:
    data = object_store.bucket()
    object_store.put(data, {"a": filled(1 << 20)})
    stalled = stalls_at_a(front)
    made = estimator(source, session, "print('it runs')", hosts=2)
    made.fit(f"s3://{data}/", wait=False)
    assert stalled.wait(60)
    made.latest_training_job.stop()
    ended(made, "Stopped", "Stopped")
    assert not list((path_of(made) / "hosts").glob("*/log")), "nothing has run"


@pytest.mark.slow
def test_a_stop_waits_for_no_checkpoints(
    session: Session, source: Path, object_store: ObjectStore, front: FaultyServer
) -> None:
    data = object_store.bucket()
    object_store.put(data, {"run/a": filled(1 << 20)})
    stalled = stalls_at_a(front)
    made = estimator(source, session, "print('it runs')", checkpoint_s3_uri=f"s3://{data}/run")
    made.fit(wait=False)
    assert stalled.wait(scaled(60))
    began = time.monotonic()
    made.latest_training_job.stop()
    ended(made, "Stopped", "Stopped")
    assert time.monotonic() - began < scaled(10)
    assert "it runs" not in log_of(made)
    assert list(object_store.contents(data)) == ["run/a"]


def test_a_stop_waits_for_no_list_of_objects(
    session: Session, source: Path, object_store: ObjectStore, front: FaultyServer
) -> None:
    data = object_store.bucket()
    stalled = threading.Event()

    def stall(request):
        stalled.set()
        return Fault(stall_after=0)

    front.fault_of = stall
    made = estimator(source, session, "print('it runs')")
    made.fit(f"s3://{data}/", wait=False)
    assert stalled.wait(60)
    made.latest_training_job.stop()
    ended(made, "Stopped", "Stopped")


@pytest.mark.slow  # ranks of torch, twice
def test_checkpoints_in_s3_are_what_a_job_goes_on_from(
    session: Session, source: Path, store: ObjectStore
) -> None:
    """Data in S3, two hosts, one of which is killed: the loss is that of a run without it."""
    bucket = store.bucket()
    store.put(bucket, {"data/x": b"x"})
    made = estimator(
        source,
        session,
        TRAINS,
        hosts=2,
        max_retry_attempts=1,
        checkpoint_s3_uri=f"s3://{bucket}/kept",
        environment={"PAUSE": "0.5"},
    )
    made.fit(f"s3://{bucket}/data", wait=False)
    wait_for(lambda: any(key.startswith("kept/") for key in store.contents(bucket)))
    kill_agent(made, "algo-2")
    made.latest_training_job.wait()
    assert states(made) == [*FIRST, *AGAIN, "Uploading", "Completed"]
    begun = [line for line in log_of(made).splitlines() if "begins at" in line]
    assert len(begun) == 2
    assert "begins at 0 " not in begun[1], "it went on"
    loss = float(log_of(made).rpartition("loss: ")[2].split()[0])
    assert loss == pytest.approx(uninterrupted_loss(), rel=1e-5)
    kept = [key for key in store.contents(bucket) if key.startswith("kept/")]
    assert sorted(kept) == [f"kept/{step:02}.pt" for step in range(12)]


LAZY = """
    import os, sys, time
    data = os.environ["SM_CHANNEL_TRAINING"]
    names = sorted(os.path.relpath(os.path.join(above, name), data)
                   for above, _, found in os.walk(data) for name in found)
    print("names", names, open(data + "/deep/b").read(), flush=True)
    try:
        open(data + "/a", "w")
    except OSError as error:
        print("refused", error.strerror, flush=True)
    print(os.path.ismount(data), flush=True)
    while os.environ.get("WAITS"):
        time.sleep(0.1)
"""


def mounters_of(text: str) -> dict[int, str]:
    return {pid: words for pid, words in processes_of(text).items() if "s3fs" in words}


def test_fast_file_is_mounted_where_it_can_be(
    session: Session, source: Path, object_store: ObjectStore, front: FaultyServer, no_secrets: None
) -> None:
    if shutil.which("s3fs") is None or os.getuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("nothing can be mounted without s3fs, root and /dev/fuse (make env-clusters)")
    data = object_store.bucket()
    object_store.put(data, {"set/a": b"a", "set/deep/b": b"bbb", "set/never": b"x", "settle": b"y"})
    made = estimator(source, session, LAZY, environment={"WAITS": "1"}, max_retry_attempts=1)
    made.fit(TrainingInput(f"s3://{data}/set/", input_mode="FastFile"), wait=False)
    wait_for_line(made, "True")
    assert "channel 'training' is mounted" in log_of(made)
    assert "names ['a', 'deep/b', 'never'] bbb" in log_of(made)
    assert "refused Read-only file system" in log_of(made)
    read = {each.path for each in front.requests if each.method == "GET"}
    assert f"/{data}/set/never" not in read, "what nobody opens is not read"
    mounted = mounters_of(data)
    assert all(SECRET not in words for words in mounted.values())
    kill_agent(made, "algo-1")
    wait_for(lambda: not mounted.keys() & mounters_of(data).keys(), 30.0)
    wait_for(lambda: log_of(made).partition("attempt 2 of the job")[2].count("True") == 1)
    made.latest_training_job.stop()
    ended(made, "Stopped", "Stopped")
    assert not mounters_of(data)


@pytest.mark.slow  # a mount, and what follows when it goes
def test_a_script_whose_data_are_unmounted_does_not_go_on_without_them(
    session: Session, source: Path, store: ObjectStore
) -> None:
    if shutil.which("s3fs") is None or os.getuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("nothing can be mounted without s3fs, root and /dev/fuse (make env-clusters)")
    data = store.bucket()
    store.put(data, {"set/a": b"a"})
    script = """
        import os, time
        data = os.environ["SM_CHANNEL_TRAINING"]
        print(os.listdir(data), flush=True)
        os.system("umount -l " + data)
        time.sleep(60)
        print("trained on", os.listdir(data), flush=True)
    """
    made = estimator(source, session, script)
    text = "Reason: InternalServerError: channel 'training' is not mounted any more: "
    with pytest.raises(UnexpectedStatusException, match=text):
        made.fit(TrainingInput(f"s3://{data}/set/", input_mode="FastFile"))
    assert "trained on" not in log_of(made)


def test_fast_file_is_file_elsewhere_and_a_line_says_so(
    session: Session, source: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = store.bucket()
    store.put(data, {"set/a": b"a", "set/deep/b": b"bbb"})
    folder = source.parent / "programs"
    folder.mkdir()
    for name in ("mount-s3", "s3fs", "rclone"):  # which cannot mount
        (folder / name).write_text("#!/bin/sh\necho 'no fuse here'; exit 1\n")
        (folder / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    made = estimator(source, session, LAZY)
    made.fit(TrainingInput(f"s3://{data}/set/", input_mode="FastFile"))
    assert "channel 'training' is in mode FastFile, which is File here: " in log_of(made)
    assert "names ['a', 'deep/b'] bbb" in log_of(made)


@pytest.mark.slow  # it waits for a store that refuses, as long as it says
def test_a_store_that_refuses_connections_is_given_up(
    session: Session, source: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", "http://127.0.0.1:1")
    made = estimator(source, session, "print('it runs')")
    text = r"Reason: InternalServerError: .*s3://some/.*does not answer.*endpoint"
    with pytest.raises(UnexpectedStatusException, match=text):
        made.fit("s3://some/x")
