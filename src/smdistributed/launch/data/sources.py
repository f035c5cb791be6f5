# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a channel of a request means on this machine, for each host.

`check_channels` is asked before a job exists, `sources_of` when its data are to come in.

Source: launch specification, section 5.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import enum
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError, UnsupportedError
from smdistributed.launch.data.objects import (
    DataObject,
    in_order,
    manifest_of,
    matching,
    require_places,
    share_of,
)
from smdistributed.launch.data.places import S3Place, s3_place
from smdistributed.launch.data.settings import Settings
from smdistributed.launch.data.stores.download import read_object
from smdistributed.launch.data.stores.store import StoredObject, StoreError
from smdistributed.launch.home import Home
from smdistributed.launch.storage import TEMPORARY, local_path, require_bucket

__all__ = ["InputMode", "Source", "check_channels", "keys_below", "mode_of", "sources_of"]

_S3 = "s3://"
_MOST_ASKED_FOR = 1000
_ASKED_AT_ONCE = 16

# Of a manifest's prefix: the store, the folder there, and how the last part begins.
_BEGINS = re.compile(r"(s3://[^/]+/|file://(?:localhost)?/)(?:(.*)/)?([^/]*)")


class InputMode(enum.StrEnum):
    """How data reach a script."""

    FILE = "File"
    PIPE = "Pipe"
    FAST_FILE = "FastFile"


class _DataType(enum.StrEnum):
    PREFIX = "S3Prefix"
    MANIFEST = "ManifestFile"
    AUGMENTED = "AugmentedManifestFile"


class _Distribution(enum.StrEnum):
    REPLICATED = "FullyReplicated"
    SHARDED = "ShardedByS3Key"


@dataclasses.dataclass(frozen=True)
class Source:
    """The data of a channel, as one host gets them. A plan has it as JSON.

    Attributes:
        root: the folder that they lie in; or `s3://bucket`, if they are in an S3 store.
        objects: name and key of each, the key being the path below `root`; None: the channel is
            the folder. Of an S3 store also size and ETag.
        mode: `File`, `FastFile` or `Pipe`.
        is_writable: the script may change the data.
        is_gzip: they are decompressed on the way in.
        seed: their order changes with each epoch; None: it does not.
        folder: prefix of the folder of an S3 store that the channel is; None: it is another choice
            of objects.
        index, count: of the objects in the order of an epoch, this host gets each `count`-th,
            beginning with number `index`.
    """

    root: str
    objects: Sequence[Sequence[Any]] | None
    mode: str = InputMode.FILE
    is_writable: bool = False
    is_gzip: bool = False
    seed: int | None = None
    index: int = 0
    count: int = 1
    folder: str | None = None

    @property
    def bucket(self) -> str:
        """Of the S3 store; empty: the data are files of this machine."""
        return self.root.removeprefix(_S3) if self.root.startswith(_S3) else ""

    def of_epoch(self, epoch: int) -> list[DataObject]:
        """What this host gets in an epoch, in order; none if the channel is a folder."""
        objects = [DataObject(*each) for each in self.objects or ()]
        return share_of(in_order(objects, self.seed, epoch), self.index, self.count)


def mode_of(channel: Mapping[str, Any], mode: str) -> InputMode:
    """How a channel comes in.

    Args:
        channel: of a request.
        mode: of the job, for a channel that does not say.

    Raises:
        ConfigurationError: there is no such mode.
    """
    if "FileSystemDataSource" in channel["DataSource"]:
        return InputMode.FILE
    found: InputMode = _one_of(InputMode, "input_mode", channel, channel.get("InputMode") or mode)
    return found


def check_channels(channels: Sequence[Mapping[str, Any]], mode: str, home: Home) -> None:
    """Refuses what is wrong in itself, and what this machine cannot do. Looks at no data.

    Args:
        channels: of a request.
        mode: of the job.
        home: has the settings, which say where file systems are mounted.

    Raises:
        ConfigurationError: a value that cannot be.
        UnsupportedError: a value that is not possible here.
    """
    settings = Settings.of(home)
    names = [channel["ChannelName"] for channel in channels]
    for channel in channels:
        _check(channel, mode, home, settings)
        if mode_of(channel, mode) is InputMode.PIPE:
            for name in names:
                if re.fullmatch(re.escape(channel["ChannelName"]) + r"_\d+", name):
                    raise ConfigurationError(
                        f"channel {name!r} has the name of a FIFO of channel"
                        f" {channel['ChannelName']!r}, which is in mode Pipe; expected another."
                        " Rename one of them."
                    )


def _check(channel: Mapping[str, Any], mode: str, home: Home, settings: Settings) -> None:
    name = channel["ChannelName"]
    mounted = channel["DataSource"].get("FileSystemDataSource")
    if mounted is not None:
        _place_of(mounted, settings)
        return
    mode = mode_of(channel, mode)
    source = channel["DataSource"]["S3DataSource"]
    data_type = _one_of(_DataType, "s3_data_type", channel, source.get("S3DataType"))
    _one_of(_Distribution, "distribution", channel, source.get("S3DataDistributionType"))
    if data_type is _DataType.AUGMENTED:
        raise UnsupportedError(
            f"s3_data_type of channel {name!r} is 'AugmentedManifestFile', which is not possible on"
            " this machine; expected 'S3Prefix' or 'ManifestFile'. Give the objects, or a manifest"
            " with their keys."
        )
    if channel.get("RecordWrapperType") not in (None, "None"):
        raise UnsupportedError(
            f"record_wrapping of channel {name!r} is {channel['RecordWrapperType']!r}, which is not"
            " possible on this machine; expected None."
        )
    compression = channel.get("CompressionType") or "None"
    if compression not in ("None", "Gzip"):
        raise ConfigurationError(
            f"compression of channel {name!r} is {compression!r}; expected None or 'Gzip'."
        )
    if compression == "Gzip" and mode is not InputMode.PIPE:
        raise ConfigurationError(
            f"compression of channel {name!r} is 'Gzip', and its input mode is {str(mode)!r};"
            " expected compression in mode 'Pipe' only. In the other modes a script finds its files"
            " as they are: leave compression out, and have the script decompress them."
        )
    local_path(source["S3Uri"], home)


def _one_of(kinds: Any, what: str, channel: Mapping[str, Any], value: Any) -> Any:
    kinds = list(kinds)
    if value is None:
        return kinds[0]
    if value in kinds:
        return kinds[kinds.index(value)]
    raise ConfigurationError(
        f"{what} of channel {channel['ChannelName']!r} is {value!r}; expected"
        f" {', '.join(repr(str(each)) for each in kinds)}."
    )


def sources_of(
    channel: Mapping[str, Any], mode: str, hosts: Sequence[tuple[str, str]], home: Home
) -> dict[str, Source]:
    """What each host gets of a channel.

    Args:
        channel: of a request.
        mode: of the job.
        hosts: of the job in their order: the name, and that of the instance group.
        home: where buckets and settings are.

    Returns: by name of the host; a host that is in none of the channel's groups gets nothing.

    Raises:
        ConfigurationError: the data are not there, or cannot be a channel.
        UnsupportedError: as of `check_channels`.
    """
    settings = Settings.of(home)
    _check(channel, mode, home, settings)
    mounted = channel["DataSource"].get("FileSystemDataSource")
    if mounted is not None:
        return {host: _of_file_system(channel, mounted, settings) for host, _ in hosts}
    data = channel["DataSource"]["S3DataSource"]
    names = _hosts_of(channel, data.get("InstanceGroupNames"), hosts)
    mode = mode_of(channel, mode)
    try:
        root, objects = _found(channel, data, home)
        if mode is InputMode.FAST_FILE and objects is not None:
            _require_border(channel, data, objects, root.startswith(_S3))
        is_sharded = data.get("S3DataDistributionType") == _Distribution.SHARDED
        if objects is None and (is_sharded or mode is InputMode.PIPE):
            objects = matching(keys_below(Path(root)), "")
        if objects is not None and is_sharded:  # a manifest may have another order
            objects = sorted(objects, key=lambda each: os.fsencode(each.key))
    except OSError as error:
        raise ConfigurationError(
            f"{_called(channel, data['S3Uri'])} cannot be read: {error}; expected files that this"
            " user may read."
        ) from None
    seed = channel.get("ShuffleConfig", {}).get("Seed")
    folder = None
    if mode is InputMode.FAST_FILE and root.startswith(_S3) and not is_sharded:
        folder = _folder_of(data)
    whole = Source(
        root=root,
        objects=objects,
        mode=mode,
        is_gzip=channel.get("CompressionType") == "Gzip",
        seed=seed,
        folder=folder,
    )
    sources = {}
    for index, name in enumerate(names):
        source = whole
        if is_sharded:
            source = dataclasses.replace(whole, index=index, count=len(names))
            if mode is not InputMode.PIPE or seed is None:  # the same share in each epoch
                source = dataclasses.replace(whole, objects=source.of_epoch(0), seed=None)
        if mode is not InputMode.PIPE and source.objects is not None:
            require_places(_called(channel, data["S3Uri"]), source.of_epoch(0))
        sources[name] = source
    return sources


def _folder_of(data: Mapping[str, Any]) -> str | None:
    """The prefix of a folder, which ends at its border; None for a manifest."""
    if data.get("S3DataType") == _DataType.MANIFEST:
        return None
    key = str(data["S3Uri"]).removeprefix(_S3).partition("/")[2]
    return key if not key or key.endswith("/") else f"{key}/"


def _called(channel: Mapping[str, Any], uri: str) -> str:
    return f"channel {channel['ChannelName']!r}, {uri},"


def _hosts_of(
    channel: Mapping[str, Any], groups: Sequence[str] | None, hosts: Sequence[tuple[str, str]]
) -> list[str]:
    known = list(dict.fromkeys(group for _, group in hosts))
    for group in groups or ():
        if group not in known:
            raise ConfigurationError(
                f"instance_groups of channel {channel['ChannelName']!r} has {group!r}; expected"
                f" groups of the job: {', '.join(map(repr, known))}."
            )
    return [host for host, group in hosts if not groups or group in groups]


def _place_of(mounted: Mapping[str, str], settings: Settings) -> Path:
    return settings.place_of(
        mounted["FileSystemType"], mounted["FileSystemId"], mounted["DirectoryPath"]
    )


def _of_file_system(
    channel: Mapping[str, Any], mounted: Mapping[str, str], settings: Settings
) -> Source:
    path = _place_of(mounted, settings)
    if not path.is_dir():
        raise ConfigurationError(
            f"channel {channel['ChannelName']!r} is {mounted['DirectoryPath']} of the file system"
            f" {mounted['FileSystemId']}, and {path} is not there, which is its place as"
            f" {settings.file} says; expected a directory. Mount the file system, or correct"
            " that file."
        )
    return Source(str(path), None, is_writable=mounted["FileSystemAccessMode"] == "rw")


# --- what is there --------------------------------------------------------------------------------


def _found(
    channel: Mapping[str, Any], data: Mapping[str, Any], home: Home
) -> tuple[str, list[DataObject] | None]:
    """The root of the data, and its objects; None if the channel is the folder."""
    uri = data["S3Uri"]
    place = s3_place(uri, home)
    if place is not None and data.get("S3DataType") != _DataType.MANIFEST:
        return _of_prefix(channel, uri, place)
    if place is None:
        require_bucket(uri, home)
    if data.get("S3DataType") == _DataType.MANIFEST:
        return _of_manifest(channel, uri, place, home)
    path = local_path(uri, home)
    if uri.startswith("file://"):
        if path.is_dir():
            return str(path.absolute()), None
        if path.exists():
            return str(path.parent.absolute()), [DataObject(path.name, path.name)]
        raise _is_missing(channel, uri, path)
    bucket, _, key = re.sub("/+", "/", uri.removeprefix("s3://")).partition("/")
    folder, _, last = key.rpartition("/")
    root = home.buckets / bucket / folder
    if not root.is_dir():
        raise _is_missing(channel, uri, path)
    if not last:
        return str(root.absolute()), None
    if [each.name for each in _entries(root) if each.name.startswith(last)] == [last] and (
        root / last
    ).is_dir():
        return str((root / last).absolute()), None
    objects = matching(keys_below(root, last), last)
    if not objects:
        raise _is_missing(channel, uri, path)
    return str(root.absolute()), objects


def _of_prefix(
    channel: Mapping[str, Any], uri: str, place: S3Place
) -> tuple[str, list[DataObject]]:
    """Objects of an S3 store."""
    try:
        found = {each.key: each for each in place.store().objects(place.key)}
    except StoreError as error:
        text = f"channel {channel['ChannelName']!r}: {error}"
        raise StoreError(text, is_passing=error.is_passing) from None
    if not found:
        raise _has_no_objects(channel, uri, place)
    return _S3 + place.bucket, [
        _sized(each, found[each.key]) for each in matching(found, place.key)
    ]


def _sized(each: DataObject, stored: StoredObject) -> DataObject:
    return each._replace(size=stored.size, etag=stored.etag)


def _has_no_objects(channel: Mapping[str, Any], uri: str, place: S3Place) -> ConfigurationError:
    return ConfigurationError(
        f"channel {channel['ChannelName']!r} is {uri}, and {place.settings.called} has nothing"
        " there; expected objects with such keys. Correct the URI."
    )


def _of_manifest(
    channel: Mapping[str, Any], uri: str, place: S3Place | None, home: Home
) -> tuple[str, list[DataObject]]:
    try:
        if place is not None:
            text = read_object(place.store(), place.key).decode("utf-8")
        else:
            path = local_path(uri, home)
            if not path.is_file():
                raise _is_missing(channel, uri, path)
            text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"the manifest {uri} is no text: {error}; expected UTF-8."
        ) from None
    prefix, rest = manifest_of(text, uri)
    begins = _BEGINS.fullmatch(prefix)
    if begins is None:
        raise ConfigurationError(
            f"the manifest {uri} has the prefix {prefix!r}; expected s3://BUCKET/ or file:///, and"
            " the beginning of a key or path."
        )
    store, folder, beginning = begins.groups(default="")
    place = s3_place(prefix, home)
    if place is not None:
        return _of_listed(channel, uri, place, rest)
    require_bucket(prefix, home)
    root = local_path(store + folder, home)
    objects = []
    seen: dict[str, str] = {}
    for each in rest:
        key = (beginning + each).lstrip("/")
        if {"", ".", ".."} & set(key.split("/")) or not (root / key).is_file():
            raise ConfigurationError(
                f"channel {channel['ChannelName']!r}: the manifest {uri} has {each!r:.200}, and"
                f" {root}/{key} is no file that is there, or not its plain path; expected the rest"
                f" of a URI after {prefix!r}."
            )
        if key in seen:
            raise ConfigurationError(
                f"channel {channel['ChannelName']!r}: the manifest {uri} has {seen[key]!r:.200} and"
                f" {each!r:.200}, which are both {root / key}; expected each file once. Remove one."
            )
        seen[key] = each
        objects.append(DataObject(each.lstrip("/"), key))
    return str(root.absolute()), objects


def _of_listed(
    channel: Mapping[str, Any], uri: str, place: S3Place, rest: Sequence[str]
) -> tuple[str, list[DataObject]]:
    """Objects of an S3 store that a manifest lists."""
    store = place.store()
    keys = [place.key + each for each in rest]
    if len(keys) > _MOST_ASKED_FOR:
        wanted = set(keys)
        found = {each.key: each for each in store.objects(place.key) if each.key in wanted}
    else:
        with concurrent.futures.ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            found = {each.key: each for each in pool.map(store.find, keys) if each is not None}
    for each, key in zip(rest, keys, strict=True):
        if key not in found:
            raise ConfigurationError(
                f"channel {channel['ChannelName']!r}: the manifest {uri} has {each!r:.200}, and"
                f" {store.uri(key)} is not there; expected the rest of the URI of an object after"
                f" {store.uri(place.key)!r}."
            )
    return _S3 + place.bucket, [
        _sized(DataObject(each.lstrip("/"), key), found[key])
        for each, key in zip(rest, keys, strict=True)
    ]


def _is_missing(channel: Mapping[str, Any], uri: str, path: Path) -> ConfigurationError:
    what = "a file or a directory" if uri.startswith("file://") else "objects with such keys"
    return ConfigurationError(
        f"channel {channel['ChannelName']!r} is {uri}, and {path} is not there; expected {what}."
    )


def _require_border(
    channel: Mapping[str, Any],
    data: Mapping[str, Any],
    objects: Sequence[DataObject],
    in_s3: bool,
) -> None:
    if data.get("S3DataType") == _DataType.MANIFEST or data["S3Uri"].startswith("file://"):
        return
    if in_s3:
        prefix = data["S3Uri"].removeprefix(_S3).partition("/")[2]
        if (
            not prefix
            or prefix.endswith("/")
            or all(each.key.startswith(f"{prefix}/") for each in objects)
        ):
            return
    raise ConfigurationError(
        f"{_called(channel, data['S3Uri'])} has the input mode 'FastFile', and the prefix does not"
        " end at the border of a folder; expected the prefix of a folder and of nothing beside it."
        " End it with a slash, or take the mode 'File'."
    )


def keys_below(folder: Path, beginning: str = "") -> Iterator[str]:
    """Keys of the files below a folder: their paths from there. Links are followed.

    What is being copied into a bucket is left out, and so is what is no file, such as a socket.

    Args:
        folder: to look in.
        beginning: of the first part of the keys.

    Raises:
        OSError: a folder cannot be read.
        ConfigurationError: a link leads to a folder that it lies in, or nowhere.
    """
    for each in _entries(folder):
        if each.name.startswith(beginning):
            yield from _keys(each, each.name, ())


def _keys(entry: os.DirEntry[str], key: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    if entry.is_file():
        yield key
    elif entry.is_dir():
        found = entry.stat()
        number = found.st_dev, found.st_ino
        if number in above:
            raise ConfigurationError(
                f"{entry.path} is a link to a directory that it lies in; expected directories that"
                " end. Remove the link."
            )
        for each in _entries(Path(entry.path)):
            yield from _keys(each, f"{key}/{each.name}", (*above, number))
    elif entry.is_symlink() and not os.path.exists(entry.path):
        raise ConfigurationError(
            f"{entry.path} is a link to {os.readlink(entry.path)}, which is not there; expected a"
            " link to a file or a directory, as else a part of the data would be missing. Remove"
            " the link, or bring back what it leads to."
        )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [each for each in entries if not each.name.startswith(TEMPORARY)]
