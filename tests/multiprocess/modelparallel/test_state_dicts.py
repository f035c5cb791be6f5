# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The model's state as dictionaries, on several ranks (specification, section 4.4).

One start serves many checks.
"""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from typing import Any

import pytest
import torch
from harness import run_ranks
from parted_models import Network, batch, by_hand, cut, network, plain_step, step_function
from torch import nn
from torch_ranks import raised

DEADLINE_S = 110.0


def numbered(model: nn.Module, offset: int = 0) -> OrderedDict[str, Any]:
    """A state of its own for each offset; each entry tells its place."""
    state = OrderedDict(copy.deepcopy(model.state_dict()))
    same: dict[int, torch.Tensor] = {}
    for number, (key, value) in enumerate(model.state_dict().items()):
        if isinstance(value, torch.Tensor):
            filled = torch.arange(value.numel(), dtype=torch.float32).reshape(value.shape)
            filled = ((filled % 251 + number + offset) / 64).to(value.dtype)
            state[key] = same.setdefault(value.data_ptr(), filled)
        else:
            state[key] = {"calls": number + offset, "seen": torch.tensor([number, offset + 0.5])}
    return state


def assert_same(found: Any, expected: Any) -> None:
    """Keys, their order, values, dtypes."""
    assert list(found) == list(expected)
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[key].dtype == value.dtype, key
            assert found[key].device.type == "cpu", key
            assert torch.equal(found[key], value), key
        elif isinstance(value, dict):
            assert_same(found[key], value)
        else:
            assert found[key] == value, key


def assert_absent_take_no_memory(model: Any) -> None:
    here = {name for name, _ in model.local_named_parameters()}
    here |= {name for name, _ in model.local_named_buffers()}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name not in here:
            assert tensor.untyped_storage().nbytes() == tensor.element_size(), name
            assert tensor.grad is None


class Wide(Network):
    """With tensors of all sizes: buckets, several of them, and such that travel alone."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[3].register_buffer("large", torch.zeros(300_000, dtype=torch.float64))
        self.blocks[0].register_buffer("bfloat", torch.zeros(700_000, dtype=torch.bfloat16))
        for number in range(12):
            self.blocks[3].register_buffer(f"medium{number}", torch.zeros(250_000))
        self.blocks[3].register_buffer("nothing", torch.zeros(0, 4))
        self.blocks[3].register_buffer("bits", torch.zeros(3, dtype=torch.bool))
        self.blocks[2].register_buffer("complexes", torch.zeros(5, dtype=torch.complex64))


def check_before_partition(smp: Any, model: Any, plain: nn.Module) -> None:
    """Loading and saving are torch's, without communication: the ranks do not agree on when."""
    state = numbered(plain, 100)
    if smp.rank() == 0:
        assert_same(model.state_dict(), plain.state_dict())
        model.load_state_dict(state)
        assert_same(model.state_dict(), state)
    assert (model.state_dict(gather_to_rank0=True) == {}) == (smp.rank() != 0)
    result = model.load_state_dict({"_smp_is_partial": False, **state})
    assert result == ([], [])
    state.pop("blocks.0.scale")
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "blocks.0.scale"'):
        model.load_state_dict(state)
    assert model.load_state_dict(state, strict=False).missing_keys == ["blocks.0.scale"]


def check_full(smp: Any, model: Any, plain: nn.Module) -> None:
    """What comes back is what was loaded, as plain torch would give it."""
    state = numbered(plain, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.load_state_dict(state) == ([], [])
    assert_absent_take_no_memory(model)
    found = model.state_dict()
    assert_same(found, state)
    assert found._metadata == plain.state_dict()._metadata
    assert found["head.weight"].data_ptr() == found["embedding.weight"].data_ptr()
    for key, value in found.items():
        if isinstance(value, torch.Tensor):
            nbytes = value.untyped_storage().nbytes()
            assert nbytes == value.numel() * value.element_size(), f"{key} is in a file once"
    assert plain.load_state_dict(found) == ([], [])
    for name, parameter in model.local_named_parameters():
        assert found[name].data_ptr() != parameter.data_ptr(), "a copy"

    only_there = model.state_dict(gather_to_rank0=True)
    if smp.rank() == 0:
        assert_same(only_there, state)
    else:
        assert only_there == {}


def check_local(smp: Any, model: Any, plain: nn.Module) -> None:
    """Each rank's part; loaded as it is, or merged, whoever has which."""
    state = numbered(plain, 4)
    model.load_state_dict(state)
    part = model.local_state_dict()
    assert part.pop("_smp_is_partial") is True
    parts = smp.allgather(copy.deepcopy(part), smp.MP_GROUP)
    assert sum(len(each) for each in parts) == len(state)
    assert_same(OrderedDict((key, {**parts[0], **parts[1]}[key]) for key in state), state)
    names = {name for name, _ in model.local_named_parameters()}
    assert names <= set(part)
    for key, value in part.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, state[key]), key

    for number, shuffled in enumerate((parts, parts[::-1], [{**parts[0], **parts[1]}, {}])):
        model.load_state_dict(numbered(plain, 50 + number))
        mine = {**shuffled[smp.rank()], "_smp_is_partial": True}
        assert model.load_state_dict(mine) == ([], [])
        assert_same(model.state_dict(), state)
        assert_absent_take_no_memory(model)

    # The same partition: no rank hears of another.
    model.load_state_dict(numbered(plain, 60))
    if smp.rank() == 1:
        mine = {**parts[1], "_smp_is_partial": True}
        assert model.load_state_dict(mine, same_partition_load=True) == ([], [])
        key = next(key for key, value in mine.items() if isinstance(value, torch.Tensor))
        mine.pop(key)
        with pytest.raises(RuntimeError, match=rf'Missing key\(s\) in state_dict: "{key}"'):
            model.load_state_dict(mine, same_partition_load=True)
    found, untouched = model.state_dict(), numbered(plain, 60)
    for key in parts[1]:
        untouched[key] = state[key]
    assert_same(found, untouched)


def check_errors(smp: Any, model: Any, plain: nn.Module) -> None:
    """The texts and results are torch's, and the same on all ranks, for full and partial ones."""
    state = numbered(plain, 5)
    wrong: list[dict[str, Any]] = []
    wrong.append({key: value for key, value in state.items() if not key.endswith("scale")})
    wrong.append({**state, "blocks.9.up.weight": torch.zeros(2), "another": torch.zeros(1)})
    wrong.append({**state, "blocks.0.up.weight": torch.zeros(2), "blocks.3.scale": torch.ones(9)})
    owners = {key: int(key.startswith(("blocks.2", "blocks.3", "counter"))) for key in state}
    for given in wrong:
        part = {key: v for key, v in given.items() if owners.get(key, 1) == smp.rank()}
        part["_smp_is_partial"] = True
        for strict in (True, False):
            expected: Any
            try:
                expected = plain.load_state_dict(OrderedDict(given), strict=strict)
            except RuntimeError as error:
                expected = str(error)
            for loaded in (given, part):
                found: Any
                try:
                    found = model.load_state_dict(loaded, strict=strict)
                except RuntimeError as error:
                    found = str(error)
                if isinstance(expected, str):
                    assert sorted(found.split()) == sorted(expected.split())
                    continue
                assert set(found.missing_keys) == set(expected.missing_keys)
                assert set(found.unexpected_keys) == set(expected.unexpected_keys)


def check_hooks(smp: Any, model: Any, plain: nn.Module) -> None:
    """State-dict hooks of the user's modules: renamed, added and converted entries."""

    def save(module: Any, state: Any, prefix: str, _: Any) -> None:
        state[prefix + "upward"] = state.pop(prefix + "up.weight") * 2
        state[prefix + "added"] = torch.tensor([3])

    def load(_: Any, state: Any, prefix: str, *__: Any) -> None:
        state[prefix + "up.weight"] = state.pop(prefix + "upward") / 2
        state.pop(prefix + "added")

    state = numbered(plain, 6)
    handles = []
    for whole in (model.get_module(), plain):
        whole.load_state_dict(state) if whole is plain else model.load_state_dict(state)
        for block in (whole.blocks[0], whole.blocks[3]):
            handles.append(block.register_state_dict_post_hook(save))
            handles.append(block.register_load_state_dict_pre_hook(load))
    found = model.state_dict()
    assert_same(found, plain.state_dict())
    model.load_state_dict(found)
    part = copy.deepcopy(model.local_state_dict())
    model.load_state_dict(part)
    other = smp.allgather(part, smp.MP_GROUP)[1 - smp.rank()]
    model.load_state_dict(other)
    assert_same(model.state_dict(), found)
    for handle in handles:
        handle.remove()
    assert_same(model.state_dict(), state)
    assert_absent_take_no_memory(model)


def check_failures(smp: Any, model: Any, plain: nn.Module) -> None:
    """One rank raises: the others hear of it, and go on."""

    def fail(*_: Any) -> None:
        raise ValueError("no state today")

    model.load_state_dict(plain.state_dict())
    if smp.rank() == 1:
        handle = model.get_module().blocks[3].register_state_dict_post_hook(fail)
        assert raised(model.state_dict)[0] == "ValueError"
        handle.remove()
    else:
        name, text, _ = raised(model.state_dict)
        assert name == "SMPError"
        assert "rank 1" in text
        assert "no state today" in text
    assert_same(model.state_dict(), plain.state_dict())


def check_home(smp: Any, model: Any, plain: nn.Module, train: Any) -> None:
    """`cpu()`: the whole model, usable here; then steps as before."""
    state = model.state_dict()
    plain.load_state_dict(state)
    x, y = batch(1)
    identities = [id(parameter) for parameter in model.parameters()]
    assert model.cpu() is model
    assert identities == [id(parameter) for parameter in model.parameters()]
    assert_same(model.get_module().blocks.state_dict(), plain.blocks.state_dict())
    if smp.rank() == 1:
        assert torch.equal(model.get_module()(x), plain(x))
        assert torch.equal(model.module(x), model(x))
    plain.zero_grad()
    model.zero_grad()
    train(model, x, y)
    plain_step(plain, x, y)
    assert_absent_take_no_memory(model)
    expected = dict(plain.named_parameters())
    for name, parameter in model.local_named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, expected[name].grad)
    model.cpu()
    model.load_state_dict(state)
    assert_absent_take_no_memory(model)


def two_partitions(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    torch.manual_seed(1)
    plain = Wide()
    smp.init(by_hand(2))
    model = smp.DistributedModel(cut(copy.deepcopy(plain), 2))
    train = step_function()
    # Small numbers, so that training goes well.
    small = copy.deepcopy(plain.state_dict())
    check_before_partition(smp, model, plain)
    assert smp.get_partition(model) is None
    deferred = {"_smp_is_partial": True, **numbered(plain, 100)}
    assert model.load_state_dict(deferred) == ([], []), "deferred"

    @smp.step
    def look(model: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(x).sum()

    look(model, batch(0)[0])
    found, expected = model.state_dict(), numbered(plain, 100)
    expected["counter._extra_state"]["calls"] += 2  # microbatches, on the rank that has it
    assert_same(found, expected)
    inner = model.get_module()
    assert [smp.get_partition(each) for each in (model, model.module, inner, inner.blocks[3])] == [
        0,
        0,
        0,
        1,
    ]
    with pytest.raises(ValueError, match=r"one that model.modules\(\) returns"):
        smp.get_partition(nn.Linear(1, 1))
    for check in (check_full, check_local, check_errors, check_hooks, check_failures):
        plain.load_state_dict(small)
        check(smp, model, plain)
    model.load_state_dict(small)
    check_home(smp, model, plain, train)
    smp.barrier()
    smp.reset()


def test_two_partitions() -> None:
    run_ranks(two_partitions, 2, deadline_s=DEADLINE_S)


def two_by_two(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    smp.init(by_hand(2, ddp=True))
    plain = network()
    model = smp.DistributedModel(cut(network(), 2))
    x, y = batch(smp.dp_rank())
    step_function()(model, x, y)
    state = numbered(plain, 9)
    model.load_state_dict(state)

    if smp.dp_rank() == 0:
        assert_same(model.state_dict(), state)
    assert_same(model.state_dict(), state)
    if smp.dp_rank() == 0:  # and the others ask for it later
        smp.barrier()
    there = model.state_dict(gather_to_rank0=True)
    if smp.dp_rank() != 0:
        smp.barrier()
    assert_same(there, state if rank == 0 else {})

    if smp.dp_rank() == 1:
        parts = smp.allgather(copy.deepcopy(model.local_state_dict()), smp.MP_GROUP)
        model.load_state_dict(numbered(plain, 10))
        assert model.load_state_dict(parts[1 - smp.mp_rank()]) == ([], [])
        assert_same(model.state_dict(), state)
    model.cpu()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, state[name]), name
    smp.barrier()
    smp.reset()


def test_two_partitions_on_two_replicas() -> None:
    run_ranks(two_by_two, 4, deadline_s=DEADLINE_S)
