# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is said of each tensor function that runs where its argument is made is true of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from smdistributed.modelparallel.torch.pipeline.values.lazy_functions import (
    FUNCTIONS,
    is_constant,
    may_alias,
    number_of,
)

# Of a tensor of shape (2, 3); those that are not here take nothing else.
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("add", "div", "eq", "mul", "pow", "sub", "true_divide"), (2,)),
    **dict.fromkeys(("__radd__", "__rdiv__", "__rmul__", "__rsub__", "__rtruediv__"), (2,)),
    **dict.fromkeys(("log_softmax", "logsumexp", "softmax", "unsqueeze", "__getitem__"), (0,)),
    **dict.fromkeys(("reshape", "view"), (6,)),
    **dict.fromkeys(("permute", "transpose"), (1, 0)),
    "matmul": (torch.ones(3, 2),),
}
_OF_TENSORS = [
    (number, name, function)
    for number, (name, function) in enumerate(FUNCTIONS)
    if name.startswith("Tensor.")
]


@pytest.mark.parametrize(("number", "name", "function"), _OF_TENSORS)
def test_a_result_is_what_is_said_of_it(number: int, name: str, function: Any) -> None:
    tensor = torch.rand(2, 3, requires_grad=True)
    arguments = _ARGUMENTS.get(name.split(".")[1], ())
    found = number_of(function, (tensor, *arguments), {})
    assert found is not None
    assert FUNCTIONS[found][1] is function  # some have two names
    result = function(tensor, *arguments)
    assert isinstance(result, Tensor), "FUNCTIONS return one tensor"
    same = result.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    assert may_alias(number) or not same, "add its name to _ALIASING"
    assert is_constant(number) != result.requires_grad, "see _CONSTANTS"
    assert tensor._version == 0, "a function that changes its argument must not go elsewhere"
