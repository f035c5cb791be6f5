# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Labels: what an operation is for, as a number that the ranks compare before they combine.

The engine matches collectives by their order, and compares sizes and dtypes. Two calls of one shape
in another order on one rank would pass that: the label tells them apart. It is a digest of the
purpose, of a name that the caller gave, of the place in a row of buckets, and for lists of
variables of the variables. Nothing goes into it that may differ between ranks that agree: no object
identity, no counter of traces, no hint.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

__all__ = ["creation_of", "label_of", "label_of_variables"]

# What frameworks append to names that are taken; a rank may have made more objects than others.
_COUNTER = re.compile(r"_\d+(?=[_/:]|$)")
_UNIQUE_ID = re.compile(r"_(\d+)$")


@functools.lru_cache(maxsize=4096)
def label_of(*parts: str | int) -> int:
    """A digest of texts and numbers: positive, and fits an attribute of TensorFlow's (int64)."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1 | 1


def label_of_variables(variables: Sequence[Any], names: Sequence[str]) -> int:
    """A digest of a list of variables: their names, and in which order they were made.

    Counters in names ("dense_2/kernel") are left out: they differ where one rank has made another
    model as well. The order in which the variables of the list were made, relative to each other,
    tells apart those whose names are alike.
    """
    made = [creation_of(variable) for variable in variables]
    known = sorted({each for each in made if each is not None})
    rank_of = {each: index for index, each in enumerate(known)}
    order = tuple(-1 if each is None else rank_of[each] for each in made)
    return _digest(tuple(names), order)


@functools.lru_cache(maxsize=256)
def _digest(names: tuple[str, ...], order: tuple[int, ...]) -> int:
    return label_of(*(_COUNTER.sub("", name) for name in names), *order)


def creation_of(variable: Any) -> int | None:
    """A number that grows with each variable that this process (or graph) makes; None: unknown."""
    inner = variable if isinstance(variable, tf.Variable) else getattr(variable, "value", None)
    if not isinstance(inner, tf.Variable):
        return None
    try:  # in graphs of TensorFlow 1 the operation that makes it has a number
        identifier = inner.op._id
    except (AttributeError, NotImplementedError, TypeError):
        identifier = None
    if isinstance(identifier, int):
        return identifier
    found = _UNIQUE_ID.search(str(getattr(inner, "_unique_id", "")))
    return int(found.group(1)) if found else None
