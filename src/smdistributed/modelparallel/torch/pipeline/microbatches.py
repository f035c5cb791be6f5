# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of a step function, cut into microbatches: PyTorch's part of the rules.

`smdistributed.modelparallel.containers.splitting` has the rules. Of the types of PyTorch

| type | treatment |
| --- | --- |
| `Tensor` | cut, into views |
| `nn.Module`, `GradScaler`, device, dtype, `torch.Size`, number of NumPy | whole |
| optimizer | whole, with a warning |
| `DataLoader` | refused |
| `PackedSequence` | refused: it is a tuple of tensors that do not share a batch axis |

Cutting happens in the caller's process, on the leader alone; tensors stay on their device.

Source: modelparallel specification, sections 3.3 and 4.2.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader

import smdistributed.modelparallel.torch.containers  # noqa: F401 (says what is a container)
from smdistributed.modelparallel.containers import splitting
from smdistributed.modelparallel.containers.splitting import (
    Call,
    Cutting,
    Treatment,
    Uncuttable,
    weights_of,
)
from smdistributed.modelparallel.torch.pipeline.values.objects import IMMUTABLE

__all__ = ["ArgumentSplitter", "Call", "weights_of"]

_WHOLE = (*IMMUTABLE, np.generic, torch.amp.GradScaler, nn.Module)


class _TorchCutting(Cutting):
    tensor = Tensor
    complete_batches = "a DataLoader with drop_last=True leaves a smaller last one out"

    def treat(self, cls: type) -> Treatment | None:
        for treatment, classes in (
            (Treatment.CUT, Tensor),
            (Treatment.WHOLE, _WHOLE),
            (Treatment.REFUSED, PackedSequence),
            (Treatment.OPTIMIZER, torch.optim.Optimizer),
            (Treatment.LOADER, DataLoader),
        ):
            if issubclass(cls, classes):
                return treatment
        return None

    def dims(self, tensor: Tensor) -> int:
        return tensor.dim()

    def size(self, tensor: Tensor, axis: int) -> int:
        return tensor.shape[axis]

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def cut(self, tensor: Tensor, count: int, axis: int) -> Iterable[Tensor]:
        try:
            return tensor.tensor_split(count, axis)
        except (RuntimeError, NotImplementedError) as error:
            if tensor.layout is torch.sparse_coo:  # cannot be viewed
                return _sparse_pieces(tensor, count, axis)
            raise Uncuttable(
                f"a tensor of layout {str(tensor.layout).removeprefix('torch.')}, which torch"
                f" cannot cut along axis {axis}; expected a dense or sparse COO tensor"
            ) from error

    def why_refused(self, value: Any) -> str:
        return (
            "a PackedSequence, whose tensors have no common batch axis; expected a tensor. Pass the"
            " padded tensor and the lengths, and pack them inside of the step function; or name the"
            " argument in non_split_inputs."
        )


_CUTTING = _TorchCutting()


class ArgumentSplitter(splitting.ArgumentSplitter):
    """Cuts the arguments of one step function; tensors into views, sparse ones into copies.

    Args: as `splitting.ArgumentSplitter`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        non_split_inputs: Iterable[str] | None = None,
        input_split_axes: Mapping[str, int] | None = None,
        ragged: bool = False,
    ) -> None:
        super().__init__(
            function,
            _CUTTING,
            non_split_inputs=non_split_inputs,
            input_split_axes=input_split_axes,
            ragged=ragged,
        )


def _sparse_pieces(tensor: Tensor, count: int, axis: int) -> list[Tensor]:
    size, larger = divmod(tensor.shape[axis], count)
    sizes = [size + (index < larger) for index in range(count)]
    starts = itertools.accumulate(sizes, initial=0)
    return [
        torch.narrow_copy(tensor, axis, start, length)
        for start, length in zip(starts, sizes, strict=False)
    ]
