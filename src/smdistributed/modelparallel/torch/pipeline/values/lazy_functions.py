# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""torch functions that go to where their argument is made, instead of waiting for it.

So a loss is computed on the rank of the last module, whose backward pass can begin at once, and of
a large result that is only reduced here a number travels. All of them return one tensor and change
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary

__all__ = [
    "FUNCTIONS",
    "SMALL_BYTES",
    "is_constant",
    "is_loss",
    "may_alias",
    "number_of",
    "widened",
]

# What a function that is no loss may bring along; else its argument is waited for.
SMALL_BYTES = 64 << 10

_LOSSES = (
    "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy"
    " gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss"
    " multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss nll_loss"
    " poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss"
)
_OTHERS = "gelu log_softmax normalize relu sigmoid silu softmax softplus tanh"
_OF_TENSORS = (
    "abs add argmax contiguous detach div double eq exp flatten float log log_softmax"
    " logsumexp matmul mean mul neg permute pow relu reshape rsqrt sigmoid softmax sqrt square"
    " squeeze sub sum tanh transpose true_divide unsqueeze view __getitem__ __radd__ __rmul__"
    " __rsub__ __rtruediv__ __rdiv__"
)


def widened(tensor: Tensor) -> Tensor:
    """16-bit floats in fp32, other tensors as they are; so goes a result that is not here yet."""
    if has_torch_function_unary(tensor):
        result: Tensor = handle_torch_function(widened, (tensor,), tensor)
        return result
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _all() -> Iterator[tuple[str, Callable[..., Any]]]:
    for owner, names in ((functional, _LOSSES), (functional, _OTHERS), (Tensor, _OF_TENSORS)):
        for name in names.split():
            yield f"{owner.__name__}.{name}", getattr(owner, name)
    for name in _OF_TENSORS.split():
        if hasattr(torch, name):
            yield f"torch.{name}", getattr(torch, name)
    yield "ours.widened", widened


# By number; every rank has the same torch.
FUNCTIONS: list[tuple[str, Callable[..., Any]]] = list(_all())
_NUMBERS = {function: number for number, (_, function) in reversed(list(enumerate(FUNCTIONS)))}
_NUM_LOSSES = len(_LOSSES.split())


# What they return may share memory with their first argument.
_ALIASING = {"contiguous", "detach", "double", "flatten", "float", "permute", "reshape"}
_ALIASING |= {"squeeze", "transpose", "unsqueeze", "view", "widened", "__getitem__"}
_ALIASES = frozenset(
    number for number, (name, _) in enumerate(FUNCTIONS) if name.split(".")[1] in _ALIASING
)
_CONSTANTS = frozenset(
    number
    for number, (name, _) in enumerate(FUNCTIONS)
    if name.split(".")[1] in {"argmax", "detach", "eq"}
)
_MAY_CHANGE = (functional.relu, functional.silu)  # by their second argument


def number_of(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int | None:
    """Of a function that can go elsewhere; None if it must not, as it changes what it is given."""
    try:
        number = _NUMBERS.get(function)
    except TypeError:  # not hashable
        return None
    if kwargs and (kwargs.get("inplace") or kwargs.get("out") is not None):
        return None
    if len(args) > 1 and args[1] is True and function in _MAY_CHANGE:
        return None
    return number


def may_alias(number: int) -> bool:
    """Whether what the function returns may share memory with its first argument."""
    return number in _ALIASES


def is_constant(number: int) -> bool:
    """Whether no gradient flows through what the function returns."""
    return number in _CONSTANTS


def is_loss(number: int) -> bool:
    """Whether it makes one number of its arguments, however many these are."""
    return number < _NUM_LOSSES
