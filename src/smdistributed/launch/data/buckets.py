# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Objects of buckets, of this machine or in an S3 store: put there, listed, brought back.

Each is whole or not there.

Source: launch specification, sections 1 and 5.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.objects import DataObject, matching, require_places
from smdistributed.launch.data.places import S3Place, s3_place
from smdistributed.launch.data.sources import keys_below
from smdistributed.launch.data.stores.download import THREADS, Download, read_object
from smdistributed.launch.data.stores.download import fetch as fetch_object
from smdistributed.launch.data.stores.s3 import S3Store
from smdistributed.launch.data.stores.store import Changed, look_of
from smdistributed.launch.home import Home
from smdistributed.launch.storage import TEMPORARY, local_path, new_file, require_bucket

__all__ = ["fetch", "local_copy", "made", "objects_of", "put", "put_bytes", "read"]


def put(source: Path, uri: str, home: Home) -> None:
    """Copies a file, or what is in a folder, into a bucket; one of this machine is made.

    What a folder has is there when all of it has been copied; in a folder that exists already, and
    in an S3 store, one file after the other appears. Links are followed. What is no file is left
    out, also a folder without files, as it is no object.

    Args:
        source: of this machine.
        uri: of the object, or the prefix of a folder's.
        home: has the bucket.

    Raises:
        ConfigurationError: the disk is full; names it, and what is needed. Or a link leads nowhere,
            or to a folder that it lies in; or an object is where another needs a folder; or the
            source has the home in it. Or the S3 store does not take it, or a file is written to
            while it is put there.
        OSError: it cannot be read or written. Nothing of it is there then, unless files of a folder
            that exists had begun to appear.
    """
    target = local_path(uri, home)
    if home.root.resolve().is_relative_to(source.resolve()):
        raise ConfigurationError(
            f"{source} has the folder of jobs and buckets in it, {home.root}; expected a folder of"
            " data alone. Give one, or set SMD_HOME to a folder that is not in this one."
        )
    keys = list(keys_below(source)) if source.is_dir() else None
    if (place := s3_place(uri, home)) is not None:
        _put_into(place, source, keys)
        return
    with _beside(uri, home, lambda: _size(source)) as folder:
        copy = folder / "copy"
        if keys is None:
            shutil.copy2(source, copy)
        else:
            copy.mkdir()
        for key in keys or ():
            (copy / key).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / key, copy / key)
        _move(copy, target)


def _put_into(place: S3Place, source: Path, keys: list[str] | None) -> None:
    if keys is None:
        _put_file(place.store(), source, place.key)
        return
    store = place.store(place.folder)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        doing = [pool.submit(_put_file, store, source / key, key) for key in keys]
        try:
            for each in concurrent.futures.as_completed(doing):
                each.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _put_file(store: S3Store, path: Path, key: str) -> None:
    try:
        store.put(path, key, look_of(path))
    except Changed:
        raise ConfigurationError(
            f"{path} was written to while it was put to {store.uri(key)}; expected a file that"
            " nobody writes to, as the object would have some of both. Put it there again."
        ) from None


@contextlib.contextmanager
def made(uri: str, home: Home, write: Callable[[Path], None]) -> Iterator[None]:
    """Makes an object of a file. If the block fails, it goes again.

    Args:
        uri: of the object.
        home: has buckets and settings.
        write: writes the file.

    Raises:
        ConfigurationError: the S3 store does not take it.
        OSError: it cannot be written.
    """
    place = s3_place(uri, home)
    if place is None:
        path = local_path(uri, home)
        with new_file(path):
            write(path)
            yield
        return
    store = place.store()
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
        path = Path(folder, "object")
        write(path)
        store.put(path, place.key)
    try:
        yield
    except BaseException:
        with contextlib.suppress(ConfigurationError):
            store.delete(place.key)
        raise


def local_copy(uri: str, home: Home, folder: Path) -> Path:
    """The file or folder that a URI names, on this machine.

    Args:
        uri: of it; in an S3 store of an object, or the prefix of a folder's.
        home: has buckets and settings.
        folder: where what is in an S3 store is copied to.

    Returns: its path; it need not be there if the URI is of this machine.

    Raises:
        ConfigurationError: it is not in the S3 store, or cannot be read.
        OSError: it cannot be copied.
    """
    place = s3_place(uri, home)
    if place is None:
        return local_path(uri, home)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    below = _matching_in(place, place.folder)
    target = folder / (place.key.rstrip("/").rpartition("/")[2] or place.bucket)
    if below:
        Download(place.store(), target, folder / "state").run(below)
        shutil.rmtree(folder / "state")
    else:
        fetch_object(place.store(), place.key, target)
    return target


def _matching_in(place: S3Place, prefix: str) -> list[DataObject]:
    """Objects of an S3 store whose key begins so, by the names that they have without it."""
    found = {each.key: each for each in place.store().objects(prefix)}
    return [
        each._replace(size=found[each.key].size, etag=found[each.key].etag)
        for each in matching(found, prefix)
    ]


def put_bytes(body: bytes, uri: str, home: Home) -> None:
    """Makes an object of some bytes.

    Raises:
        ConfigurationError, OSError: as of `put`.
    """
    if (place := s3_place(uri, home)) is not None:
        place.store().put_bytes(body, place.key)
        return
    target = local_path(uri, home)
    with _beside(uri, home, lambda: len(body)) as folder:
        (folder / "copy").write_bytes(body)
        _move(folder / "copy", target)


@contextlib.contextmanager
def _beside(uri: str, home: Home, size: Callable[[], int]) -> Iterator[Path]:
    """A folder in which objects come to be, on the disk of the bucket. It goes at the end.

    It is beside the buckets: a channel may be a whole bucket, and is a link to its folder then.
    """
    if any(part.startswith(TEMPORARY) for part in uri.split("/")):
        raise ConfigurationError(
            f"{uri} has a part that begins with {TEMPORARY!r}, as what is being copied does, which"
            " is no object; expected another key."
        )
    home.make()
    bucket = home.buckets / uri.removeprefix("s3://").partition("/")[0]
    is_new = not bucket.exists()
    bucket.mkdir(mode=0o700, exist_ok=True)
    is_elsewhere = bucket.is_symlink() or os.path.ismount(bucket)
    place = bucket if is_elsewhere else home.buckets
    folder = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}put-", dir=place))
    try:
        yield folder
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):
                bucket.rmdir()
        if _is_full(error):
            raise ConfigurationError(
                f"the disk of {bucket} is full: {error}; expected room for {size():,} bytes. Remove"
                " what is not needed there, or set SMD_HOME to another disk."
            ) from None
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _size(source: Path) -> int:
    if not source.is_dir():
        return source.stat().st_size
    return sum((source / key).stat().st_size for key in keys_below(source))


def _move(copy: Path, target: Path) -> None:
    """Gives a copy its name; of a folder that is there already, each file.

    Raises:
        ConfigurationError: one would be where there is a folder, or below a file. All are looked at
            before the first one is moved.
    """
    if not copy.is_dir():
        _require_room_for(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(copy, target)
        return
    keys = list(keys_below(copy))
    for key in keys:
        _require_room_for(target / key)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(copy, target)
    except OSError:
        if not target.is_dir():
            raise
        for key in keys:
            (target / key).parent.mkdir(parents=True, exist_ok=True)
            os.replace(copy / key, target / key)


def _require_room_for(path: Path) -> None:
    file = next((each for each in path.parents if each.exists() and not each.is_dir()), None)
    if file is not None:
        raise ConfigurationError(
            f"{path} cannot be put there, as {file} is an object and no folder; expected a key that"
            " does not go on after that of an object. Take another key, or remove that object."
        )
    if path.is_dir():
        raise ConfigurationError(
            f"{path} cannot be put there, as it is a folder, with the objects below it; expected"
            " a key that no folder has. Take another key, or remove that folder."
        )


def objects_of(bucket: str, prefix: str, home: Home) -> list[DataObject]:
    """Objects whose key begins with a prefix, in the order of their keys.

    Raises:
        ConfigurationError: there is no such bucket.
        OSError: it cannot be read.
    """
    uri = f"s3://{bucket}/{prefix}"
    if (place := s3_place(uri, home)) is not None:
        return _matching_in(place, prefix)
    require_bucket(uri, home)
    folder, _, last = prefix.rpartition("/")
    root = home.buckets / bucket / folder
    if not root.is_dir():
        return []
    above = f"{folder}/" if folder else ""
    found = matching(keys_below(root, last), last)
    return [DataObject(each.name, above + each.key) for each in found]


def read(bucket: str, key: str, home: Home) -> bytes:
    """The content of an object.

    Raises:
        ConfigurationError: there is none of that key.
        OSError: it cannot be read.
    """
    uri = f"s3://{bucket}/{key}"
    if (place := s3_place(uri, home)) is not None:
        return read_object(place.store(), key)
    path = local_path(uri, home)
    require_bucket(uri, home)
    if not path.is_file():
        raise ConfigurationError(f"{uri} is not there: {path} is no file; expected an object.")
    return path.read_bytes()


def fetch(bucket: str, prefix: str, target: Path, home: Home) -> list[Path]:
    """Copies the objects with a prefix into a folder, under their names without the prefix.

    Returns: the files, in the order of their keys; none if there is no such object.

    Raises:
        ConfigurationError: there is no such bucket, or the objects cannot be in one folder.
        OSError: they cannot be copied.
    """
    objects = objects_of(bucket, prefix, home)
    require_places(f"s3://{bucket}/{prefix}", objects)
    if (place := s3_place(f"s3://{bucket}/{prefix}", home)) is not None:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=target) as state:
            Download(place.store(), target, Path(state)).run(objects)
        return [target / each.name for each in objects]
    paths = []
    for each in objects:
        path = target / each.name
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(TEMPORARY + secrets.token_hex(8))
        try:
            shutil.copyfile(home.buckets / bucket / each.key, beside)
            os.replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        paths.append(path)
    return paths
