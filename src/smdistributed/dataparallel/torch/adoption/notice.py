# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Says once that a large tensor is reduced again and again from ordinary memory.

It is not moved: other readers of its memory may hold its address. The user can make it in shared
memory in the first place.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from torch import Tensor

from smdistributed.dataparallel.torch.adoption.marks import mark, mark_of
from smdistributed.dataparallel.torch.notices import inform_once

__all__ = ["MIN_BYTES", "TIMES", "Notice", "Recurrence"]

MIN_BYTES: Final = 1 << 20
"""Smaller tensors are not worth a line."""
TIMES: Final = 10
"""Reductions of one tensor until the line comes."""

_LARGEST_ELEMENT_BYTES: Final = 16
_KEY: Final = "recurring tensor"
_REDUCTIONS: Final = frozenset(("all_reduce", "reduce", "reduce_scatter_single"))


@dataclasses.dataclass(slots=True)
class Recurrence:
    """The mark of a storage a part of which has been reduced.

    Attributes:
        offset: where in the storage the tensor begins, in elements.
        nbytes: of the tensor.
        times: how often it has been reduced.
    """

    offset: int
    nbytes: int
    times: int = 1


class Notice:
    """Looks at the tensors of the collectives of one group whose ranks have memory in common.

    Attributes:
        from_elements: tensors with fewer elements need not be shown.

    Thread rule: any thread may call; a count may be one short if two do at once.
    """

    from_elements = MIN_BYTES // _LARGEST_ELEMENT_BYTES

    def see(self, tensor: Tensor, collective: str) -> None:
        """Note that a tensor is about to go into a collective. Its memory stays what it is.

        Args:
            tensor: dense, on the CPU.
            collective: the kind of `Operation`.
        """
        nbytes = tensor.nbytes
        if nbytes < MIN_BYTES or collective not in _REDUCTIONS:
            return
        storage = tensor.untyped_storage()
        known = mark_of(storage)
        if known is None:
            mark(storage, Recurrence(int(tensor.storage_offset()), nbytes))
            return
        if (
            type(known) is not Recurrence
            or known.nbytes != nbytes
            or known.offset != tensor.storage_offset()
        ):
            return
        known.times += 1
        if known.times == TIMES:
            inform_once(
                _KEY,
                f"a tensor of {nbytes / (1 << 20):.1f} MiB has been reduced {TIMES} times; it lies"
                " in ordinary memory, from which each reduction copies it. Make it with"
                " smdistributed.dataparallel.torch.empty_shared(), and it is reduced where it lies;"
                " see docs/zero_copy.md",
            )
