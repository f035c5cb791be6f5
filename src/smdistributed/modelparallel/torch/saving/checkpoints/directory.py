# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The directory of a run's checkpoints: what is in it, and how it changes. It knows no ranks.

    path/
      {tag}_partial/        a partial checkpoint: files of each rank, and
        user_content.pt
        partition.pt        `Layout`
      {tag}                 a full checkpoint: the model's state dictionary
      user_content_{tag}
      newest                the name that was saved last: `{tag}_partial` or `{tag}`

Checkpoints are filled under a hidden name, and get their own when all of it is on the disk. So one
that is named is whole, and whenever a process dies `newest` names one that is there. Only the two
files of a full one are named one after the other, which counts if both replace others. What a kill
may leave, all of it hidden, is gone after the next save:

    .unfinished.....smp-tmp        one that was not finished
    .{tag}_partial.smp-old         one that was about to be replaced by another of the same tag; it
                                   is read as long as the other is not there
    .{tag}_partial.smp-deleted     one that was being deleted
    .....smp-mark                  what ranks that see one directory have found each other by

Source: modelparallel specification, section 6.9; hidden names are our choice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.atomic_files import (
    OpenFile,
    replace_file,
    synchronise_directory,
)
from smdistributed.modelparallel.exceptions import ConfigError, SMPError

__all__ = [
    "MARK",
    "MODEL",
    "NEWEST",
    "PARTITION",
    "USER_CONTENT",
    "CheckpointDirectory",
    "Layout",
    "checked_tag",
]

NEWEST = "newest"
PARTITION = "partition.pt"
USER_CONTENT = "user_content.pt"
MODEL = "model.pt"
"""Of a full checkpoint, until it has its name."""

MARK = ".smp-mark"

_PARTIAL = "_partial"
_CONTENT_OF = "user_content_"
_UNFINISHED = ".unfinished."
_TEMPORARY = ".smp-tmp"
_OLD = ".smp-old"
_DELETED = ".smp-deleted"
_FORMAT = "smdistributed.modelparallel checkpoint"
_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How a partial checkpoint is divided: the content of `partition.pt`.

    Attributes:
        save: random, the same in the directories of all hosts: whose parts belong together.
        number: of the save, ascending within a directory.
        pp_size, tp_size, rdp_size: of the job that saved.
        is_sharded: whether each replica has files of its own for the optimizer.
        partition_of: by path of module, `main/...`.
    """

    save: str
    number: int
    pp_size: int
    tp_size: int
    rdp_size: int
    is_sharded: bool
    partition_of: Mapping[str, int]

    def content(self) -> dict[str, Any]:
        """For the file."""
        return {"format": _FORMAT, "version": _VERSION, **dataclasses.asdict(self)}

    @staticmethod
    def read(path: str) -> Layout:
        """From the file.

        Raises:
            OSError: it cannot be read.
            SMPError: it is something else.
        """
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except OSError:
            raise
        except Exception as error:
            raise SMPError(_not_a_layout(path, str(error))) from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise SMPError(_not_a_layout(path, f'it does not say "format": "{_FORMAT}"'))
        if content.get("version") != _VERSION:
            raise SMPError(
                f"{path} is of version {content.get('version')!r} of its format; expected"
                f" {_VERSION}. Use the release of this library that wrote it."
            )
        names = [field.name for field in dataclasses.fields(Layout)]
        missing = [name for name in names if name not in content]
        if missing:
            raise SMPError(_not_a_layout(path, f"it has no {' and no '.join(missing)}"))
        layout = Layout(**{name: content[name] for name in names})
        sizes = (layout.pp_size, layout.tp_size, layout.rdp_size)
        if not all(type(size) is int and size > 0 for size in sizes):
            raise SMPError(_not_a_layout(path, f"its sizes are {sizes}"))
        if not isinstance(layout.partition_of, dict):
            raise SMPError(_not_a_layout(path, "it has no partitions of modules"))
        for module, partition in layout.partition_of.items():
            if type(partition) is not int or not 0 <= partition < layout.pp_size:
                what = f"{module} is in partition {partition!r} of {layout.pp_size}"
                raise SMPError(_not_a_layout(path, what))
        return layout


def _not_a_layout(path: str, what: str) -> str:
    return (
        f"{path} is damaged, or something else: {what}; expected what smp.save_checkpoint has"
        " written. Resume from another checkpoint."
    )


def checked_tag(tag: object) -> str:
    """The tag of a checkpoint that is to be saved; a number becomes its digits.

    Raises:
        ConfigError: (a ValueError) it cannot be the name of one.
    """
    text = str(tag) if type(tag) is int else tag
    if (
        not isinstance(text, str)
        or text in ("", NEWEST)
        or os.path.basename(text) != text
        or text.startswith((".", _CONTENT_OF))
        or text.endswith(_PARTIAL)
        or "\n" in text
        or "\0" in text
    ):
        raise ConfigError(
            f"tag is {tag!r}; expected a name without / at which a file can be made, and none that"
            f' is or looks like another of the layout: "{NEWEST}", "{_CONTENT_OF}...",'
            f' "...{_PARTIAL}", ".hidden". Pass another one, such as "step_1000".'
        )
    return text


class CheckpointDirectory:
    """A directory that one writer at a time changes, and any number read.

    Args:
        path: it need not be there to be read from.
        save: random, the same on all ranks, to write: another save must not mix its files with
            these, such as one of a process that was thought dead.

    Attributes:
        unfinished: where the files of the next checkpoint go, after `begin`.
    """

    def __init__(self, path: str | os.PathLike[str], save: str = "") -> None:
        self.path = os.fspath(path)
        self.unfinished = self._at(f"{_UNFINISHED}{save}{_TEMPORARY}")

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)

    # --- reading ---------------------------------------------------------------------------------

    def newest(self) -> str | None:
        """The tag of the last save, or None if there was none.

        Raises:
            OSError: it cannot be read.
            SMPError: it names what cannot be a checkpoint in this directory.
        """
        path = self._at(NEWEST)
        try:
            with open(path, encoding="utf-8") as file:
                name = file.read().rstrip("\n")  # of who has edited it
        except FileNotFoundError:
            return None
        tag = name.removesuffix(_PARTIAL)
        if not tag:
            return None
        try:
            return checked_tag(tag)
        except ConfigError as error:
            raise SMPError(
                f"{path} names {name!r}; expected a checkpoint beside it, as smp.save_checkpoint"
                " writes. Correct the file, or pass a tag."
            ) from error

    def partial(self, tag: str) -> str:
        """The directory of a partial checkpoint.

        Args:
            tag: with or without `_partial`.

        Raises:
            FileNotFoundError: there is none; the text lists those that are there.
        """
        name = tag.removesuffix(_PARTIAL) + _PARTIAL
        for found in (self._at(name), self._at(f".{name}{_OLD}")):
            if os.path.isdir(found):
                return found
        raise self._missing(self._at(name), "no partial checkpoint", "partial=False")

    def has_full(self, tag: str | None) -> bool:
        """Whether there is a full checkpoint."""
        return tag is not None and os.path.isfile(self._at(tag.removesuffix(_PARTIAL)))

    def full(self, tag: str) -> str:
        """The file of a full checkpoint.

        Args:
            tag: with or without `_partial`.

        Raises:
            FileNotFoundError: there is none; the text lists what is there.
        """
        path = self._at(tag.removesuffix(_PARTIAL))
        if self.has_full(tag):
            return path
        raise self._missing(path, "no full checkpoint", "partial=True")

    def full_user_content(self, tag: str) -> str:
        """The file of what a user has given with a full checkpoint."""
        return self._at(_CONTENT_OF + tag.removesuffix(_PARTIAL))

    def _missing(self, path: str, what: str, otherwise: str) -> FileNotFoundError:
        try:
            names = os.listdir(self.path)
        except OSError:
            there = f"the directory {self.path} cannot be read"
        else:
            found = sorted(
                name for name in names if not name.startswith((".", _CONTENT_OF)) and name != NEWEST
            )
            there = f"{self.path} holds {', '.join(found[:20]) or 'none'}"
        return FileNotFoundError(
            errno.ENOENT,
            f"there is {what} {path}; expected one that smp.save_checkpoint has written: {there}."
            f" Pass the path and a tag that were given to it, or {otherwise}",
        )

    # --- writing ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Makes the hidden directory for the files of the next checkpoint."""
        self._tidy()
        os.mkdir(self.unfinished)

    def next_number(self) -> int:
        """Of the next save."""
        return 1 + max((number for number, _ in self._saves()), default=0)

    def abandon(self) -> None:
        """Removes what `begin` has made; raises nothing."""
        shutil.rmtree(self.unfinished, ignore_errors=True)

    def publish(self, tag: str) -> None:
        """Gives the checkpoint its name. One of the same tag stays until `finish`.

        Raises:
            OSError: that was not possible; what was there is there still.
        """
        target = self._at(tag + _PARTIAL)
        old = self._at(f".{tag}{_PARTIAL}{_OLD}")
        replaces = os.path.isdir(target)
        if replaces:
            os.rename(target, old)
        try:
            os.rename(self.unfinished, target)
        except OSError:
            if replaces:
                os.rename(old, target)
            raise
        synchronise_directory(self.path)

    def withdraw(self, tag: str) -> None:
        """Undoes `publish`, which has failed for other ranks; raises nothing.

        Where that is not possible, the new checkpoint stays, or the one before under its hidden
        name; that they do not belong together is seen by `Layout.save`.
        """
        target = self._at(tag + _PARTIAL)
        old = self._at(f".{tag}{_PARTIAL}{_OLD}")
        with contextlib.suppress(OSError):
            os.rename(target, self.unfinished)
            if os.path.isdir(old):
                os.rename(old, target)

    def publish_full(self, tag: str) -> None:
        """Gives `MODEL` and `USER_CONTENT`, if there is one, their names.

        Raises:
            OSError: that was not possible.
        """
        beside = self.full_user_content(tag)
        os.replace(os.path.join(self.unfinished, MODEL), self._at(tag))
        try:
            os.replace(os.path.join(self.unfinished, USER_CONTENT), beside)
        except FileNotFoundError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)  # of another checkpoint with this tag
        synchronise_directory(self.path)

    def finish(self, tag: str, kept: int | None) -> None:
        """Names the checkpoint as the newest, and deletes what is no longer needed.

        Args:
            tag: that was published.
            kept: how many partial ones stay, by the order of saves; None: all.

        Raises:
            OSError: `newest` could not be written. What cannot be deleted is told as a warning.
        """
        self.write_newest(tag + _PARTIAL)
        self._tidy()
        if kept is not None:
            saves = sorted(self._saves())
            for _, name in saves[: max(len(saves) - kept, 0)]:
                if name != tag + _PARTIAL:
                    self._delete(name)

    def write_newest(self, name: str) -> None:
        """Says which checkpoint is the newest; whole or as it was."""

        def write(file: OpenFile) -> None:
            file.write(name.encode())

        replace_file(self._at(NEWEST), NEWEST, write)

    def _saves(self) -> Iterator[tuple[int, str]]:
        """Number and name of the partial checkpoints; what is damaged has number 0."""
        for name in os.listdir(self.path):
            partition = os.path.join(self.path, name, PARTITION)
            is_named = name.endswith(_PARTIAL) and not name.startswith(".")
            if not is_named or os.path.islink(self._at(name)) or not os.path.isfile(partition):
                continue  # not ours to delete
            number = 0
            with contextlib.suppress(OSError, SMPError):
                number = Layout.read(partition).number
            yield number, name

    def _tidy(self) -> None:
        """After a kill: puts back or removes what was in between."""
        for name in os.listdir(self.path):
            if not name.startswith("."):
                continue
            if name.endswith(MARK):
                os.unlink(self._at(name))
            elif name.endswith(_PARTIAL + _DELETED) or (
                name.startswith(_UNFINISHED) and name.endswith(_TEMPORARY)
            ):
                self._delete(name)
            elif name.endswith(_PARTIAL + _OLD):
                target = self._at(name[1:].removesuffix(_OLD))
                if os.path.isdir(target):
                    self._delete(name)
                else:
                    os.rename(self._at(name), target)

    def _delete(self, name: str) -> None:
        path = self._at(name)
        try:
            if not name.startswith("."):
                path = self._at(f".{name}{_DELETED}")
                os.rename(self._at(name), path)  # half of it is none
            shutil.rmtree(path)
        except OSError as error:
            get_logger().warning(
                "the old checkpoint %s could not be deleted: %s; expected to be allowed to. New"
                " ones are saved all the same. Look at its permissions, and delete it by hand",
                path,
                error,
            )
