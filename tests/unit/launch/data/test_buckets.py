# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Objects are put into buckets, listed and brought back (launch specification, 1 and 5)."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data import buckets
from smdistributed.launch.home import Home
from smdistributed.launch.storage import new_file
from smdistributed.sagemaker.session import Session
from tests.clusters.object_store import FaultyServer, ObjectStore, Request, files_of
from tests.small_disks import mounted_disk


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(home=Home(tmp_path / "home"), default_bucket="mine")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    for name in ("a/x", "a/y", "a-1/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_there_and_back(session: Session, folder: Path, tmp_path: Path) -> None:
    assert session.upload_data(str(folder), key_prefix="/sets/one/") == "s3://mine/sets/one"
    assert session.upload_data(str(folder / "a" / "x"), "b") == "s3://b/data/x"
    keys = ["sets/one/a-1/x", "sets/one/a/x", "sets/one/a/y"]
    assert session.list_s3_files("mine", "") == keys
    assert session.list_s3_files("mine", "sets/one/a-") == keys[:1]
    assert session.list_s3_files("mine", "nothing/at/all") == []
    assert session.read_s3_file("mine", "sets/one/a/y") == "a/y"
    target = tmp_path / "target"
    got = session.download_data(str(target), "mine", "sets/one/a")
    assert got == [f"{target}/-1/x", f"{target}/x", f"{target}/y"]
    assert (target / "-1" / "x").read_text() == "a-1/x"
    assert session.download_data(str(target), "b", "data/x") == [f"{target}/x"]
    assert (target / "x").read_text() == "a/x"
    assert session.download_data(str(target), "b", "nothing") == []
    assert sorted(os.listdir(target)) == ["-1", "x", "y"], "nothing is left beside"
    for bucket in ("mine", "b"):
        assert os.listdir(session.home.buckets / bucket) == ["sets" if bucket == "mine" else "data"]


def test_text_becomes_an_object(session: Session) -> None:
    assert session.upload_string_as_file_body("ä", "b", "k/x.txt") == "s3://b/k/x.txt"
    assert session.read_s3_file("b", "k/x.txt") == "ä"
    session.upload_string_as_file_body(b"\xff", "b", "k/x.txt")
    with pytest.raises(UnicodeDecodeError):
        session.read_s3_file("b", "k/x.txt")
    session.default_bucket_prefix = "pre"
    assert session.upload_string_as_file_body("x", None, "k") == "s3://mine/pre/k"


@pytest.mark.parametrize("call", ["list_s3_files", "read_s3_file", "download_data"])
def test_buckets_and_keys_that_are_not_there(session: Session, tmp_path: Path, call: str) -> None:
    path = [str(tmp_path / "target")] if call == "download_data" else []
    with pytest.raises(ConfigurationError, match="bucket 'nothing', which this machine's store"):
        getattr(session, call)(*path, "nothing", "x")
    session.upload_string_as_file_body("x", "b", "k")
    with pytest.raises(ConfigurationError, match="leads out of its bucket"):
        getattr(session, call)(*path, "b", "../x")
    if call == "read_s3_file":
        with pytest.raises(ConfigurationError, match="s3://b/x is not there"):
            session.read_s3_file("b", "x")


def test_a_folder_that_is_there_gets_more(session: Session, folder: Path) -> None:
    session.upload_string_as_file_body("before", "b", "p/before")
    session.upload_string_as_file_body("before", "b", "p/a/x")
    session.upload_data(str(folder), "b", "p")
    assert session.list_s3_files("b", "p") == ["p/a-1/x", "p/a/x", "p/a/y", "p/before"]
    assert session.read_s3_file("b", "p/a/x") == "a/x"


def test_a_bucket_can_be_copied_into_itself(session: Session, folder: Path) -> None:
    session.upload_data(str(folder), "b", "p")
    session.upload_data(str(session.home.buckets / "b"), "b", "copy")
    assert session.list_s3_files("b", "copy/p/a/") == ["copy/p/a/x", "copy/p/a/y"]


def test_what_cannot_be_together_is_refused_before_anything_is_there(
    session: Session, folder: Path
) -> None:
    session.upload_string_as_file_body("before", "b", "p/a-1/x")
    session.upload_string_as_file_body("before", "b", "p/a/y/deep")
    session.upload_string_as_file_body("before", "b", "q/a")
    for prefix, text in (
        ("p", "b/p/a/y cannot be put there, as it is a folder"),
        ("q", "/b/q/a is"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            session.upload_data(str(folder), "b", prefix)
    with pytest.raises(ConfigurationError, match="/b/p cannot be put there, as it is a folder"):
        session.upload_string_as_file_body("x", "b", "p")
    with pytest.raises(ConfigurationError, match="/b/q/a is an object and no folder"):
        session.upload_string_as_file_body("x", "b", "q/a/x")
    assert session.list_s3_files("b", "") == ["p/a-1/x", "p/a/y/deep", "q/a"]
    assert session.read_s3_file("b", "p/a-1/x") == "before"


def test_a_bucket_has_no_half_files_for_those_who_see_its_folder(
    session: Session, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    copy2 = shutil.copy2

    def looking(source: Path, target: Path) -> None:
        seen.extend(os.listdir(session.home.buckets / "b"))
        copy2(source, target)

    monkeypatch.setattr(buckets.shutil, "copy2", looking)
    session.upload_data(str(folder), "b", "p")
    assert seen == []
    assert os.listdir(session.home.buckets) == ["b"], "nothing is left beside"
    (tmp_path / "disk").mkdir()  # it may be another one, to which nothing can be renamed
    (session.home.buckets / "linked").symlink_to(tmp_path / "disk")
    session.upload_data(str(folder), "linked", "p")
    assert os.listdir(tmp_path / "disk") == ["p"]


def test_an_object_that_nobody_would_see(session: Session) -> None:
    with pytest.raises(ConfigurationError, match=r"has a part that begins with '\.smd-'"):
        session.upload_string_as_file_body("x", "b", "k/.smd-x/y")
    assert not session.home.buckets.exists()


def test_links_in_a_folder_that_have_no_end_or_lead_nowhere(session: Session, folder: Path) -> None:
    for name in ("one", "two"):  # with one alone a copy ends after 40 links
        (folder / "a" / name).symlink_to(".")
    with pytest.raises(ConfigurationError, match="link to a directory that it lies in"):
        session.upload_data(str(folder), "b")
    for name in ("one", "two"):
        (folder / "a" / name).unlink()
    (folder / "a" / "gone").symlink_to("/nowhere")
    with pytest.raises(ConfigurationError, match="a/gone is a link to /nowhere, which is not"):
        session.upload_data(str(folder), "b")
    assert not session.home.buckets.exists()


def test_a_folder_with_all_jobs_in_it_is_no_data(session: Session, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{tmp_path} has the folder of jobs and buckets"):
        session.upload_data(str(tmp_path), "b")


def test_folders_that_may_not_be_written_to(session: Session, folder: Path) -> None:
    (folder / "a").chmod(0o555)
    folder.chmod(0o555)
    try:
        session.upload_data(str(folder), "b", "p")
    finally:
        folder.chmod(0o755)
        (folder / "a").chmod(0o755)
    for path in (session.home.buckets / "b" / "p", session.home.buckets / "b" / "p" / "a"):
        assert path.stat().st_mode & 0o200, "an ordinary user could not rename or remove it"


def test_a_name_as_long_as_a_disk_allows(session: Session, folder: Path, tmp_path: Path) -> None:
    name = "n" * 255
    (folder / name).write_text("long")
    session.upload_data(str(folder), "b", "p")
    session.download_data(str(tmp_path / "target"), "b", "p/")
    assert (tmp_path / "target" / name).read_text() == "long"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Of 1 MiB."""
    with mounted_disk(tmp_path / "small", "size=1m") as path:
        yield path


def test_what_does_not_fit_is_not_there_at_all(folder: Path, small_disk: Path) -> None:
    session = Session(home=Home(small_disk / "home"))
    (folder / "big").write_bytes(bytes(2_000_000))
    text = r"the disk of .*/buckets/b is full: .*; expected room for 2,000,\d+ bytes"
    for source in (folder, folder / "big"):
        with pytest.raises(ConfigurationError, match=text):
            session.upload_data(str(source), "b")
    assert os.listdir(session.home.buckets) == []


def test_a_copy_that_fails_leaves_the_object_before(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session.upload_string_as_file_body("before", "b", "p/x")
    with monkeypatch.context() as patch:

        def fails(*_: object) -> None:
            raise OSError(errno.EIO, "no disk any more")

        patch.setattr(buckets.os, "replace", fails)
        with pytest.raises(OSError, match="no disk any more"):
            session.upload_data(str(folder / "a" / "x"), "b", "p")
        with pytest.raises(OSError, match="no disk any more"):
            session.download_data(str(tmp_path / "target"), "b", "p")
    assert session.read_s3_file("b", "p/x") == "before"
    assert os.listdir(session.home.buckets / "b") == ["p"]
    assert os.listdir(tmp_path / "target") == []


def test_the_folders_of_a_file_go_if_it_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x"

    def refuse(content: str) -> None:
        with new_file(path):
            if content:
                path.write_text(content)
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        refuse("half")
    assert os.listdir(tmp_path) == []
    with new_file(path):
        path.write_text("before")
    with pytest.raises(ValueError, match="refused"):
        refuse("")
    assert path.read_text() == "before"


def test_the_same_in_an_s3_store(
    session: Session,
    folder: Path,
    tmp_path: Path,
    object_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", object_store.url)
    bucket = object_store.bucket()
    assert session.upload_data(str(folder), bucket, "sets/one/") == f"s3://{bucket}/sets/one"
    assert session.upload_data(str(folder / "a" / "x"), bucket) == f"s3://{bucket}/data/x"
    keys = ["sets/one/a-1/x", "sets/one/a/x", "sets/one/a/y"]
    assert session.list_s3_files(bucket, "sets") == keys
    assert session.list_s3_files(bucket, "nothing/at/all") == []
    assert session.read_s3_file(bucket, "sets/one/a/y") == "a/y"
    assert session.upload_string_as_file_body("ä", bucket, "text") == f"s3://{bucket}/text"
    assert session.read_s3_file(bucket, "text") == "ä"
    target = tmp_path / "target"
    got = session.download_data(str(target), bucket, "sets/one/a")
    assert got == [f"{target}/-1/x", f"{target}/x", f"{target}/y"]
    assert (target / "-1" / "x").read_text() == "a-1/x"
    assert sorted(os.listdir(target)) == ["-1", "x", "y"], "nothing is left beside"
    with pytest.raises(ValueError, match="no such object"):
        session.read_s3_file(bucket, "nothing")
    with pytest.raises(ValueError, match="has no bucket 'no-such-bucket'"):
        session.upload_data(str(folder), "no-such-bucket")
    assert not session.home.buckets.exists(), "nothing was made here"


def test_a_copy_of_what_is_in_a_store(
    session: Session,
    tmp_path: Path,
    object_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", object_store.url)
    bucket = object_store.bucket()
    object_store.put(bucket, {"m/model.tar.gz": b"packed", "m/model/a": b"a", "m/model/b/c": b"c"})
    copy = buckets.local_copy(f"s3://{bucket}/m/model.tar.gz", session.home, tmp_path / "1")
    assert (copy.name, copy.read_bytes()) == ("model.tar.gz", b"packed")
    copy = buckets.local_copy(f"s3://{bucket}/m/model", session.home, tmp_path / "2")
    assert files_of(copy) == {"a": b"a", "b/c": b"c"}
    with pytest.raises(ValueError, match="no such object"):
        buckets.local_copy(f"s3://{bucket}/nothing", session.home, tmp_path / "3")


def test_an_object_that_is_made_goes_if_it_is_not_wanted(
    session: Session, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", object_store.url)
    bucket = object_store.bucket()

    def write(path: Path) -> None:
        path.write_bytes(b"sources")

    with buckets.made(f"s3://{bucket}/kept", session.home, write):
        pass

    def refuse() -> None:
        with buckets.made(f"s3://{bucket}/gone", session.home, write):
            assert sorted(object_store.contents(bucket)) == ["gone", "kept"]
            raise KeyError

    with pytest.raises(KeyError):
        refuse()
    assert object_store.contents(bucket) == {"kept": b"sources"}


@pytest.mark.slow
def test_a_file_that_is_written_to_while_it_is_put_is_refused(
    session: Session,
    tmp_path: Path,
    object_store: ObjectStore,
    faulty: FaultyServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else an object would have parts of the one and of the other."""
    monkeypatch.setenv("S3_ENDPOINT_URL", faulty.url)
    bucket = object_store.bucket()
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "big"
    path.write_bytes(bytes(17 << 20))

    def write(request: Request) -> None:
        if request.method == "PUT" and request.number == 0:
            path.write_bytes(b"x" * (17 << 20))

    faulty.fault_of = write
    for source in (path, tmp_path / "data"):
        with pytest.raises(ConfigurationError, match=r"/data/big was written to while it was put"):
            buckets.put(source, f"s3://{bucket}/put", session.home)
        faulty.requests.clear()
        path.write_bytes(bytes(17 << 20))
    assert object_store.contents(bucket) == {}
