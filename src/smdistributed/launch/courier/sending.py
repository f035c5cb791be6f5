# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""All that a host elsewhere needs of this machine, as messages to its courier."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.agent.plan import HostDirectory, Plan
from smdistributed.launch.courier.files import pieces_of
from smdistributed.launch.courier.messages import MOST_BODY, Make, Message, Place, Start
from smdistributed.launch.data.sources import InputMode, Source, keys_below

__all__ = ["is_below_any", "needed"]


def needed(
    plan: Plan,
    token: Path,
    there: Path,
    directory: HostDirectory,
    stores: Mapping[str, Path],
    shared: Sequence[Path],
) -> Iterator[Message]:
    """Token, sources, data, checkpoints, and at the end the plan, with paths of the other machine.

    Args:
        plan: with paths of this machine.
        token: the file of the job's token.
        there: the courier's folder.
        directory: of the host, in the job's directory.
        stores: that are kept here.
        shared: folders that the other machine sees too: what is in them stays there.

    Raises:
        ConfigurationError: something cannot be read; says what.
    """
    changed: dict[str, object] = {}
    yield from _placed("token", token)
    if plan.archive:
        yield from _placed("sources.tar.gz", Path(plan.archive))
        changed["archive"] = str(there / "sources.tar.gz")
    sources = dict(plan.sources)
    for name, source in plan.data().items():
        if source.bucket or is_below_any(Path(source.root), shared):
            continue
        if source.is_writable:
            raise ConfigurationError(
                f"channel {name!r} may be written to, and {source.root} is a folder of this machine"
                " alone; expected one that the machines share. Say so in the settings, or make the"
                " channel's FileSystemAccessMode 'ro'."
            )
        try:
            yield from _data(f"data/{name}", source)
        except (OSError, ConfigurationError) as error:
            raise ConfigurationError(f"channel {name!r}: {error}") from None
        sources[name] = {**sources[name], "root": str(there / "data" / name)}
    changed["sources"] = sources
    for name, store in stores.items():
        if name == "checkpoints" and store.is_dir():
            for key in keys_below(store):
                yield from _placed(f"store/{name}/{key}", store / key)
        changed[name] = str(there / "store" / name)
    if plan.attempt > 1 and directory.metrics.is_file():  # steps for TensorBoard are counted on
        yield from _placed(f"hosts/{plan.host}/{directory.metrics.name}", directory.metrics)
    plan = dataclasses.replace(plan, **changed)  # type: ignore[arg-type]
    yield from _pieces("plan.json", json.dumps(dataclasses.asdict(plan)).encode())
    yield Start(plan.host)


def is_below_any(path: Path, folders: Sequence[Path]) -> bool:
    """Whether a path lies in one of some folders."""
    return any(path.is_relative_to(each) for each in folders)


def _data(where: str, source: Source) -> Iterator[Message]:
    """A channel: its folders, also those without files, and then its files. Links are followed."""
    root = Path(source.root)
    if source.objects is None:
        keys = list(keys_below(root))  # which refuses folders without end
        for above, names, _ in os.walk(root, followlinks=True):
            below = os.path.relpath(above, root)
            yield Make(os.path.normpath(f"{where}/{below}"), os.stat(above).st_mode & 0o777)
            names.sort()
    else:
        has_all = source.mode == InputMode.PIPE and source.seed is not None  # epoch by epoch
        wanted = dataclasses.replace(source, index=0, count=1) if has_all else source
        keys = list(dict.fromkeys(each.key for each in wanted.of_epoch(0)))
        yield Make(where, 0o755)
    for key in keys:
        yield from _placed(os.path.normpath(f"{where}/{key}"), root / key)


def _placed(where: str, path: Path) -> Iterator[Place]:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            for offset, body, is_last in pieces_of(file):
                mode = found.st_mode & 0o777
                yield Place(where, offset, mode, found.st_mtime_ns, is_last, body)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read, and the host needs it: {error}; expected a file that this user"
            " may read, and that stays there while the job starts."
        ) from None


def _pieces(where: str, content: bytes) -> Iterator[Place]:
    for begin in range(0, len(content) or 1, MOST_BODY):
        end = begin + MOST_BODY
        is_last = end >= len(content)
        yield Place(where, begin, 0o600, time.time_ns(), is_last, content[begin:end])
