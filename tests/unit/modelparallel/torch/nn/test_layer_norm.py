# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.nn.FusedLayerNorm` beside `torch.nn.LayerNorm`, on the CPU and on a GPU."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import smdistributed.modelparallel.torch as smp

SHAPES = [(7, (7,)), ((7,), (7,)), ([3, 7], (3, 7)), (torch.Size((5, 3, 7)), (5, 3, 7)), (1, (1,))]


@pytest.mark.parametrize(("given", "shape"), SHAPES)
@pytest.mark.parametrize("affine", [True, False])
def test_it_is_torch_s(
    given: int | tuple[int, ...] | list[int], shape: tuple[int, ...], affine: bool
) -> None:
    torch.manual_seed(0)
    ours = smp.nn.FusedLayerNorm(given, eps=1e-3, elementwise_affine=affine)
    theirs = nn.LayerNorm(shape, eps=1e-3, elementwise_affine=affine)
    assert isinstance(smp.nn.FusedLayerNorm, type)
    assert isinstance(ours, nn.Module)
    assert ours.normalized_shape == torch.Size(shape)
    if affine:
        nn.init.normal_(theirs.weight)
        nn.init.normal_(theirs.bias)
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == (["weight", "bias"] if affine else [])
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(4, *shape)
    inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    results = [module(each) for module, each in zip((ours, theirs), inputs, strict=True)]
    assert torch.equal(*results)
    for result in results:
        result.square().sum().backward()
    assert inputs[0].grad is not None
    assert inputs[1].grad is not None
    assert torch.equal(inputs[0].grad, inputs[1].grad)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert torch.equal(mine.grad, other.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("parameters_too", [True, False])
def test_the_result_has_the_dtype_of_the_input(dtype: torch.dtype, parameters_too: bool) -> None:
    module = smp.nn.FusedLayerNorm(33)
    if parameters_too or dtype is torch.float64:
        module = module.to(dtype)
    x = torch.randn(5, 33, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    result = module(x)
    assert result.dtype is dtype
    expected = nn.functional.layer_norm(x.detach().double(), (33,))
    bound = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(result.detach().double(), expected, rtol=bound, atol=bound)
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is dtype
    assert module.weight is not None
    assert module.weight.grad is not None
    assert module.weight.grad.dtype is module.weight.dtype


def test_it_begins_as_the_identity_and_can_begin_anew() -> None:
    module = smp.nn.FusedLayerNorm((2, 3))
    assert module.weight is not None
    assert module.bias is not None
    with torch.no_grad():
        module.weight.fill_(3.0)
        module.bias.fill_(3.0)
    module.reset_parameters()
    assert bool((module.weight == 1).all())
    assert not module.bias.any()
    assert repr(module) == "FusedLayerNorm((2, 3), eps=1e-05, elementwise_affine=True)"


def test_a_shape_that_does_not_fit() -> None:
    with pytest.raises(RuntimeError, match="normalized_shape"):
        smp.nn.FusedLayerNorm(4)(torch.zeros(2, 5))


def test_copies_pickles_and_no_rows() -> None:
    module = smp.nn.FusedLayerNorm(4)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(
            other(torch.arange(8.0).view(2, 4)), module(torch.arange(8.0).view(2, 4))
        )
    assert module(torch.zeros(0, 4)).shape == (0, 4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_a_gpu(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = smp.nn.FusedLayerNorm(1023).cuda()
    reference = nn.LayerNorm(1023).cuda().double()
    x = torch.randn(300, 1023, device="cuda").to(dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    found, expected = module(x), reference(wide)
    dy = torch.randn_like(expected)
    found.backward(dy.to(dtype))
    expected.backward(dy.to(dtype).double())
    bound = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}[dtype]
    assert module.weight is not None
    for mine, theirs in ((found, expected), (x.grad, wide.grad)):
        assert mine is not None
        assert theirs is not None
        torch.testing.assert_close(mine.double(), theirs, rtol=bound, atol=bound)
    assert module.weight.grad is not None
    assert reference.weight.grad is not None
    torch.testing.assert_close(
        module.weight.grad.double(), reference.weight.grad, rtol=bound, atol=1e-2
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_autocast_on_a_gpu() -> None:
    module = smp.nn.FusedLayerNorm(64).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        assert module(torch.randn(3, 64, device="cuda")).dtype is torch.float16
