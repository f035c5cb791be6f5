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
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from smdistributed.launch.agent.fetching import DataError
from smdistributed.launch.data.sources import InputMode, Source
from smdistributed.launch.data.stores.remote import Abandoned
from smdistributed.launch.data.stores.s3 import S3Settings

__all__ = ["StoreMounts"]

_PATIENCE_S = 20.0
# What a process needs to begin, and to say that it has waited in vain.
_MORE_S = 10.0
_END_S = 15.0
_POLL_S = 0.2


@dataclasses.dataclass
class _Mounter:
    """The process that keeps the folder of a channel mounted."""

    channel: str
    process: subprocess.Popen[bytes]
    told: bytes = b""

    def line(self, seconds: float) -> bytes | None:
        """What it says next; None: nothing so soon. Empty: it is gone."""
        assert self.process.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self.told:
            left = max(0.0, until - time.monotonic())
            if not select.select([self.process.stdout], [], [], left)[0]:
                return None
            more = os.read(self.process.stdout.fileno(), 1 << 12)
            if not more:
                return b""
            self.told += more
        line, _, self.told = self.told.partition(b"\n")
        return line

    def problem_of(self, line: bytes) -> str:
        """What a line says to be wrong; empty: nothing."""
        if not line:
            return f"the process that mounts has ended with status {self.process.wait()}"
        try:
            return str(json.loads(line)["problem"])
        except ValueError:
            return f"the process that mounts has printed {line[:80]!r}"

    def end(self, patience_s: float) -> None:
        """Unmounts; ends it, and what mounts, if that takes longer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            # All at once: it may wait for an answer of what mounts, and no signal ends that.
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()


class StoreMounts:
    """Of all channels of a host, until `close`.

    Args:
        say: is told of each channel how it comes in.
        is_mounted: the host has a mount namespace.
        patience_s: how long a program has to mount.
    """

    def __init__(
        self, say: Callable[[str], None], is_mounted: bool, patience_s: float = _PATIENCE_S
    ) -> None:
        self._say = say
        self._can_mount = is_mounted and os.getuid() == 0
        self._patience_s = patience_s
        self._mounters: list[_Mounter] = []
        self._problem = ""

    def close(self) -> None:
        """Unmounts all."""
        for each in self._mounters:
            assert each.process.stdin is not None
            with contextlib.suppress(OSError):
                each.process.stdin.close()
        for each in self._mounters:
            each.end(_END_S)

    def pids(self) -> list[int]:
        """Numbers of the processes that keep them."""
        return [each.process.pid for each in self._mounters]

    @property
    def problem(self) -> str:
        """Why a channel does not show its objects any more; empty if all do.

        Its folder may be empty then, as if there were none.
        """
        for each in self._mounters:
            line = each.line(0) if not self._problem else None
            if line is not None:
                why = each.problem_of(line)
                self._problem = f"channel {each.channel!r} is not mounted any more: {why}"
        return self._problem

    def mount(
        self,
        sources: Mapping[str, Source],
        settings: S3Settings | None,
        data: Path,
        is_unwanted: Callable[[], bool] = lambda: False,
    ) -> set[str]:
        """Mounts what can be mounted; says why of what cannot, and is wanted so.

        Args:
            sources: of a plan, by name of the channel.
            settings: of the S3 store.
            data: the folder of the channels.
            is_unwanted: asked now and then; once it says so, nothing more is mounted.

        Returns: names of the channels that are mounted.

        Raises:
            DataError: what could not be mounted has left something in the place of the channel.
            Abandoned: nobody wants it any more.
        """
        done = set()
        for name, source in sources.items():
            if not source.bucket or source.mode != InputMode.FAST_FILE:
                continue
            assert settings is not None
            why = self._why_not(source)
            if not why:
                request = {
                    "bucket": source.bucket,
                    "prefix": source.folder,
                    "settings": dataclasses.asdict(settings),
                    "path": str(data / name),
                    "first": _first_of(source),
                    "patience_s": self._patience_s,
                }
                why = self._mount(name, request, is_unwanted)
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

    def _mount(self, name: str, request: Mapping[str, Any], is_unwanted: Callable[[], bool]) -> str:
        """Returns: why it cannot be; empty if it is."""
        path = Path(request["path"])
        path.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "smdistributed.launch.data.stores.mount"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        mounter = _Mounter(name, process)
        self._mounters.append(mounter)
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, which is told below
            process.stdin.write(json.dumps(request).encode() + b"\n")
        problem = None
        try:
            problem = self._begun(mounter, is_unwanted)
        finally:
            if problem != "":
                self._give_up(mounter, path)
        return problem

    def _begun(self, mounter: _Mounter, is_unwanted: Callable[[], bool]) -> str:
        until = time.monotonic() + self._patience_s + _MORE_S
        while (line := mounter.line(_POLL_S)) is None:
            if is_unwanted():
                raise Abandoned
            if time.monotonic() > until:
                return "what mounts does not answer"
        return mounter.problem_of(line)

    def _give_up(self, mounter: _Mounter, path: Path) -> None:
        self._mounters.remove(mounter)
        mounter.end(0.0)
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)
        try:
            path.rmdir()
        except OSError as error:  # the script would take it for its data
            raise DataError(f"channel {mounter.channel!r} cannot be mounted", error) from None


def _first_of(source: Source) -> tuple[str, int] | None:
    """Path and size of an object that the folder must show; None if each has a doubtful path."""
    for each in source.of_epoch(0):
        path = each.key.removeprefix(source.folder or "")
        if not {"", ".", ".."} & set(path.split("/")):
            return path, each.size
    return None
