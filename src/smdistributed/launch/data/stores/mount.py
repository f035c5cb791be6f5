# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Mounts a bucket: `python -m smdistributed.launch.data.stores.mount`, run by an agent.

Standard input has a line of JSON: `bucket`, `prefix`, `settings`, `path`, which is a folder,
`first`, the path in it and the size of an object that it must show, or null, and `patience_s`.
Standard output gets one: `problem`, empty once the folder shows the objects below the prefix; and
another one if it shows them no more. When standard input ends, as it does when the agent has, the
folder is unmounted.

Who mounts may never answer, and then this process does not either: nothing but the end of who
mounts gets it out of a look at such a folder.

What mounts is one of `MOUNTERS`, a program that this machine has. It gets credentials by its
environment, which only its user can read. It ends with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from smdistributed.launch.data.stores.s3 import S3Settings, S3Store
from smdistributed.launch.data.stores.store import StoreError
from smdistributed.launch.orphans import die_with_parent

__all__ = ["MOUNTERS", "main"]

_END_S = 3.0
_POLL_S = 0.05
_LOOK_S = 0.5
_MOUNTS = "/proc/self/mountinfo"


def _mount_s3(bucket: str, prefix: str, settings: S3Settings, path: str) -> list[str]:
    command = ["mount-s3", bucket, path, "--foreground", "--read-only"]
    if prefix:
        command += ["--prefix", prefix]
    if settings.endpoint_url:
        command += ["--endpoint-url", settings.endpoint_url, "--force-path-style"]
    return [*command, *(["--region", settings.region] if settings.region else [])]


def _s3fs(bucket: str, prefix: str, settings: S3Settings, path: str) -> list[str]:
    what = f"{bucket}:/{prefix.rstrip('/')}" if prefix else bucket
    options = ["ro", "umask=0222"]
    if settings.endpoint_url:
        options += [f"url={settings.endpoint_url}", "use_path_request_style"]
    if settings.region:
        options.append(f"endpoint={settings.region}")
    return ["s3fs", what, path, "-f", *(word for each in options for word in ("-o", each))]


def _rclone(bucket: str, prefix: str, settings: S3Settings, path: str) -> list[str]:
    command = ["rclone", "mount", f":s3:{bucket}/{prefix}", path, "--read-only", "--s3-env-auth"]
    if settings.endpoint_url:
        command += ["--s3-provider", "Other", "--s3-endpoint", settings.endpoint_url]
    else:
        command += ["--s3-provider", "AWS"]
    return [*command, *(["--s3-region", settings.region] if settings.region else [])]


MOUNTERS: dict[str, Callable[[str, str, S3Settings, str], list[str]]] = {
    "mount-s3": _mount_s3,
    "s3fs": _s3fs,
    "rclone": _rclone,
}
"""Programs that mount, the best first; each with what makes its command."""


def _environment(store: S3Store) -> dict[str, str]:
    """Credentials as boto3 finds them, by the names that mounters know."""
    key, secret, token = store.credentials()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS")}
    environ |= {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
    return environ | ({"AWS_SESSION_TOKEN": token} if token else {})


class _Mount:
    """Of one folder."""

    def __init__(self, path: str) -> None:
        self._path = path
        # As the kernel writes it. Later a look at the folder may have no end.
        self._place = re.sub(
            rb"[ \t\n\\]",
            lambda found: b"\\%03o" % found[0][0],
            os.fsencode(os.path.realpath(path)),
        )
        self._name = ""
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, request: dict[str, Any]) -> str:
        """Mounts. Returns: why it could not; empty if it could."""
        settings = S3Settings(**request["settings"])
        store = S3Store(request["bucket"], settings, request["prefix"])
        name = next((each for each in MOUNTERS if shutil.which(each)), None)
        if name is None:
            return f"there is none of the programs {', '.join(MOUNTERS)}"
        self._name = name
        try:
            environ = _environment(store)
        except StoreError as error:
            return str(error)
        own = os.getpid()
        with tempfile.TemporaryFile() as output:
            command = MOUNTERS[name](request["bucket"], request["prefix"], settings, self._path)
            self._process = subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=lambda: die_with_parent(own),  # this process has one thread
            )
            until = time.monotonic() + request["patience_s"]
            while time.monotonic() < until and self._process.poll() is None:
                if self._is_mounted():
                    return self._why_not_shown(request["first"])
                time.sleep(_POLL_S)
            output.seek(0)
            said = output.read()[-300:].decode(errors="replace").strip()
        return f"{name} could not mount s3://{request['bucket']}/{request['prefix']}: {said}"

    def _is_mounted(self) -> bool:
        with open(_MOUNTS, "rb") as file:
            return any(line.split(b" ")[4] == self._place for line in file)

    def _why_not_shown(self, first: tuple[str, int] | None) -> str:
        """What is wrong with an object in the folder; empty if nothing is."""
        if first is None:
            return ""
        path, size = first
        try:
            found = os.stat(os.path.join(self._path, path)).st_size
        except OSError as error:
            return f"{self._name} does not show {path!r}: {error.strerror}"
        if found == size:
            return ""
        return f"{self._name} shows {path!r} with {found:,} bytes, and the store says {size:,}"

    def wait(self) -> str:
        """Until standard input ends; or sooner, if the folder does not show its objects any more.

        Returns: why it does not; empty if it does.
        """
        assert self._process is not None
        while not select.select([0], [], [], _LOOK_S)[0]:
            if self._process.poll() is not None:
                return f"{self._name} has ended with status {self._process.returncode}"
            if not self._is_mounted():
                return "somebody has unmounted it"
        return ""

    def end(self) -> None:
        """Unmounts, also what somebody uses."""
        if self._process is None:
            return
        if self._is_mounted():
            with contextlib.suppress(OSError):
                subprocess.run(["umount", "-l", self._path], check=False, capture_output=True)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _tell(problem: str) -> None:
    sys.stdout.write(json.dumps({"problem": problem}) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Mounts until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the agent says when it is the end
    request = json.loads(sys.stdin.buffer.readline())
    mount = _Mount(request["path"])
    try:
        problem = mount.begin(request)
        _tell(problem)
        if not problem and (problem := mount.wait()):
            _tell(problem)
    except BrokenPipeError:
        pass
    finally:
        mount.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
