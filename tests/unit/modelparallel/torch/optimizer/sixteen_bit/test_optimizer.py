# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The 16-bit optimizer in one process with one partition, beside plain torch: the same bits."""

from __future__ import annotations

import copy
import io
import logging
from typing import Any

import pytest
import torch
from plain_sixteen_bit import Make, PlainSixteenBit, halves
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR, StepLR

import smdistributed.modelparallel.torch as smp
from smdistributed._common.errors import UnsupportedError
from smdistributed.modelparallel.exceptions import ModelNotPartitionedError
from smdistributed.modelparallel.torch.optimizer.sixteen_bit.masters import Masters
from smdistributed.modelparallel.torch.optimizer.sixteen_bit.optimizer import Bit16Optimizer

pytestmark = pytest.mark.usefixtures("alone")

KEYS = {torch.float16: "fp16", torch.bfloat16: "bf16"}
dtypes = pytest.mark.parametrize("dtype", KEYS)

OPTIMIZERS: dict[str, Make] = {
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adam, for loop": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False, amsgrad=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "two groups": lambda p: torch.optim.SGD(
        [{"params": p[::2], "lr": 0.1}, {"params": p[1::2], "momentum": 0.5}], lr=0.02
    ),
}


class WideNorm(nn.LayerNorm):
    """A norm that a script keeps in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float()).to(x.dtype)


class Net(nn.Module):
    """Tied and frozen weights, a branch without gradients, norms in fp32 of two makes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.batch_norm = nn.BatchNorm1d(8)
        self.tied = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.tied.weight
        self.norm = WideNorm(8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.batch_norm(self.first(x)))
        hidden = hidden + self.again(torch.relu(self.tied(hidden)))
        return self.last(self.frozen(self.norm(hidden)))


def net() -> Net:
    torch.manual_seed(5)
    return Net()


def data(number: int, rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(rows, 6, generator=generator)
    return x, torch.randint(0, 3, (rows,), generator=generator)


@smp.step
def train(model: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = functional.cross_entropy(model(x), y)
    model.backward(loss)
    return loss


def wrapped(dtype: torch.dtype, make: Make, **options: Any) -> tuple[Any, Any]:
    """A model, its norm in fp32, and its optimizer."""
    smp.init({KEYS[dtype]: True, "microbatches": 2})
    model = smp.DistributedModel(net())
    model.norm.float()
    optimizer = smp.DistributedOptimizer(make(list(model.parameters())), **options)
    return model, optimizer


def reference(dtype: torch.dtype, make: Make, scale: float = 1.0) -> PlainSixteenBit:
    return PlainSixteenBit(net(), dtype, make, scale, kept=(nn.BatchNorm1d, WideNorm))


def assert_same(model: Any, optimizer: Any, plain: PlainSixteenBit, what: str) -> None:
    """Bit for bit: parameters, buffers, masters, states."""
    expected = plain.model.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name]), (what, name)
    state = optimizer.state_dict()
    masters = plain.named_masters()
    assert list(state["fp16_states"]["masters"]) == list(masters) or what == "two groups"
    for name, master in masters.items():
        assert torch.equal(state["fp16_states"]["masters"][name], master), (what, name)
    theirs = plain.optimizer.state_dict()
    assert state["param_groups"] == theirs["param_groups"]
    assert state["state"].keys() == theirs["state"].keys()
    for index, entries in theirs["state"].items():
        for key, value in entries.items():
            assert torch.equal(torch.as_tensor(state["state"][index][key]), torch.as_tensor(value))


@dtypes
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_as_plain_torch_does(dtype: torch.dtype, name: str) -> None:
    make = OPTIMIZERS[name]
    scale = 256.0 if dtype is torch.float16 else 1.0
    model, optimizer = wrapped(dtype, make, static_loss_scale=scale)
    plain = reference(dtype, make, scale)
    for number in range(4):
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        plain.zero_grad()
        outputs = train(model, *data(number))
        plain.backward(functional.cross_entropy, halves(*data(number)))
        assert outputs.outputs[0].dtype is torch.float32
        max_norm = 0.5 if number > 1 else None
        if max_norm is not None:
            assert optimizer.clip_master_grads(max_norm) > 0.5
        optimizer.step()
        assert plain.update(max_norm) is not None
        assert not optimizer.overflow
        assert_same(model, optimizer, plain, name)
    assert model.unused.weight.grad is None
    assert model.first.weight.dtype is dtype
    assert model.norm.weight.dtype is model.batch_norm.weight.dtype is torch.float32


def test_gradients_without_the_loss_scale_are_refused() -> None:
    model, optimizer = wrapped(torch.float16, OPTIMIZERS["Adam"], static_loss_scale=64.0)
    optimizer.step()  # none at all are no mistake
    x, y = data(0)
    functional.cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match="without the loss scale, which is 64"):
        optimizer.step()
    optimizer.zero_grad()
    model.backward(functional.cross_entropy(model(x), y))
    optimizer.step()


def test_masters_are_what_the_optimizer_updates() -> None:
    model, optimizer = wrapped(torch.float16, OPTIMIZERS["two groups"])
    assert not optimizer.master_params_created
    assert optimizer.fp16_groups == [[], []]
    optimizer.init_master_params()
    assert optimizer.master_params_created
    trained = [p for p in model.parameters() if p.requires_grad and p.dtype is torch.float16]
    assert sum(map(len, optimizer.fp16_groups)) == len(trained)
    for group, narrow, wide in zip(
        optimizer.param_groups, optimizer.fp16_groups, optimizer.fp32_from_fp16_groups, strict=True
    ):
        for parameter, master in zip(narrow, wide, strict=True):
            assert any(parameter is each for each in trained)
            assert any(master is each for each in group["params"])
            assert master.dtype is torch.float32
            assert torch.equal(master, parameter.float())
    for kept in (model.norm.weight, model.batch_norm.bias, model.frozen.weight):
        assert any(kept is each for group in optimizer.param_groups for each in group["params"])
    before = [[id(each) for each in group["params"]] for group in optimizer.param_groups]
    optimizer.init_master_params()  # again: nothing new
    after = [[id(each) for each in group["params"]] for group in optimizer.param_groups]
    assert after == before
    # What is unfrozen later gets one with its first gradient.
    model.frozen.weight.requires_grad_(True)
    train(model, *data(0))
    optimizer.step()
    assert any(model.frozen.weight is each for group in optimizer.fp16_groups for each in group)


def test_small_updates_add_up() -> None:
    """Each is a quarter of the distance to the next number in 16 bits."""
    smp.init({"bf16": True})
    linear = nn.Linear(1, 1, bias=False)
    nn.init.ones_(linear.weight)
    model = smp.DistributedModel(linear)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=2**-9))
    for _ in range(8):
        optimizer.zero_grad()
        model.backward(-model(torch.ones(1, 1)).sum())
        optimizer.step()
    assert linear.weight.item() == 1 + 2**-6


@dtypes
def test_overflow_skips_the_step(dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    make = OPTIMIZERS["Adam"]
    arguments = {"init_scale": 1024.0, "scale_window": 2}
    model, optimizer = wrapped(
        dtype, make, static_loss_scale=None, dynamic_loss_scale=True, dynamic_loss_args=arguments
    )
    plain = reference(dtype, make)
    scales = []
    for number, bad in enumerate((None, float("inf"), float("nan"), None, None, None)):
        plain.scale = optimizer.loss_scale
        optimizer.zero_grad()
        plain.zero_grad()
        train(model, *data(number))
        plain.backward(functional.cross_entropy, halves(*data(number)))
        if bad is not None:
            # Of a 16-bit parameter, and of one in fp32.
            (model.first.bias if number == 1 else model.norm.weight).grad[1] = bad
            with caplog.at_level(logging.INFO, logger="smdistributed"):
                caplog.clear()
                assert optimizer.clip_master_grads(1.0) == -1
                optimizer.step()
            assert "the step was skipped" in caplog.text
        else:
            optimizer.step()
            assert plain.update() is not None
        assert optimizer.overflow == optimizer.step_was_skipped == (bad is not None)
        expected = plain.model.state_dict()
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, expected[name]), name
        scales.append(optimizer.loss_scale)
    dynamic = [1024.0, 512.0, 256.0, 256.0, 512.0, 512.0]
    assert scales == (dynamic if dtype is torch.float16 else [1.0] * 6)
    assert optimizer.dynamic_loss_scale == (dtype is torch.float16)


def test_a_loss_scale_saves_small_gradients() -> None:
    for scale, is_saved in ((1.0, False), (2.0**16, True)):
        smp.reset()
        smp.init({"fp16": True})
        model = smp.DistributedModel(nn.Linear(1, 1, bias=False))
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = smp.DistributedOptimizer(inner, static_loss_scale=scale)
        model.backward(model(torch.ones(1, 1)).sum() * 1e-8)
        optimizer.update_master_grads()
        assert bool(optimizer.fp32_from_fp16_groups[0][0].grad) == is_saved
        del model


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_clipping(norm_type: float) -> None:
    make = OPTIMIZERS["SGD, momentum"]
    model, optimizer = wrapped(torch.float16, make, static_loss_scale=8.0)
    plain = reference(torch.float16, make, 8.0)
    train(model, *data(0))
    plain.backward(functional.cross_entropy, halves(*data(0)))
    found = optimizer.clip_master_grads(0.01, norm_type)
    assert type(found) is float
    assert plain.update(0.01, norm_type) == found
    optimizer.step()
    assert_same(model, optimizer, plain, "clipped")
    # By the model's own method too.
    optimizer.zero_grad()
    plain.zero_grad()
    train(model, *data(1))
    plain.backward(functional.cross_entropy, halves(*data(1)))
    found = float(model.clip_grad_norm_(0.01, norm_type))
    assert plain.update(0.01, norm_type) == found
    optimizer.step()
    assert_same(model, optimizer, plain, "clipped")


def test_torchs_clipping_of_scaled_gradients_is_refused() -> None:
    model, optimizer = wrapped(torch.float16, OPTIMIZERS["Adam"], static_loss_scale=8.0)
    train(model, *data(0))
    with pytest.raises(RuntimeError, match=r"Call optimizer\.clip_master_grads\(max_norm\)"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    other = nn.Parameter(torch.ones(4))
    other.grad = torch.ones(4)
    assert nn.utils.clip_grad_norm_([other], 1.0) == 2.0
    optimizer.clip_master_grads(1.0)
    optimizer.loss_scale = 1
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


@dtypes
@pytest.mark.parametrize("order", ["model first", "optimizer first", "fp16 states apart"])
def test_resuming_goes_on_with_the_same_bits(dtype: torch.dtype, order: str) -> None:
    make = OPTIMIZERS["AdamW, foreach"]
    arguments = {"init_scale": 64.0, "scale_window": 3, "delayed_shift": 2}
    options = {"static_loss_scale": None, "dynamic_loss_scale": True}
    model, optimizer = wrapped(dtype, make, dynamic_loss_args=arguments, **options)

    def run(model: Any, optimizer: Any, numbers: range) -> None:
        for number in numbers:
            optimizer.zero_grad()
            train(model, *data(number))
            if number == 2:
                model.first.bias.grad.fill_(float("inf"))
            optimizer.step()

    run(model, optimizer, range(4))
    file = io.BytesIO()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**saved, "fp16": optimizer.local_fp16_states()}, file)
    run(model, optimizer, range(4, 8))
    expected = {**model.state_dict(), **optimizer.state_dict()["fp16_states"]["masters"]}
    scaler = optimizer.loss_scaler.state_dict()
    del model, optimizer
    smp.reset()
    file.seek(0)
    loaded = torch.load(file)
    model, optimizer = wrapped(dtype, make, **options)
    if order == "optimizer first":
        optimizer.load_state_dict(loaded["optimizer"])
    model.load_state_dict(loaded["model"])
    if order == "model first":
        optimizer.load_state_dict(loaded["optimizer"])
    if order == "fp16 states apart":
        optimizer.load_state_dict(
            {k: v for k, v in loaded["optimizer"].items() if k != "fp16_states"}
        )
        optimizer.load_fp16_states(loaded["fp16"])
    run(model, optimizer, range(4, 8))
    found = {**model.state_dict(), **optimizer.state_dict()["fp16_states"]["masters"]}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    assert optimizer.loss_scaler.state_dict() == (
        scaler if dtype is torch.float16 else optimizer.loss_scaler.state_dict()
    )


def test_masters_follow_what_changes_the_model() -> None:
    model, optimizer = wrapped(torch.float16, OPTIMIZERS["Adam"])
    other = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    model.load_state_dict(other)
    optimizer.init_master_params()
    masters = optimizer.local_fp16_states()["masters"]
    assert torch.equal(masters["first.weight"], other["first.weight"].float())
    # Of other changes a script says so.
    model.get_module().first.weight.data += 1
    assert torch.equal(masters["first.weight"], other["first.weight"].float())
    optimizer.reload_model_params()
    assert torch.equal(masters["first.weight"], (other["first.weight"] + 1).float())


@dtypes
@pytest.mark.parametrize("what", ["state_dict", "local_state_dict", "load_state_dict", "step"])
def test_what_is_loaded_into_the_model_is_not_undone(dtype: torch.dtype, what: str) -> None:
    """By masters that were made of earlier parameters, in passing or by an update."""
    model, optimizer = wrapped(dtype, OPTIMIZERS["Adam"])
    if what == "load_state_dict":
        own = OPTIMIZERS["Adam"](list(net().parameters())).state_dict()
        optimizer.load_state_dict(own)
    elif what == "step":
        train(model, *data(0))
        optimizer.step()
    else:
        getattr(optimizer, what)()
    loaded = {name: tensor * 1.5 for name, tensor in model.state_dict().items()}
    model.load_state_dict(loaded)
    optimizer.param_groups[0]["lr"] = 0.0
    train(model, *data(1))
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, loaded[name]), name


def test_masters_keep_their_precision_where_the_model_loads_what_it_has() -> None:
    model, optimizer = wrapped(torch.bfloat16, OPTIMIZERS["Adam"])
    train(model, *data(0))
    optimizer.step()
    before = copy.deepcopy(optimizer.local_fp16_states()["masters"])
    assert any(not torch.equal(each, each.bfloat16().float()) for each in before.values())
    loaded = copy.deepcopy(model.state_dict())
    loaded["last.bias"] += 1
    model.load_state_dict(loaded)
    before["last.bias"] = loaded["last.bias"].float()
    for name, master in optimizer.local_fp16_states()["masters"].items():
        assert torch.equal(master, before[name]), name


def test_a_state_of_other_parameters_is_refused() -> None:
    _, optimizer = wrapped(torch.float16, OPTIMIZERS["Adam"])
    states = optimizer.local_fp16_states()
    before = copy.deepcopy(states["masters"])
    fewer = {**states, "masters": dict(list(before.items())[2:])}
    with pytest.raises(ValueError, match=r"no fp32 weights of first\.weight, first\.bias"):
        optimizer.load_fp16_states(fewer)
    wrong = {**before, "last.bias": torch.zeros(7)}
    with pytest.raises(ValueError, match=r"last\.bias have another shape in the state, as \(7,\)"):
        optimizer.load_fp16_states({**states, "masters": wrong})
    for name, master in optimizer.local_fp16_states()["masters"].items():
        assert torch.equal(master, before[name])
    # More than there is here does not matter; a state of fp32 training has none.
    optimizer.load_fp16_states({**states, "masters": {**before, "other": torch.zeros(1)}})
    optimizer.load_state_dict({k: v for k, v in optimizer.state_dict().items() if k[0] in "sp"})


def test_before_the_model_is_wrapped() -> None:
    """The optimizer first, with a state: it goes to the masters, unrounded."""
    smp.init({"bf16": True, "microbatches": 2})
    make = OPTIMIZERS["Adam"]
    plain = net()
    early = make(list(plain.parameters()))
    optimizer = smp.DistributedOptimizer(early)
    functional.cross_entropy(plain(data(0)[0]), data(0)[1]).backward()
    early.step()
    moment = early.state[plain.first.weight]["exp_avg"].clone()
    with pytest.raises(ModelNotPartitionedError, match="before the model was partitioned"):
        optimizer.init_master_params()
    model = smp.DistributedModel(plain)
    optimizer.zero_grad()
    optimizer.init_master_params()
    master = optimizer.fp32_from_fp16_groups[0][0]
    assert torch.equal(early.state[master]["exp_avg"], moment)
    saved = copy.deepcopy(optimizer.state_dict())
    del model, optimizer, early

    other = net()
    early = make(list(other.parameters()))
    optimizer = smp.DistributedOptimizer(early)
    saved["param_groups"][0]["lr"] = 0.5
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.5
    waiting = optimizer.state_dict()["fp16_states"]
    assert waiting.keys() == saved["fp16_states"].keys()
    for name, value in saved["fp16_states"]["masters"].items():
        assert torch.equal(waiting["masters"][name], value), name
        waiting["masters"][name].zero_()  # a copy of what waits
    model = smp.DistributedModel(other)
    assert optimizer.master_params_created
    master = optimizer.fp32_from_fp16_groups[0][0]
    assert torch.equal(early.state[master]["exp_avg"], moment)
    assert torch.equal(master, saved["fp16_states"]["masters"]["first.weight"])
    model.norm.float()
    train(model, *data(0))
    optimizer.step()


def test_schedulers_take_either_optimizer() -> None:
    model, optimizer = wrapped(torch.float16, OPTIMIZERS["SGD, momentum"])
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert isinstance(optimizer.optimizer, torch.optim.SGD)
    schedulers = [
        StepLR(optimizer.optimizer, 1, gamma=0.5),
        LambdaLR(optimizer, lambda n: 1 / (n + 1)),
    ]
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    for number in range(3):
        optimizer.zero_grad()
        train(model, *data(number))
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    assert len(calls) == 3
    assert optimizer.param_groups[0]["lr"] == optimizer.optimizer.param_groups[0]["lr"] == 0.05 / 4
    assert optimizer.param_groups is optimizer.optimizer.param_groups
    assert optimizer.state is optimizer.optimizer.state
    assert "SGD" in repr(optimizer.optimizer)


def test_apexs_way() -> None:
    """`optimizer.backward(loss)` outside of steps; a closure; `set_grads_to_None`."""
    make = OPTIMIZERS["SGD, momentum"]
    model, optimizer = wrapped(torch.float16, make, static_loss_scale=16.0)
    plain = reference(torch.float16, make, 16.0)
    for update in (True, False):
        optimizer.zero_grad(set_grads_to_None=True)
        plain.zero_grad()
        optimizer.backward(functional.cross_entropy(model(data(0)[0]), data(0)[1]), update)
        plain.backward(functional.cross_entropy, [data(0)])
        master = optimizer.fp32_from_fp16_groups[0][0] if update else None
        assert master is None or master.grad is not None
        optimizer.step()
        plain.update()
        assert_same(model, optimizer, plain, "Apex")

    def closure() -> float:
        optimizer.zero_grad()
        return float(train(model, *data(3)).reduce_mean())

    loss = optimizer.step(closure)
    plain.zero_grad()
    plain.backward(functional.cross_entropy, halves(*data(3)))
    plain.update()
    assert type(loss) is float
    assert_same(model, optimizer, plain, "closure")
    assert optimizer.first_closure_call_this_step
    optimizer.loss_scale = 32
    assert optimizer.loss_scaler.loss_scale == 32.0


def test_gradients_on_top_of_unscaled_ones_are_refused() -> None:
    model, optimizer = wrapped(torch.float16, OPTIMIZERS["Adam"], static_loss_scale=4.0)
    train(model, *data(0))
    norm = optimizer.clip_master_grads(1e9)
    assert optimizer.clip_master_grads(1e9) == norm, "once"
    train(model, *data(0))
    with pytest.raises(RuntimeError, match="after the gradients had been unscaled"):
        optimizer.step()
    optimizer.zero_grad()
    train(model, *data(0))
    assert optimizer.clip_master_grads(1e9) == norm
    # A batch is dropped by the model's method too, with the gradients of masters.
    model.zero_grad()
    assert all(each.grad is None for each in optimizer.fp32_from_fp16_groups[0])
    train(model, *data(0))
    assert optimizer.clip_master_grads(1e9) == norm
    # Steps that add up before it are one update.
    optimizer.zero_grad()
    for _ in range(2):
        train(model, *data(0))
    assert optimizer.clip_master_grads(1e9) == pytest.approx(2 * norm, rel=1e-2)


def test_another_optimizers_scale_is_refused() -> None:
    model, first = wrapped(torch.float16, OPTIMIZERS["Adam"])
    second = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, *data(0))
    with pytest.raises(RuntimeError, match="the loss scale of another optimizer"):
        first.step()
    second.step()
    assert smp.DistributedOptimizer(first) is first
    assert smp.DistributedOptimizer(first.optimizer) is first
    assert smp.state.optimizer is first


def test_sparse_gradients() -> None:
    smp.init({"bf16": True})
    torch.manual_seed(1)
    embedding = nn.Embedding(5, 3, sparse=True)
    plain = copy.deepcopy(embedding)
    model = smp.DistributedModel(embedding)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    reference = PlainSixteenBit(plain, torch.bfloat16, lambda p: torch.optim.SGD(p, lr=0.5))
    ids = torch.tensor([[1, 1, 4]])
    model.backward(model(ids).sum())
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.is_sparse
    optimizer.step()
    plain.sparse = False
    reference.backward(lambda out, _: out.sum(), [(ids, ids)])
    reference.update()
    assert torch.equal(embedding.weight, plain.weight)


def test_a_group_that_is_added_later() -> None:
    smp.init({"bf16": True})
    model = smp.DistributedModel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    inner = torch.optim.SGD(model.get_module()[0].parameters(), lr=0.5)
    optimizer = smp.DistributedOptimizer(inner)
    for adds in (False, True):
        if adds:
            optimizer.add_param_group({"params": list(model.get_module()[1].parameters())})
        before = model.get_module()[1].weight.clone()
        optimizer.zero_grad()
        model.backward(model(torch.ones(1, 2)).sum())
        optimizer.step()
        assert torch.equal(before, model.get_module()[1].weight) != adds
    assert [len(group) for group in optimizer.fp16_groups] == [2, 2]
    assert list(optimizer.local_fp16_states()["masters"]) == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    ]


def test_a_parameter_that_is_not_the_models() -> None:
    smp.init({"bf16": True})
    model = smp.DistributedModel(nn.Linear(2, 2))
    own = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD([own, *model.parameters()], lr=0.5))
    own.grad = torch.ones_like(own)
    optimizer.step()
    assert torch.equal(own, torch.full_like(own, 0.5))
    states = optimizer.local_fp16_states()
    assert list(states["masters"]) == ["param_groups.0.0", "weight", "bias"]
    optimizer.load_fp16_states(states)


def test_arguments_of_the_loss_scale() -> None:
    smp.init({"fp16": True})
    model = smp.DistributedModel(nn.Linear(2, 2))

    def made(**options: Any) -> Any:
        return smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)

    assert made().loss_scale == 1.0
    assert made(static_loss_scale=128).loss_scale == 128.0
    dynamic = made(dynamic_loss_scale=True, init_scale=4.0, dynamic_loss_args={"min_scale": 2})
    assert dynamic.loss_scale == 4.0
    assert dynamic.loss_scaler.min_scale == 2
    assert made(static_loss_scale=None, dynamic_loss_scale=True).loss_scale == 2.0**32
    with pytest.raises(ValueError, match="Pass dynamic_loss_scale=True, or a number"):
        made(static_loss_scale=None)
    with pytest.raises(ValueError, match=r"loss scale is 0\.0"):
        made(static_loss_scale=0)
    with pytest.raises(TypeError, match="'verbose'; expected some of init_scale"):
        made(verbose=True)
    with pytest.raises(UnsupportedError, match="LBFGS in 16-bit training"):
        smp.DistributedOptimizer(torch.optim.LBFGS(model.parameters()))


def test_what_it_says_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="smdistributed"):
        wrapped(torch.float16, OPTIMIZERS["Adam"], static_loss_scale=None, dynamic_loss_scale=True)
    assert "Bit16_Optimizer initialized: Adam in float16, dynamic loss scale" in caplog.text


def test_in_fp32_the_arguments_do_nothing() -> None:
    smp.init({})
    model = smp.DistributedModel(nn.Linear(2, 2))
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    made = smp.DistributedOptimizer(plain, static_loss_scale=None, dynamic_loss_args={"other": 1})
    assert made is plain
    assert not isinstance(made, Bit16Optimizer)
    assert not hasattr(made, "clip_master_grads")


@pytest.mark.parametrize("ddp", [False, True])
def test_wrappers_and_dtypes_of_the_model(ddp: bool) -> None:
    smp.init({"bf16": True, "ddp": ddp})
    assert smp.state.cfg.bf16
    linear = nn.Linear(3, 2)
    model = smp.DistributedModel(linear)
    wrapper = model.module.module if ddp else model.module
    assert wrapper.module is model.get_module() is linear
    assert wrapper.in_features == model.module.in_features == 3
    assert [name for name, _ in model.named_parameters()] == ["weight", "bias"]
    x = torch.ones(1, 3)
    assert torch.equal(model(x), wrapper(x))
    assert model(x).dtype is torch.float32
    with pytest.raises(UnsupportedError, match=r"join\(\) in 16-bit training"):
        model.join()


def test_a_grad_scaler_beside_it_is_refused() -> None:
    smp.init({"fp16": True})
    scaler = smp.amp.GradScaler()
    with pytest.raises(RuntimeError, match="Leave the scaler out"):
        scaler.scale(torch.ones(()))
    loss = torch.ones(())
    assert smp.amp.GradScaler(enabled=False).scale(loss) is loss


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_gradients_are_divided_whatever_the_default_dtype_is(default: torch.dtype) -> None:
    """Up to 2.0.0 torch refused: "inv_scale must be a float tensor"."""
    parameter = nn.Parameter(torch.ones(3, dtype=torch.float16))
    masters = Masters(torch.optim.SGD([parameter], lr=0.1))
    masters.make(set())
    torch.set_default_dtype(default)
    try:
        for value, is_overflow in ((6.0, False), (float("inf"), True)):
            parameter.grad = torch.full_like(parameter, value)
            assert masters.update_gradients(4.0) is is_overflow
            assert torch.equal(masters.pairs[0].master.grad, torch.full((3,), value / 4).float())
    finally:
        torch.set_default_dtype(torch.float32)
