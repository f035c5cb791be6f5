# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call on another rank, as its caller has passed them.

While the caller waits, another microbatch runs. An object that the model keeps, such as a cache of
a fixed size, is passed by both: each would go on with values of the other, and what one has added
would be lost when the other one's changes come back. So if the call has changed something in its
arguments, and anything in them is not as it was when they left, the step ends.

Tensors that are arguments themselves, and that the call has not changed, are not looked at: a
running mean is meant for all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from smdistributed.modelparallel.exceptions import SMPError
from smdistributed.modelparallel.torch.pipeline.changes.argument_walk import (
    Reach,
    content_of,
    is_same,
)
from smdistributed.modelparallel.torch.pipeline.changes.changed_arguments import argument_name
from smdistributed.modelparallel.torch.pipeline.values.deferred import Deferred

__all__ = ["Passed"]

_NOT_KNOWN = -1


class Passed:
    """Of one call.

    Args:
        args, kwargs: when it leaves.

    Attributes:
        reach: what is in them then; the other rank numbers it in the same way.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.reach = reach = Reach(args, kwargs)
        self._contents = [content_of(each) for each in reach.objects]
        self._versions = [_version(each) for each in reach.tensors]
        self._by_themselves = {id(value) for value in (*args, *kwargs.values())}

    def require_untouched(
        self,
        tensors: Collection[int],
        where: str,
        forward: Callable[..., Any],
    ) -> None:
        """That nobody has changed what is in the arguments since then.

        Args:
            tensors: numbers of those that the call has changed; nothing is set yet.
            where: the module and its rank.
            forward: its function; names its arguments.

        Raises:
            SMPError: somebody has.
        """
        reach = self.reach
        touched_objects = [
            number
            for number, before in enumerate(self._contents)
            if not is_same(before, content_of(reach.objects[number]))
        ]
        touched_tensors = [
            number
            for number, before in enumerate(self._versions)
            if before not in (_NOT_KNOWN, _version(reach.tensors[number]))
            and (number in tensors or id(reach.tensors[number]) not in self._by_themselves)
        ]
        if touched_objects or touched_tensors:
            what = argument_name(forward, reach.argument(touched_objects, touched_tensors))
            raise SMPError(
                f"{where} changed something in its arguments, and while it ran, another microbatch"
                f" changed its argument {what!r} too; expected an object that each microbatch makes"
                " for itself, as one would go on with values of the other. Make it in forward(), or"
                ' let microbatches run one after the other: "active_microbatches": 1.'
            )


def _version(tensor: Tensor) -> int:
    # What is not here yet cannot be changed, and torch keeps no version in inference mode.
    return _NOT_KNOWN if type(tensor) is Deferred or tensor.is_inference() else tensor._version
