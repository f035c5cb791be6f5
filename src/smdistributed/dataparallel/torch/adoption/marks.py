# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What we remember about a storage: an attribute of its Python object.

torch makes that object when Python first asks for a storage, and keeps it as long as the storage
lives, even while nobody in Python holds it. So the mark ends with the storage. An address would
not do: the next gradient of the same size is likely to get the same memory, and would be taken for
the last one (188 of 240 fresh storages in a measurement; by object none).

Copies, pickles and what `share_memory_` makes of a storage are other objects, without the mark.
"""

from __future__ import annotations

from typing import Any, Final

import torch

__all__ = ["IN_PARTS", "OURS", "REFUSED", "SEEN", "keep", "mark", "mark_of"]

IN_PARTS: Final = "in parts"
"""Only parts of it were in collectives until now."""
SEEN: Final = "seen"
"""It was in a collective as a whole. If it comes again, it recurs."""
REFUSED: Final = "refused"
"""It stays where it is, for good; the reason has been counted."""
OURS: Final = "ours"
"""Its memory is a group's, from the start or since it moved."""

_ATTRIBUTE: Final = "_smddp_zero_copy"
_KEPT: Final = "_smddp_zero_copy_before"


def mark_of(storage: torch.UntypedStorage) -> Any:
    """What was marked, None for a storage never seen.

    One of the above, a `Refusal` that was not told yet, or a `notice.Recurrence`.
    """
    return getattr(storage, _ATTRIBUTE, None)


def mark(storage: torch.UntypedStorage, value: object) -> None:
    """Remember this until the storage is gone."""
    setattr(storage, _ATTRIBUTE, value)


def keep(storage: torch.UntypedStorage, memory: object) -> None:
    """Hold `memory` as long as the storage lives."""
    setattr(storage, _KEPT, memory)
