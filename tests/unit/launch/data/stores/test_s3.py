# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a bucket of S3 can do, and what is said when it cannot (launch specification, 5 and 6)."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from smdistributed.launch.data.stores.s3 import S3Settings, S3Store
from smdistributed.launch.data.stores.store import Changed, StoreError, look_of
from tests.clusters.object_store import Fault, FaultyServer, ObjectStore, Request, filled

NO_PAUSES = (0.0,) * 5
MIB = 1 << 20


def store_at(url: str, bucket: str, prefix: str = "") -> S3Store:
    return S3Store(bucket, S3Settings(url), prefix, pauses_s=NO_PAUSES)


def test_objects_are_below_the_prefix_and_more_than_a_page(object_store: ObjectStore) -> None:
    bucket = object_store.bucket()
    object_store.put(bucket, {f"p/{number:04}": b"x" for number in range(3)})
    object_store.put(bucket, {"p/": b"", "p/folder/": b"", "q": b"y", "p/ä ö+&%": b"12"})
    store = store_at(object_store.url, bucket, "p/")
    found = [each[:2] for each in store.objects()]
    assert found == [("0000", 1), ("0001", 1), ("0002", 1), ("ä ö+&%", 2)]
    assert store.find("ä ö+&%") is not None
    assert store.find("q") is None
    with store.open("ä ö+&%").stream as stream:
        assert stream.read() == b"12"
    store.delete("0001")
    store.delete("0001")
    assert [each.key for each in store.objects("000")] == ["0000", "0002"]


def test_a_large_file_goes_in_parts(object_store: ObjectStore, tmp_path: Path) -> None:
    bucket = object_store.bucket()
    store = store_at(object_store.url, bucket)
    content = filled(17 * MIB + 5)
    (tmp_path / "big").write_bytes(content)
    store.put(tmp_path / "big", "big", look_of(tmp_path / "big"))
    found = store.find("big")
    assert found is not None
    assert (found.size, found.etag[-3:]) == (len(content), '-3"')
    assert object_store.contents(bucket)["big"] == content


@pytest.mark.parametrize("is_there", [True, False])
def test_the_answer_to_the_end_of_an_upload_is_lost(
    object_store: ObjectStore, tmp_path: Path, is_there: bool
) -> None:
    """And the next one says that there is no such upload: it is whole, or somebody gave it up."""
    bucket = object_store.bucket()
    store = store_at(object_store.url, bucket)
    (tmp_path / "old").write_bytes(bytes(17 * MIB))
    store.put(tmp_path / "old", "big")  # a checkpoint has the size of the one before
    (tmp_path / "new").write_bytes(content := filled(17 * MIB))
    plain = store._client.complete_multipart_upload

    def complete(**request: object) -> object:
        target = {name: request[name] for name in ("Bucket", "Key", "UploadId")}
        if is_there:
            plain(**request)
        else:
            store._client.abort_multipart_upload(**target)
        # moto answers a second time as if it were the first one; Amazon's says 404 after a while.
        return object_store.client.list_parts(**target)

    store._client.complete_multipart_upload = complete
    if is_there:
        store.put(tmp_path / "new", "big")
        assert object_store.contents(bucket)["big"] == content
    else:
        with pytest.raises(StoreError, match="big is not there"):
            store.put(tmp_path / "new", "big")


def test_a_file_that_is_written_to_meanwhile_is_given_up(
    object_store: ObjectStore, faulty: FaultyServer, tmp_path: Path
) -> None:
    bucket = object_store.bucket()
    store = store_at(faulty.url, bucket)
    path = tmp_path / "big"
    path.write_bytes(bytes(17 * MIB))
    look = look_of(path)

    def write(request: Request) -> None:
        if request.method == "PUT":
            path.write_bytes(b"half")

    faulty.fault_of = write
    with pytest.raises(Changed):
        store.put(path, "big", look)
    with pytest.raises(Changed):
        store.put(path, "small", look)
    assert object_store.contents(bucket) == {}
    uploads = object_store.client.list_multipart_uploads(Bucket=bucket)
    assert "Uploads" not in uploads, "nothing is left"


def test_an_upload_goes_on_after_answers_that_pass(
    object_store: ObjectStore, faulty: FaultyServer, tmp_path: Path
) -> None:
    bucket = object_store.bucket()
    content = filled(17 * MIB)
    (tmp_path / "big").write_bytes(content)
    faulty.fault_of = lambda request: (
        Fault(503, "SlowDown") if request.method != "GET" and request.number % 3 == 0 else None
    )
    store_at(faulty.url, bucket).put(tmp_path / "big", "big")
    assert object_store.contents(bucket) == {"big": content}


@pytest.mark.parametrize("code", ["BadDigest", "IncompleteBody"])
def test_bytes_that_were_damaged_on_their_way_are_sent_again(
    object_store: ObjectStore, faulty: FaultyServer, code: str
) -> None:
    bucket = object_store.bucket()
    faulty.fault_of = lambda request: Fault(400, code) if request.number == 0 else None
    store_at(faulty.url, bucket).put_bytes(b"x", "a")
    assert object_store.contents(bucket) == {"a": b"x"}


def test_an_upload_that_fails_for_good_leaves_nothing(
    object_store: ObjectStore, faulty: FaultyServer, tmp_path: Path
) -> None:
    bucket = object_store.bucket()
    (tmp_path / "big").write_bytes(bytes(17 * MIB))
    faulty.fault_of = lambda request: (
        Fault(500, "InternalError") if request.method == "PUT" else None
    )
    with pytest.raises(StoreError, match=r"big cannot be reached: .*'InternalError'.*status 500"):
        store_at(faulty.url, bucket).put(tmp_path / "big", "big")
    assert object_store.contents(bucket) == {}
    assert "Uploads" not in object_store.client.list_multipart_uploads(Bucket=bucket)


@pytest.mark.slow
def test_an_upload_whose_last_answer_is_lost_is_there_or_has_failed(
    object_store: ObjectStore,
    faulty: FaultyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """boto3 takes an answer 200 that has ended before its first byte for a success."""
    bucket = object_store.bucket()
    content = filled(17 * MIB)
    (tmp_path / "big").write_bytes(content)
    faulty.fault_of = lambda request: (
        Fault(cut_after=0) if request.method == "POST" and request.number == 1 else None
    )
    store = store_at(faulty.url, bucket)
    store.put(tmp_path / "big", "big")
    assert object_store.contents(bucket) == {"big": content}
    monkeypatch.setattr(store._client, "complete_multipart_upload", lambda **request: {})
    with pytest.raises(StoreError, match=r"other cannot be put: .*not said that it is whole"):
        store.put(tmp_path / "big", "other")
    assert list(object_store.contents(bucket)) == ["big"]
    assert "Uploads" not in object_store.client.list_multipart_uploads(Bucket=bucket)


def test_parts_are_taken_away_though_the_store_cannot_at_once(
    object_store: ObjectStore, faulty: FaultyServer, tmp_path: Path
) -> None:
    bucket = object_store.bucket()
    path = tmp_path / "big"
    path.write_bytes(bytes(17 * MIB))
    faulty.fault_of = lambda request: (
        Fault(503, "SlowDown") if request.method == "DELETE" and request.number < 2 else None
    )
    with pytest.raises(Changed):
        store_at(faulty.url, bucket).put(path, "big", (1, 2, 3))
    assert "Uploads" not in object_store.client.list_multipart_uploads(Bucket=bucket)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault(403, "AccessDenied"), r"s3://.*/k may not be read.*AWS_PROFILE"),
        (Fault(403, "InvalidAccessKeyId"), r"credentials for s3://.*/k are not accepted"),
        (Fault(403, "SignatureDoesNotMatch"), r"are not accepted.*AWS_SECRET_ACCESS_KEY"),
        (Fault(400, "ExpiredToken"), r"credentials for s3://.*/k have expired.*Get new ones"),
        (Fault(403, "InvalidObjectState"), r"/k is archived: .*Have the store restore it"),
        (Fault(403, "RequestTimeTooSkewed"), r"a clock that is right"),
        (Fault(301, "PermanentRedirect"), r"in another region.*Set region of \[s3\]"),
        (Fault(400, "AuthorizationHeaderMalformed"), r"in another region"),
        (Fault(404, "NoSuchBucket"), r"has no bucket 'bucket-.*correct its name"),
        (Fault(404, "NoSuchKey"), r"/k is not there.*Correct the key"),
        (Fault(412, "PreconditionFailed"), r"was replaced by another object"),
        (Fault(418, "Teapot"), r"says 'Teapot' \(made up\), status 418"),
    ],
)
def test_a_refusal_is_told_once_with_what_to_do(
    object_store: ObjectStore, faulty: FaultyServer, fault: Fault, text: str
) -> None:
    bucket = object_store.bucket()
    faulty.fault_of = lambda request: fault if "/k" in request.path else None
    with pytest.raises(StoreError, match=text):
        store_at(faulty.url, bucket).open("k")
    # boto3 itself asks once more where a bucket is that is elsewhere.
    assert sum("/k" in each.path for each in faulty.requests) == (2 if fault.status == 301 else 1)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (
            "http://127.0.0.1:1",
            r"does not answer .*refused.*S3_ENDPOINT",
        ),
        ("http://no-such-host.invalid", r"does not answer .*no-such-host\.invalid"),
    ],
)
def test_a_store_that_is_not_there(url: str, text: str, object_store: ObjectStore) -> None:
    began = time.monotonic()
    with pytest.raises(StoreError, match=text) as error:
        next(store_at(url, "bucket").objects(), None)
    assert error.value.is_passing
    assert time.monotonic() - began < 60.0


def test_a_connection_that_is_not_safe(object_store: ObjectStore) -> None:
    """Who speaks no TLS is no store of https; it is not asked twice."""
    url = object_store.url.replace("http://", "https://")
    with pytest.raises(StoreError, match=r"no safe connection to .*AWS_CA_BUNDLE") as error:
        next(store_at(url, "bucket").objects(), None)
    assert not error.value.is_passing


def test_a_connection_that_is_cut_while_it_becomes_safe_is_made_again(
    object_store: ObjectStore,
) -> None:
    """As of a load balancer that starts anew: no certificate is wrong."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        cut = 0

        def serve() -> None:
            nonlocal cut
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as connection:
                        connection.recv(1 << 12)
                        cut += 1

        threading.Thread(target=serve, daemon=True).start()
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(StoreError, match=r"does not answer .*EOF") as error:
            next(store_at(url, "bucket").objects(), None)
        assert error.value.is_passing
        assert cut == 6


def test_a_name_that_is_no_text(object_store: ObjectStore) -> None:
    with pytest.raises(StoreError, match=r"is no object of S3: .*expected a name in UTF-8"):
        store_at("http://127.0.0.1:1", "bucket").put_bytes(b"", "a\udcff")


@pytest.mark.parametrize("token", [{}, {"NextContinuationToken": "the same"}], ids=str)
def test_a_list_that_does_not_go_on_ends(token: dict[str, str]) -> None:
    class Client:
        def list_objects_v2(self, **request: str) -> dict[str, object]:
            return {"Contents": [{"Key": "a", "Size": 1}], "IsTruncated": True, **token}

    store = S3Store("bucket", S3Settings("http://127.0.0.1:1"))
    store._made = Client()
    with pytest.raises(StoreError, match=r"objects of s3://bucket/p cannot be listed: .*more"):
        list(store.objects("p"))


def test_credentials_that_are_missing(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    store = store_at(object_store.url, "bucket")
    with pytest.raises(StoreError, match=r"without credentials.*Set AWS_ACCESS_KEY_ID"):
        next(store.objects(), None)
    with pytest.raises(StoreError, match=r"boto3 finds no credentials"):
        store.credentials()
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreError, match=r"profile \(nobody\).*Correct AWS_PROFILE"):
        next(store_at(object_store.url, "bucket").objects(), None)


WITHOUT_BOTO3 = """
import sys
sys.modules["boto3"] = sys.modules["boto3.session"] = None
from smdistributed.launch.data.stores.s3 import S3Settings, S3Store
try:
    S3Store("bucket", S3Settings()).find("key")
except ValueError as error:
    print(error)
"""


def test_a_machine_without_boto3_is_told_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_BOTO3], capture_output=True, text=True, check=True
    )
    assert "need the package boto3" in done.stdout
    assert "pip install 'smdistributed-open[s3]'" in done.stdout


def test_agents_and_jobs_import_no_boto3() -> None:
    modules = (
        "smdistributed.launch.agent.agent",
        "smdistributed.launch.backends.runner",
        "smdistributed.launch.data.stores.process",
        "smdistributed.sagemaker.pytorch",
    )
    code = f"import sys, {', '.join(modules)}; print('boto3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ftp://x", "expected one such as https"),
        ("x:9000", "expected one such as https"),
        ("http://", "expected one such as https"),
        ("http://[x", "expected one such as https"),
    ],
)
def test_an_endpoint_is_a_url(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        S3Settings(url)


def test_an_endpoint_has_no_secret_and_an_error_does_not_repeat_it() -> None:
    with pytest.raises(ValueError, match="has a user or a password in it") as error:
        S3Settings("https://me:hunter2@store.example.org")
    assert "hunter2" not in str(error.value)
