# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Data of an S3 store, brought to this machine before the script starts.

    DATA/<channel>/<digits>         objects that are whole
    DATA/<channel>/<digits>.state   what is known of them, and parts (`download`)
    DATA/<channel>/<digits>.lock    held by the agent that brings them, and by its process

DATA is of this machine, in the job's folder. The digits tell which objects are wanted. So hosts of
one machine that want the same ones share a folder: the first to come brings them, the others wait
and find them there. A host that wants a share has a folder of its own. An agent that starts again
finds what was there.

Source: launch specification, section 5.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.sources import InputMode, Source
from smdistributed.launch.data.stores.download import Progress
from smdistributed.launch.data.stores.remote import Abandoned, RemoteStore
from smdistributed.launch.data.stores.s3 import S3Settings
from smdistributed.launch.jobs.files import Lock

__all__ = ["DataError", "bring", "on_this_machine"]

_FIRST_LINE_S = 5.0
_NEXT_LINE_S = 15.0


class DataError(ConfigurationError):
    """The data of a channel cannot be brought here: says which, why, and what to do.

    Attributes:
        is_passing: the same may work a moment later.
    """

    def __init__(self, what: str, error: Exception) -> None:
        super().__init__(f"{what}: {error}")
        self.is_passing: bool = getattr(error, "is_passing", False)


def _is_brought(source: Source) -> bool:
    return bool(source.bucket) and source.mode != InputMode.PIPE


def _folder_of(name: str, source: Source, data: Path) -> Path:
    digest = hashlib.sha256(source.root.encode())
    for each in source.of_epoch(0):
        digest.update(f"\0{each.name}\0{each.key}".encode("utf-8", "surrogatepass"))
    return data / name / digest.hexdigest()[:16]


def on_this_machine(sources: Mapping[str, Source], data: Path) -> dict[str, Source]:
    """The data of channels as they are once `bring` has brought them.

    Args:
        sources: of a plan, by name of the channel.
        data: the folder for data, of this machine.
    """
    return {
        name: dataclasses.replace(
            source,
            root=str(_folder_of(name, source, data).absolute()),
            objects=None,
            mode=InputMode.FILE,
        )
        if _is_brought(source)
        else source
        for name, source in sources.items()
    }


def bring(
    sources: Mapping[str, Source],
    settings: S3Settings | None,
    data: Path,
    say: Callable[[str], None],
    is_unwanted: Callable[[], bool],
) -> None:
    """Brings what is in an S3 store and is wanted as files.

    Args:
        sources: of a plan, by name of the channel.
        settings: of the store.
        data: the folder for data, of this machine.
        say: is told how far it is.
        is_unwanted: asked now and then; once it says so, nothing more is brought.

    Raises:
        DataError: something cannot be brought.
        Abandoned: nobody wants it any more.
    """
    for name, source in sources.items():
        if not _is_brought(source):
            continue
        assert settings is not None
        folder = _folder_of(name, source, data)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _held(folder.with_suffix(".lock"), is_unwanted) as lock:
                store = RemoteStore(
                    source.bucket, settings, is_unwanted=is_unwanted, keeps=[lock.descriptor]
                )
                try:
                    _bring(name, source, store, folder, say)
                finally:
                    store.close()
        except (ConfigurationError, OSError) as error:
            raise DataError(f"channel {name!r}", error) from None


@contextlib.contextmanager
def _held(path: Path, is_unwanted: Callable[[], bool]) -> Iterator[Lock]:
    """In its block nobody else has the lock; waits for it."""
    lock = Lock(path)
    while not lock.acquire():
        if is_unwanted():
            raise Abandoned
    try:
        yield lock
    finally:
        lock.release()


def _bring(
    name: str, source: Source, store: RemoteStore, folder: Path, say: Callable[[str], None]
) -> None:
    began = time.monotonic()
    next_line = began + _FIRST_LINE_S
    first: Progress | None = None
    last = Progress(0, 0, 0, 0)

    def tell(progress: Progress) -> None:
        nonlocal next_line, first, last
        first, last = first or progress, progress
        if time.monotonic() >= next_line and progress.num_done < progress.num_objects:
            next_line = time.monotonic() + _NEXT_LINE_S
            say(
                f"channel {name!r}: {progress.num_done:,} of {progress.num_objects:,} objects,"
                f" {_size(progress.done)} of {_size(progress.size)}"
            )

    store.download(source.of_epoch(0), folder, folder.with_suffix(".state"), tell)
    took = time.monotonic() - began
    say(
        f"channel {name!r} is here: {last.num_objects:,} object{'s' * (last.num_objects != 1)},"
        f" {_size(last.size)} of {source.root}, in {took:.1f} s"
    )


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size:,} bytes"
