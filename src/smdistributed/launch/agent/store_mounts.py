# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Channels in mode FastFile: folders of an S3 store, mounted where the script finds them.

That is in the host's mount namespace, in which this user is root: what is mounted there goes with
the host's last process, whoever is killed. Where that is not so, where there is no program that
mounts, or where the channel is not all of a folder, the mode is File.

Source: launch specification, section 5.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from smdistributed.launch.data.sources import InputMode, Source
from smdistributed.launch.data.stores.s3 import S3Settings

__all__ = ["StoreMounts"]

_END_S = 15.0


class StoreMounts:
    """Of all channels of a host, until `close`.

    Args:
        say: is told of each channel how it comes in.
        is_mounted: the host has a mount namespace.
    """

    def __init__(self, say: Callable[[str], None], is_mounted: bool) -> None:
        self._say = say
        self._can_mount = is_mounted and os.getuid() == 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def close(self) -> None:
        """Unmounts all."""
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()  # and with it what mounts
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def pids(self) -> list[int]:
        """Numbers of the processes that keep them."""
        return [each.pid for each in self._processes]

    def mount(
        self, sources: Mapping[str, Source], settings: S3Settings | None, data: Path
    ) -> set[str]:
        """Mounts what can be mounted; says why of what cannot, and is wanted so.

        Args:
            sources: of a plan, by name of the channel.
            settings: of the S3 store.
            data: the folder of the channels.

        Returns: names of the channels that are mounted.
        """
        done = set()
        for name, source in sources.items():
            if not source.bucket or source.mode != InputMode.FAST_FILE:
                continue
            assert settings is not None
            why = self._why_not(source) or self._mount(source, settings, data / name)
            if why:
                self._say(f"channel {name!r} is in mode FastFile, which is File here: {why}")
            else:
                done.add(name)
                self._say(f"channel {name!r} is mounted: a file is read when it is opened")
        return done

    def _why_not(self, source: Source) -> str:
        if not self._can_mount:
            return "only root can mount, in a namespace of each host"
        if source.folder is None:
            return "it is not all of a folder"
        return ""

    def _mount(self, source: Source, settings: S3Settings, path: Path) -> str:
        """Returns: why it cannot be; empty if it is."""
        path.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "smdistributed.launch.data.stores.mount"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._processes.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        request = {
            "bucket": source.bucket,
            "prefix": source.folder,
            "settings": dataclasses.asdict(settings),
            "path": str(path),
        }
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError as error:
            return str(error)
        if not answer:
            return f"the process that mounts has ended with status {process.wait()}"
        problem = str(json.loads(answer)["problem"])
        if problem:
            with contextlib.suppress(OSError):
                path.rmdir()
        return problem
