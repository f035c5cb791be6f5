# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Files that are there whole, or not at all: those of a checkpoint, and what Keras writes.

They are written into a hidden directory, synchronised and renamed; whoever is killed meanwhile has
changed nothing that has a name, and the next save removes what it has left. Exceptions: where a
file system cannot exchange names, a directory takes the place of another in two steps; and in one
that must keep its place, as it holds what is of others, or a disk is mounted there, or this process
works there, entries are replaced one after another.

Source: TensorFlow modelparallel specification, section 5.5.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import fnmatch
import glob
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import text_format  # type: ignore[import-untyped]
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph
from tensorflow.python.training import py_checkpoint_reader

from smdistributed.modelparallel.atomic_files import (
    OpenFile,
    could_not_write,
    replace_file,
    synchronise_directory,
)
from smdistributed.modelparallel.tensorflow.checkpoints.hdf5 import raising_what_is_full
from smdistributed.modelparallel.tensorflow.checkpoints.together import CheckpointError

__all__ = [
    "GRAPH_KEY",
    "Reader",
    "digest_of",
    "make_directory",
    "remove_checkpoint",
    "require_local",
    "write_checkpoint",
    "write_state",
    "write_whole",
]

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
_IDENTITY = "rank0"
_WHOLE = "saved_model.pb"  # what TensorFlow looks for
# What else of a SavedModel goes if the new one has none; what is in `assets` may be anybody's.
_OF_SAVED_MODEL = ("keras_metadata.pb", "variables/variables.*")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST_BYTES = 200  # of a name; file systems end at 255
# What a file system says of a directory that cannot be renamed: a disk that is mounted, one of a
# container's image, one of another user in a folder where each may rename its own, as /tmp.
_CANNOT_RENAME = (errno.EBUSY, errno.EXDEV, errno.EPERM)
# And where it cannot let two names change places.
_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
_libc = ctypes.CDLL(None, use_errno=True)
# Words of TensorFlow's errors, and what they mean.
_CAUSES = {
    "No space left": errno.ENOSPC,
    "quota": errno.EDQUOT,
    "Permission denied": errno.EACCES,
    "Read-only": errno.EROFS,
    "Too many open files": errno.EMFILE,
    "File too large": errno.EFBIG,
}


def require_local(directory: str) -> str:
    """The directory, absolute.

    Raises:
        ValueError: it is on something that is not a file system.
    """
    if "://" in directory:
        raise ValueError(
            f"the directory {directory!r} is not a path of this host; expected one, as what is"
            " saved is synchronised and renamed there. Save to a local or shared directory, and"
            " copy from there."
        )
    return directory


def make_directory(directory: str) -> None:
    """Makes a directory, unless it is there.

    Raises:
        PermissionError: it cannot be made; OSError for other reasons.
    """
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        text = (
            f"the directory {directory} cannot be made: {error.strerror}; expected to be able to"
            " save there. Pass another one, or start the script with smddprun --paths, which maps"
            " /opt/ml to a directory of yours"
        )
        raise OSError(error.errno or errno.EIO, text) from error


def write_checkpoint(prefix: str, tensors: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes a checkpoint of TensorFlow: `prefix.index` and one file of data. Blocking, durable.

    Args:
        prefix: absolute. A checkpoint of this name is replaced.
        tensors: eager ones, by key and slice ("" for a whole one).

    Raises:
        OSError: the disk is full, or cannot be written; names the path and the free bytes. Or
            another process is writing the path.
    """
    directory, name = os.path.split(prefix)
    hidden = os.path.join(directory, f".{_stem(name)}.smp-tmp")
    written = os.path.join(hidden, "written")
    rows = [(key, piece, each) for key, of in tensors.items() for piece, each in of.items()]
    rows.sort(key=lambda row: row[:2])  # as TensorFlow has them
    try:
        with _made(hidden, prefix):
            with _as_os_errors(), tf.device("/CPU:0"):
                tf.raw_ops.SaveV2(
                    prefix=written,
                    tensor_names=[key for key, _, _ in rows],
                    shape_and_slices=[piece for _, piece, _ in rows],
                    tensors=[each for _, _, each in rows],
                )
            files = sorted(os.listdir(hidden))  # the data first
            for each in files:
                _synchronise(os.path.join(hidden, each))
            with contextlib.ExitStack() as stack:
                if os.path.exists(f"{prefix}.index"):
                    stack.enter_context(_telling_what_is_gone(prefix, "there", ""))
                for each in files:
                    ending = each.removeprefix(os.path.basename(written))
                    os.replace(os.path.join(hidden, each), prefix + ending)
            synchronise_directory(directory)
    except (BlockingIOError, _Unfinished):
        raise
    except OSError as error:
        raise could_not_write(prefix, prefix, error) from error


def write_whole(path: str, write: Callable[[str], Any]) -> Any:
    """Lets something write a file or a directory, which takes the place of what is at the path.

    A link keeps pointing at what it points at, which is replaced. Of a directory that is there
    files of the same names are replaced, and those of a SavedModel that the new one lacks go;
    others, which may be anybody's, stay. Owner and rights stay, as far as this process may.

    Args:
        path: where it is to be. Its directory must be there.
        write: takes another path, whose last component is the same. What it writes beside that
            (shards, say) is moved, too, and before; whoever is killed meanwhile leaves none.

    Returns:
        What `write` returns.

    Raises:
        OSError: it cannot be written; names the path and the free bytes. Or another process is
            writing the path.
        Exception: what `write` raises. What was there is there.
    """
    target = os.path.realpath(path)
    directory, name = os.path.dirname(target), os.path.basename(os.path.abspath(path))
    stays = os.path.isdir(target) and _keeps_its_place(target)
    beside = target if stays else directory
    # Of the target: who writes to it by another link has the same lock.
    hidden = os.path.join(beside, f".{_short(os.path.basename(target))}.smp-tmp")
    try:
        with _made(hidden, path):
            instead = os.path.join(hidden, name)
            with _naming(path, instead), _as_os_errors(), raising_what_is_full(hidden):
                result = write(instead)
            written = sorted(os.listdir(hidden), key=lambda each: (each == name, each))
            for each in written:
                _synchronise_all(os.path.join(hidden, each))
            with contextlib.ExitStack() as stack:
                if len(written) > 1 and os.path.isfile(target):
                    # It says which others there are: without it, no mixture of them loads.
                    stack.enter_context(_telling_what_is_gone(path, "there", ""))
                    _give_to_the_owner_of(target, os.path.join(hidden, name))
                    os.unlink(target)
                    synchronise_directory(directory)
                for each in written:
                    place = target if each == name else os.path.join(directory, each)
                    _move(os.path.join(hidden, each), place, stays)
            synchronise_directory(directory)
    except (BlockingIOError, _Unfinished):
        raise
    except OSError as error:
        raise could_not_write(path, target, error) from error
    return result


def write_state(directory: str, state: Any) -> None:
    """Replaces the file `checkpoint`, which says which checkpoints there are. Atomic, durable.

    Args:
        state: a `CheckpointState`.

    Raises:
        OSError: it cannot be written.
    """
    text = text_format.MessageToString(state).encode()

    def write(file: OpenFile) -> None:
        file.write(text)

    replace_file(os.path.join(directory, "checkpoint"), _IDENTITY, write)


def remove_checkpoint(prefix: str) -> None:
    """Removes the files of a checkpoint, if they are there."""
    escaped = glob.escape(prefix)
    for each in (prefix + ".index", *glob.glob(escaped + ".data-?????-of-?????")):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(each)


def digest_of(prefix: str) -> str | None:
    """Of a checkpoint's index; None if this host does not see it."""
    try:
        with open(prefix + ".index", "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


class Reader:
    """A checkpoint of TensorFlow.

    Args:
        prefix: of its files.

    Raises:
        CheckpointError: it is no such checkpoint; FileNotFoundError: a file of it is not there.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        if not glob.glob(glob.escape(prefix) + ".data-?????-of-?????"):
            raise FileNotFoundError(
                errno.ENOENT,
                f"{prefix}.data-00000-of-00001 is not there; expected it beside {prefix}.index."
                " Restore another checkpoint",
            )
        try:
            self._reader = py_checkpoint_reader.NewCheckpointReader(prefix)
            self._shapes = self._reader.get_variable_to_shape_map()
            self._dtypes = self._reader.get_variable_to_dtype_map()
        except Exception as error:  # TensorFlow raises many kinds
            raise self._damaged("the index", error) from error
        if GRAPH_KEY not in self._shapes:
            raise CheckpointError(
                f"{prefix} has no object graph; expected a checkpoint of tf.train.Checkpoint or"
                " smp.CheckpointManager, not one of tf.compat.v1.train.Saver. Restore another"
                " checkpoint."
            )
        self.graph = TrackableObjectGraph.FromString(self._reader.get_tensor(GRAPH_KEY))

    def shape(self, key: str) -> list[int]:
        """Of the value of a key."""
        return list(self._shapes[key])

    def dtype(self, key: str) -> Any:
        """Of the value of a key, a `tf.DType`."""
        return self._dtypes[key]

    def __contains__(self, key: str) -> bool:
        return key in self._shapes

    def read(self, key: str) -> Any:
        """The value of a key, an eager tensor in host memory.

        Raises:
            CheckpointError: the files are damaged.
        """
        try:
            with tf.init_scope(), tf.device("/CPU:0"):
                (value,) = tf.raw_ops.RestoreV2(
                    prefix=self.prefix,
                    tensor_names=[key],
                    shape_and_slices=[""],
                    dtypes=[self.dtype(key)],
                )
        except Exception as error:
            raise self._damaged(key, error) from error
        return value

    def _damaged(self, what: str, error: Exception) -> CheckpointError:
        failure: CheckpointError = CheckpointError(
            f"{what} of the checkpoint {self.prefix} cannot be read"
            f" ({type(error).__name__}: {str(error).splitlines()[0]}); expected whole files, as"
            " smp.CheckpointManager leaves them. Copy them again, or restore another checkpoint."
            " Nothing was changed."
        )
        return failure


class _Unfinished(OSError):
    """What was there before is not all there any more."""


@contextlib.contextmanager
def _made(hidden: str, path: str) -> Iterator[None]:
    """An empty directory, which is this process' alone until it is removed at the end.

    Raises:
        OSError: another process writes the path at this moment, or it cannot be made.
    """
    descriptor = _locked(hidden, path)
    try:
        for each in os.listdir(hidden):
            _remove_left(os.path.join(hidden, each))
        yield
    finally:
        try:
            shutil.rmtree(hidden, ignore_errors=True)
        finally:  # of an interrupt, too: or no other writer would ever have the lock
            os.close(descriptor)


def _remove_left(path: str) -> None:
    """Removes what a save has left that was killed, or could not remove it.

    Raises:
        OSError: it cannot be removed; names it.
    """
    try:
        (shutil.rmtree if _is_directory(path) else os.unlink)(path)
    except OSError as error:
        text = f"{path} is left of an earlier save, and cannot be removed ({error.strerror})"
        raise OSError(error.errno, text) from error


def _locked(hidden: str, path: str) -> int:
    """Makes a directory, unless it is there, and locks it; a descriptor, which has the lock."""
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(hidden)
        try:
            descriptor = os.open(hidden, _DIRECTORY)
        except FileNotFoundError:  # whoever had made it has removed it
            continue
        try:
            _lock(descriptor, path)
            if _is_at(descriptor, hidden):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, path: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(
            errno.EBUSY,
            f"{path} is being written by another process at this moment; expected one writer of a"
            " path. Give each job a path of its own. What was there before is untouched",
        ) from error
    except OSError:
        pass  # a file system that has no locks


def _is_at(descriptor: int, path: str) -> bool:
    """Whether a path still leads to what is open."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _keeps_its_place(directory: str) -> bool:
    """Whether a directory cannot be renamed, or must not be.

    Nothing may be made beside it, a disk is mounted there or below, or this process works there,
    whose relative paths would lead nowhere.
    """
    parent = os.path.dirname(directory)
    is_alone = os.path.ismount(directory) or not os.access(parent, os.W_OK | os.X_OK)
    return is_alone or _what_stands_in(directory) is not None


def _what_stands_in(directory: str) -> str | None:
    """A place at or below a directory where a disk is mounted, or this process works."""
    below = os.path.join(directory, "")
    return next((each for each in _standing() if os.path.join(each, "").startswith(below)), None)


def _standing() -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError):  # it has been removed
        yield os.getcwd()
    # Python knows no disk that is mounted twice, or a folder of one that is mounted elsewhere.
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            escaped = line.split()[4]
            yield os.fsdecode(
                re.sub(rb"\\(\d{3})", lambda octal: bytes([int(octal[1], 8)]), escaped)
            )


def _move(written: str, place: str, stays: bool) -> None:
    """A file or directory takes the place of what is there, which goes; or nothing changes.

    What others have in a directory stays where it is, so then its own entries are moved.

    Args:
        stays: what is there is a directory, and keeps its place.

    Raises:
        OSError: of `_require_replaceable` and `_move_entries`.
    """
    directory, name = os.path.split(place)
    aside = os.path.join(directory, f".{_short(name)}.smp-tmp.old")
    if os.path.isdir(written) and not stays and os.path.isdir(aside):  # of a killed writer
        _remove_left(aside) if os.path.lexists(place) else os.replace(aside, place)
    own = {"", *_below(written)}
    _require_replaceable(written, place, own)
    if not os.path.isdir(written) or not os.path.isdir(place):
        if os.path.isfile(place):
            _give_to_the_owner_of(place, written)
        os.replace(written, place)
        return
    # Who was killed while it kept its place has left a hidden one in it.
    hidden = os.path.basename(os.path.dirname(written))
    going = [glob.escape(hidden), os.path.join(glob.escape(hidden), "*"), *_stale(written)]
    of_others = (each for each in _below(place) if each not in own and not _matches(each, going))
    if not stays and not any(of_others):
        try:
            _give_to_the_owner_of(place, written)
            _exchange(written, place, aside)
            return
        except OSError as error:
            if error.errno not in _CANNOT_RENAME:
                raise
    _move_entries(written, place)


def _below(directory: str) -> Iterator[str]:
    """The relative paths of all that a directory holds."""
    for folder, folders, names in os.walk(directory):
        for each in (*folders, *names):
            yield os.path.relpath(os.path.join(folder, each), directory)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, each) for each in patterns)


def _stale(written: str) -> Sequence[str]:
    """Patterns of what goes where this is written."""
    return _OF_SAVED_MODEL if os.path.exists(os.path.join(written, _WHOLE)) else ()


def _require_replaceable(written: str, place: str, own: Iterable[str]) -> None:
    """Fails if what is there cannot take what is written, before anything has changed.

    Args:
        own: relative paths of what is written.

    Raises:
        NotADirectoryError, IsADirectoryError: a file is where a directory is written, or the other
            way round.
        PermissionError: this process may not write to a directory that is there.
    """
    for each in own:
        new, old = (os.path.normpath(os.path.join(of, each)) for of in (written, place))
        if os.path.islink(old) or not os.path.exists(old):
            continue
        if os.path.isdir(new) and not os.path.isdir(old):
            text = f"{old} is a file, and what is written is a directory"
            raise NotADirectoryError(errno.ENOTDIR, text)
        if os.path.isdir(old) and not os.path.isdir(new):
            text = f"{old} is a directory, and what is written is a file"
            raise IsADirectoryError(errno.EISDIR, text)
        if os.path.isdir(old) and not os.access(old, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"{old} is not writable")


def _move_entries(written: str, place: str) -> None:
    """Replaces what a directory holds under these names; whoever is killed leaves no whole model.

    Files on top go first and come last: a SavedModel without its `saved_model.pb` is none.

    Raises:
        OSError: one of them cannot be replaced; the text says whether any was.
    """
    names = os.listdir(written)
    for each in names:
        standing = _what_stands_in(os.path.join(place, each))
        if standing is not None:
            text = f"{standing} is a mounted disk, or where this process works"
            raise OSError(errno.EBUSY, text)
    going = [os.path.join(place, each) for each in sorted(names, key=lambda each: each != _WHOLE)]
    for pattern in _stale(written):
        going += glob.glob(os.path.join(glob.escape(place), pattern))
    with _telling_what_is_gone(place, "in it", " It is not renamed itself."):
        for each in going:
            if not _is_directory(each):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(each)
        synchronise_directory(place)
        for each in sorted(names, key=lambda each: _comes_late(os.path.join(written, each))):
            _put(os.path.join(written, each), os.path.join(place, each))
            synchronise_directory(place)


@contextlib.contextmanager
def _telling_what_is_gone(place: str, where: str, why: str) -> Iterator[None]:
    """While it is open, files are replaced one after another: what fails says so."""
    text = (
        f"{place} could not be replaced: %s; expected to be able to rename files {where}.{why} What"
        " was there of the same names is partly gone. Mend that and save again"
    )
    try:
        yield
    except OSError as error:
        raise _Unfinished(error.errno, text % (error.strerror or error)) from error
    except BaseException as error:
        error.add_note(text % type(error).__name__)
        raise


def _put(one: str, other: str) -> None:
    """A file takes a place; of a directory, what it holds does, and what else is there stays."""
    if not os.path.isdir(one) or not _is_directory(other):
        if os.path.isdir(one) and os.path.islink(other):
            os.unlink(other)
        os.replace(one, other)
        return
    for each in os.listdir(one):
        _put(os.path.join(one, each), os.path.join(other, each))
    synchronise_directory(other)


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _comes_late(path: str) -> tuple[bool, bool]:
    return not os.path.isdir(path), os.path.basename(path) == _WHOLE


def _give_to_the_owner_of(one: str, other: str) -> None:
    """Gives a file or directory the owner and rights of another, as far as this process may."""
    status = os.stat(one)
    with contextlib.suppress(OSError):
        os.chown(other, status.st_uid, status.st_gid)
    with contextlib.suppress(OSError):
        os.chmod(other, stat.S_IMODE(status.st_mode))


def _exchange(one: str, other: str, aside: str) -> None:
    """Two directories change places: at once, where the file system can do that."""
    at, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    number = errno.ENOSYS
    if hasattr(_libc, "renameat2"):  # glibc has it since 2.28
        if not _libc.renameat2(at, os.fsencode(one), at, os.fsencode(other), exchange):
            return
        number = ctypes.get_errno()
    if number not in _CANNOT_EXCHANGE:
        raise OSError(number, os.strerror(number), one, None, other)
    try:
        os.replace(other, aside)
        os.replace(one, other)
    except BaseException:
        if not os.path.lexists(other):
            os.replace(aside, other)
        raise
    shutil.rmtree(aside, ignore_errors=True)  # the new one is there; the next save tries again


def _stem(name: str) -> str:
    """The same for all checkpoints of a manager: what a killed one has left is found."""
    return name.rpartition("-")[0] or name


def _short(name: str) -> str:
    """A name that leaves room for what marks it as hidden."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= _LONGEST_BYTES else hashlib.sha256(encoded).hexdigest()


def _synchronise_all(path: str) -> None:
    """A file, or what is below a directory."""
    if not os.path.isdir(path):
        _synchronise(path)
    for folder, _, names in os.walk(path):
        for each in names:
            _synchronise(os.path.join(folder, each))
        synchronise_directory(folder)


def _synchronise(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _naming(path: str, instead: str) -> Iterator[None]:
    """Keras' words, of a wrong ending say, name the path that it was given: the user's, here."""
    try:
        yield
    except Exception as error:
        error.args = tuple(
            each.replace(instead, path) if isinstance(each, str) else each for each in error.args
        )
        if isinstance(error, OSError) and error.strerror is not None:
            error.strerror = error.strerror.replace(instead, path)
        raise


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        text = str(error.message)
        number = next((each for words, each in _CAUSES.items() if words in text), errno.EIO)
        raise OSError(number, os.strerror(number) if number != errno.EIO else text) from error
