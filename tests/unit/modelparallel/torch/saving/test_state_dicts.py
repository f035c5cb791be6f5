# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The model's state in one process: torch's own, under the user's names (specification, 4.4)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.torch.saving.state_dicts import snapshot

pytestmark = pytest.mark.usefixtures("alone")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight
        self.told = 0

    def get_extra_state(self) -> Any:
        return {"told": self.told}

    def set_extra_state(self, state: Any) -> None:
        self.told = state["told"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.norm(self.first(x)))
        return result


@pytest.mark.parametrize("ddp", [False, True])
def test_one_partition(ddp: bool) -> None:
    smp.init({"ddp": ddp})
    plain = Net()
    model = smp.DistributedModel(copy.deepcopy(plain))
    expected = plain.state_dict()
    for found in (model.state_dict(), model.state_dict(gather_to_rank0=True)):
        assert list(found) == list(expected)
        assert found._metadata == expected._metadata
        assert found["last.weight"].data_ptr() == found["first.weight"].data_ptr()
    assert found["first.weight"].data_ptr() == model.get_module().first.weight.data_ptr()
    part = copy.deepcopy(model.local_state_dict())
    assert part["_smp_is_partial"] is True
    assert part.keys() - {"_smp_is_partial"} == expected.keys()
    for tensor in model.get_module().parameters():
        tensor.data.zero_()
    part["_extra_state"] = {"told": 3}
    for flag in ({}, {"_smp_is_partial": False}, {"_smp_is_partial": True}):
        given = {key: value for key, value in part.items() if key != "_smp_is_partial"}
        assert model.load_state_dict({**given, **flag}) == ([], [])
        assert model.load_state_dict(given, True, True) == ([], [])
    assert torch.equal(model.get_module().last.weight, plain.last.weight)
    assert model.get_module().told == 3
    with pytest.raises(RuntimeError, match=r"Error\(s\) in loading state_dict for Net"):
        model.load_state_dict({})
    wrong = {"other": 1}
    assert model.load_state_dict(wrong, strict=False) == plain.load_state_dict(wrong, strict=False)


def test_home_and_away() -> None:
    smp.init({})
    plain = Net().eval()
    model = smp.DistributedModel(copy.deepcopy(plain)).eval()
    x = torch.ones(2, 3)
    assert model.cpu() is model
    assert torch.equal(model(x), plain(x))

    @smp.step
    def look(model: Any, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model(x)
        return result

    assert torch.equal(look(model, x).concat(), plain(x))


def test_partition_of_a_module() -> None:
    with pytest.raises(smp.SMPNotInitialized):
        smp.get_partition(nn.Linear(1, 1))
    smp.init({})
    net = Net()
    assert smp.get_partition(net) is None
    model = smp.DistributedModel(net)
    assert [smp.get_partition(each) for each in (model, net, net.norm)] == [0, 0, 0]
    with pytest.raises(ValueError, match="is not in the model"):
        smp.get_partition(nn.Linear(1, 1))


def test_save_and_load(tmp_path: Any) -> None:
    path = tmp_path / "model.pt"
    with pytest.raises(smp.SMPNotInitialized):
        smp.save({}, path)
    with pytest.raises(smp.SMPNotInitialized):
        smp.load(path)
    smp.init({})
    smp.save({"a": torch.ones(2)}, path, partial=True)
    smp.save({"b": 1}, path, partial=False, pickle_protocol=4)
    smp.save({"c": 2}, path, v3=True)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "model.pt",
        "model.pt_0",
        "model.pt_0_0_0",
    ]
    assert smp.load(path, partial=False) == {"b": 1}
    assert smp.load(path) == {"c": 2}
    assert torch.equal(smp.load(path, back_compat=True)["a"], torch.ones(2))
    assert torch.equal(smp.load(path, back_compat=True, weights_only=True)["a"], torch.ones(2))


def test_what_the_package_exports() -> None:
    import smdistributed.modelparallel.torch.step as module

    assert module is smp.step, "the attribute wins over the submodule"
    assert smp.step.__name__ == "step"
    assert smp.model.DistributedModel is smp.DistributedModel
    assert smp.amp.GradScaler is not torch.amp.GradScaler
    assert issubclass(smp.amp.GradScaler, torch.amp.GradScaler)
    for name in smp.__all__:
        assert hasattr(smp, name), name
    assert smp.is_tracing() is False


def test_a_snapshot_of_a_model_is_as_large_as_it() -> None:
    """Tied weights stay one memory, and torch's versions of modules stay beside them."""
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    loaded = net.state_dict()
    kept = snapshot(loaded, copies_tensors=True)
    assert kept["0.weight"] is kept["2.weight"]
    assert kept["0.weight"].data_ptr() != loaded["0.weight"].data_ptr()
    assert kept._metadata == loaded._metadata
    assert kept._metadata["1"] is not loaded._metadata["1"]
    lent = snapshot({"a": ([net[0].weight], {1: 2})}, copies_tensors=False)
    assert lent["a"][0][0] is net[0].weight
