# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The data of a host's channels, put where the script finds them.

    channels/<name>               a link to the folder of the data; in the host's mount namespace
                                  (`read_only`) to that folder in a view of the machine's files
    ml/input/data/<name>          a link to that; or a folder of links to files in it

So a script cannot change the data where there is a namespace, and finds them where there is none.
And a link in the data that leads to what is beside them, as `../labels`, finds it: the folder
alone, mounted somewhere else, would have other things beside it, perhaps another channel.

Source: launch specification, section 5.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.sources import InputMode, Source

__all__ = ["make_views", "notes_on", "place"]


def make_views(views: Path, sources: Mapping[str, Source]) -> None:
    """Makes the links to the data that the script may not change.

    Args:
        views: the folder for them, which is made.
        sources: by name of the channel.

    Raises:
        OSError: they cannot be made.
    """
    views.mkdir(mode=0o700, exist_ok=True)
    for name, source in sources.items():
        if not source.is_writable and not source.bucket:
            (views / name).unlink(missing_ok=True)
            (views / name).symlink_to(source.root)


def notes_on(sources: Mapping[str, Source], views: Path, is_mounted: bool) -> list[str]:
    """What a user should know about the data of a host, once they are in their place.

    Args:
        sources: by name of the channel.
        views: as of `place`.
        is_mounted: the host has a mount namespace, in which data should be read-only.
    """
    notes = []
    for name, source in sources.items():
        if source.mode == InputMode.FAST_FILE:
            notes.append(
                f"channel {name!r} is in mode FastFile, which is File here: the files are on this"
                " machine already"
            )
        is_wanted = is_mounted and not source.is_writable and source.mode != InputMode.PIPE
        if is_wanted and not os.statvfs(views / name).f_flag & os.ST_RDONLY:
            notes.append(
                f"channel {name!r} is not read-only here: a script can change {source.root}"
            )
    return notes


def place(name: str, source: Source, views: Path, channel: Path) -> None:
    """Puts the data of a channel there; whole, or not at all.

    Args:
        name: of the channel.
        source: of the host.
        views: where `make_views` has made them.
        channel: the path that the script knows.

    Raises:
        ConfigurationError: the data are not there, on this machine; or the disk is full. Says
            which, and what is needed.
        OSError: it cannot be written.
    """
    if channel.is_symlink() or channel.exists():
        return
    if source.mode == InputMode.PIPE:
        channel.mkdir()
        return
    root = Path(source.root) if source.is_writable else views.absolute() / name
    if not root.is_dir():
        raise _are_missing(name, source.root)
    if source.objects is None:
        channel.symlink_to(root)
        return
    _make_tree(name, source, root, channel)


def _are_missing(name: str, path: str) -> ConfigurationError:
    return ConfigurationError(
        f"the data of channel {name!r} are not there on {os.uname().nodename}: {path}; expected"
        " what was there when the job began, on each of its machines."
    )


def _make_tree(name: str, source: Source, root: Path, channel: Path) -> None:
    objects = source.of_epoch(0)
    beside = Path(tempfile.mkdtemp(prefix=".smd-", dir=channel.parent))
    try:
        for each in objects:
            link = beside / each.name
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            link.symlink_to(root / each.key)
            if not link.exists():
                raise _are_missing(name, f"{source.root}/{each.key}")
        beside.rename(channel)
    except BaseException as error:
        shutil.rmtree(beside, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed = sum(len(os.fsencode(root / each.key)) for each in objects)
            raise ConfigurationError(
                f"the disk of {channel} is full: {error}; expected room for {len(objects):,} links,"
                f" about {needed:,} bytes. Remove what is not needed there, or set SMD_HOME to"
                " another disk."
            ) from None
        raise
