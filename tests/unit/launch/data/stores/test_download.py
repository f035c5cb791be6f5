# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Objects come whole and checked, whatever happens to connections (launch specification, 5)."""

from __future__ import annotations

import json
import os
import threading
import zlib
from pathlib import Path

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.objects import DataObject
from smdistributed.launch.data.stores import s3
from smdistributed.launch.data.stores.download import Download, Resumed, _Cancelled
from smdistributed.launch.data.stores.s3 import S3Settings, S3Store
from smdistributed.launch.data.stores.store import Checksum, Opened, Replaced, StoreError
from tests.clusters.object_store import Fault, FaultyServer, ObjectStore, files_of, filled
from tests.small_disks import mounted_disk

NO_PAUSES = (0.0,) * 5
MIB = 1 << 20


def objects_of(store: S3Store, prefix: str = "") -> list[DataObject]:
    return [DataObject(each.key, each.key, each.size, each.etag) for each in store.objects(prefix)]


def store_at(url: str, bucket: str, silent_s: float = 20.0) -> S3Store:
    return S3Store(bucket, S3Settings(url), pauses_s=NO_PAUSES, silent_s=silent_s)


def download(store: S3Store, tmp_path: Path, objects: list[DataObject] | None = None) -> Download:
    made = Download(store, tmp_path / "data", tmp_path / "state", pauses_s=NO_PAUSES)
    made.run(objects_of(store) if objects is None else objects)
    return made


def test_all_objects_come_once(object_store: ObjectStore, tmp_path: Path) -> None:
    bucket = object_store.bucket()
    contents = {f"a/{number}": filled(number * 1000, number) for number in range(25)}
    object_store.put(bucket, contents)
    with FaultyServer(object_store.url) as server:
        store = store_at(server.url, bucket)
        progress = download(store, tmp_path).progress
        assert files_of(tmp_path / "data") == contents
        size = sum(map(len, contents.values()))
        assert progress == (25, 25, size, size)
        assert server.sent[f"/{bucket}/a/7"] == 7000
        before = len(server.requests)
        (tmp_path / "data" / "a" / "3").write_bytes(b"changed")
        download(store, tmp_path)
        assert files_of(tmp_path / "data") == contents, "what has changed comes again"
        gets = [each.path for each in server.requests[before:] if each.path != f"/{bucket}"]
        assert gets == [f"/{bucket}/a/3"], "what is there does not"


def test_a_connection_that_is_cut_at_ten_places_is_resumed(
    object_store: ObjectStore, faulty: FaultyServer, tmp_path: Path
) -> None:
    bucket = object_store.bucket()
    content = filled(4 * MIB)
    object_store.put(bucket, {"big": content})
    places = [100_000 + 390_001 * number for number in range(10)]

    def cut(request):
        if request.method == "GET" and request.path.endswith("big"):
            left = [place for place in places if place > request.start]
            return Fault(cut_after=left[0] - request.start) if left else None
        return None

    faulty.fault_of = cut
    download(store_at(faulty.url, bucket), tmp_path)
    assert files_of(tmp_path / "data") == {"big": content}
    starts = [each.start for each in faulty.requests if each.path.endswith("big")]
    assert starts == [0, *places]
    assert faulty.sent[f"/{bucket}/big"] == len(content), "each byte was sent once"


def test_what_a_process_that_was_killed_has_is_gone_on_with(
    object_store: ObjectStore, faulty: FaultyServer, tmp_path: Path
) -> None:
    bucket = object_store.bucket()
    content = filled(2 * MIB)
    object_store.put(bucket, {"big": content})
    store = store_at(faulty.url, bucket)
    faulty.fault_of = lambda request: (
        Fault(cut_after=MIB)
        if request.path.endswith("big") and request.start == 0
        else Fault(status=503, code="SlowDown")
        if request.start
        else None
    )
    with pytest.raises(StoreError, match=r"'SlowDown'.*tried 6 times, and 1,048,576 of 2,097,152"):
        download(store, tmp_path)
    assert files_of(tmp_path / "data") == {}, "what is not whole is not seen"
    faulty.fault_of = lambda request: None
    faulty.sent.clear()
    download(store, tmp_path)
    assert files_of(tmp_path / "data") == {"big": content}
    assert faulty.sent[f"/{bucket}/big"] == MIB
    assert [name for name in os.listdir(tmp_path / "state") if name.endswith(".part")] == []


def test_a_part_that_was_damaged_here_is_found_out(
    object_store: ObjectStore, faulty: FaultyServer, tmp_path: Path
) -> None:
    """Also one that looks whole: its last byte is asked for again, and the checksum with it."""
    bucket = object_store.bucket()
    content = filled(MIB)
    object_store.put(bucket, {"big": content})
    store = store_at(faulty.url, bucket)
    made = Download(store, tmp_path / "data", tmp_path / "state", pauses_s=NO_PAUSES)
    (each,) = objects_of(store)
    (tmp_path / "state").mkdir()
    made._part_of(each).write_bytes(bytes(MIB))
    made.run([each])
    assert files_of(tmp_path / "data") == {"big": content}


@pytest.mark.parametrize("checksum", ["MD5", "SHA1", "SHA256", "CRC32"])
def test_a_corrupt_object_is_refused_after_one_more_try(
    object_store: ObjectStore, faulty: FaultyServer, tmp_path: Path, checksum: str
) -> None:
    bucket = object_store.bucket()
    content = filled(MIB)
    store = store_at(faulty.url, bucket)
    if checksum == "MD5":  # which is the ETag, where the store has no other
        store.put_bytes(content, "bad")
    else:
        more = {"Bucket": bucket, "Key": "bad", "ChecksumAlgorithm": checksum}
        object_store.client.put_object(Body=content, **more)
    faulty.fault_of = lambda request: (
        Fault(flip=77_777) if request.path.endswith("bad") and request.number == 0 else None
    )
    download(store, tmp_path)
    assert files_of(tmp_path / "data") == {"bad": content}
    (tmp_path / "data" / "bad").unlink()
    faulty.fault_of = lambda request: Fault(flip=77_777) if "bad" in request.path else None
    with pytest.raises(StoreError, match=rf"bad is damaged: its {checksum} is .* twice; .*again"):
        download(store, tmp_path)
    assert files_of(tmp_path / "data") == {}
    assert not list((tmp_path / "state").glob("*.part"))


def test_an_object_that_is_replaced_in_mid_download_is_refused(
    object_store: ObjectStore, faulty: FaultyServer, tmp_path: Path
) -> None:
    bucket = object_store.bucket()
    object_store.put(bucket, {"big": filled(MIB)})

    def replace(request):
        if request.path.endswith("big") and request.method == "GET":
            if request.start == 0:
                return Fault(cut_after=300_000)
            object_store.put(bucket, {"big": filled(MIB, seed=1)})
        return None

    store = store_at(faulty.url, bucket)
    faulty.fault_of = replace
    with pytest.raises(Replaced, match=r"s3://.*/big was replaced by another object after"):
        download(store, tmp_path)
    assert files_of(tmp_path / "data") == {}


def test_a_store_that_says_nothing_in_mid_object_is_asked_again(
    object_store: ObjectStore, faulty: FaultyServer, tmp_path: Path
) -> None:
    bucket = object_store.bucket()
    content = filled(MIB)
    object_store.put(bucket, {"big": content})
    faulty.fault_of = lambda request: (
        Fault(stall_after=400_000) if request.path.endswith("big") and not request.start else None
    )
    download(store_at(faulty.url, bucket, silent_s=0.5), tmp_path)
    assert files_of(tmp_path / "data") == {"big": content}
    assert faulty.sent[f"/{bucket}/big"] < MIB + (1 << 17), "but for what had not come through"


def test_the_checksum_of_a_part_is_not_taken_for_that_of_the_whole(
    object_store: ObjectStore, faulty: FaultyServer
) -> None:
    """Of an object in parts a store may give that of a range, and has given none of the whole."""
    bucket = object_store.bucket()
    content = filled(MIB)
    object_store.put(bucket, {"big": content})
    store = store_at(faulty.url, bucket)
    faulty.fault_of = lambda request: (
        Fault(cut_after=500_000) if request.path.endswith("big") and not request.start else None
    )
    plain = store.open

    def opens(key: str, start: int = 0, etag: str = "") -> Opened:
        rest = Checksum("crc32", f"{zlib.crc32(content[start:]):08x}")
        return plain(key, start, etag)._replace(checksum=rest if start else None)

    store.open = opens  # type: ignore[method-assign]
    (each,) = objects_of(store)
    source = Resumed(store, each, 0, lambda seconds: None, NO_PAUSES)
    assert b"".join(iter(lambda: source.read(1 << 17), b"")) == content
    assert source.checksum_kind == "", "or it would count as damaged"


def test_a_store_that_knows_no_ranges_gives_the_rest_too(
    object_store: ObjectStore, faulty: FaultyServer, tmp_path: Path
) -> None:
    bucket = object_store.bucket()
    content = filled(MIB)
    object_store.put(bucket, {"big": content})
    faulty.fault_of = lambda request: (
        Fault(no_range=True, cut_after=700_000 if request.number < 2 else -1)
        if request.path.endswith("big")
        else None
    )
    download(store_at(faulty.url, bucket), tmp_path)
    assert files_of(tmp_path / "data") == {"big": content}


@pytest.mark.parametrize("begins", [0, 300_000, 600_000])
def test_a_store_that_gives_another_range_gives_no_other_bytes(
    object_store: ObjectStore,
    faulty: FaultyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begins: int,
) -> None:
    """As caches do. Of an object in parts no checksum would tell."""
    bucket = object_store.bucket()
    content = filled(MIB)
    object_store.put(bucket, {"big": content})
    store = store_at(faulty.url, bucket)
    faulty.fault_of = lambda request: (
        Fault(cut_after=500_000) if request.path.endswith("big") and request.number == 0 else None
    )
    plain = store._client.get_object

    def gives(**request: str) -> dict[str, object]:
        if "Range" in request:
            request["Range"] = f"bytes={begins}-"
        found = plain(**request)
        return {name: each for name, each in found.items() if "Checksum" not in name}

    monkeypatch.setattr(store._client, "get_object", gives)
    monkeypatch.setattr(s3, "md5_of", lambda etag: None)
    if begins > 500_000:
        with pytest.raises(StoreError, match=r"another range .* from byte 600000 on"):
            download(store, tmp_path)
    else:
        download(store, tmp_path)
        assert files_of(tmp_path / "data") == {"big": content}


def test_keys_may_have_whatever_paths_may(object_store: ObjectStore, tmp_path: Path) -> None:
    bucket = object_store.bucket()
    keys = ["a b", "ü/ö", "%2F", "a+b", "..a", "c/.hidden", " x ", "~", "a&b=c?d#e", "-", "'\"*"]
    contents = {key: key.encode() for key in keys}
    object_store.put(bucket, contents)
    download(store_at(object_store.url, bucket), tmp_path)
    assert files_of(tmp_path / "data") == contents


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_store_that_cannot_now_is_asked_again(
    object_store: ObjectStore, faulty: FaultyServer, tmp_path: Path, status: int
) -> None:
    bucket = object_store.bucket()
    object_store.put(bucket, {"a": b"a", "b": b"b"})
    faulty.fault_of = lambda request: Fault(status, "SlowDown") if request.number < 3 else None
    download(store_at(faulty.url, bucket), tmp_path)
    assert files_of(tmp_path / "data") == {"a": b"a", "b": b"b"}


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["../x"], "that is no path"),
        (["a//b"], "that is no path"),
        (["a/../../x"], "that is no path"),
        (["a", "a/b"], "is a file 'a' where the second needs a folder"),
        (["x" * 300], "too long for the file system"),
    ],
)
def test_nothing_is_written_outside_of_the_channel(
    object_store: ObjectStore, tmp_path: Path, keys: list[str], text: str
) -> None:
    bucket = object_store.bucket()
    store = store_at(object_store.url, bucket)
    for key in keys:
        object_store.put(bucket, {f"p/{key}": b"x"})
    found = [each._replace(name=each.name.removeprefix("p/")) for each in objects_of(store)]
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises(ConfigurationError, match=text):
        download(store, inner, found)
    assert files_of(tmp_path / "inner" / "data") == {}
    assert os.listdir(tmp_path) == ["inner"]


@pytest.mark.parametrize(
    ("one", "other"), [("a/Cat", "a/cat"), ("e\u0301", "\u00e9")], ids=["case", "accents"]
)
def test_names_that_a_file_system_takes_for_one_are_refused(
    object_store: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    one: str,
    other: str,
) -> None:
    bucket = object_store.bucket()
    store = store_at(object_store.url, bucket)
    object_store.put(bucket, {one: b"1", other: b"2"})
    download(store, tmp_path)
    assert len(files_of(tmp_path / "data")) == 2, "this one tells them apart"
    plain = Path.exists
    monkeypatch.setattr(
        Path, "exists", lambda self, **more: "smd-case" in self.name or plain(self, **more)
    )
    text = rf"{one!r} and {other!r} here.* differ in more than case and the way that accents"
    with pytest.raises(ConfigurationError, match=text):
        download(store, tmp_path)


def test_a_disk_that_is_too_small_is_named_before_anything_comes(
    object_store: ObjectStore, tmp_path: Path
) -> None:
    bucket = object_store.bucket()
    store = store_at(object_store.url, bucket)
    object_store.put(bucket, {"a": filled(3 * MIB)})
    with mounted_disk(tmp_path / "disk", "size=2m") as disk:
        text = rf"the disk of {disk}/data has room for [\d,]+ bytes, and 3,145,728 bytes"
        with pytest.raises(ConfigurationError, match=text):
            download(store, disk)
        assert list((disk / "state").glob("*.part")) == []


def test_a_disk_that_fills_meanwhile_is_named(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = object_store.bucket()
    store = store_at(object_store.url, bucket)
    object_store.put(bucket, {"a": filled(3 * MIB)})
    monkeypatch.setattr(Download, "_require_room", lambda self, missing: None)
    with (
        mounted_disk(tmp_path / "disk", "size=2m") as disk,
        pytest.raises(ConfigurationError, match=rf"the disk of {disk}/data is full.*3,145,728"),
    ):
        download(store, disk)


def test_a_download_can_be_given_up(
    object_store: ObjectStore, faulty: FaultyServer, tmp_path: Path
) -> None:
    bucket = object_store.bucket()
    object_store.put(bucket, {"a": b"a"})
    store = S3Store(bucket, S3Settings(faulty.url))
    made = Download(store, tmp_path / "data", tmp_path / "state")
    (each,) = objects_of(store)
    faulty.fault_of = lambda request: Fault(503, "SlowDown")
    timer = threading.Timer(0.2, made.cancel)
    timer.start()
    with pytest.raises(_Cancelled):
        made.run([each])


def test_a_line_of_the_journal_that_is_cut_off_says_nothing(
    object_store: ObjectStore, tmp_path: Path
) -> None:
    bucket = object_store.bucket()
    object_store.put(bucket, {"a": b"a", "b": b"b"})
    store = store_at(object_store.url, bucket)
    download(store, tmp_path)
    journal = tmp_path / "state" / "whole.jsonl"
    journal.write_bytes(journal.read_bytes() + b'["a", "x", 1\n[]\n{"a": 5}\n' + b"[5]\n")
    assert json.loads(journal.read_bytes().splitlines()[0])[0] in ("a", "b")
    download(store, tmp_path)
    assert files_of(tmp_path / "data") == {"a": b"a", "b": b"b"}
