# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Data through FIFOs, epoch after epoch (launch specification, 5)."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled

from smdistributed.launch.agent.pipes import ChannelPipe, ChannelPipes
from smdistributed.launch.data.objects import DataObject
from smdistributed.launch.data.sources import Source
from smdistributed.launch.data.stores.s3 import S3Settings, S3Store
from smdistributed.launch.data.stores.store import StoreError
from tests.clusters.object_store import Fault, FaultyServer, ObjectStore, filled

SOON_S = 10.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of channels; the data are beside it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "channels").mkdir()
    return tmp_path / "channels"


def write(folder: Path, content: dict[str, bytes]) -> None:
    for name, each in content.items():
        (folder.parent / "data" / name).write_bytes(each)


@contextmanager
def feeding(folder: Path, names: str, **changed: Any) -> Iterator[ChannelPipes]:
    objects = [(name, name) for name in names]
    source = Source(str(folder.parent / "data"), objects, mode="Pipe", **changed)
    other = Source(str(folder.parent / "data"), None)
    with ChannelPipes({"train": source, "other": other}, folder) as pipes:
        pipes.begin()
        pipes.begin()
        yield pipes
        began = time.monotonic()
    assert time.monotonic() - began < SOON_S, "it has waited for a reader"
    assert os.listdir(folder) == [], "nothing is left"
    assert not [each for each in threading.enumerate() if each.name == "pipe train"]


def appears(path: Path) -> Path:
    until = time.monotonic() + SOON_S
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.005)
    return path


def test_each_epoch_has_all_objects_one_after_the_other(folder: Path) -> None:
    write(folder, {"a": b"1" * 300_000, "b": b"", "c": b"3"})
    with feeding(folder, "abc"):
        assert stat.S_ISFIFO((folder / "train_0").stat().st_mode), "there before a script is"
        assert os.listdir(folder) == ["train_0"], "and the next one not yet"
        for epoch in range(3):
            with appears(folder / f"train_{epoch}").open("rb") as reader:
                assert appears(folder / f"train_{epoch + 1}").exists(), "it has been opened"
                assert reader.read() == b"1" * 300_000 + b"3"
        assert not (folder / "train_0").exists(), "a reader that is late finds nothing"


def test_data_are_read_where_the_host_sees_them(folder: Path) -> None:
    """At /opt/ml a host has another folder than the machine, whose own it sees elsewhere."""
    write(folder, {"a": b"the machine's"})
    views = folder.parent / "views"
    views.mkdir()
    (views / "train").symlink_to(folder.parent / "data")
    source = Source("/opt/ml/nowhere", [("a", "a"), ("b", "gone")], mode="Pipe")
    with ChannelPipes({"train": source}, folder, views) as pipes:
        pipes.begin()
        descriptor = os.open(folder / "train_0", os.O_RDONLY)
        assert os.read(descriptor, 100) == b"the machine's"
        until = time.monotonic() + SOON_S
        while not pipes.problem and time.monotonic() < until:
            time.sleep(0.005)
        os.close(descriptor)
    assert pipes.problem.startswith("/opt/ml/nowhere/gone of channel 'train' cannot be read")


def test_a_reader_may_close_early_or_never_come(folder: Path) -> None:
    write(folder, {"a": b"x" * 3_000_000})
    with feeding(folder, "a"):
        with (folder / "train_0").open("rb") as reader:
            assert reader.read(10) == b"x" * 10
        with appears(folder / "train_1").open("rb") as reader:
            assert len(reader.read()) == 3_000_000


def test_a_reader_that_stands_still_does_not_hold_up_the_end(folder: Path) -> None:
    write(folder, {"a": b"x" * 3_000_000})
    with feeding(folder, "a"):
        reader = (folder / "train_0").open("rb")
        reader.read(1)
    reader.close()


def test_what_an_agent_that_was_killed_has_left_is_replaced(folder: Path) -> None:
    write(folder, {"a": b"x"})
    os.mkfifo(folder / "train_0")
    with feeding(folder, "a"), (folder / "train_0").open("rb") as reader:
        assert reader.read() == b"x"


def test_a_file_in_the_place_of_a_fifo_is_an_error(folder: Path) -> None:
    (folder / "train_0").write_text("the user's")
    source = Source(str(folder.parent / "data"), [], mode="Pipe")
    with pytest.raises(FileExistsError), ChannelPipes({"train": source}, folder):
        pass
    assert (folder / "train_0").read_text() == "the user's"


def test_gzip_is_decompressed_on_the_way(folder: Path) -> None:
    write(folder, {"a": gzip.compress(b"1\n"), "b": gzip.compress(b"2\n")})
    with feeding(folder, "ab", is_gzip=True), (folder / "train_0").open("rb") as reader:
        assert reader.read() == b"1\n2\n"


def test_shuffled_shares_of_two_hosts_are_all_objects_in_each_epoch(folder: Path) -> None:
    names = "abcdefgh"
    write(folder, {name: name.encode() for name in names})
    seen: list[list[bytes]] = []
    for index in range(2):
        with feeding(folder, names, seed=3, index=index, count=2):
            seen.append([appears(folder / f"train_{epoch}").read_bytes() for epoch in range(2)])
    first, second = (b"".join(seen[index][epoch] for index in range(2)) for epoch in range(2))
    assert first != second
    assert sorted(first) == sorted(second) == sorted(names.encode())


@pytest.mark.parametrize(
    ("content", "is_gzip"),
    [(None, False), (b"no gzip", True), (gzip.compress(b"some text")[:15], True)],
    ids=["no file", "no gzip", "half of it"],
)
def test_data_that_cannot_be_read_are_told_and_the_reader_gets_no_end(
    folder: Path, content: bytes | None, is_gzip: bool
) -> None:
    if content is not None:
        write(folder, {"a": content})
    with feeding(folder, "a", is_gzip=is_gzip) as pipes:
        reader = os.open(folder / "train_0", os.O_RDONLY)
        os.set_blocking(reader, False)
        until = time.monotonic() + SOON_S
        while not pipes.problem and time.monotonic() < until:
            time.sleep(0.01)
        assert "a of channel 'train' cannot be read: " in pipes.problem
        with pytest.raises(BlockingIOError):  # where an end would be an empty answer
            os.read(reader, 1 << 20)
    os.close(reader)


def opened(path: Path) -> int:
    """For reading; nothing waits for what is not there."""
    descriptor = os.open(path, os.O_RDONLY)
    os.set_blocking(descriptor, False)
    return descriptor


def wait_for_problem(pipes: ChannelPipes) -> str:
    until = time.monotonic() + SOON_S
    while not pipes.problem and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(0.05)  # in which a reader would get an end
    return pipes.problem


@pytest.mark.parametrize(
    ("error", "is_passing"),
    [
        (ValueError("an answer that is no JSON"), False),
        (StoreError("an answer that was lost", is_passing=True), True),
    ],
    ids=str,
)
def test_whatever_goes_wrong_a_reader_gets_no_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_passing: bool
) -> None:
    """Not only errors that somebody has thought of: the rest of the data would be lost silently."""
    write(folder, {"a": b"1" * 1000})

    def fails(self: ChannelPipe, each: DataObject) -> None:
        raise error

    with feeding(folder, "ab") as pipes:
        plain = ChannelPipe._opened
        monkeypatch.setattr(
            ChannelPipe, "_opened", lambda *of: (plain if of[1].key == "a" else fails)(*of)
        )
        reader = opened(folder / "train_0")
        assert f"b of channel 'train' cannot be read: {error}" in wait_for_problem(pipes)
        assert pipes.is_passing is is_passing
        assert os.read(reader, 1 << 20) == b"1" * 1000
        with pytest.raises(BlockingIOError):  # where an end would be an empty answer
            os.read(reader, 1 << 20)
    os.close(reader)


def test_a_reader_gets_no_end_if_there_is_no_place_for_the_next_fifo(folder: Path) -> None:
    write(folder, {"a": b"1"})
    source = Source(str(folder.parent / "data"), [("a", "a")], mode="Pipe")
    with ChannelPipes({"train": source}, folder) as pipes:
        (folder / "train_1").mkdir()
        pipes.begin()
        reader = opened(folder / "train_0")
        text = r"channel 'train' has no FIFO for its next epoch: .*File exists"
        assert re.search(text, wait_for_problem(pipes))
        with pytest.raises(BlockingIOError):
            os.read(reader, 1 << 20)
        (folder / "train_1").rmdir()
    os.close(reader)


@contextmanager
def fed_by(server: FaultyServer, bucket: str, folder: Path) -> Iterator[ChannelPipes]:
    """From all objects of a bucket, as the server gives them."""
    settings = S3Settings(server.url)
    objects = [(each.key, *each) for each in S3Store(bucket, settings).objects()]
    source = Source(f"s3://{bucket}", objects, mode="Pipe")
    with ChannelPipes({"train": source}, folder, settings=settings) as pipes:
        pipes.begin()
        yield pipes
        began = time.monotonic()
        pids = pipes.pids()
    assert time.monotonic() - began < scaled(SOON_S)
    assert os.listdir(folder) == [], "nothing is left"
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_objects_of_a_store_come_byte_for_byte_though_connections_are_cut(
    folder: Path, object_store: ObjectStore, faulty: FaultyServer
) -> None:
    bucket = object_store.bucket()
    contents = {"a": filled(700_000), "b": b"", "c": filled(300_000, 1)}
    object_store.put(bucket, contents)
    whole = b"".join(contents.values())

    def cut(request):
        if request.path.endswith("/a") and request.start < 600_000:
            return Fault(cut_after=250_000)
        return None

    faulty.fault_of = cut
    with fed_by(faulty, bucket, folder):
        for epoch in range(2):
            with appears(folder / f"train_{epoch}").open("rb") as reader:
                assert reader.read() == whole
        with appears(folder / "train_2").open("rb") as reader:
            assert reader.read(10) == whole[:10]  # and goes
        with appears(folder / "train_3").open("rb") as reader:
            assert reader.read() == whole
    starts = [each.start for each in faulty.requests if each.path.endswith("/a")]
    assert starts[:3] == [0, 250_000, 500_000]


def test_a_reader_of_a_corrupt_object_gets_no_end(
    folder: Path, object_store: ObjectStore, faulty: FaultyServer
) -> None:
    bucket = object_store.bucket()
    object_store.put(bucket, {"a": filled(100_000)})
    faulty.fault_of = lambda request: Fault(flip=5) if request.path.endswith("/a") else None
    with fed_by(faulty, bucket, folder) as pipes:
        reader = os.open(folder / "train_0", os.O_RDONLY)
        os.set_blocking(reader, False)
        until = time.monotonic() + scaled(30)
        while not pipes.problem and time.monotonic() < until:
            with contextlib.suppress(BlockingIOError):
                assert os.read(reader, 1 << 16) or not pipes.problem
            time.sleep(0.01)
        text = rf"s3://{bucket}/a of channel 'train' cannot be read: .*damaged"
        assert re.search(text, pipes.problem)
        os.close(reader)
