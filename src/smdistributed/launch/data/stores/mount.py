# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Mounts a bucket: `python -m smdistributed.launch.data.stores.mount`, run by an agent.

Standard input has a line of JSON: `bucket`, `prefix`, `settings` and `path`, which is a folder.
Standard output gets one: `problem`, empty once the folder shows the objects below the prefix. When
standard input ends, as it does when the agent has, the folder is unmounted.

What mounts is one of `MOUNTERS`, a program that this machine has. It gets credentials by its
environment, which only its user can read. It ends with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
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

_MOUNTED_S = 20.0
_END_S = 3.0
_POLL_S = 0.05


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
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, request: dict[str, Any]) -> str:
        """Mounts. Returns: why it could not; empty if it could."""
        settings = S3Settings(**request["settings"])
        store = S3Store(request["bucket"], settings, request["prefix"])
        name = next((each for each in MOUNTERS if shutil.which(each)), None)
        if name is None:
            return f"there is none of the programs {', '.join(MOUNTERS)}"
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
            until = time.monotonic() + _MOUNTED_S
            while time.monotonic() < until and self._process.poll() is None:
                if os.path.ismount(self._path):
                    return ""
                time.sleep(_POLL_S)
            output.seek(0)
            said = output.read()[-300:].decode(errors="replace").strip()
        return f"{name} could not mount s3://{request['bucket']}/{request['prefix']}: {said}"

    def end(self) -> None:
        """Unmounts, also what somebody uses."""
        if self._process is None:
            return
        if os.path.ismount(self._path):
            with contextlib.suppress(OSError):
                subprocess.run(["umount", "-l", self._path], check=False, capture_output=True)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
                return
            self._process.send_signal(number)
        self._process.wait()


def main() -> int:
    """Mounts until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the agent says when it is the end
    request = json.loads(sys.stdin.buffer.readline())
    mount = _Mount(request["path"])
    try:
        problem = mount.begin(request)
        sys.stdout.write(json.dumps({"problem": problem}) + "\n")
        sys.stdout.flush()
        if not problem:
            sys.stdin.buffer.read()
    except BrokenPipeError:
        pass
    finally:
        mount.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
