# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.save` and `smp.load`: one file, or one file for each rank, never half a file.

| call | file | |
| --- | --- | --- |
| `partial=False` | `f` | |
| `partial=True`, no tensor parallelism | `f_{mp_rank}` | v1 |
| `partial=True`, tensor parallelism | `f_{pp_rank}_{tp_rank}` | v2 |
| `partial=True, v3=True` | `f_{pp_rank}_{tp_rank}_{rdp_rank}` | v3 |

A file is written under a temporary name in the same directory, flushed to the disk, and renamed.
Whenever the process or the host dies, the name holds the previous content or the new one. After an
error in Python the temporary file is gone. After a kill it stays, and the next save of the same
file by the same rank overwrites and renames it, so restarts do not fill the disk.

Neither function is collective; they know of ranks only what they are told.

Source: modelparallel specification, section 4.8.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import os
import pickle
import re
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any, Self, cast

import torch

__all__ = ["FileNames", "load", "save"]

_MOST_LISTED = 20
# Of a name, to which a temporary one adds up to 40; file systems end at 255.
_LONGEST_STEM_BYTES = 200
# What a file system without the operation says.
_UNSUPPORTED = frozenset((errno.EINVAL, errno.ENOSYS, errno.ENOTSUP))
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileNames:
    """The names of one rank's files.

    Attributes:
        pp_rank, tp_rank, rdp_rank: where the rank is in the mesh.
        mp_rank: its rank in the MP group.
        tp_size: ranks that share a distributed module; 1 without tensor parallelism.
    """

    pp_rank: int
    tp_rank: int
    rdp_rank: int
    mp_rank: int
    tp_size: int

    def v1(self, f: str) -> str:
        """One file for each rank of an MP group."""
        return f"{f}_{self.mp_rank}"

    def v2(self, f: str) -> str:
        """The same, named by partition and tensor parallel rank."""
        return f"{f}_{self.pp_rank}_{self.tp_rank}"

    def v3(self, f: str) -> str:
        """One file for each rank of the world."""
        return f"{f}_{self.pp_rank}_{self.tp_rank}_{self.rdp_rank}"

    def to_save(self, f: str, *, partial: bool, v3: bool) -> str:
        """The file that `save` writes."""
        if not partial:
            return f
        if v3:
            return self.v3(f)
        return self.v1(f) if self.tp_size == 1 else self.v2(f)

    def to_load(self, f: str, *, partial: bool, back_compat: bool) -> list[str]:
        """The files that `load` tries, in order."""
        if not partial:
            return [f]
        names = [self.v3(f), self.v2(f)]
        if self.tp_size == 1:
            names.insert(0 if back_compat else len(names), self.v1(f))
        return names


def save(
    obj: object,
    f: str | os.PathLike[str],
    partial: bool = True,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    v3: bool = False,
    *,
    pickel_module: Any = None,
    names: FileNames,
) -> None:
    """Writes an object with `torch.save`, whole or not at all. Not collective, blocking.

    A file that was there keeps its permissions, and a link keeps pointing at what it pointed at. A
    pipe or device is written to as it is.

    Args:
        obj: what `torch.save` takes.
        f: the path, to which the ranks are added. Its directory must be there.
        partial: whether each rank has a file of its own.
        pickle_module, pickle_protocol: as in `torch.save`.
        v3: whether ranks with identical parameters have files of their own too.
        pickel_module: the same as `pickle_module`, as the original's documentation spells it.
        names: this rank's.

    Raises:
        FileNotFoundError: the directory is not there.
        OSError: the disk is full (with the free bytes), or the file cannot be written.
        TypeError: `f` is not a path.
        Exception: what pickling the object raises.
    """
    path = names.to_save(_path(f), partial=partial, v3=v3)
    module = pickle_module if pickel_module is None else pickel_module
    identity = f"{names.pp_rank}_{names.tp_rank}_{names.rdp_rank}"

    def write(file: _File) -> None:
        torch.save(
            obj, cast(IO[bytes], file), pickle_module=module, pickle_protocol=pickle_protocol
        )

    _replace(path, identity, write)


def load(
    f: str | os.PathLike[str],
    map_location: Any = None,
    pickle_module: Any = pickle,
    partial: bool = True,
    back_compat: bool = False,
    *,
    pickel_module: Any = None,
    names: FileNames,
    **pickle_load_args: Any,
) -> Any:
    """Reads what `save` wrote, with `torch.load`. Not collective, blocking.

    Unpickling runs code that the file names, so load only what you trust: payloads hold
    configurations and loaders, hence `weights_only=False`, unless `pickle_load_args` has it.

    Args:
        f: the path that was given to `save`.
        map_location: where tensors go, as in `torch.load`; None: to the CPU.
        pickle_module: as in `torch.load`.
        partial: whether each rank has a file of its own. Tried are the names v3, v2 and, without
            tensor parallelism, v1.
        back_compat: try v1 first.
        pickel_module: the same as `pickle_module`, as the original's documentation spells it.
        names: this rank's.
        pickle_load_args: the others of `torch.load`.

    Raises:
        FileNotFoundError: there is none; the text lists what was tried and what is there.
        TypeError: `f` is not a path.
        Exception: what reading or unpickling raises, with a note that names the file.
    """
    base = _path(f)
    tried = names.to_load(base, partial=partial, back_compat=back_compat)
    pickle_load_args.setdefault("weights_only", False)
    if not pickle_load_args["weights_only"]:  # with True, torch refuses any module
        pickle_load_args["pickle_module"] = (
            pickle_module if pickel_module is None else pickel_module
        )
    for path in tried:
        if not os.path.exists(path):
            continue
        try:
            return torch.load(
                path,
                map_location="cpu" if map_location is None else map_location,
                **pickle_load_args,
            )
        except Exception as error:
            error.add_note(f"smp.load was reading {path}.")
            raise
    raise FileNotFoundError(errno.ENOENT, _missing(base, tried))


def _path(f: object) -> str:
    path = os.fspath(f) if isinstance(f, (str, os.PathLike)) else None
    if not isinstance(path, str):  # a Path may also stand for bytes
        raise TypeError(
            f"f is {f!r}; expected a path, as str or pathlib.Path. Ranks are added to its name, so"
            " open files cannot be passed; use torch.save and torch.load for those."
        )
    return path


def _missing(base: str, tried: list[str]) -> str:
    directory = os.path.dirname(base) or "."
    stem = os.path.basename(base)
    try:
        found = [name for name in os.listdir(directory) if name.startswith(stem)]
    except FileNotFoundError:
        there = f"the directory {directory} is not there"
    else:
        found.sort(key=_natural)
        more = len(found) - _MOST_LISTED
        listed = ", ".join(found[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
        there = f"{directory} holds {listed}" if found else f"nothing in {directory} starts so"
    what = "The file of this rank" if len(tried) > 1 else "The file"
    return (
        f"{what} is missing; expected {' or '.join(tried)}, but {there}. Pass the path that was"
        " given to smp.save, with the same value of partial; partial files can be loaded only with"
        " the degrees of parallelism that they were saved with."
    )


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Numbers in a name sort by value."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts]


# ---- Replacing a file ----------------------------------------------------------------------------

_lock = threading.Lock()
_in_use: set[str] = set()


def _replace(path: str, identity: str, write: Callable[[_File], None]) -> None:
    """Lets `write` fill a file, which takes the place of `path` if nothing was raised.

    Args:
        path: what to replace.
        identity: tells this writer from the others of the job.
        write: takes a file to write to.
    """
    target = os.path.realpath(path)  # a link stays, and what it points at is replaced
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(
            errno.EISDIR, f"{path} is a directory; expected a file. Add the name of one to the path"
        )
    failures_of_object: list[BaseException] = []

    def write_object(file: _File) -> None:
        try:
            write(file)
        except BaseException as error:
            # torch's writer ends the file even after an error, and then raises about that instead.
            if file.error is not None:
                raise file.error from None
            failures_of_object.append(error)
            raise

    try:
        if mode is not None and not stat.S_ISREG(mode):
            _write(os.open(target, os.O_WRONLY | os.O_CLOEXEC), write_object, is_regular=False)
            return
        with _temporary_name(target, identity) as temporary:
            try:
                descriptor = os.open(temporary, _FLAGS, 0o666)
                if mode is not None:
                    with contextlib.suppress(PermissionError):
                        os.fchmod(descriptor, stat.S_IMODE(mode))
                _write(descriptor, write_object)
                os.replace(temporary, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        _synchronise_directory(os.path.dirname(target))
    except OSError as error:
        if error in failures_of_object:
            raise
        raise _could_not_write(path, target, error) from error


def _write(descriptor: int, write: Callable[[_File], None], is_regular: bool = True) -> None:
    """Lets `write` fill an open file, and closes it when all of it is on the disk."""
    with _File(descriptor) as file:
        write(file)
        if is_regular:
            _synchronise(descriptor)


@contextlib.contextmanager
def _temporary_name(target: str, identity: str) -> Iterator[str]:
    """A name in the same directory, hidden, and for one thread of one rank at a time.

    It is the same after a restart, so that what a killed writer left is overwritten.
    """
    directory, name = os.path.split(target)
    if len(os.fsencode(name)) > _LONGEST_STEM_BYTES:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    with _lock:
        for number in itertools.count():
            temporary = os.path.join(directory, f".{name}.{identity}.{number}.smp-tmp")
            if temporary not in _in_use:
                break
        _in_use.add(temporary)
    try:
        yield temporary
    finally:
        with _lock:
            _in_use.discard(temporary)


def _synchronise(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def _synchronise_directory(directory: str) -> None:
    """Makes a rename last; the file is whole without it, so a directory that cannot is left."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _could_not_write(path: str, target: str, error: OSError) -> OSError:
    directory = os.path.dirname(target)
    if isinstance(error, FileNotFoundError) and not os.path.isdir(directory):
        text = (
            f"{path} cannot be written, as the directory {directory} is not there; expected it to"
            " be, as smp.save makes none. Make it before, with os.makedirs(..., exist_ok=True)"
        )
    elif error.errno in _FULL:
        text = (
            f"{path} could not be written: {os.strerror(error.errno or 0)}. Without the unfinished"
            f" file, which is removed, {_free(directory)}; expected room for the whole file beside"
            " the one that it replaces. Delete old checkpoints, or save elsewhere. What was there"
            " before is untouched"
        )
    else:
        text = (
            f"{path} could not be written: {error.strerror or error}; expected to be able to make"
            f" a file in {directory} and to rename it. Check its permissions and its disk"
            f" ({_free(directory)}). What was there before is untouched"
        )
    return OSError(error.errno or errno.EIO, text)  # Python makes it PermissionError and so on


def _free(directory: str) -> str:
    try:
        return f"{shutil.disk_usage(directory).free} bytes are free in {directory}"
    except OSError:
        return "the free bytes are unknown"


class _File:
    """A file for torch to write, which remembers its first error.

    torch calls it from C++, and may report an error of its own that has lost the cause.
    """

    def __init__(self, descriptor: int) -> None:
        # Without a buffer: torch writes large blocks, and an error belongs to its write.
        self._file = open(descriptor, "wb", buffering=0)  # noqa: SIM115 (closed by __exit__)
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: Any) -> int:
        """Writes all of it; returns its size in bytes."""
        view = memoryview(data).cast("B")
        written = 0
        try:
            while written < len(view):
                written += self._write_some(view[written:])
        except BaseException as error:
            self.error = self.error or error
            raise
        return written

    def _write_some(self, data: memoryview) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        """Nothing is held back; other pickle modules call it."""
