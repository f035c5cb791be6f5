# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments go to the model's device. The meta device stands for one that is not the CPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.torch.job import initialization
from smdistributed.modelparallel.torch.modules.placement import absent_like
from smdistributed.modelparallel.torch.pipeline.devices import arguments_on
from smdistributed.modelparallel.torch.pipeline.values.deferred import Deferred

META = torch.device("meta")


def _moved(value: Any) -> Any:
    (positional,), by_name = arguments_on(META, (value,), {"x": value})
    assert type(positional) is type(by_name["x"])
    return positional


@dataclasses.dataclass
class Batch:
    ids: Tensor
    mask: Tensor | None = None


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_tensors_go_there(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    moved = _moved(torch.zeros(shape, dtype=dtype))
    assert (moved.device, moved.shape, moved.dtype) == (META, shape, dtype)


def test_containers_are_the_same_around_tensors_that_moved() -> None:
    there = torch.zeros(2, device=META)
    moved = _moved({"a": [torch.ones(2), "text"], "b": Batch(torch.ones(3)), "c": (there, None)})
    assert moved["a"][0].device == moved["b"].ids.device == META
    assert moved["a"][1] == "text"
    assert moved["b"].mask is None
    assert moved["c"][0] is there


@pytest.mark.parametrize("value", [None, 3, "text", nn.Linear(1, 1), object()])
def test_what_is_no_tensor_stays_what_it_is(value: Any) -> None:
    assert _moved(value) is value


def test_an_argument_of_which_nothing_moves_is_the_same_object() -> None:
    for value in (
        [torch.zeros(1, device=META), 1],
        {"a": None},
        Batch(torch.zeros(1, device=META)),
    ):
        assert _moved(value) is value


def test_gradients_find_their_way_back() -> None:
    x = torch.ones(2, requires_grad=True)
    moved = _moved(x)
    assert moved.requires_grad
    assert not moved.is_leaf


def test_sizes_of_a_packed_sequence_stay() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = _moved([packed])[0]
    assert isinstance(moved, PackedSequence)
    assert (moved.data.device, moved.batch_sizes.device.type) == (META, "cpu")
    assert _moved([moved])[0] is moved


def test_what_stands_for_something_elsewhere_stays() -> None:
    placeholder = Deferred._make_wrapper_subclass(Deferred, (0,))  # type: ignore[attr-defined]
    assert _moved(placeholder) is placeholder
    parameter = nn.Parameter(torch.ones(3))
    parameter.data = absent_like(parameter.data)
    assert _moved(parameter) is parameter
    assert _moved(nn.Parameter(torch.ones(3))).device == META


class Net(nn.Module):
    """Notes what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(3, 2)
        self.seen: list[Any] = []

    def forward(self, batch: dict[str, Tensor], scale: Tensor | None = None) -> Tensor:
        self.seen.append((batch, scale))
        result: Tensor = self.dense(batch["x"])
        return result if scale is None else result * scale


@pytest.fixture
def elsewhere(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device of this rank is not the CPU."""
    monkeypatch.setattr(initialization, "_device", lambda local_rank: META)


@pytest.mark.usefixtures("elsewhere")
def test_a_model_that_is_elsewhere_is_called_with_what_is_there() -> None:
    smp.init({"microbatches": 2})
    with META:
        net = Net()
    model = smp.DistributedModel(net)
    batch = {"x": torch.ones(4, 3)}
    assert model(batch, scale=torch.tensor(2.0)).device == META
    (seen, scale) = net.seen.pop()
    assert seen["x"].device == scale.device == META
    assert batch["x"].device.type == "cpu", "the caller's own is left alone"

    @smp.step
    def step(model: Any, batch: dict[str, Tensor]) -> Tensor:
        result: Tensor = model(batch)
        return result

    outputs = step(model, batch)
    assert [each.device for each in outputs.outputs] == [META, META]
    assert [batch["x"].shape for batch, _ in net.seen] == [(2, 3), (2, 3)]


@pytest.mark.usefixtures("alone")
def test_a_model_in_cpu_memory_is_called_with_what_is_given() -> None:
    smp.init({})
    model = smp.DistributedModel(Net())
    batch = {"x": torch.ones(4, 3)}
    model(batch)
    assert model.get_module().seen.pop()[0] is batch
    with META:
        other = {"x": torch.ones(4, 3)}
    with pytest.raises(RuntimeError, match="device"):
        model(other)
