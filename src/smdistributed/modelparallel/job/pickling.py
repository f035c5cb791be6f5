# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""An object as a pickle, and the large blocks of memory in it beside the pickle (protocol 5).

How tensors are pickled is a framework's matter: it brings the pickler.

Nothing here decides whether a pickle may be trusted: the ranks of a job have proved to each other
that they know its token (docs/security.md).

Source: modelparallel specification, section 4.7.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterator
from typing import Any

__all__ = ["LARGE_BYTES", "dump", "unpickling"]

LARGE_BYTES = 32 * 1024
"""From here on a block stays outside of the pickle."""

_PROTOCOL = 5  # the first with blocks beside the pickle


def dump(obj: Any, pickler: type[pickle.Pickler]) -> tuple[memoryview, list[memoryview]]:
    """The pickle of an object, writable, and the blocks that it leaves out, in their order.

    Small blocks go into the pickle: a message of their own would cost more. The blocks are the
    object's own memory.

    Raises:
        TypeError: the object does not pickle; the text names its type.
    """
    file = io.BytesIO()
    blocks: list[memoryview] = []

    def keep_inside(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes < LARGE_BYTES:
            return True
        blocks.append(memory)
        return False

    try:
        pickler(file, _PROTOCOL, buffer_callback=keep_inside).dump(obj)
    except Exception as error:  # a class may raise whatever it likes
        why = f"{type(error).__name__}: {error}"
        raise TypeError(
            f"an object of type {_type_name(obj)} does not pickle ({why}); expected one that does,"
            " tensors on any device included. Pass the data it is made of, and functions and"
            " classes from the top level of a module that all ranks import."
        ) from error
    return file.getbuffer(), blocks


@contextlib.contextmanager
def unpickling() -> Iterator[None]:
    """Turns what is raised while a pickle is loaded into a TypeError that says what to do."""
    try:
        yield
    except Exception as error:
        raise TypeError(
            f"an object does not unpickle here ({type(error).__name__}: {error}); expected the"
            " modules with its classes and functions to be importable on both ranks. Start the"
            " same script on all ranks, and define there what is sent, at the top level."
        ) from error


def _type_name(obj: Any) -> str:
    module, name = type(obj).__module__, type(obj).__qualname__
    return name if module == "builtins" else f"{module}.{name}"
