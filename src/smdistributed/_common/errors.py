# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The error classes of the engine.

There are few classes on purpose: one for each thing a caller can do about an error. Each derives
from the built-in that a Python user would catch anyway, so `except TimeoutError` works without
knowing this module. Front ends (`dataparallel`, `modelparallel`) raise documented subclasses.

Every message has three parts: what was wrong (with the value), what was expected, what to do.
"""

__all__ = [
    "CollectiveTimeoutError",
    "ConfigurationError",
    "InternalError",
    "MismatchError",
    "PeerLostError",
    "SmdistributedError",
    "UnsupportedError",
]


class SmdistributedError(Exception):
    """Base of every error that this library raises on purpose."""


class ConfigurationError(SmdistributedError, ValueError):
    """A variable, option or argument has a value that cannot work; change it and start again."""


class MismatchError(SmdistributedError, RuntimeError):
    """Ranks disagree: on operation, order, shape, dtype, reduce operation, root or world size."""


class PeerLostError(SmdistributedError, ConnectionError):
    """A rank died, closed its connection or could never be reached; the group is unusable."""


class CollectiveTimeoutError(SmdistributedError, TimeoutError):
    """An operation waited longer than its deadline; some rank did not make the matching call."""


class UnsupportedError(SmdistributedError, NotImplementedError):
    """The request is understood and deliberately not supported; the message says what to use."""


class InternalError(SmdistributedError, RuntimeError):
    """A promise inside the library was broken; this is our bug, please report it."""
