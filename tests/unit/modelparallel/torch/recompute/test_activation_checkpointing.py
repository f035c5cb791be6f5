# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpointed modules on one rank: what is kept, what is computed again, and in which state.

Source: modelparallel specification, section 6.4.
"""

from __future__ import annotations

import copy
import inspect
import io
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.torch.patches.checkpoint import checkpoint, checkpoint_sequential
from smdistributed.modelparallel.torch.recompute import calls, offloading, recomputation
from smdistributed.modelparallel.torch.recompute.sequential_rows import (
    DIVIDED,
    most_layers,
    rows,
)

WIDTH = 8


class Block(nn.Module):
    """Drops out, and takes and returns more than tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 4 * WIDTH)
        self.norm = nn.BatchNorm1d(4 * WIDTH)
        self.drop = nn.Dropout(0.4)
        self.second = nn.Linear(4 * WIDTH, WIDTH)
        self.calls = 0

    def forward(self, x: Tensor, extra: dict[str, Any] | None = None, *, scale: float = 1.0) -> Any:
        self.calls += 1
        result = x + scale * self.second(self.drop(torch.tanh(self.norm(self.first(x)))))
        if extra is None:
            return result
        return {"x": result * extra["mask"], "note": extra["note"]}


def layers(count: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(count)))


def inputs() -> Tensor:
    return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1))


def outcome(module: nn.Module, run: Callable[[], Tensor]) -> list[Tensor]:
    """Result, gradients, buffers and the next random number."""
    module.zero_grad()
    torch.manual_seed(5)
    result = run()
    after = torch.rand(())
    result.pow(2).sum().backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    assert gradients
    return [result.detach(), *gradients, *(b.clone() for b in module.buffers()), after]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def num_kept(run: Callable[[], Tensor]) -> int:
    """Bytes that the graph of a result keeps, parameters excepted."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter) and tensor._base is None:
            kept[tensor.untyped_storage().data_ptr()] = tensor.nbytes
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()  # noqa: F841 - until it goes, what it keeps has addresses of its own
        return sum(kept.values())


# --- which layers together ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "strategy", "expected"),
    [
        ([], "each", []),
        ([0, 0, 1], "each", [(0, 1, 0), (1, 2, 0), (2, 3, 1)]),
        ([0, 0, 1, 1, 1, 0], "contiguous", [(0, 2, 0), (2, 5, 1), (5, 6, 0)]),
        ([0, 0, 0, 1, 1, 1], "group_2", [(0, 2, 0), (2, 3, 0), (3, 5, 1), (5, 6, 1)]),
        ([0, 0, 0, 0, 0], "group_3", [(0, 3, 0), (3, 5, 0)]),
        ([0, 1], "group_100", [(0, 1, 0), (1, 2, 1)]),
        ([None, 1, None, 1, None, 0], "contiguous", [(0, 5, 1), (5, 6, 0)]),
        ([None, None, None], "group_2", [(0, 2, None), (2, 3, None)]),
        ([0, None, 1], "each", [(0, 1, 0), (1, 2, None), (2, 3, 1)]),
        ([0, DIVIDED, DIVIDED, None, 0], "contiguous", [(0, 1, 0), (1, 2, -1), (2, 3, -1)]),
    ],
)
def test_rows_of_layers(
    places: list[int | None], strategy: str, expected: list[tuple[int, int, int | None]]
) -> None:
    found = [(row.start, row.stop, place) for row, place in rows(places, most_layers(strategy))]
    if DIVIDED in places:
        expected = [*expected, (3, 5, 0)]
    assert found == expected


@pytest.mark.parametrize("strategy", ["", "group", "group_0", "group_-1", "group_2x", "all", None])
def test_strategies_that_are_none(strategy: Any) -> None:
    with pytest.raises(ValueError, match='expected "each"'):
        smp.set_activation_checkpointing(layers(), strategy=strategy)
    with pytest.raises(ValueError, match='"group_2"'):
        checkpoint_sequential(layers(), inputs(), strategy=strategy)


# --- the same results -----------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["each", "contiguous", "group_2"])
@pytest.mark.parametrize("is_set", [True, False])
def test_layers_in_a_row(strategy: str, is_set: bool) -> None:
    plain, module = layers(), layers()
    expected = outcome(plain, lambda: plain(inputs()))
    if is_set:
        smp.set_activation_checkpointing(module, strategy=strategy)
        assert_same(outcome(module, lambda: module(inputs())), expected)
    else:
        found = outcome(module, lambda: checkpoint_sequential(module, inputs(), strategy))
        assert_same(found, expected)
    assert [block.calls for block in module] == [2, 2, 2]


def test_arguments_of_any_kind() -> None:
    plain, module = layers(1)[0], layers(1)[0]
    smp.set_activation_checkpointing(module)
    for run in (lambda m: m, lambda m: lambda *a, **k: checkpoint(m, *a, **k)):
        mask = torch.rand(6, 1).requires_grad_()
        extra = {"mask": mask, "note": ("kept", [1, None])}
        expected = outcome(plain, lambda e=extra: plain(inputs(), e, scale=0.5)["x"])
        wanted, mask.grad = mask.grad, None

        def again(run: Any = run, extra: Any = extra) -> Tensor:
            result = run(module)(inputs(), extra=extra, scale=0.5)
            assert result["note"] == ("kept", [1, None])
            extra["note"] = extra["mask"] = None  # who computes again does not see it
            tensor: Tensor = result["x"]
            return tensor

        assert_same(outcome(module, again), expected)
        assert wanted is not None
        assert mask.grad is not None
        assert torch.equal(mask.grad, wanted)


def test_one_tensor_in_several_arguments_is_one_again() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(WIDTH, 2)
    plain = copy.deepcopy(module)
    smp.set_activation_checkpointing(module)
    x = inputs()[:, None].clone()  # attention asks whether query, key and value are one object
    expected = outcome(plain, lambda: plain(x, x, value=x)[0])
    assert_same(outcome(module, lambda: module(x, x, value=x)[0]), expected)
    assert num_kept(lambda: module(x, x, value=x)[0]) == x.nbytes


def test_modules_in_modules_and_twice() -> None:
    plain, module = layers(), layers()
    for part in (module, module[0], module[1].first, module[1]):
        smp.set_activation_checkpointing(part)

    def twice(model: nn.Module) -> Tensor:
        result: Tensor = model(model(inputs()))
        return result

    assert_same(outcome(module, lambda: twice(module)), outcome(plain, lambda: twice(plain)))


def test_modes_of_the_forward_pass() -> None:
    plain, module = layers(1)[0].double(), layers(1)[0].double()
    smp.set_activation_checkpointing(module)

    class Ramp(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.linspace(0, 1, x.shape[-1])

    plain.drop, module.drop = Ramp(), Ramp()

    def run(model: nn.Module) -> Tensor:
        torch.set_default_dtype(torch.float64)
        try:
            with torch.autocast("cpu", torch.bfloat16):
                result: Tensor = model(inputs().double())
        finally:
            torch.set_default_dtype(torch.float32)
        return result

    assert_same(outcome(module, lambda: run(module)), outcome(plain, lambda: run(plain)))


def test_without_random_state_only_the_random_numbers_differ() -> None:
    module = layers(1)[0]
    smp.set_activation_checkpointing(module, preserve_rng_state=False)
    module.drop.p = 0.0
    plain = layers(1)[0]
    plain.drop.p = 0.0
    expected = outcome(plain, lambda: plain(inputs()))
    assert_same(outcome(module, lambda: module(inputs())), expected)
    module.drop.p = plain.drop.p = 0.4
    expected = outcome(plain, lambda: plain(inputs()))
    found = outcome(module, lambda: module(inputs()))
    assert torch.equal(found[0], expected[0])
    assert not torch.equal(found[1], expected[1])


def test_without_gradients_it_is_a_plain_call() -> None:
    module = layers(2)
    smp.set_activation_checkpointing(module)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            module(inputs())
            checkpoint(module[0], inputs())
            checkpoint_sequential(module, inputs())
    assert [block.calls for block in module] == [6, 4]


def test_tensors_of_inference_mode() -> None:
    with torch.inference_mode():
        mask = torch.ones(6, 1)
    module = layers(1)[0]
    checkpoint(module, inputs(), {"mask": mask.clone(), "note": 0})["x"].sum().backward()
    assert module.first.weight.grad is not None

    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x.sin() + mask

    x = inputs().requires_grad_()
    checkpoint(Masked(), x, mask).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, x.detach().cos())


# --- what is kept ---------------------------------------------------------------------------------


def test_only_inputs_are_kept() -> None:
    size = inputs().nbytes
    plain = layers()
    assert num_kept(lambda: plain(inputs())) > 3 * 5 * size
    for strategy, count in (("each", 3), ("group_2", 2), ("contiguous", 1)):
        module = layers()
        smp.set_activation_checkpointing(module, strategy=strategy)
        assert num_kept(lambda module=module: module(inputs())) == count * size, strategy


# --- setting --------------------------------------------------------------------------------------


def test_copies_and_pickles_have_their_own() -> None:
    module = layers(1)[0]
    smp.set_activation_checkpointing(module)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for twin in (copy.deepcopy(module), torch.load(file, weights_only=False)):
        outcome(twin, lambda twin=twin: twin(inputs()))
        assert twin.calls == 2, "it computes again"
        assert module.calls == 0
    assert inspect.signature(module.forward) == inspect.signature(Block().forward)
    assert module.state_dict().keys() == Block().state_dict().keys()


def test_the_last_setting_counts() -> None:
    module = layers()
    for strategy in ("contiguous", "each"):
        smp.set_activation_checkpointing(module, strategy=strategy)
    assert num_kept(lambda: module(inputs())) == 3 * inputs().nbytes


def test_hooks_of_the_module_run_once() -> None:
    module = layers(1)[0]
    smp.set_activation_checkpointing(module)
    seen = []
    module.register_forward_hook(lambda *_: seen.append("forward"))
    module.register_full_backward_hook(lambda *_: seen.append("backward"))
    outcome(module, lambda: module(inputs()))
    assert seen == ["forward", "backward"]


class Named(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x, scale=2.0)
        return x


def test_wrong_usage() -> None:
    def function(x: Any) -> Any:
        return x

    with pytest.raises(TypeError, match="Make the function the forward of a module"):
        checkpoint(function, inputs())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got a function; expected a"):
        smp.set_activation_checkpointing(function)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Use checkpoint\(\)"):
        checkpoint_sequential(Block(), inputs())  # type: ignore[arg-type]
    for module in (Block(), Named(Block())):
        with pytest.raises(ValueError, match="Leave them out"):
            smp.set_activation_checkpointing(module, strategy="contiguous")
        with pytest.raises(ValueError, match="Leave them out"):
            smp.set_activation_checkpointing(module, pack_args_as_tuple=True)


def test_a_sequential_with_a_forward_of_its_own_is_one_module() -> None:
    module = Named(*layers())
    smp.set_activation_checkpointing(module)
    assert num_kept(lambda: module(inputs())) == inputs().nbytes


def test_packing_is_deprecated(caplog: pytest.LogCaptureFixture) -> None:
    module = layers()
    calls.warn_of_packing.cache_clear()
    with caplog.at_level(logging.WARNING, "smdistributed"):
        smp.set_activation_checkpointing(module, pack_args_as_tuple=True)
        checkpoint_sequential(module, inputs(), pack_args_as_tuple=True)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["pack_args_as_tuple"]


# --- offloading -----------------------------------------------------------------------------------


def test_inputs_come_back_ahead_of_their_use(monkeypatch: pytest.MonkeyPatch) -> None:
    away = offloading.Offloading(torch.device("cpu"), horizon=2)  # where a copy is "away"
    microbatch = 0
    monkeypatch.setattr(recomputation, "offloaded_inputs", lambda: away.inputs(microbatch))
    module, plain = layers(4), layers(4)
    smp.set_activation_checkpointing(module)
    away_of = []
    seen: list[str] = []

    def state() -> str:
        """Of each call: its input is away, back, or needed no more."""
        alive = [reference() for reference in away_of]
        return "".join("-" if each is None else "b" if each._back else "a" for each in alive)

    def watch(block: nn.Module, args: Any, output: Tensor) -> None:
        away_of.append(away._kept[-1])
        output.register_hook(lambda _: seen.append(state()))

    for block in module:
        block.register_forward_hook(watch)
    results = []
    for model in (plain, module):
        torch.manual_seed(2)
        for microbatch in (0, 1):
            results += [model(inputs() + microbatch)]
    assert num_kept(lambda: module(inputs())) == 0, "beside the copies"
    del away_of[8:]
    for result in results:
        result.pow(2).sum().backward()
    assert seen == [
        *("aaaaaaaa", "abb-aaaa", "bb--aaaa", "b---aaab"),
        *("----aabb", "----abb-", "----bb--", "----b---"),
    ]
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_on_the_cpu_nothing_is_offloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cfg:
        offload_activations = True
        activation_loading_horizon = 4

    class State:
        initialized = True
        cfg = Cfg()
        device = torch.device("cpu")

    monkeypatch.setattr(offloading, "state", State())
    with offloading.offloaded_inputs():
        assert not offloading._has_hooks()
    with save_on_cpu():
        assert offloading._has_hooks()
