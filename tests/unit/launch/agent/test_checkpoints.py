# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints are copied whole, deleted where they are deleted, and come back."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smdistributed.launch.agent.checkpoints import CheckpointSync
from smdistributed.launch.data.stores.folder import FolderStore
from smdistributed.launch.data.stores.remote import RemoteStore
from smdistributed.launch.data.stores.s3 import S3Settings
from smdistributed.launch.data.stores.store import Changed, Look, StoreError
from tests.clusters.object_store import Fault, FaultyServer, ObjectStore, Request


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def sync(tmp_path: Path, said: list[str]) -> CheckpointSync:
    made = CheckpointSync(tmp_path / "local", FolderStore(tmp_path / "store"), said.append)
    made.restore()
    return made


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_file_that_grows_is_not_copied_before_it_rests(
    sync: CheckpointSync, tmp_path: Path
) -> None:
    local, store = tmp_path / "local", tmp_path / "store"
    for size in range(1, 4):
        (local / "model.pt").write_bytes(b"x" * size)
        sync.copy()
        assert names(store) == [], "it looks different each time"
    sync.copy()
    assert (store / "model.pt").read_bytes() == b"xxx"
    assert names(store) == ["model.pt"]


def test_a_change_and_a_deletion_follow(sync: CheckpointSync, tmp_path: Path) -> None:
    local, store = tmp_path / "local", tmp_path / "store"
    (local / "deep").mkdir()
    (local / "deep" / "a").write_text("1")
    (local / "b").write_text("1")
    sync.copy()
    sync.copy()
    assert names(store) == ["b", "deep/a"]
    (local / "deep" / "a").write_text("22")
    (local / "b").unlink()
    (store / "of another host").write_text("x")
    for _ in range(3):
        sync.copy()
    assert (store / "deep" / "a").read_text() == "22"
    assert names(store) == ["deep/a", "of another host"]
    assert names(local) == ["deep/a"], "what others add later does not come here"


def test_a_folder_becomes_a_file_and_a_file_a_folder(sync: CheckpointSync, tmp_path: Path) -> None:
    local, store = tmp_path / "local", tmp_path / "store"
    (local / "a").mkdir()
    (local / "a" / "w").write_text("1")
    (local / "b").write_text("1")
    sync.copy()
    sync.copy()
    shutil.rmtree(local / "a")
    (local / "a").write_text("2")
    (local / "b").unlink()
    (local / "b").mkdir()
    (local / "b" / "w").write_text("2")
    assert sync.end() == ""
    assert names(store) == ["a", "b/w"]
    assert (store / "a").read_text() == (store / "b" / "w").read_text() == "2"


def test_the_end_says_what_it_could_not_copy(sync: CheckpointSync, tmp_path: Path) -> None:
    (tmp_path / "local" / "a").write_text("x")
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("in the way")
    assert "checkpoint a could not be copied" in sync.end()


def test_the_end_copies_what_has_just_been_written(sync: CheckpointSync, tmp_path: Path) -> None:
    sync.begin()
    (tmp_path / "local" / "last").write_text("x")
    sync.end()
    assert names(tmp_path / "store") == ["last"]


def test_it_copies_by_itself(sync: CheckpointSync, tmp_path: Path) -> None:
    sync.begin()
    (tmp_path / "local" / "a").write_text("x")
    until = time.monotonic() + 20.0
    while names(tmp_path / "store") != ["a"]:
        assert time.monotonic() < until
        time.sleep(0.05)
    sync.end()


def test_what_is_restored_is_not_copied_back_and_can_be_deleted(
    tmp_path: Path, said: list[str]
) -> None:
    (tmp_path / "store" / "deep").mkdir(parents=True)
    (tmp_path / "store" / "deep" / "a").write_text("kept")
    sync = CheckpointSync(tmp_path / "local", FolderStore(tmp_path / "store"), said.append)
    sync.restore()
    assert (tmp_path / "local" / "deep" / "a").read_text() == "kept"
    before = (tmp_path / "store" / "deep" / "a").stat().st_ino
    sync.copy()
    sync.copy()
    assert (tmp_path / "store" / "deep" / "a").stat().st_ino == before
    (tmp_path / "local" / "deep" / "a").unlink()
    sync.copy()
    sync.copy()
    assert names(tmp_path / "store") == []


def test_a_folder_that_is_gone_says_nothing_of_its_files(
    sync: CheckpointSync, tmp_path: Path
) -> None:
    (tmp_path / "local" / "a").write_text("x")
    sync.copy()
    sync.copy()
    shutil.rmtree(tmp_path / "local")
    for _ in range(3):
        sync.copy()
    sync.end()
    assert names(tmp_path / "store") == ["a"], "the user's only copy"


def test_a_file_that_is_written_while_it_is_copied_is_not_published(
    sync: CheckpointSync, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "local" / "last"
    path.write_text("good")
    sync.copy()
    sync.copy()
    path.write_text("better")
    sync.copy()
    plain = shutil.copyfile

    def writes(source: Path, target: str) -> None:
        plain(source, target)
        path.write_text("half of the ne")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", writes)
        sync.copy()
    assert (tmp_path / "store" / "last").read_text() == "good"
    assert names(tmp_path / "store") == ["last"]
    sync.copy()
    sync.copy()
    assert (tmp_path / "store" / "last").read_text() == "half of the ne", "which it is now"


def test_what_a_killed_rank_has_half_written_does_not_replace_what_is_whole(
    sync: CheckpointSync, tmp_path: Path
) -> None:
    path = tmp_path / "local" / "last"
    path.write_text("good")
    sync.copy()
    sync.copy()
    path.write_text("ha")
    (tmp_path / "local" / "new").write_text("x")
    sync.end(ended_well=False)
    assert (tmp_path / "store" / "last").read_text() == "good"
    assert (tmp_path / "store" / "new").read_text() == "x", "better than nothing"


def test_what_a_killed_copy_has_left_is_removed(tmp_path: Path, said: list[str]) -> None:
    store = tmp_path / "store"
    (store / "deep").mkdir(parents=True)
    for name in (".smd-copying-job-1-abc", "deep/.smd-copying-job-1-def", ".smd-copying-other-x"):
        (store / name).write_text("x")
    CheckpointSync(tmp_path / "local", FolderStore(store, "job-1"), said.append).restore()
    assert names(store) == [".smd-copying-other-x"], "another one's may be under way"
    assert names(tmp_path / "local") == []


def test_a_store_that_cannot_be_written_is_told_once_and_tried_again(
    sync: CheckpointSync, tmp_path: Path, said: list[str]
) -> None:
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("in the way")
    (tmp_path / "local" / "a").write_text("x")
    for _ in range(4):
        sync.copy()
    assert len(said) == 1
    assert "checkpoint a could not be copied to" in said[0]
    (tmp_path / "store").unlink()
    sync.copy()
    assert names(tmp_path / "store") == ["a"]


def test_an_end_that_cannot_look_at_the_files_is_no_success(
    sync: CheckpointSync, tmp_path: Path, said: list[str]
) -> None:
    """As of a path that is too long, or a disk that fails: nothing would be copied in silence."""
    (tmp_path / "local" / "a").write_text("x")
    with deep_folder(tmp_path / "local"):
        sync.copy()
        sync.copy()
        assert len(said) == 1
        assert re.search(r"checkpoints could not be copied to /.*: .*too long", said[0])
        assert "too long" in sync.end()


@contextlib.contextmanager
def deep_folder(folder: Path) -> Iterator[None]:
    """Has a folder in this one whose path is longer than any may be."""
    name, before = "d" * 250, os.getcwd()
    os.chdir(folder)
    try:
        for _ in range(18):
            os.mkdir(name)
            os.chdir(name)
        os.chdir(before)
        yield
    finally:
        os.chdir(before)
        subprocess.run(["rm", "-rf", str(folder / name)], check=True)


def test_an_end_at_which_a_file_is_still_written_is_no_success(
    sync: CheckpointSync, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "local" / "last"
    path.write_text("good")
    plain = shutil.copyfile

    def writes(source: Path, target: str) -> None:
        plain(source, target)
        path.write_text("half of the ne")

    monkeypatch.setattr(shutil, "copyfile", writes)
    text = r"checkpoint last could not be copied to /.*: it is written to, though the script has"
    assert re.search(text, sync.end())


class Recorded(FolderStore):
    """Tells what was done in it, in order; and may be full."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.did: list[str] = []
        self.problem: Exception | None = None

    def put(self, path: Path, key: str, look: Look | None = None) -> None:
        if self.problem is not None:
            raise self.problem
        super().put(path, key, look)
        self.did.append(f"put {key}")

    def delete(self, key: str) -> None:
        super().delete(key)
        self.did.append(f"delete {key}")


@pytest.mark.parametrize(
    ("problem", "held"),
    [
        (None, False),
        (StoreError("no answer", is_passing=True), True),
        (StoreError("may not"), True),
        (OSError(errno.EIO, "broken"), True),
        (OSError(errno.ENOSPC, "full"), False),  # it would stay so
        (Changed(), True),
    ],
    ids=str,
)
def test_the_old_checkpoint_stays_until_the_new_one_is_there(
    tmp_path: Path, said: list[str], problem: Exception | None, held: bool
) -> None:
    """A host that is lost between the two would leave none."""
    store = Recorded(tmp_path / "store")
    sync = CheckpointSync(tmp_path / "local", store, said.append)
    sync.restore()
    (tmp_path / "local" / "old").write_text("1")
    sync.copy()
    sync.copy()
    (tmp_path / "local" / "new").write_text("2")
    (tmp_path / "local" / "old").unlink()
    sync.copy()
    assert store.did == ["put old"]
    store.problem = problem
    sync.copy()
    if problem is not None:
        assert store.did == ["put old", *([] if held else ["delete old"])]
        store.problem = None
        sync.copy()
    assert sorted(store.did[1:]) == ["delete old", "put new"]
    assert store.did[-1] == ("delete old" if held or problem is None else "put new")


def test_what_is_written_through_memory_is_seen(sync: CheckpointSync, tmp_path: Path) -> None:
    """As of numpy.memmap: a page that is dirty already changes no time when it is written to."""
    kind = ["stat", "-f", "-c", "%T", str(tmp_path)]
    if subprocess.run(kind, capture_output=True, text=True).stdout.strip() == "tmpfs":
        pytest.skip("tmpfs tells of the first write alone")
    path = tmp_path / "local" / "array"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[0] = 1
        sync.copy()
        sync.copy()
        assert (tmp_path / "store" / "array").read_bytes()[0] == 1
        time.sleep(0.05)  # the time of a file goes on in steps
        memory[0] = 2
    assert sync.end() == ""
    assert (tmp_path / "store" / "array").read_bytes()[0] == 2


def test_what_cannot_be_deleted_is_told(
    sync: CheckpointSync, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would come back with the next attempt."""
    (tmp_path / "local" / "a").write_text("x")
    sync.copy()
    sync.copy()
    (tmp_path / "local" / "a").unlink()

    def refuses(self: Path, **more: bool) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuses)
        for _ in range(3):
            sync.copy()
    assert len(said) == 1
    assert re.search(r"checkpoint a could not be deleted from .*Permission denied", said[0])
    assert sync.end() == ""
    assert names(tmp_path / "store") == []


def test_what_is_no_file_is_left_alone(sync: CheckpointSync, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "local" / "fifo")
    (tmp_path / "local" / "dangling").symlink_to("nowhere")
    sync.copy()
    sync.copy()
    assert names(tmp_path / "store") == []


def test_an_s3_store_gets_what_changes_and_loses_what_is_deleted(
    tmp_path: Path, said: list[str], object_store: ObjectStore, faulty: FaultyServer
) -> None:
    bucket = object_store.bucket()
    object_store.put(bucket, {"run/deep/a": b"kept", "other": b"x"})
    store = RemoteStore(bucket, S3Settings(faulty.url), "run/")
    sync = CheckpointSync(tmp_path / "local", store, said.append)
    sync.restore()
    local = tmp_path / "local"
    assert names(tmp_path) == ["local/deep/a"], "and nothing beside it"
    (local / "b").write_text("new")
    for _ in range(2):
        sync.copy()
    assert object_store.contents(bucket)["run/b"] == b"new"
    puts = [each.path for each in faulty.requests if each.method == "PUT"]
    assert puts == [f"/{bucket}/run/b"], "what was restored is not put back"
    (local / "deep" / "a").unlink()
    (local / "b").write_text("newer")
    faulty.fault_of = lambda request: Fault(403, "AccessDenied")
    for _ in range(3):
        sync.copy()
    assert len(said) == 1, said
    assert "AccessDenied" in said[0]
    assert sorted(object_store.contents(bucket)) == ["other", "run/b", "run/deep/a"]
    faulty.fault_of = lambda request: None
    assert sync.end() == ""
    assert object_store.contents(bucket) == {"other": b"x", "run/b": b"newer"}
    assert store.pid is None


def test_what_an_s3_store_cannot_take_at_the_end_is_told(
    tmp_path: Path, said: list[str], object_store: ObjectStore, faulty: FaultyServer
) -> None:
    bucket = object_store.bucket()
    store = RemoteStore(bucket, S3Settings(faulty.url), "run/")
    sync = CheckpointSync(tmp_path / "local", store, said.append)
    sync.restore()
    (tmp_path / "local" / "a").write_text("half")
    faulty.fault_of = lambda request: Fault(403, "AccessDenied")
    assert "could not be copied to s3://" in sync.end(ended_well=False)
    assert store.pid is None


@pytest.mark.slow
def test_what_another_host_replaces_while_it_comes_comes_as_it_is_then(
    tmp_path: Path, said: list[str], object_store: ObjectStore, faulty: FaultyServer
) -> None:
    """Hosts begin at the same time: one may train already while others still bring the rest."""
    bucket = object_store.bucket()
    object_store.put(bucket, {"run/a": b"old", "run/b": b"old", "run/c": b"c"})
    did: set[str] = set()

    def replace(request: Request) -> None:
        if request.method == "GET" and request.path[-2:] in ("/a", "/b") and len(did) < 2:
            name = request.path[-1]
            did.add(name)
            if name == "a":
                object_store.put(bucket, {"run/a": b"newer"})
            else:
                object_store.client.delete_object(Bucket=bucket, Key="run/b")

    faulty.fault_of = replace
    store = RemoteStore(bucket, S3Settings(faulty.url), "run/")
    sync = CheckpointSync(tmp_path / "local", store, said.append)
    sync.restore()
    store.close()
    assert names(tmp_path) == ["local/a", "local/c"], "and nothing beside it"
    assert (tmp_path / "local" / "a").read_text() == "newer"
    gets = [each.path for each in faulty.requests if each.path.endswith("/c")]
    assert len(gets) == 1, "what is there does not come again"


def test_what_another_host_replaces_while_it_is_copied_is_whole(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for name in ("a", "b", "c"):
        (store / name).write_text("old")
    plain, did = shutil.copyfile, set[str]()

    def replaces(source: Path, target: str) -> None:
        plain(source, target)
        if source.name == "a" and not did:
            (store / "new").write_text("newer")
            os.replace(store / "new", store / "a")
            (store / "b").unlink()
            did.add("a")

    monkeypatch.setattr(shutil, "copyfile", replaces)
    CheckpointSync(tmp_path / "local", FolderStore(store), said.append).restore()
    assert (tmp_path / "local" / "a").read_text() == "newer"
    assert names(tmp_path / "local") == ["a", "c"]
