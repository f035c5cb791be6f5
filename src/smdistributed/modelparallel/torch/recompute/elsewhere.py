# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of modules that a rank runs, checkpointed as one, for a caller on another rank.

To the pipeline this is a module like any other, one for each partition: what a caller asks for, the
caller says in the arguments. So placeholders, modes and errors need no care here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.torch.job.state import Job
from smdistributed.modelparallel.torch.modules.placement import Placement
from smdistributed.modelparallel.torch.pipeline.loop.modes import RandomState
from smdistributed.modelparallel.torch.recompute.recomputation import recomputed

__all__ = ["Elsewhere", "one_for_each_partition"]


class Elsewhere(nn.Module):
    """Of one partition.

    Args:
        modules: all of the model, in the same order on all ranks.
        owners: partitions of those that hold anything.
        device: of the random numbers.
    """

    def __init__(
        self, modules: Sequence[nn.Module], owners: Mapping[nn.Module, int], device: torch.device
    ) -> None:
        super().__init__()
        self._row_of = list(modules)  # in a list: they are not registered here
        self._numbers = {module: number for number, module in enumerate(modules)}
        self._owners = owners
        self._random = RandomState(device)

    def run(
        self,
        row: Sequence[nn.Module],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        preserve_rng_state: bool,
    ) -> Any:
        """Runs a row of the partition's modules there; called on any rank.

        Random numbers are those without a checkpoint: each module that holds anything begins with
        a seed that is drawn here. The caller of a module draws that of the last one.

        Raises:
            ValueError: a module is not in the model; so that rank does not have it.
        """
        for module in row:
            if module not in self._numbers:
                raise ValueError(
                    f"a {type(module).__name__} with or beside modules of another partition is no"
                    " module of the model; expected one that was in it when it was wrapped."
                    " Make it in the __init__ of the model, or checkpoint each module of the model"
                    " by itself."
                )
        num_seeds = sum(module in self._owners for module in row) - 1
        seeds = (
            torch.empty(num_seeds, dtype=torch.int64, device="cpu").random_()
            if num_seeds > 0
            else None
        )
        # Strings, as calls recognise plain arguments quickly. What modules return may
        # depend on their being trained, and what is learned of it belongs to these arguments.
        numbers = " ".join(str(self._numbers[module]) for module in row)
        trained = "".join(str(int(module.training)) for module in row)
        return self(numbers, trained, preserve_rng_state, seeds, *args, **kwargs)

    def forward(
        self,
        numbers: str,
        trained: str,
        preserve_rng_state: bool,
        seeds: Tensor | None,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """What the row returns; on the partition's rank."""
        row = [self._row_of[int(number)] for number in numbers.split()]
        rest = [torch.initial_seed()] if seeds is None else [*seeds.tolist(), torch.initial_seed()]

        def run(*args: Any, **kwargs: Any) -> Any:
            following = iter(rest)
            for module in row:
                if module in self._owners:
                    self._random.seed(next(following))
                args, kwargs = (module(*args, **kwargs),), {}
            return args[0]

        return recomputed(run, row, args, kwargs, preserve_rng_state)


def one_for_each_partition(placement: Placement, job: Job) -> list[Elsewhere]:
    """Helpers for a placed model; the same on all ranks of a pipeline."""
    size = job.size_of(GroupKind.PP)
    return [Elsewhere(placement.modules, placement.owners, job.device) for _ in range(size)]
