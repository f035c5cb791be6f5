# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks to make a model in: `smp.delay_param_initialization` and `smp.model_creation`.

    with smp.model_creation(dtype=torch.bfloat16):
        model = Net()                            # parameters take no memory yet
    model = smp.DistributedModel(model)          # each rank gets its own when they are placed

Source: modelparallel specification, section 6.5.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from smdistributed.modelparallel.torch.delayed_initialization import recording

__all__ = ["delay_param_initialization", "model_creation"]

# Of modules whose parts are on several ranks, and `zero_init` of sharded parameters.
_KNOWN = (
    "alibi_bias_max",
    "attention_in_fp32",
    "distribute_embedding",
    "flash_attention",
    "fp32_residual_addition",
    "fused_bias_gelu",
    "fused_dropout",
    "fused_softmax",
    "query_key_layer_scaling",
    "reorder_and_upcast_attn",
    "scale_attention_scores",
    "scale_attn_by_layer_idx",
    "use_alibi",
    "zero_init",
)


@contextlib.contextmanager
def delay_param_initialization(enabled: bool = True) -> Iterator[None]:
    """Parameters of modules that are made in this block take no memory until they are placed.

    They are on the meta device then. Once `smp.DistributedModel` knows where they belong, each rank
    computes the values of its own: those that they would have without the block, with the same
    seed; buffers have theirs at once. Also a decorator, of the function that makes the model. Of
    nested blocks the innermost counts.

    What changes parameters before they are placed must be in such a block too, or it is lost, with
    a warning where that can be seen.

    Args:
        enabled: False: modules are made as ever.
    """
    with recording(enabled):
        yield


@contextlib.contextmanager
def model_creation(
    tensor_parallelism: bool = False,
    dtype: torch.dtype | None = None,
    **tensor_parallel_config: Any,
) -> Iterator[None]:
    """A block, or decorator, to make a model in: parameters are delayed, in a dtype of choice.

    Args:
        tensor_parallelism: has no effect, as no module is cut yet.
        dtype: torch's default dtype in the block; None: as it is.
        tensor_parallel_config: options of such modules; of no effect either.

    Raises:
        TypeError: an option that is none; torch's, of a dtype that cannot be the default.
    """
    unknown = sorted(tensor_parallel_config.keys() - _KNOWN)
    if unknown:
        raise TypeError(
            f"smp.model_creation() got {', '.join(unknown)}; expected tensor_parallelism, dtype,"
            f" and of {', '.join(_KNOWN)}. Correct the name, or leave it out."
        )
    before = torch.get_default_dtype()
    try:
        if dtype is not None:
            torch.set_default_dtype(dtype)
        with recording():
            yield
    finally:
        torch.set_default_dtype(before)
