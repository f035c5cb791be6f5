# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which gradients there are: an agreement between ranks on the None among them.

A *pattern* says of each gradient of a list whether it is absent (None), sparse or dense. Gradients
stay None where they are None on all ranks. Where only some ranks lack one, these bring zeros. So
all must know the joint pattern, by element the greatest of absent < sparse < dense, before they
build what reduces the gradients; and asking is itself a collective, which all must take part in.

Eagerly each rank's pattern may be another one at each step, so each step asks (a few bytes).

In a `tf.function` the pattern is fixed while it is traced, and so is the answer. Ranks may trace
again on their own, for a last batch of another length say, and must not ask then, since the others
will not answer. A book per list of variables therefore keeps what was agreed on, the same on all
ranks as every entry was made by all of them:

1. a pattern that all ranks had alike is in the book: it holds, nobody is asked;
2. ranks differed before on these variables, and the joint pattern of then covers this one: it
   holds, nobody is asked (ranks that take different ways do so again);
3. otherwise all ranks are asked. A rank that comes here alone (its gradients changed, for the first
   time, in a trace of its own) fails on all ranks with a mismatch that names the variables.

Source: dataparallel specification, sections 6.5 and 7.6; the book is our choice.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from enum import IntEnum
from typing import Any

import tensorflow as tf

from smdistributed import collectives
from smdistributed.dataparallel.tensorflow import operations
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.operations.labels import label_of

__all__ = ["Kind", "Pattern", "PatternBook", "agree", "look_up_or_ask"]

_NAMES_IN_KEY = 3


class Kind(IntEnum):
    """What a rank has for a gradient. What ranks have together is the greatest."""

    ABSENT = 0
    SPARSE = 1
    DENSE = 2


Pattern = tuple[Kind, ...]


class PatternBook:
    """What the ranks have agreed on for one list of variables."""

    def __init__(self) -> None:
        self._alike: set[Pattern] = set()
        self._joint: Pattern | None = None

    def find(self, mine: Pattern) -> Pattern | None:
        """The pattern to follow, if that is known without asking."""
        if mine in self._alike:
            return mine
        if self._joint is not None and all(
            own <= joint for own, joint in zip(mine, self._joint, strict=True)
        ):
            return self._joint
        return None

    def add(self, least: Pattern, greatest: Pattern) -> None:
        """Notes an answer: by gradient, the least and the greatest kind of all ranks."""
        if least == greatest:
            self._alike.add(greatest)
        elif self._joint is None:
            self._joint = greatest
        else:
            self._joint = tuple(map(max, self._joint, greatest))


# By group, so that a job that begins anew begins without memories.
_books: weakref.WeakKeyDictionary[Group, dict[Hashable, PatternBook]] = weakref.WeakKeyDictionary()


def agree(
    mine: Pattern,
    *,
    group: Group,
    book_key: Hashable,
    names: Sequence[str],
    what: str,
    label: int,
) -> Pattern:
    """The joint pattern of all ranks. Blocks where it has to ask.

    Args:
        mine: this rank's.
        group: whose ranks.
        book_key: what stands for the list of variables in this process.
        names: of the gradients, for messages.
        what: "gradients", for messages.
        label: of the list of variables.

    Returns:
        The joint pattern; in graphs of TensorFlow 1, where nothing can run before the session
        does, this rank's own.
    """
    with tf.init_scope():
        if not tf.executing_eagerly():
            return mine

    def ask() -> tuple[Pattern, Pattern]:
        return _ask(mine, names, what, label, group)

    if tf.executing_eagerly():
        return ask()[1]
    book = _books.setdefault(group, {}).setdefault(book_key, PatternBook())
    return look_up_or_ask(book, mine, ask)


def look_up_or_ask(
    book: PatternBook, mine: Pattern, ask: Callable[[], tuple[Pattern, Pattern]]
) -> Pattern:
    """The pattern to follow by the book; if it has none, by an answer, which is then added."""
    known = book.find(mine)
    if known is not None:
        return known
    book.add(*ask())
    answer = book.find(mine)
    assert answer is not None, "an answer covers the pattern of everyone who asked"
    return answer


def _ask(
    mine: Pattern, names: Sequence[str], what: str, label: int, group: Group
) -> tuple[Pattern, Pattern]:
    absent = [name for name, kind in zip(names, mine, strict=True) if kind is Kind.ABSENT]
    key = f"agreement on which of {len(mine)} {what} there are"
    if absent:
        more = ", ..." if len(absent) > _NAMES_IN_KEY else ""
        key += f" (this rank has none for {', '.join(absent[:_NAMES_IN_KEY])}{more})"
    # One collective for both ends: the greatest of (2 - kind) is 2 - the least kind.
    both = [*mine, *(Kind.DENSE - kind for kind in mine)]
    with tf.init_scope():
        (answer,) = operations.all_reduce(
            [tf.constant(both, tf.uint8)],
            collectives.ReduceOp.MAX,
            key,
            label_of("agreement", what, label),
            group=group.number,
        )
        values: list[Any] = answer.numpy().tolist()
    greatest = tuple(Kind(value) for value in values[: len(mine)])
    least = tuple(Kind(Kind.DENSE - value) for value in values[len(mine) :])
    return least, greatest
