# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What of a model is in 16 bits, and what goes in and comes out."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from smdistributed.modelparallel.torch.optimizer.sixteen_bit.casting import (
    SixteenBitModule,
    cast_module,
)
from smdistributed.modelparallel.torch.pipeline.values.deferred import Deferred
from smdistributed.modelparallel.torch.pipeline.values.lazy_functions import widened

DTYPES = (torch.float16, torch.bfloat16)
dtypes = pytest.mark.parametrize("dtype", DTYPES)

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Record:
    value: Any
    name: str = "record"


class Everything(nn.Module):
    """Parameters and buffers of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.linear.weight
        self.norms = nn.ModuleList(
            [nn.BatchNorm1d(3), nn.BatchNorm2d(3, affine=False), nn.InstanceNorm1d(3, affine=True)]
        )
        self.layer_norm = nn.LayerNorm(3)
        self.wide = nn.Parameter(torch.zeros(2, dtype=torch.float64), requires_grad=False)
        self.register_buffer("mask", torch.ones(3))
        self.register_buffer("ids", torch.arange(3))
        self.register_buffer("flags", torch.ones(3, dtype=torch.bool))
        self.register_buffer("waves", torch.ones(3, dtype=torch.complex64), persistent=False)


@dtypes
def test_parameters_and_buffers(dtype: torch.dtype) -> None:
    net = Everything()
    net.norms[0].to(dtype)
    objects = dict((*net.named_parameters(), *net.named_buffers()))
    values = {name: tensor.detach().clone() for name, tensor in objects.items()}
    net.linear.bias.grad = torch.ones(3)
    cast_module(net, dtype)
    found = dict((*net.named_parameters(), *net.named_buffers()))
    assert list(found) == list(objects)
    for name, tensor in found.items():
        assert tensor is objects[name], name
        expected = dtype
        if values[name].dtype in (torch.int64, torch.bool, torch.complex64):
            expected = values[name].dtype
        elif name.startswith("norms."):
            expected = torch.float32
        assert tensor.dtype == expected, name
        assert torch.equal(tensor, values[name].to(tensor.dtype)), name
    assert net.tied.weight is net.linear.weight
    assert net.linear.bias.grad.dtype is dtype


@dtypes
def test_running_statistics_move_as_in_fp32(dtype: torch.dtype) -> None:
    """In 16 bits the mean would stop where a tenth of the difference is below half a unit."""
    torch.manual_seed(0)
    net, plain = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    cast_module(net, dtype)
    for _ in range(50):
        x = torch.randn(16, 4).to(dtype) + 100
        net(x)
        plain(x.float())
    torch.testing.assert_close(net.running_mean, plain.running_mean, rtol=1e-5, atol=0)
    torch.testing.assert_close(net.running_var, plain.running_var, rtol=1e-5, atol=0)


class Echo(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


@dtypes
def test_structures_of_inputs_and_outputs(dtype: torch.dtype) -> None:
    seen = []

    class Watch(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            seen.append((args, kwargs))
            return args, kwargs

    module = SixteenBitModule(Watch(), dtype)
    ids, flags = torch.arange(3), torch.ones(2, dtype=torch.bool)
    waves, name = torch.ones(2, dtype=torch.complex64), object()
    args = (
        torch.ones(2),
        [torch.ones(2, dtype=torch.float64), (ids, None)],
        {"a": flags, "b": collections.OrderedDict(c=torch.zeros(1))},
        Point(torch.ones(1), waves),
        Record(torch.ones(1)),
    )
    (returned, kwargs) = module(*args, mask=torch.ones(3, dtype=DTYPES[0]), number=2.5, tag=name)
    inside, inside_kwargs = seen[0]
    for values, expected in ((inside, dtype), (returned, torch.float32)):
        assert values[0].dtype is expected
        assert values[1][0].dtype is expected
        assert values[1][1][0] is ids
        assert values[1][1][1] is None
        assert values[2]["a"] is flags
        assert type(values[2]["b"]) is collections.OrderedDict
        assert values[2]["b"]["c"].dtype is expected
        assert type(values[3]) is Point
        assert values[3].x.dtype is expected
        assert values[3].y is waves
        assert type(values[4]) is Record
        assert values[4].value.dtype is expected
    assert inside_kwargs["mask"].dtype is dtype
    assert kwargs["mask"].dtype is torch.float32
    assert kwargs["number"] == 2.5
    assert kwargs["tag"] is name


def test_what_needs_no_cast_stays_the_same_object() -> None:
    module = SixteenBitModule(Echo(), torch.float16)
    given: list[Any] = [torch.arange(2), {"flag": torch.ones(1, dtype=torch.bool)}]
    assert module.cast_down(given) is given
    assert module.cast_up(given) is given
    half = torch.ones(2, dtype=torch.float16)
    assert module.cast_down(half) is half
    parameter = nn.Parameter(torch.ones(2))
    assert module.cast_down([parameter])[0] is parameter
    packed = module.cast_down(pack_sequence([torch.ones(2, 1), torch.ones(1, 1)]))
    assert packed.data.dtype is torch.float16
    assert packed.batch_sizes.dtype is torch.int64


def test_gradients_go_through_both_casts() -> None:
    linear = nn.Linear(2, 2)
    cast_module(linear, torch.bfloat16)
    module = SixteenBitModule(linear, torch.bfloat16)
    x = torch.ones(1, 2, requires_grad=True)
    result = module(x)
    assert result.dtype is torch.float32
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.float32
    assert linear.weight.grad is not None
    assert linear.weight.grad.dtype is torch.bfloat16


def test_it_shows_what_it_wraps() -> None:
    linear = nn.Linear(2, 2)
    module = SixteenBitModule(linear, torch.float16)
    assert module.module is linear
    assert module.in_features == 2


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32, torch.float64, torch.int64, torch.bool])
def test_widened(dtype: torch.dtype) -> None:
    tensor = torch.ones(2, dtype=dtype)
    result = widened(tensor)
    assert (result is tensor) == (dtype not in DTYPES)
    assert result.dtype is (torch.float32 if dtype in DTYPES else dtype)


def test_widening_a_result_that_has_arrived_takes_its_tensor() -> None:
    placeholder = Tensor._make_wrapper_subclass(Deferred, (0,))
    placeholder.made_from = None
    placeholder.tensor = torch.ones(2, dtype=torch.float16)
    assert torch.equal(SixteenBitModule.cast_up([placeholder])[0], torch.ones(2))
