# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ray's Jobs API over HTTP. It needs no package of Ray's, and no version of it.

Each request has a time limit: Ray's own client has none, and waits for an address that is silent.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.backend import BackendError

__all__ = ["HEAD_IS_DEAD", "MOST_PACKAGE", "TERMINAL", "RayApi", "how_it_ended"]

MOST_PACKAGE = 100 << 20
"""Bytes that the dashboard takes in one request."""

TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED")
"""How a job of Ray's stands that has ended."""

HEAD_IS_DEAD = "Ray says that its node is dead, the head, without which it begins no job"

_NO_SUCH_COMMAND = 127
_OTHER_VERSION = "Version mismatch:"  # Ray's words
_ASK_S = 8.0
_SEND_S = 120.0
_MOST_NODES = 10_000  # Ray's own limit; without it tells 100
_FOLLOW_S = 800.0
_WHOLE_S = 3600


class RayApi:
    """Of one cluster.

    Args:
        address: a URL, such as `http://head:8265`.
        token: that it asks for; None: where Ray's own clients find it.
    """

    def __init__(self, address: str, token: str | None = None) -> None:
        self.address = address.rstrip("/")
        self._token = token

    def require(self) -> str:
        """Finds out whether it answers. Returns: the version of Ray there.

        Raises:
            BackendError: it does not; says what to try by hand.
        """
        try:
            found = json.loads(self._asked("GET", "/api/version"))
            return str(found["ray_version"])
        except (ValueError, LookupError, TypeError):
            raise BackendError(
                f"{self.address} answers, and is no Jobs API of Ray; expected the address of the"
                f" dashboard of a cluster, such as http://head:8265. {self._by_hand()}"
            ) from None

    def nodes(self) -> list[str]:
        """Addresses of the nodes that are alive.

        Raises:
            BackendError: it does not answer.
        """
        try:
            found = json.loads(self._asked("GET", f"/api/v0/nodes?limit={_MOST_NODES}"))["data"][
                "result"
            ]["result"]
            return [str(each["node_ip"]) for each in found if each["state"] == "ALIVE"]
        except (ValueError, LookupError, TypeError):
            raise BackendError(f"{self.address} does not say which nodes it has.") from None

    def send_package(self, name: str, file: BinaryIO, size: int) -> str:
        """Brings a zip there, unless it is there. Returns: its URI.

        Args:
            name: ours to choose; the same one has the same content.
            file: of the zip.
            size: bytes of it.

        Raises:
            ConfigurationError: it is too large.
            BackendError: it cannot be brought there.
        """
        if size >= MOST_PACKAGE:
            raise ConfigurationError(
                f"what the job needs of this machine has {size:,} bytes, and Ray takes less than"
                f" {MOST_PACKAGE:,} with a job; expected sources and data of that size. Put the"
                " data into an S3 store, or into a folder that the nodes have too, and name it as"
                " shared under [ray]."
            )
        uri = f"gcs://{name}"
        self._asked("PUT", f"/api/packages/gcs/{name}", file, _SEND_S, size)
        return uri

    def submit(self, document: Mapping[str, Any]) -> None:
        """Starts a job of Ray's.

        Raises:
            BackendError: it is refused.
        """
        self._asked("POST", "/api/jobs/", json.dumps(document).encode(), _SEND_S)

    def job(self, submission_id: str) -> dict[str, Any] | None:
        """What is known of a job of Ray's; None if it knows none of that name.

        Raises:
            BackendError: it does not answer.
        """
        try:
            found = json.loads(self._asked("GET", f"/api/jobs/{_quoted(submission_id)}"))
        except _NotThereError as error:
            _require_of_ray(error, submission_id)
            return None
        except ValueError as error:
            raise BackendError(f"{self.address} answers with no JSON: {error}") from None
        if not isinstance(found, dict) or not isinstance(found.get("status"), str):
            raise BackendError(
                f"{self.address} says {found!r:.100} of a job; expected an object with its status."
                f" {self._by_hand()}"
            )
        return found

    def dead_node(self, node: str) -> str:
        """Words for a node that Ray calls dead, which never comes back as the same; else empty.

        Raises:
            BackendError: it does not say.
        """
        query = {"filter_keys": "node_id", "filter_predicates": "=", "filter_values": node}
        try:
            found = json.loads(self._asked("GET", f"/api/v0/nodes?{urllib.parse.urlencode(query)}"))
            rows = found["data"]["result"]["result"]
            for each in rows:
                if each["node_id"] == node and each["state"] == "DEAD":
                    return HEAD_IS_DEAD if each.get("is_head_node") else "Ray says its node is dead"
            return ""
        except (ValueError, LookupError, TypeError) as error:
            raise BackendError(
                f"{self.address} says no states of nodes: {type(error).__name__}: {error}."
                f" {self._by_hand()}"
            ) from None

    def stop(self, submission_id: str) -> None:
        """Has a job of Ray's get SIGTERM; returns at once.

        Raises:
            BackendError: it does not answer.
        """
        try:
            self._asked("POST", f"/api/jobs/{_quoted(submission_id)}/stop", b"")
        except _NotThereError as error:
            _require_of_ray(error, submission_id)

    def log(
        self, submission_id: str, node: str, *, is_whole: bool = False
    ) -> http.client.HTTPResponse:
        """The log of a job's driver from its start, as bytes.

        Args:
            submission_id: of the job.
            node: where the driver runs, or ran.
            is_whole: nothing is written any more: the answer ends with the log, and one that breaks
                off raises HTTPException. Else it comes while it is written, and has no end.

        Raises:
            BackendError: it cannot be read now.
        """
        query = {"node_id": node, "filename": f"job-driver-{submission_id}.log", "lines": -1}
        # Without a limit of ours the one of Ray, 30 s, is for all of it.
        query |= {"timeout": _WHOLE_S} if is_whole else {"interval": 0.2}
        path = f"/api/v0/logs/{'file' if is_whole else 'stream'}?{urllib.parse.urlencode(query)}"
        # Of the stream the first answer has a limit, whatever follows.
        answer: http.client.HTTPResponse = self._opened(
            "GET", path, None, _SEND_S if is_whole else _FOLLOW_S
        )
        return answer

    def serve(self) -> dict[str, Any]:
        """What Ray Serve says of itself: `applications`, `http_options`. It is only asked.

        Raises:
            BackendError: it does not answer, or the head has no Ray Serve.
        """
        try:
            found = json.loads(self._asked("GET", "/api/serve/applications/"))
            if not isinstance(found["applications"], dict):
                raise TypeError
        except (ValueError, LookupError, TypeError):
            raise BackendError(
                f"{self.address} does not say what Ray Serve serves; expected that of Ray 2.60, or"
                f" a later one. {self._by_hand()}"
            ) from None
        return dict(found)

    def _asked(
        self,
        method: str,
        path: str,
        body: bytes | BinaryIO | None = None,
        timeout_s: float = _ASK_S,
        size: int | None = None,
    ) -> bytes:
        with self._opened(method, path, body, timeout_s, size) as answer:
            try:
                content: bytes = answer.read()
            except (OSError, http.client.HTTPException) as error:
                raise BackendError(
                    f"Ray at {self.address} breaks off its answer: {error}. {self._by_hand()}"
                ) from None
            return content

    def _opened(
        self,
        method: str,
        path: str,
        body: bytes | BinaryIO | None,
        timeout_s: float,
        size: int | None = None,
    ) -> Any:
        headers = {"Content-Type": "application/json"}
        if size is not None:
            headers = {"Content-Length": str(size)}
        token = _token() if self._token is None else self._token
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self.address + path, body, headers, method=method)
        try:
            return urllib.request.urlopen(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            text = error.read(2000).decode(errors="replace").strip()
            if error.code == http.HTTPStatus.NOT_FOUND:
                raise _NotThereError(f"{self.address}{path} is not there: {text}") from None
            last = text.splitlines()[-1] if text else error.reason
            raise BackendError(
                f"Ray at {self.address} answers {error.code}: {last}. {self._by_hand()}"
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise BackendError(
                f"Ray at {self.address} cannot be reached: {error}. {self._by_hand()}"
            ) from None

    def _by_hand(self) -> str:
        return f"Try by hand: curl {shlex.quote(self.address + '/api/version')}"


class _NotThereError(BackendError):
    """404."""


def _require_of_ray(error: _NotThereError, submission_id: str) -> None:
    """That a job is not there counts if Ray says it. Proxies say 404 as well."""
    if f"Job {submission_id} does not exist" not in str(error):
        raise BackendError(
            f"{error}. That is no answer of Ray's; expected one from its dashboard, which a proxy"
            " may not reach now."
        ) from None


def how_it_ended(found: Mapping[str, Any] | None, python: str) -> str:
    """Why a job of Ray's ended, in words, if its driver has not said so.

    Args:
        found: what Ray knows of it.
        python: that was to run it.
    """
    if found is None:
        return "Ray knows it no more: its head was started anew"
    said = f"Ray says {found.get('status')}: {found.get('message')}"
    if found.get("driver_exit_code") == _NO_SUCH_COMMAND or "No module named" in said:
        return (
            f"{python!r} of the cluster cannot run it; expected a Python that has"
            " smdistributed-open and Ray, named as python under [ray] of config.toml."
            f" {said}"
        )
    if _OTHER_VERSION in said:
        versions = " ".join(said[said.index(_OTHER_VERSION) :].split())
        return (
            f"{python!r} of the cluster has another version of Ray, or of Python, than the"
            " cluster's daemons; expected the same. Name another one as python under [ray] of"
            f" config.toml. Ray says: {versions}"
        )
    return said


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _token() -> str:
    """For clusters that ask for one: where Ray's own clients find it.

    Raises:
        ConfigurationError: what is there is none. It is not quoted.
    """
    where, found = "the variable RAY_AUTH_TOKEN", os.environ.get("RAY_AUTH_TOKEN", "")
    if not found:
        path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
        where = f"the file {path}"
        with contextlib.suppress(OSError):
            found = path.read_bytes().decode(errors="replace")
    token = found.strip()
    if not all("!" <= each <= "~" for each in token):
        raise ConfigurationError(
            f"{where} has {len(token.splitlines())} lines of text that are no token; expected one"
            " line, of ASCII letters and signs without blanks, as Ray takes it."
        )
    return token
