# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The memory in which gradients lie: planned by `dataparallel.fusion`, shared between ranks.

Each bucket is one tensor, in the region that the ranks of a host share where there is one, so that
a reduction reads the other ranks' gradients where they were written. A parameter's gradient is a
view into it. The views are made to look like tensors of their own (`set_`), since what autograd
calls a view can neither be detached in place, as optimizers do, nor forget its base.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smdistributed.dataparallel import fusion

__all__ = ["Bucket", "GradientSlot", "make_buckets"]


class GradientSlot:
    """A parameter's place in a bucket.

    Attributes:
        index: in the order of reduction, over all buckets.
        name: of the parameter in the wrapped module.
        view: of the bucket's memory, in the parameter's shape and strides; None until allocated.
        expected: gradients that it receives in one step.
        arrivals: gradients that it has received in this step.
    """

    __slots__ = ("arrivals", "bucket", "expected", "index", "name", "offset", "parameter", "view")

    def __init__(
        self, index: int, name: str, parameter: Tensor, offset: int, bucket: Bucket
    ) -> None:
        self.index = index
        self.name = name
        self.parameter = parameter
        self.offset = offset  # in bytes
        self.bucket = bucket
        self.view: Tensor | None = None
        self.expected = 1
        self.arrivals = 0

    def adopt_gradient(self) -> None:
        """Make the parameter's gradient the view, with the value that it has now, if it has one.

        Nothing is copied if it is the view already. A sparse gradient becomes a dense one.
        """
        grad = self.parameter.grad
        if grad is None or grad is self.view:
            return
        assert self.view is not None
        if grad.requires_grad:  # of a backward with create_graph=True
            grad = grad.detach()
        self.view.copy_(grad if grad.layout is torch.strided else grad.to_dense())
        self.parameter.grad = self.view

    def settle(self) -> None:
        """Prepare for a reduction without a gradient of this step: what there is, or zeros."""
        if self.parameter.grad is not None:
            self.adopt_gradient()
        elif self.view is not None:
            self.view.zero_()


class Bucket:
    """Gradients that are reduced together.

    Attributes:
        index: place in the order of reduction.
        slots: its parameters, in the order of reduction.
        missing: gradients that have yet to arrive in this step.
        buffer: 1-d, of the gradients' dtype or the one given; None until allocated.
    """

    def __init__(
        self,
        index: int,
        plan: fusion.BucketPlan,
        parameters: Sequence[tuple[str, Tensor]],
        dtype: torch.dtype | None = None,
    ) -> None:
        self.index = index
        self.plan = plan
        self._dtype = dtype
        self.slots = [
            GradientSlot(slot.index, *parameters[slot.index], slot.offset, self)
            for slot in plan.slots
        ]
        self.missing = len(self.slots)
        self.buffer: Tensor | None = None

    def allocate(self, group: Any) -> None:
        """Take memory, filled with zeros, and make the views. Not a collective."""
        parameter = self.slots[0].parameter
        dtype, device = self._dtype or parameter.dtype, parameter.device
        buffer = None
        allocate_shared = getattr(group, "allocate_shared", None)
        if device.type == "cpu" and allocate_shared is not None and self.plan.capacity_bytes:
            buffer = allocate_shared(self.plan.capacity_bytes)
        if buffer is None:
            buffer = torch.zeros(self.plan.capacity_bytes, dtype=torch.uint8, device=device)
        self.buffer = buffer.view(dtype)
        for slot in self.slots:
            slot.view = _view(self.buffer, slot)

    def expect(self) -> None:
        """Be ready for the gradients of the next step."""
        self.missing = sum(slot.expected for slot in self.slots)
        for slot in self.slots:
            slot.arrivals = 0


def make_buckets(
    parameters: Sequence[tuple[str, Tensor]],
    bucket_cap_bytes: int,
    world_size: int,
    dtype: torch.dtype | None = None,
) -> list[Bucket]:
    """Returns the buckets of named parameters, in the order of reduction; takes no memory yet.

    Args:
        parameters: in the order in which backward is expected to produce their gradients.
        bucket_cap_bytes: see `fusion.plan_buckets`.
        world_size: every rank reduces an equal share.
        dtype: of the buckets; None: that of the parameters. With another one the gradients cannot
            lie in the buckets, and `GradientSlot.adopt_gradient` must not be called.
    """
    specs = [
        fusion.TensorSpec(
            name,
            p.numel() * (dtype or p.dtype).itemsize,
            str(dtype or p.dtype),
            str(p.device),
        )
        for name, p in parameters
    ]
    plans = fusion.plan_buckets(specs, bucket_cap_bytes, world_size)
    return [Bucket(index, plan, parameters, dtype) for index, plan in enumerate(plans)]


def _view(buffer: Tensor, slot: GradientSlot) -> Tensor:
    parameter = slot.parameter
    # The parameter's own strides if its elements fill one block (channels_last), else contiguous.
    strides = torch.empty_like(parameter, device="meta").stride()
    view = torch.empty(0, dtype=buffer.dtype, device=buffer.device)
    start = buffer.storage_offset() + slot.offset // buffer.element_size()
    return view.set_(buffer.untyped_storage(), start, parameter.shape, strides)
