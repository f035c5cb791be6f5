# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where this rank's part of the model is, and in which dtype.

The partition chooses the device. A script may move the part later, or gather the whole model into
CPU memory, to use it there; before the next step its parts go back.

Source: modelparallel specification, sections 3.1, 3.3 and 4.4 (`cpu`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.torch.delayed_initialization import (
    materialise,
    noting_changes,
)
from smdistributed.modelparallel.torch.job.state import Job
from smdistributed.modelparallel.torch.modules.placement import Placement, is_absent
from smdistributed.modelparallel.torch.pipeline.devices import arguments_on
from smdistributed.modelparallel.torch.pipeline.pipeline import current_pipeline
from smdistributed.modelparallel.torch.recompute.elsewhere import one_for_each_partition
from smdistributed.modelparallel.torch.saving import state_dicts

__all__ = ["ModelDevice"]


class ModelDevice:
    """Of the model of this process.

    Args:
        model: the user's module.
        job: what this process knows of the others.

    Attributes:
        is_home: all of the model is here, in CPU memory.
    """

    def __init__(self, model: nn.Module, job: Job) -> None:
        self._model = model
        self._job = job
        self._placement: Placement | None = None
        self._device = job.device
        self.is_home = False

    def place(self, placement: Placement) -> None:
        """Moves what is here to the rank's device, and lets go of the rest."""
        self._placement = placement
        self._device = self._job.device
        placement.apply(self._device)

    def arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the model with: tensors are where it is. CPU memory gets what is given."""
        if self._device.type == "cpu":
            return args, kwargs
        return arguments_on(self._device, args, kwargs)

    def move(self, device: torch.device | None, dtype: torch.dtype | None) -> None:
        """Changes dtypes of all floating-point tensors; moves this rank's, once it is placed."""
        if device is not None and self._placement is None:
            get_logger().warning(
                "Model has not been partitioned yet, ignoring move of params and buffers to devices"
            )
        if dtype is not None:
            with noting_changes(self._model):
                for tensor in (*self._model.parameters(), *self._model.buffers()):
                    _cast(tensor, dtype)
        if device is not None and self._placement is not None:
            self._device = device
            parameters, buffers = self._placement.local_parameters, self._placement.local_buffers
            for _, tensor in (*parameters(), *buffers()):
                tensor.data = tensor.data.to(device)
                _follow(tensor)

    def bring_home(self) -> None:
        """Gathers the whole model into CPU memory; once it is placed, a collective of MP."""
        if self._placement is None:
            materialise(self._model)
        state_dicts.bring_home(self._model, self._placement, self._job)
        if self._placement is None:
            return
        self.is_home = True
        self._device = torch.device("cpu")
        if self._job.has_pipeline:
            current_pipeline("model.cpu()").runner().close()

    def leave_home(self) -> None:
        """Puts its parts back where they were, if it is at home; a collective of the pipeline."""
        if not self.is_home or self._placement is None:
            return
        self.is_home = False
        self.place(self._placement)
        if self._job.has_pipeline:
            helpers = one_for_each_partition(self._placement, self._job)
            current_pipeline("the model").place(self._placement, helpers)


def _cast(tensor: Tensor, dtype: torch.dtype) -> None:
    if not tensor.is_floating_point():
        return
    if is_absent(tensor):  # it stays one element
        tensor.data = tensor.data.flatten()[:1].to(dtype).expand(tensor.shape)
    else:
        tensor.data = tensor.data.to(dtype)
        _follow(tensor)


def _follow(tensor: Tensor) -> None:
    """Its gradient goes where it went, as with torch."""
    if tensor.grad is not None:
        tensor.grad.data = tensor.grad.data.to(tensor.device, tensor.dtype)
