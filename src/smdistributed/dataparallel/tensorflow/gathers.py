# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`allgather`: the rows of all ranks, one after the other.

Source: our choice: Horovod's names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.tensorflow import operations
from smdistributed.dataparallel.tensorflow.autograph import not_converted
from smdistributed.dataparallel.tensorflow.conversion import require_transportable, to_tensor
from smdistributed.dataparallel.tensorflow.fused import InSequence
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.job import resolve_group
from smdistributed.dataparallel.tensorflow.operations.labels import label_of
from smdistributed.dataparallel.tensorflow.teaching import teaching

__all__ = ["allgather", "grouped_allgather"]


@not_converted
@teaching("expected allgather(tensor, name=)")
def allgather(tensor: Any, *, name: str | None = None, group: Group | None = None) -> Any:
    """The rows of a tensor of all ranks, in rank order. Eagerly and in `tf.function`.

    Args:
        tensor: as for `allreduce`, with at least one dimension; the first one may differ between
            ranks, also be 0, and the others may not.
        name, group: as for `allreduce`.

    Returns:
        A new tensor, whose first dimension is the sum of those of the ranks. The gradient of this
        rank's rows is the sum of all ranks' gradients of them.

    Raises:
        SMDDPNotInitialized: before `init()`.
        SMDDPConfigInvalid: (a ValueError) no dimension; not a tensor.
        SMDDPUnsupported: a dtype that cannot be sent, such as text.
        SMDDPMismatch: on all ranks, where their names, dtypes or other dimensions differ.

    Source: our choice: Horovod's name.
    """
    return grouped_allgather([tensor], name=name, group=group)[0]


@not_converted
@teaching("expected grouped_allgather(tensors, name=)")
def grouped_allgather(
    tensors: Sequence[Any], *, name: str | None = None, group: Group | None = None
) -> list[Any]:
    """`allgather` of several tensors, one after the other.

    Source: our choice: Horovod's name.
    """
    caller = "allgather()"
    among = resolve_group(group, caller)
    given = [to_tensor(each, caller) for each in tensors]
    for each in given:
        require_transportable(each.dtype, caller)
        if each.shape.rank == 0:
            raise SMDDPConfigInvalid(
                f"{caller} got a tensor without dimensions ({each.dtype.name}); expected at least"
                " one, along which it puts the ranks' tensors together. Pass"
                " tf.reshape(tensor, [1])."
            )
    if among.size() == 1:
        return given
    results = []
    sequence = InSequence()
    for number, each in enumerate(given, start=1):
        what = f"allgather '{name}'" if name else "allgather"
        place = f", {number} of {len(given)}" if len(given) > 1 else ""
        with sequence:
            gathered = operations.all_gather(
                each,
                f"{what}{place} of {each.dtype.name} {each.shape}",
                label_of("allgather", name or "", number, len(given)),
                group=among.number,
            )
        sequence.last = [gathered]
        if each.shape.rank:
            gathered.set_shape([None, *each.shape[1:]])
        results.append(gathered)
    return results
