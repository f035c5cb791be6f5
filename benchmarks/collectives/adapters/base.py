# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a library has to offer to be measured.

To add one: subclass ``Adapter`` in a module of its own, and name it in ``libraries.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from cases import Case
from operands import NUMPY_DTYPES, Array, ArrayLike


class Unsupported(Exception):
    """The library cannot do this case; the text says why and goes into the report."""


class Adapter(ABC):
    """One rank's view of one library.

    Buffers are allocated the way a user of the library would (``allocate``); the harness sees them
    through a NumPy array on the same memory, or through what stands for one. All calls block until
    the result is there.
    """

    rank: int
    world_size: int
    has_results = True  # False for what only costs time; its results are not looked at

    @abstractmethod
    def start(self) -> str:
        """Join the group, set ``rank`` and ``world_size``; returns the library's version."""

    @abstractmethod
    def bind(self, case: Case, source: Any, output: Any) -> Callable[[], object]:
        """A call without arguments that does ``case`` once on the given buffers.

        Bound once and timed many times, so that looking up names is not measured.
        Raises ``Unsupported``.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Return once all ranks have entered."""

    @abstractmethod
    def stop(self) -> None:
        """Leave the group."""

    def allocate(self, num_elements: int, dtype: str) -> tuple[Any, ArrayLike]:
        """``(buffer of the library, its elements for NumPy)``; uninitialised.

        Raises ``Unsupported``.
        """
        array: Array = np.empty(num_elements, NUMPY_DTYPES[dtype])
        return array, array
