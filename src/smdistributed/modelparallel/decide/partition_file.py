# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A partition in a file: what one run has decided, for the next one (`partition_file`).

It is JSON, to be read, compared and edited by people as well:

    {
      "format": "smdistributed.modelparallel partition",
      "version": 1,
      "partitions": 2,
      "modules": {
        "main": 0,
        "main/encoder": 0,
        "main/decoder": 1
      }
    }

Names are the paths that the log shows, in the order of the model; each is there, also where it is
in the partition of its parent: so a model that has changed since is told from this one.

Source: our choice; the modelparallel specification, section 1.2, has the two parameters only.
"""

import errno
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from smdistributed.modelparallel.atomic_files import OpenFile, replace_file
from smdistributed.modelparallel.exceptions import ConfigError

__all__ = ["read_partition", "write_partition"]

_FORMAT = "smdistributed.modelparallel partition"
_VERSION = 1
_MOST_LISTED = 5


def write_partition(path: str, partition_of: Mapping[str, int], partitions: int) -> None:
    """Writes a decision; the file is whole or what it was. Not collective, blocking.

    Args:
        path: the file. Its directory must be there.
        partition_of: by name of module, from 0.
        partitions: how many there are; some may be empty.

    Raises:
        FileNotFoundError: the directory is not there.
        OSError: the file cannot be written; the text says why.
    """
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "partitions": partitions,
        "modules": dict(partition_of),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    def write(file: OpenFile) -> None:
        file.write(text.encode())

    replace_file(path, "partition", write)


def read_partition(path: str, names: Sequence[str], partitions: int) -> dict[str, int]:
    """Reads what `write_partition` wrote, for the same model. Not collective, blocking.

    Args:
        path: the file.
        names: of all modules of the model, the root first.
        partitions: how many there are now.

    Returns: a partition for each of the names, in their order.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read.
        ConfigError: (a ValueError) it is damaged, or of another model, or of another number of
            partitions; the text says what differs.
    """
    content = _content(path)
    if content["partitions"] != partitions:
        raise ConfigError(
            f"{path} holds a partition into {content['partitions']}, but"
            f" pipeline_parallel_degree is {partitions}; expected the same number. Use that"
            " number, name another file, or set load_partition to False to decide anew."
        )
    modules: dict[str, int] = content["modules"]
    _check_names(path, modules, names)
    for name, place in modules.items():
        if type(place) is not int or not 0 <= place < partitions:
            raise _damaged(
                path, f"{name} is in partition {place!r}; expected 0 to {partitions - 1}"
            )
    if modules[names[0]] != 0:
        raise _damaged(
            path,
            f"{names[0]} is in partition {modules[names[0]]}; expected 0, where the root always is",
        )
    return {name: modules[name] for name in names}


def _content(path: str) -> dict[str, Any]:
    """The file's, with all keys and of the right kinds."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file, object_pairs_hook=_without_duplicates)
    except FileNotFoundError:
        raise FileNotFoundError(
            errno.ENOENT,
            f"partition_file {path} is missing; expected it on the host of rank 0, as"
            " load_partition is True. Correct the path, or set load_partition to False: then the"
            " partition is decided, and written there",
        ) from None
    except OSError as error:
        raise OSError(
            error.errno or errno.EIO,
            f"partition_file {path} could not be read: {error.strerror}; expected a file that"
            " rank 0 may read. Correct the path, or its permissions",
        ) from error
    except ValueError as error:  # no JSON, no UTF-8
        raise _damaged(path, str(error)) from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise _damaged(path, f'it does not say "format": "{_FORMAT}"')
    if content.get("version") != _VERSION:
        raise ConfigError(
            f"{path} is of version {content.get('version')!r} of its format; expected"
            f" {_VERSION}. Use the release of this library that wrote it, or decide anew."
        )
    if type(content.get("partitions")) is not int:
        raise _damaged(path, f'"partitions" is {content.get("partitions")!r}; expected a number')
    if not isinstance(content.get("modules"), dict):
        raise _damaged(path, 'it has no "modules"; expected an object of names and partitions')
    return content


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets the last one win, and an editor would not see which."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} is there twice")
        found[key] = value
    return found


def _damaged(path: str, what: str) -> ConfigError:
    return ConfigError(
        f"partition_file {path} is damaged, or something else: {what}. Correct it, or set"
        " load_partition to False: then the partition is decided, and the file replaced."
    )


def _check_names(path: str, modules: Mapping[str, int], names: Sequence[str]) -> None:
    known = set(names)
    absent = [name for name in names if name not in modules]
    foreign = [name for name in modules if name not in known]
    if not absent and not foreign:
        return
    differences = []
    if absent:
        differences.append(f"it has no {_listed(absent)}")
    if foreign:
        differences.append(f"it has {_listed(foreign)}, which this model has not")
    raise ConfigError(
        f"{path} is of another model: {', and '.join(differences)}; expected the {len(names)}"
        " modules of this one. Name the file of this model, or set load_partition to False to"
        " decide anew."
    )


def _listed(names: Iterable[str]) -> str:
    names = iter(names)
    shown = list(itertools.islice(names, _MOST_LISTED))
    more = sum(1 for _ in names)
    return ", ".join(shown) + (f" and {more} more" if more else "")
