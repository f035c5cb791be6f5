# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Tells of buffers that code on another rank than theirs has changed in a step.

What stands for them there is not what their module sees. Outside of steps every rank makes the
same change, which is as it should be. In a step torch refuses most, but not zero_(), fill_(), and
anything that is done to a single number, such as a count.
"""

from __future__ import annotations

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.torch.modules.placement import Placement

__all__ = ["AbsentBuffers"]


class AbsentBuffers:
    """Of one rank.

    Args:
        placement: of the model.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._held = [
            (path, module, name)
            for path, module in zip(placement.paths, placement.modules, strict=True)
            if not placement.is_module_here(module)
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._before: list[int] = []
        self._told: set[tuple[str, str]] = set()

    def begin_step(self) -> None:
        """Before the microbatches."""
        self._before = self._versions()

    def end_step(self) -> None:
        """After them; warns, as the step cannot be undone."""
        versions = self._versions()
        if versions == self._before:
            return
        for (path, module, name), before, after in zip(
            self._held, self._before, versions, strict=True
        ):
            if before == after or (path, name) in self._told:
                continue
            self._told.add((path, name))
            get_logger().warning(
                "buffer %r of %s was changed in a step on partition %d, and is on partition %d,"
                " where it stays as it is. Change it in the forward() of its module, or outside of"
                " steps on all ranks.",
                name,
                path,
                self._placement.pp_rank,
                self._placement.partition_of_module[module],
            )

    def _versions(self) -> list[int]:
        buffers = (module._buffers.get(name) for _, module, name in self._held)
        return [-1 if each is None or each.is_inference() else each._version for each in buffers]
