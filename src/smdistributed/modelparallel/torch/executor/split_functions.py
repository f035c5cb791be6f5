# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Functions of torch whose backward pass can leave the gradients of weights for later.

Replaced, while there is a pipeline that defers them, are those that hold most of the work: linear
(attention and MLPs), addmm (Hugging Face's Conv1D) and convolutions; called with parameters of the
model as weights, and outside of autocast. All others compute their gradients at once.
"""

# torch's functions of autograd have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function, forward_ad
from torch.autograd.function import once_differentiable
from torch.nn import functional

from smdistributed.modelparallel.torch.executor import autograd_engine
from smdistributed.modelparallel.torch.executor.weight_gradients import Compute, WeightGradients

__all__ = ["install", "uninstall"]

_weights: WeightGradients | None = None
_parameters: frozenset[int] = frozenset()
_replaced: dict[tuple[Any, str], tuple[Any, Any]] = {}  # what was there, and what is now
_linear_before: Callable[..., Tensor] = functional.linear


def install(weights: WeightGradients, parameters: frozenset[int]) -> None:
    """From now on these functions leave gradients there, in steps that defer them.

    Args:
        parameters: of the model, by `id`. Others get theirs at once.
    """
    global _weights, _parameters, _linear_before
    _weights = weights
    _parameters = parameters
    if _replaced:
        return
    _linear_before = functional.linear
    splits: list[tuple[Any, str, Callable[..., Any]]] = [
        (functional, "linear", _linear),
        (torch, "addmm", _addmm),
        *((functional, f"conv{dims}d", _convolution(dims)) for dims in (1, 2, 3)),
    ]
    for place, name, function in splits:
        original = getattr(place, name)
        ours = functools.wraps(original)(functools.partial(function, original))
        _replaced[place, name] = original, ours
        setattr(place, name, ours)


def uninstall(weights: WeightGradients) -> None:
    """Gives them back, if they are of this pipeline, as far as nobody has replaced them since."""
    global _weights, _parameters
    if _weights is weights:
        _weights, _parameters = None, frozenset()
        for (place, name), (original, ours) in _replaced.items():
            if getattr(place, name) is ours:
                setattr(place, name, original)
        _replaced.clear()


def _can_split(input: Any, weight: Any, bias: Any) -> bool:
    return (
        _weights is not None
        and _weights.is_deferring
        and not torch.compiler.is_compiling()
        and type(input) is Tensor
        and input.layout is torch.strided
        and _is_ours(weight)
        and weight.requires_grad
        and not weight.is_complex()
        and (bias is None or _is_ours(bias))
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled(input.device.type)
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def _is_ours(parameter: Any) -> bool:
    """A parameter of the model whose gradient nobody wants to change on its way."""
    is_plain = type(parameter) is nn.Parameter and not parameter._backward_hooks
    return is_plain and id(parameter) in _parameters


def _linear(original: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    if not _can_split(input, weight, bias) or input.dim() < 2:
        return original(input, weight, bias)
    return _split(input, weight, _Linear(weight, bias, is_transposed=True))


def _addmm(original: Any, *args: Any, **options: Any) -> Any:
    if options or len(args) != 3 or not _can_split(args[1], args[2], args[0]):
        return original(*args, **options)
    bias, input, weight = args
    if bias.dim() != 1 or input.dim() != 2:
        return original(*args)
    return _split(input, weight, _Linear(weight, bias, is_transposed=False))


def _convolution(dims: int) -> Callable[..., Any]:
    def convolve(
        original: Any,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        if (
            not _can_split(input, weight, bias)
            or isinstance(padding, str)
            or input.dim() != dims + 2
        ):
            return original(input, weight, bias, stride, padding, dilation, groups)
        strides, paddings, dilations = (
            _for_each(value, dims) for value in (stride, padding, dilation)
        )
        return _split(
            input, weight, _Convolution(weight, bias, strides, paddings, dilations, groups)
        )

    return convolve


def _for_each(value: int | Sequence[int], dims: int) -> list[int]:
    """Of each dimension, where one number stands for all of them."""
    values = [value] if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 else values


def _split(input: Tensor, weight: Tensor, function: _Function) -> Tensor:
    # Detached: it is looked after for changes in place, and its node is not reached.
    result: Tensor = _Split.apply(_EDGE, input, weight.detach(), function, _weights)
    return result


class _Split(Function):
    """A function of an input, and of parameters whose nodes the backward pass does not reach.

    Their hooks would be called there, with nothing.
    """

    apply = autograd_engine.apply

    @staticmethod
    def forward(
        ctx: Any,
        edge: Tensor,
        input: Tensor,
        weight: Tensor,
        function: _Function,
        weights: WeightGradients,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(input, weight)
        ctx.function, ctx.weights = function, weights
        return function.result(input)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        of_input = None
        if gradient is not None:
            input, weight = ctx.saved_tensors
            with torch._C._DisableAutocast():
                if ctx.needs_input_grad[1]:
                    of_input = ctx.function.of_input(gradient, input, weight)
                # Not in a pass that does not go to leaves, as of torch.autograd.grad().
                if torch._C._will_engine_execute_node(_EDGE_NODE):
                    for parameter, compute in ctx.function.of_parameters(gradient, input):
                        if parameter.requires_grad:
                            ctx.weights.defer(parameter, input, compute)
        return None, of_input, None, None, None


class _Function(Protocol):
    def result(self, input: Tensor) -> Tensor: ...
    def of_input(self, gradient: Tensor, input: Tensor, weight: Tensor) -> Tensor: ...
    def of_parameters(
        self, gradient: Tensor, input: Tensor
    ) -> Iterator[tuple[nn.Parameter, Compute]]: ...


class _Linear:
    """`input @ weight.T + bias` of a weight that is transposed, or else `input @ weight + bias`."""

    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, *, is_transposed: bool
    ) -> None:
        self._weight = weight
        self._bias = bias
        self._is_transposed = is_transposed

    def result(self, input: Tensor) -> Tensor:
        weight = self._weight if self._is_transposed else self._weight.t()
        return _linear_before(input, weight, self._bias)

    def of_input(self, gradient: Tensor, input: Tensor, weight: Tensor) -> Tensor:
        return gradient @ (weight if self._is_transposed else weight.t())

    def of_parameters(
        self, gradient: Tensor, input: Tensor
    ) -> Iterator[tuple[nn.Parameter, Compute]]:
        rows = gradient.reshape(-1, gradient.shape[-1])
        inputs = input.reshape(-1, input.shape[-1])
        left, right = (rows, inputs) if self._is_transposed else (inputs, rows)
        yield self._weight, lambda sum_: _product(sum_, left.t(), right)
        if self._bias is not None:
            yield self._bias, lambda sum_: _added(sum_, rows.sum(0))


class _Convolution:
    """Of any number of dimensions."""

    def __init__(
        self,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
    ) -> None:
        self._weight = weight
        self._bias = bias
        self._options = (stride, padding, dilation, False, [0] * len(stride), groups)

    def result(self, input: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten.convolution(input, self._weight, self._bias, *self._options)
        return result

    def of_input(self, gradient: Tensor, input: Tensor, weight: Tensor) -> Tensor:
        return self._gradient(gradient, input, 0)

    def of_parameters(
        self, gradient: Tensor, input: Tensor
    ) -> Iterator[tuple[nn.Parameter, Compute]]:
        yield self._weight, lambda sum_: _added(sum_, self._gradient(gradient, input, 1))
        if self._bias is not None:
            yield self._bias, lambda sum_: _added(sum_, self._gradient(gradient, input, 2))

    def _gradient(self, gradient: Tensor, input: Tensor, number: int) -> Tensor:
        sizes = None if self._bias is None else list(self._bias.shape)
        mask = [number == each for each in range(3)]
        found: Tensor = torch.ops.aten.convolution_backward(
            gradient, input, self._weight, sizes, *self._options, mask
        )[number]
        return found


def _product(sum_: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    if sum_ is None:
        return left @ right
    return sum_.addmm_(left, right) if sum_.dtype is left.dtype else sum_.add_(left @ right)


def _added(sum_: Tensor | None, gradient: Tensor) -> Tensor:
    return gradient if sum_ is None else sum_.add_(gradient)


# So that there is a node where no input requires grad.
_EDGE = torch.empty(0, requires_grad=True)
_EDGE_NODE = torch.autograd.graph.get_gradient_edge(_EDGE).node
