# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Python objects as bytes, for collectives that carry them. Loads no framework.

An object that cannot be pickled is an error on all ranks, and not only on its own: the reason
travels in its place.

Only ranks of one job exchange objects, and they know each other by the job's secret. To load what
was pickled runs code, so this is as safe as that secret.

Source: our choice: Horovod's names; see docs/horovod.md.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import pickle
from typing import Any

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid

__all__ = ["pickled", "unpickled"]


def pickled(obj: Any, rank: int, caller: str) -> tuple[bytes, SMDDPConfigInvalid | None]:
    """What to send of an object; and the error to raise here once that has been sent, if any.

    Args:
        obj: what `pickle` takes; where `cloudpickle` is installed, functions and classes of a
            script too.
        rank: of this process, in the job.
        caller: for messages.
    """
    try:
        return _pickler().dumps(obj), None
    except Exception as error:  # whatever the object's own methods raise
        failure = _Failure(rank, f"{type(error).__name__}: {error}")
        problem = failure.as_error(caller)
        problem.__cause__ = error
        return pickle.dumps(failure), problem


def unpickled(content: bytes, caller: str) -> Any:
    """The object that `pickled` was given.

    Raises:
        SMDDPConfigInvalid: (a ValueError) it could not be pickled there.
    """
    received = pickle.loads(content)
    if isinstance(received, _Failure):
        raise received.as_error(caller)
    return received


@dataclasses.dataclass(frozen=True)
class _Failure:
    """In place of an object that its rank could not pickle."""

    rank: int
    reason: str

    def as_error(self, caller: str) -> SMDDPConfigInvalid:
        return SMDDPConfigInvalid(
            f"{caller}: the object of rank {self.rank} cannot be pickled ({self.reason}); expected"
            " one that can. Pass what it is made of, such as numbers, texts, arrays, lists and"
            " dictionaries of these, or its state_dict()."
        )


def _pickler() -> Any:
    if importlib.util.find_spec("cloudpickle") is None:
        return pickle
    return importlib.import_module("cloudpickle")
