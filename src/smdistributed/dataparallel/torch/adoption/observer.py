# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who looks at the tensors that go into a group's collectives."""

from __future__ import annotations

import sys
from typing import Any, Final, Protocol

from torch import Tensor

from smdistributed._common.settings import ZeroCopy
from smdistributed.dataparallel.torch.adoption.adopter import Adopter, obstacle
from smdistributed.dataparallel.torch.adoption.notice import Notice
from smdistributed.dataparallel.torch.shared_memory import reaches_all_ranks

__all__ = ["Observer", "make_observer"]


class Observer(Protocol):
    """Sees tensors before the engine is told of them."""

    @property
    def from_elements(self) -> int:
        """Tensors with fewer elements need not be shown."""

    def see(self, tensor: Tensor, collective: str) -> None:
        """A dense CPU tensor is about to go into a collective, of a kind of `Operation`.

        Its address may be another one afterwards.
        """


class _Nobody:
    """Sees nothing: no tensor has as many elements."""

    from_elements: Final = sys.maxsize

    def see(self, tensor: Tensor, collective: str) -> None:
        pass


def make_observer(engine: Any, zero_copy: ZeroCopy) -> Observer:
    """The observer of a group.

    Args:
        engine: the group's `_native.Communicator`.
        zero_copy: the setting.
    """
    if zero_copy is ZeroCopy.OFF or not reaches_all_ranks(engine):
        return _Nobody()
    if zero_copy is ZeroCopy.RECURRING:
        return Adopter(engine) if obstacle() is None else _Nobody()
    return Notice()
