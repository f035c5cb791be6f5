# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Backward passes that leave the gradients of weights for later, against torch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from smdistributed.modelparallel.torch.executor import split_functions
from smdistributed.modelparallel.torch.executor.weight_gradients import WeightGradients

_passes = [0]  # each of a microbatch of its own


class Everything(frozenset[int]):
    """The parameters of every model."""

    def __contains__(self, _: object) -> bool:
        return True


@pytest.fixture
def weights() -> Iterator[WeightGradients]:
    """Of a step that defers."""
    weights = WeightGradients(lambda: _passes[-1])
    weights.begin_step(True)
    split_functions.install(weights, Everything())
    yield weights
    split_functions.uninstall(weights)


class _Conv1D(nn.Module):
    """As Hugging Face's: a weight that is laid out the other way."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.reshape(-1, 5), self.weight)
        return flat.view(*x.shape[:-1], 3)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 3), (7, 5)),
    "linear of a sequence": (lambda: nn.Linear(5, 3), (2, 4, 5)),
    "linear without bias": (lambda: nn.Linear(5, 3, bias=False), (2, 3, 5)),
    "linear of no rows": (lambda: nn.Linear(5, 3), (0, 5)),
    "linear of one": (lambda: nn.Linear(1, 1), (1, 1)),
    "linear in double": (lambda: nn.Linear(5, 3, dtype=torch.float64), (7, 5)),
    "Hugging Face's Conv1D": (_Conv1D, (2, 4, 5)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), groups=2), (2, 4, 9, 8)),
    "conv2d, dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=2, bias=False), (2, 4, 9, 8)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 3, 4, 3)),
    "attention": (lambda: _Attention(), (3, 2, 8)),
}


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return result


def _run(module: nn.Module, inputs: list[Tensor]) -> list[Tensor | None]:
    """Backward passes of each input. Returns: gradients, of inputs and then of parameters."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    for x in inputs:
        _passes.append(_passes[-1] + 1)
        result = module(x)
        result.backward(torch.linspace(-1, 1, result.numel(), dtype=x.dtype).view(result.shape))
    return [x.grad for x in inputs] + [p.grad for p in module.parameters()]


def _inputs(name: str) -> list[Tensor]:
    dtype = torch.float64 if "double" in name else torch.float32
    return [torch.randn(MODULES[name][1], dtype=dtype) for _ in range(3)]


def _finish(weights: WeightGradients) -> int:
    count = 0
    while weights:
        weights.run_next()
        count += 1
    return count


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("comes_last", [False, True])
def test_gradients_are_torchs(name: str, comes_last: bool, weights: WeightGradients) -> None:
    torch.manual_seed(0)
    module, inputs = MODULES[name][0](), _inputs(name)
    weights.begin_step(False)
    expected = _run(module, inputs)
    module.zero_grad()
    weights.begin_step(True)
    at_once = _run(module, inputs)
    torch.testing.assert_close(at_once[:3], expected[:3])
    assert weights, "nothing was left for later"
    assert at_once[3:] == [None] * len(at_once[3:])
    if comes_last:
        weights.end_passes()
    count = _finish(weights)
    found = [p.grad for p in module.parameters()]
    torch.testing.assert_close(found, expected[3:])
    assert count == len(found) * (1 if comes_last else len(inputs))


def test_what_comes_last_is_one_backward_pass_for_each_parameter(weights: WeightGradients) -> None:
    """Who reduces a gradient over replicas takes the first that comes for all of it."""
    module = nn.Linear(5, 3)
    told: list[Tensor] = []
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(told.append)
    _run(module, [torch.randn(2, 5) for _ in range(3)])
    weights.run_next()
    assert len(told) == 1
    weights.end_passes()
    _finish(weights)
    assert [id(each) for each in told[1:]] == [id(module.bias), id(module.weight)]


def test_a_parameter_whose_hook_changes_its_gradient_is_left_alone(
    weights: WeightGradients,
) -> None:
    module = nn.Linear(5, 3, bias=False)
    x = torch.randn(2, 5)
    module.weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    _run(module, [x])
    assert not weights
    expected = torch.linspace(-1, 1, 6).view(2, 3).t() @ x
    torch.testing.assert_close(module.weight.grad, expected.clamp(-0.1, 0.1))


def test_a_weight_that_is_used_twice_gets_both(weights: WeightGradients) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.inner(self.inner(x).relu())
            return result

    module, inputs = Twice(), [torch.randn(3, 4)]
    weights.begin_step(False)
    expected = _run(module, inputs)
    module.zero_grad()
    weights.begin_step(True)
    _run(module, inputs)
    assert _finish(weights) == 2  # a pass brings each parameter one gradient, as torch's does
    torch.testing.assert_close([p.grad for p in module.parameters()], expected[1:])


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_what_is_computed_again_is_split_too(is_reentrant: bool, weights: WeightGradients) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))

    def recomputed(x: Tensor) -> Any:
        return checkpoint(module, x, use_reentrant=is_reentrant)

    x = torch.randn(3, 4)
    weights.begin_step(False)
    expected = _run(module, [x])
    module.zero_grad()
    weights.begin_step(True)
    recomputed(x.clone().requires_grad_()).backward(torch.linspace(-1, 1, 6).view(3, 2))
    assert _finish(weights) == 4
    torch.testing.assert_close([p.grad for p in module.parameters()], expected[1:])


@pytest.mark.filterwarnings("ignore:This overload of addmm is deprecated")
def test_what_cannot_be_split_is_torchs_own(weights: WeightGradients) -> None:
    linear, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    frozen = nn.Linear(4, 4).requires_grad_(False)
    frozen(x).sum().backward()
    functional.linear(x, linear.weight * 2).sum().backward()  # it is no parameter
    with torch.autocast("cpu", dtype=torch.bfloat16):
        linear(x).float().sum().backward()
    linear(x[0]).sum().backward()
    nn.Conv2d(1, 1, 3, padding="same")(torch.randn(1, 1, 5, 5)).sum().backward()
    torch.addmm(1, linear.bias, x, linear.weight).sum().backward()  # type: ignore[call-overload]
    torch.addmm(linear.bias, x, linear.weight, beta=2).sum().backward()
    torch.func.jacrev(linear)(torch.randn(2, 4))
    nn.Linear(4, 4, dtype=torch.complex64)(x + 1j).abs().sum().backward()
    assert not weights
    with torch.no_grad():
        assert not linear(x).requires_grad


def test_others_parameters_get_their_gradients_at_once() -> None:
    weights = WeightGradients(lambda: 0)
    weights.begin_step(True)
    linear, other = nn.Linear(4, 4), nn.Linear(4, 4)
    split_functions.install(weights, frozenset(map(id, linear.parameters())))
    try:
        other(torch.randn(2, 4)).sum().backward()
        assert other.weight.grad is not None
        assert not weights
        linear(torch.randn(2, 4)).sum().backward()
        assert linear.weight.grad is None
        assert weights
    finally:
        split_functions.uninstall(weights)


def test_a_gradient_that_is_asked_for_adds_to_no_parameter(weights: WeightGradients) -> None:
    linear, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    y = linear(x)
    (asked,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert not weights
    torch.testing.assert_close(asked, linear.weight.sum(0).expand(3, 4))
    y.sum().backward()
    assert weights


def test_what_is_changed_in_place_too_early_is_an_error(weights: WeightGradients) -> None:
    linear, x = nn.Linear(4, 4), torch.randn(3, 4)
    linear(x).sum().backward()
    x.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        weights.run_next()
    weights.begin_step(True)
    y = linear(torch.randn(3, 4, requires_grad=True)).sum()
    with torch.no_grad():
        linear.weight.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_gradients_have_their_dtype_under_anybodys_autocast(weights: WeightGradients) -> None:
    linear, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            y = linear(x).sum()
        y.backward()
        _finish(weights)
    assert x.grad is not None
    assert x.grad.dtype is torch.float32
    assert linear.weight.grad is not None
    assert linear.weight.grad.dtype is torch.float32


def test_torch_is_itself_again_without_a_pipeline() -> None:
    functions = functional.linear, torch.addmm, functional.conv2d
    weights = WeightGradients(lambda: 0)
    split_functions.install(weights, frozenset())
    assert functional.linear is not functions[0]
    split_functions.uninstall(weights)
    assert (functional.linear, torch.addmm, functional.conv2d) == functions
