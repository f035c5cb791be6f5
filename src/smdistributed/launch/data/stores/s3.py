# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A bucket of Amazon's S3, or of a store that speaks its protocol.

boto3 is imported when the first request is made. It finds credentials as it always does, and the
texts of errors have none of them.

How long it tries: a request that fails for a reason that may pass (no connection, no name, an
answer 429 or 5xx, nothing for 20 s in mid-object) is made again after 0.5, 1, 2, 4 and 8 s. So a
store that refuses connections is given up after some 16 s, one to which no connection comes about
in 10 s after 80 s, and one that is silent after 2.5 minutes. Whatever else is wrong is told at
once.

Source: launch specification, sections 5 and 6.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.stores.problems import Forbidden, Problems
from smdistributed.launch.data.stores.store import (
    Changed,
    Checksum,
    Look,
    Missing,
    Opened,
    StoredObject,
    StoreError,
    look_of,
    md5_of,
)

__all__ = ["PAUSES_S", "S3Settings", "S3Store", "paused"]

_Result = TypeVar("_Result")

PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Between tries."""

_CONNECT_S = 10
_SILENT_S = 20
_CONNECTIONS = 32
_PART = 8 << 20
_MOST_PARTS = 10_000
_PUT_MEMORY = 32 << 20
# Of objects that go into memory whole, on their way in.
_MOST_AT_ONCE = 16 << 20

_RANGE = re.compile(r"bytes (\d+)-")


@dataclasses.dataclass(frozen=True)
class S3Settings:
    """How an S3 store is reached. Nothing in it is secret: plans and records have it.

    Attributes:
        endpoint_url: of the store; empty: Amazon's.
        region: empty: as boto3 finds it.
    """

    endpoint_url: str = ""
    region: str = ""

    def __post_init__(self) -> None:
        if not self.endpoint_url:
            return
        try:
            parts = urlsplit(self.endpoint_url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
            has_user = bool(parts.username or parts.password)
        except ValueError:
            is_url, has_user = False, "@" in self.endpoint_url
        if has_user:
            raise ConfigurationError(
                "the endpoint URL of S3 has a user or a password in it; expected a URL alone, such"
                " as http://127.0.0.1:9000. Give credentials as boto3 reads them:"
                " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials."
            )
        if not is_url:
            raise ConfigurationError(
                f"the endpoint URL of S3 is {self.endpoint_url!r}; expected one such as"
                " https://s3.example.org or http://127.0.0.1:9000."
            )

    @property
    def called(self) -> str:
        """The store, in words."""
        return f"the S3 store at {self.endpoint_url}" if self.endpoint_url else "Amazon S3"


class S3Store:
    """Objects of a bucket, below a prefix. For several threads.

    Args:
        bucket: its name.
        settings: how it is reached.
        prefix: comes before all keys.
        pauses_s: between tries.
        silent_s: of a store in mid-object, until it is asked again.
    """

    def __init__(
        self,
        bucket: str,
        settings: S3Settings,
        prefix: str = "",
        *,
        pauses_s: tuple[float, ...] = PAUSES_S,
        silent_s: float = _SILENT_S,
    ) -> None:
        self.bucket = bucket
        self.settings = settings
        self.prefix = prefix
        self.pauses_s = pauses_s
        self._silent_s = silent_s
        self._problems = Problems(bucket, settings.called, settings.region)
        self._lock = threading.Lock()
        self._made: Any = None
        self._given_up = threading.Event()

    def __str__(self) -> str:
        return self.uri()

    def uri(self, key: str = "") -> str:
        """As of `Store`."""
        return f"s3://{self.bucket}/{self.prefix}{key}"

    def give_up(self) -> None:
        """Ends what other threads do soon: what they put in parts is taken away again."""
        self._given_up.set()

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = _client_of(self.settings, self._silent_s)
            return self._made

    def credentials(self) -> tuple[str, str, str]:
        """Key, secret and token, as boto3 has them now; for a program that needs them itself.

        Raises:
            StoreError: there are none.
        """
        try:
            import boto3.session

            found = boto3.session.Session().get_credentials()
            if found is not None:
                found = found.get_frozen_credentials()
        except Exception as error:
            raise self._problems.of(error, self.uri()) from None
        if found is None:
            raise StoreError(f"boto3 finds no credentials for {self.uri()}.")
        return found.access_key, found.secret_key, found.token or ""

    # --- reading ---------------------------------------------------------------------------------

    def objects(self, prefix: str = "") -> Iterator[StoredObject]:
        """As of `Store`. Folders that are objects, empty and with a slash at the end, are none."""
        token: dict[str, str] = {}
        while True:
            request = {"Bucket": self.bucket, "Prefix": self.prefix + prefix, **token}
            page = self._tried(prefix, lambda r=request: self._client.list_objects_v2(**r))  # type: ignore[misc]
            for each in page.get("Contents", ()):
                if each["Size"] == 0 and each["Key"].endswith("/"):
                    continue
                key = each["Key"].removeprefix(self.prefix)
                yield StoredObject(key, each["Size"], each.get("ETag", ""))
            if not page.get("IsTruncated"):
                return
            following = page.get("NextContinuationToken")
            if not following or following == token.get("ContinuationToken"):
                raise StoreError(
                    f"the objects of {self.uri(prefix)} cannot be listed: {self.settings.called}"
                    " says that there are more, and not how to ask for them; expected a store that"
                    " knows ListObjectsV2."
                )
            token = {"ContinuationToken": following}

    def find(self, key: str) -> StoredObject | None:
        """An object; None if it is not there.

        Raises:
            StoreError: nobody can say.
        """
        request = {"Bucket": self.bucket, "Key": self.prefix + key}
        try:
            found = self._tried(key, lambda: self._client.head_object(**request))
        except Missing:
            return None
        return StoredObject(key, found["ContentLength"], found.get("ETag", ""))

    def require(self, key: str) -> StoredObject:
        """An object.

        Raises:
            StoreError: it is not there, or nobody can say.
        """
        found = self.find(key)
        if found is None:
            raise Missing(
                f"{self.uri(key)} is not there: {self.settings.called} has no such object; expected"
                " one. Correct the URI."
            )
        return found

    def require_bucket(self) -> None:
        """Refuses a bucket that is not there, or a store that does not answer.

        Raises:
            StoreError: says why. Who may write and not look gets none.
        """
        try:
            self._tried("", lambda: self._client.head_bucket(Bucket=self.bucket))
        except Forbidden:
            pass
        except Missing:
            raise StoreError(
                f"the bucket {self.bucket!r} is not there, says {self.settings.called}; expected"
                f" one that is. Make it, or correct its name in {self.uri()}."
            ) from None

    def open(self, key: str, start: int = 0, etag: str = "") -> Opened:
        """As of `Store`."""
        request = {"Bucket": self.bucket, "Key": self.prefix + key}
        if etag:
            request["IfMatch"] = etag
        if start:
            request["Range"] = f"bytes={start}-"
        try:
            found = self._client.get_object(**request)
        except Exception as error:
            raise self._problems.of(error, self.uri(key)) from None
        if etag and found.get("ETag", etag) != etag:
            found["Body"].close()
            raise self._problems.replaced(self.uri(key))
        given = _RANGE.match(found.get("ContentRange", ""))
        begins = int(given[1]) if given else 0
        if begins > start:
            found["Body"].close()
            raise StoreError(
                f"{self.uri(key)} cannot be read: {self.settings.called} gives another range of it"
                f" than was asked for, from byte {begins} on; expected it from byte {start} on.",
                is_passing=True,
            )
        # Of an object that is encrypted with a key of the service the ETag is no checksum.
        is_plain = found.get("ServerSideEncryption", "AES256") == "AES256"
        is_plain = is_plain and "SSECustomerAlgorithm" not in found
        checksum = md5_of(found.get("ETag", "")) if is_plain else None
        return Opened(found["Body"], begins, _given_checksum(found) or checksum)

    def read_error(self, error: Exception, key: str) -> StoreError:
        """As of `Store`."""
        return self._problems.of(error, self.uri(key))

    # --- writing ---------------------------------------------------------------------------------

    def put(self, path: Path, key: str, look: Look | None = None) -> None:
        """As of `Store`. What is large goes in parts, and is given up as a whole."""
        size = path.stat().st_size
        if size > _MOST_AT_ONCE:
            self._put_parts(path, key, size, look)
            return
        content = path.read_bytes()
        if look is not None and look_of(path) != look:
            raise Changed
        self.put_bytes(content, key)

    def put_bytes(self, content: bytes, key: str) -> None:
        """Makes an object of some bytes.

        Raises:
            StoreError: it cannot be written.
        """
        request = {"Bucket": self.bucket, "Key": self.prefix + key, "ContentMD5": _md5(content)}
        self._tried(key, lambda: self._client.put_object(**request, Body=content))

    def _put_parts(self, path: Path, key: str, size: int, look: Look | None) -> None:
        target = {"Bucket": self.bucket, "Key": self.prefix + key}
        part_size = max(_PART, -(-size // _MOST_PARTS))
        begun = self._tried(key, lambda: self._client.create_multipart_upload(**target))
        target["UploadId"] = begun["UploadId"]

        def put_part(number: int) -> dict[str, Any]:
            with path.open("rb") as file:
                file.seek((number - 1) * part_size)
                content = file.read(part_size)
            request = {**target, "PartNumber": number, "ContentMD5": _md5(content)}
            done = self._tried(key, lambda: self._client.upload_part(**request, Body=content))
            return {"PartNumber": number, "ETag": done["ETag"]}

        try:
            workers = max(1, _PUT_MEMORY // part_size)
            with concurrent.futures.ThreadPoolExecutor(workers) as pool:
                count = -(-size // part_size)
                doing = [pool.submit(put_part, number) for number in range(1, count + 1)]
                try:
                    parts = [each.result() for each in doing]
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
            if look is not None and look_of(path) != look:
                raise Changed
            self._complete(key, target, parts, size)
        except BaseException as error:
            self._abort(key, target, error)
            raise

    def _complete(
        self, key: str, target: Mapping[str, Any], parts: list[dict[str, Any]], size: int
    ) -> None:
        whole = {"MultipartUpload": {"Parts": parts}}
        problem = StoreError(
            f"{self.uri(key)} cannot be put: {self.settings.called} has not said that it is whole;"
            " expected an answer that does. Try again later.",
            is_passing=True,
        )
        try:
            done = self._tried(
                key, lambda: self._client.complete_multipart_upload(**target, **whole)
            )
            if "ETag" in done:  # an answer may end before it says anything
                return
        except Missing as error:
            problem = error
        # The answer to the first try was lost, perhaps: then the object is there. One from before
        # may have the same size.
        found = self.find(key)
        if found is None or found.size != size or found.etag != _etag_of(parts):
            raise problem

    def _abort(self, key: str, target: Mapping[str, Any], error: BaseException) -> None:
        """Takes parts away again, which are paid for, and which nobody sees."""
        with contextlib.suppress(Exception):
            if self._given_up.is_set() or getattr(error, "is_passing", False):  # time is up
                self._client.abort_multipart_upload(**target)
            else:
                self._tried(key, lambda: self._client.abort_multipart_upload(**target))

    def delete(self, key: str) -> None:
        """As of `Store`."""
        request = {"Bucket": self.bucket, "Key": self.prefix + key}
        with contextlib.suppress(Missing):
            self._tried(key, lambda: self._client.delete_object(**request))

    # --- errors ----------------------------------------------------------------------------------

    def _tried(self, key: str, request: Callable[[], _Result]) -> _Result:
        """Makes a request, and again if it fails for a reason that may pass."""
        for pause_s in (*self.pauses_s, None):
            if self._given_up.is_set():
                raise StoreError(f"{self.uri(key)} was given up.")
            try:
                return request()
            except Exception as error:
                problem = self._problems.of(error, self.uri(key))
                if pause_s is None or not problem.is_passing:
                    raise problem from None
            self._given_up.wait(paused(pause_s))
        raise AssertionError


def paused(pause_s: float) -> float:
    """A pause of about that many seconds: many clients must not come back at one moment."""
    return pause_s * random.uniform(0.8, 1.2)


def _etag_of(parts: Sequence[Mapping[str, Any]]) -> str:
    """Of an object in parts: the MD5 of theirs. Empty: those of the parts are no MD5s."""
    try:
        sums = b"".join(bytes.fromhex(each["ETag"].strip('"')) for each in parts)
    except ValueError:
        return ""
    return f'"{hashlib.md5(sums, usedforsecurity=False).hexdigest()}-{len(parts)}"'


def _md5(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def _given_checksum(found: Mapping[str, Any]) -> Checksum | None:
    """Of the whole object; that of an object in parts is one of checksums, and no use here."""
    for kind in ("crc32", "sha256", "sha1"):  # the first costs a fraction of the others
        given = found.get(f"Checksum{kind.upper()}")
        if given and found.get("ChecksumType") != "COMPOSITE" and "-" not in given:
            with contextlib.suppress(ValueError):
                return Checksum(kind, base64.b64decode(given, validate=True).hex())
    return None


def _client_of(settings: S3Settings, silent_s: float) -> Any:
    try:
        import boto3.session
        from botocore.config import Config
    except ImportError as error:
        raise StoreError(
            f"data in {settings.called} need the package boto3, which cannot be imported ({error});"
            " expected it. Install it: pip install 'smdistributed-open[s3]'"
        ) from None
    options: dict[str, Any] = {
        "connect_timeout": _CONNECT_S,
        "read_timeout": silent_s,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "max_pool_connections": _CONNECTIONS,
    }
    if settings.endpoint_url:  # whose names need not lead to it with a bucket in front
        options["s3"] = {"addressing_style": "path"}
    try:
        # Objects are checked by what stores have always had; many know no other checksums.
        config = Config(
            **options,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
    except TypeError:  # before botocore 1.36 there was no choice
        config = Config(**options)
    session = boto3.session.Session()
    region = settings.region or session.region_name or "us-east-1"
    client = session.client(
        "s3", endpoint_url=settings.endpoint_url or None, region_name=region, config=config
    )
    client.meta.events.register("before-sign.s3.GetObject", _ask_for_checksum)
    return client


def _ask_for_checksum(request: Any, **more: Any) -> None:
    """As an argument it would have boto3 check what is checked here, too."""
    request.headers["x-amz-checksum-mode"] = "ENABLED"
