# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A store through a process of its own, which leaves nothing when it or its user is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.objects import DataObject
from smdistributed.launch.data.stores.remote import Abandoned, RemoteStore
from smdistributed.launch.data.stores.s3 import PAUSES_S, S3Settings
from smdistributed.launch.data.stores.store import Changed, StoreError, look_of
from tests.clusters.object_store import (
    Fault,
    FaultyServer,
    ObjectStore,
    Request,
    files_of,
    filled,
)

MIB = 1 << 20


def test_it_does_what_a_store_does(object_store: ObjectStore, tmp_path: Path) -> None:
    bucket = object_store.bucket()
    store = RemoteStore(bucket, S3Settings(object_store.url), "p/")
    path = tmp_path / "file"
    path.write_bytes(filled(3 * MIB))
    store.put(path, "a/b", look_of(path))
    store.put(path, "c")
    store.delete("c")
    with pytest.raises(Changed):
        store.put(path, "d", (1, 2, 3))
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '/.*/nothing'"):
        store.put(tmp_path / "nothing", "e")
    assert [each.key for each in store.objects()] == ["a/b"]
    (each,) = store.objects()
    assert store.find("a/b") == each
    assert store.find("c") is None
    content = b"".join(store.read(DataObject(each.key, *each)))
    assert content == path.read_bytes()
    (tmp_path / "folder").mkdir()
    assert store.bring(tmp_path / "folder") == ["a/b"]
    assert files_of(tmp_path / "folder") == {"a/b": content}
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    with pytest.raises(ConfigurationError, match="that is no path"):
        store.download([each_of("../x")], tmp_path / "folder", tmp_path / "state")
    first = store.pid
    assert first is not None
    store.close()
    store.close()
    assert store.pid is None
    assert [each.key for each in store.objects()] == ["a/b"], "another process does it"
    assert store.pid != first
    store.close()


def each_of(name: str) -> DataObject:
    return DataObject(name, "a/b", 1, '"x"')


def test_what_is_left_of_an_answer_belongs_to_no_other_request(object_store: ObjectStore) -> None:
    bucket = object_store.bucket()
    object_store.put(bucket, {"a": filled(4 * MIB), "b": b"b"})
    store = RemoteStore(bucket, S3Settings(object_store.url))
    a, b = (DataObject(each.key, *each) for each in store.objects())
    pieces = store.read(a)
    next(pieces)
    pieces.close()
    assert b"".join(store.read(b)) == b"b"
    store.close()


def test_what_prints_in_every_python_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('welcome')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    store = RemoteStore("bucket", S3Settings("http://127.0.0.1:1"))
    with pytest.raises(StoreError, match=r"has printed b'welcome', which is no .*sitecustomize"):
        store.objects()
    store.close()


def test_nobody_waits_for_what_is_not_wanted(
    object_store: ObjectStore, faulty: FaultyServer
) -> None:
    bucket = object_store.bucket()
    unwanted = threading.Event()
    store = RemoteStore(bucket, S3Settings(faulty.url), is_unwanted=unwanted.is_set)
    asked: list[str] = []

    def refuse(request: Request) -> Fault:
        asked.append(request.path)
        return Fault(503, "SlowDown")

    faulty.fault_of = refuse
    threading.Timer(0.3, unwanted.set).start()
    with pytest.raises(Abandoned):
        store.objects()
    assert len(asked) <= len(PAUSES_S), "or it was waited for to its end"
    assert store.pid is None


def test_a_process_that_is_killed_is_told_and_replaced(object_store: ObjectStore) -> None:
    bucket = object_store.bucket()
    store = RemoteStore(bucket, S3Settings(object_store.url))
    assert list(store.objects()) == []
    assert store.pid is not None
    os.kill(store.pid, signal.SIGKILL)
    time.sleep(0.1)
    assert list(store.objects()) == []
    object_store.put(bucket, {"a": filled(8 * MIB)})
    (each,) = store.objects()
    pieces = store.read(DataObject(each.key, *each))
    next(pieces)
    os.kill(store.pid, signal.SIGKILL)
    with pytest.raises(StoreError, match=r"is gone, with status -9"):
        list(pieces)
    store.close()


PUTS = """
import sys
from pathlib import Path
from smdistributed.launch.data.stores.remote import RemoteStore
from smdistributed.launch.data.stores.s3 import S3Settings
store = RemoteStore(sys.argv[2], S3Settings(sys.argv[1]))
print(list(store.objects()), store.pid, flush=True)
store.put(Path(sys.argv[3]), "big")
"""


def test_a_user_that_is_killed_leaves_no_process_and_no_half_of_an_upload(
    object_store: ObjectStore, faulty: FaultyServer, tmp_path: Path
) -> None:
    bucket = object_store.bucket()
    (tmp_path / "big").write_bytes(bytes(40 * MIB))
    putting = threading.Event()

    def slow(request):
        if request.method == "PUT":
            putting.set()
            time.sleep(0.3)

    faulty.fault_of = slow
    arguments = [sys.executable, "-c", PUTS, faulty.url, bucket, str(tmp_path / "big")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline().split()[-1])
        assert putting.wait(30)
        process.kill()
    until = time.monotonic() + 20.0
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < until
        time.sleep(0.05)
    assert object_store.contents(bucket) == {}
    assert "Uploads" not in object_store.client.list_multipart_uploads(Bucket=bucket)
