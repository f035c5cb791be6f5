# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How long the operations of a traced step take: a guess from their types and shapes.

All ranks guess the same of what they have traced alike, as nothing else is looked at. So the order
in which they run segments may follow from it.

Source: our choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from smdistributed.modelparallel.tensorflow.graph.reading import Reader

__all__ = ["Costs"]

# Of one thread of a CPU, in seconds: to begin an operation; for a multiplication with its addition;
# to read or write an element; to make one by a function such as `exp`.
_BEGIN_S = 3e-6
_MULTIPLY_S = 3e-11
_ELEMENT_S = 3e-10
_FUNCTION_S = 2e-9
_FUNCTIONS = frozenset(
    (
        "Elu", "Erf", "Erfc", "Exp", "Expm1", "Log", "Log1p", "LogSoftmax", "Pow", "Selu",
        "Sigmoid", "Softmax", "SoftmaxCrossEntropyWithLogits", "Softplus",
        "SparseSoftmaxCrossEntropyWithLogits", "Tanh",
    )
)  # fmt: skip
_FREE = frozenset(("Reshape", "Identity", "Shape", "ExpandDims", "Squeeze", "StopGradient", "NoOp"))


class Costs:
    """Of one traced step.

    Args:
        reader: its operations.
    """

    def __init__(self, reader: Reader) -> None:
        self._operations = reader.operations
        self._found: dict[int, float] = {}

    def seconds_of(self, number: int) -> float:
        """Guessed seconds of an operation, for one microbatch.

        Args:
            number: of the operation in the reader.
        """
        if number not in self._found:
            self._found[number] = _seconds_of(self._operations[number])
        return self._found[number]


def _seconds_of(op: Any) -> float:
    if op.type in _FREE:
        return 0.0
    given = [_elements(each) for each in op.inputs]
    made = [_elements(each) for each in op.outputs]
    touched = sum(given) + sum(made)
    multiplied = _multiplications(op, given, made)
    function_s = sum(made) * _FUNCTION_S if op.type in _FUNCTIONS else 0.0
    return _BEGIN_S + touched * _ELEMENT_S + multiplied * _MULTIPLY_S + function_s


def _multiplications(op: Any, given: Sequence[int], made: Sequence[int]) -> float:
    if op.type == "MatMul" or op.type.startswith("BatchMatMul"):
        transposes = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
        shape = op.inputs[0].shape
        if shape.rank is None or shape.rank < 2:
            return 0.0
        return float(made[0] * (shape[-2 if transposes else -1] or 1))
    if op.type == "Einsum" and len(given) == 2:
        # Of sizes mk, kn and mn this is mkn.
        return math.sqrt(given[0] * given[1] * made[0])
    if "Conv" in op.type and len(given) > 1:
        return _of_convolution(op, given, made)
    return 0.0


def _of_convolution(op: Any, given: Sequence[int], made: Sequence[int]) -> float:
    """Each element of the output takes the filter's elements for one channel."""
    if "BackpropFilter" in op.type:
        weights, outputs, channels = made[0], given[-1], op.outputs[0].shape
    elif "BackpropInput" in op.type:
        weights, outputs, channels = given[1], given[-1], op.inputs[1].shape
    else:
        weights, outputs, channels = given[1], made[0], op.inputs[1].shape
    last = channels[-1] if channels.rank else 1
    return float(outputs * weights / (last or 1))


def _elements(tensor: Any) -> int:
    """Of a shape that is known in part, what is known."""
    if tensor.shape.rank is None:
        return 1
    return math.prod(each or 1 for each in tensor.shape.as_list())
