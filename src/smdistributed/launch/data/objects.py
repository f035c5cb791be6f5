# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Objects of a channel: which there are, how a script finds them, and which host gets which.

A bucket is a map from keys to objects. A prefix is the beginning of a key's text, not a folder:
`a` means `a/x`, `a-1/x` and `a.csv`. Nothing here touches a file.

Source: launch specification, section 5.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from smdistributed._common.errors import ConfigurationError

__all__ = ["DataObject", "in_order", "manifest_of", "matching", "require_places", "share_of"]


class DataObject(NamedTuple):
    """One object of a channel.

    Attributes:
        name: where the script finds it, below the channel.
        key: that it has in its bucket, or below the folder of the data.
        size: in bytes; of a file of this machine it is not said.
        etag: what the store says that it is now; empty for a file of this machine.
    """

    name: str
    key: str
    size: int = 0
    etag: str = ""


def matching(keys: Iterable[str], prefix: str) -> list[DataObject]:
    """Objects whose key begins with a prefix, in the order of their keys.

    The name is the key without the prefix, and without a slash in front. An object whose key is the
    prefix is called by the last part of its key.
    """
    found = [key for key in keys if key.startswith(prefix)]
    return [DataObject(_name_of(key, prefix), key) for key in sorted(found, key=_in_bytes)]


def _name_of(key: str, prefix: str) -> str:
    return key.removeprefix(prefix).lstrip("/") or key.rpartition("/")[2]


def _in_bytes(key: str) -> bytes:
    """Keys are sorted by their bytes, as S3 does."""
    return key.encode("utf-8", "surrogateescape")


def require_places(what: str, objects: Sequence[DataObject]) -> None:
    """Refuses objects that cannot all be files below one folder.

    Args:
        what: the channel and its URI, for the text of the error.

    Raises:
        ConfigurationError: two have one name, one is where another needs a folder, or a name leads
            out of the channel.
    """
    by_name: dict[str, DataObject] = {}
    for each in objects:
        other = by_name.setdefault(each.name, each)
        if other is not each:
            raise ConfigurationError(
                f"{what} has {other.key!r} and {each.key!r}, which are both called {each.name!r}"
                " without the prefix; expected different names. Give a prefix that ends with a"
                " slash."
            )
    for each in objects:
        parts = each.name.split("/")
        if {"", ".", ".."} & set(parts):
            raise ConfigurationError(
                f"{what} has {each.key!r}, which is called {each.name!r} without the prefix, and"
                " that is no path; expected another. Give a prefix that ends with a slash."
            )
        for end in range(1, len(parts)):
            above = by_name.get("/".join(parts[:end]))
            if above is not None:
                raise ConfigurationError(
                    f"{what} has {above.key!r} and {each.key!r}, and without the prefix the first"
                    f" is a file {above.name!r} where the second needs a folder; expected names"
                    " that can be together. Give a prefix that ends with a slash."
                )


def share_of(objects: Sequence[DataObject], index: int, count: int) -> list[DataObject]:
    """What one of several hosts gets: each `count`-th object, beginning with its own number."""
    return list(objects[index::count])


def in_order(objects: Sequence[DataObject], seed: int | None, epoch: int) -> list[DataObject]:
    """The objects in the order of an epoch: as they are, or shuffled by a seed.

    All hosts have the same order. Each epoch has another one, so with shares a host gets other
    objects in each.
    """
    ordered = list(objects)
    if seed is not None:
        random.Random(f"{seed} {epoch}").shuffle(ordered)
    return ordered


def manifest_of(text: str, where: str) -> tuple[str, list[str]]:
    """Reads a manifest: a JSON list of `{"prefix": URI}` and then of what follows it in URIs.

    Args:
        text: of the file.
        where: it is, for the text of an error.

    Returns: the prefix, and the rest of each URI.

    Raises:
        ConfigurationError: it is no such list, or has something twice.
    """
    expected = (
        'expected a list whose first element is {"prefix": "s3://BUCKET/KEY/"}, or file:///PATH/,'
        ' and whose others are texts that follow the prefix, such as "part/x.csv".'
    )
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the manifest {where} is no JSON: {error}; {expected}") from None
    first = document[0] if isinstance(document, list) and document else None
    prefix = first.get("prefix") if isinstance(first, dict) else None
    if not isinstance(prefix, str) or not prefix or len(first or ()) != 1:
        raise ConfigurationError(f"the manifest {where} begins with {first!r:.100}; {expected}")
    rest = document[1:]
    for each in rest:
        if not isinstance(each, str) or not each:
            raise ConfigurationError(f"the manifest {where} has {each!r:.100}; {expected}")
    seen: set[str] = set()
    for each in rest:
        if each in seen:
            raise ConfigurationError(
                f"the manifest {where} has {each!r:.100} twice; expected each once. Remove one."
            )
        seen.add(each)
    if not rest:
        raise ConfigurationError(f"the manifest {where} lists nothing; {expected}")
    return prefix, rest
