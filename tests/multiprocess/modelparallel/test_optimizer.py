# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers, gradient norms and gradient scalers of a model on several ranks.

Specification, sections 4.4, 4.5, 4.9 and 8. The reference is plain torch on the whole model. One
start serves many checks.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import run_ranks
from parted_models import Network, batch, by_hand, cut, loss_of, network, plain_step, step_function
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_ as imported_before
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR
from torch_ranks import raised

DEADLINE_S = 60.0

Make = Callable[[list[nn.Parameter]], Any]

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "SGD, foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "Adam, for loop": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "Adam, rate in a tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, foreach=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "Adagrad, fused": lambda p: torch.optim.Adagrad(p, lr=0.01, fused=True),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "ASGD, foreach": lambda p: torch.optim.ASGD(p, lr=0.01, foreach=True),
    "Muon": lambda p: torch.optim.Muon([each for each in p if each.ndim == 2], lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "two groups": lambda p: torch.optim.SGD(
        [
            {"params": [each for each in p if each.ndim > 1], "weight_decay": 0.1},
            {"params": [each for each in p if each.ndim == 1], "lr": 0.05},
        ],
        lr=0.1,
        momentum=0.5,
    ),
}


def assert_close(found: Any, expected: Any, what: str) -> None:
    """Nested states: kinds, keys, values."""
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor), what
        assert found.dtype == expected.dtype, what
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5, msg=lambda m: what + m)
    elif isinstance(expected, dict):
        assert list(found) == list(expected), what
        for key, value in expected.items():
            assert_close(found[key], value, f"{what}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), what
        for number, value in enumerate(expected):
            assert_close(found[number], value, f"{what}[{number}]")
    else:
        assert found == expected, what


def assert_local_parameters(model: Any, plain: nn.Module, what: str) -> None:
    expected = dict(plain.named_parameters())
    for name, parameter in model.local_named_parameters():
        assert_close(parameter.detach(), expected[name].detach(), f"{what}: {name}")


def assert_only_local_state(model: Any, optimizer: Any, what: str) -> None:
    here = {id(parameter) for parameter in model.local_parameters()}
    assert {id(parameter) for parameter in optimizer.state} <= here, what


def check_optimizers(smp: Any, model: Any, plain: nn.Module, train: Any) -> None:
    """Every optimizer of torch: parameters, and states as plain torch has them, in both ways."""
    start = model.state_dict()
    listed = {
        kind.__name__
        for kind in vars(torch.optim).values()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    tried = {name.partition(",")[0] for name in OPTIMIZERS}
    assert listed - tried == {"Optimizer", "LBFGS", "SparseAdam"}, "a new one in torch"
    for name, make in OPTIMIZERS.items():
        model.load_state_dict(start)
        plain.load_state_dict(start)
        optimizer = make(list(model.parameters()))
        assert smp.DistributedOptimizer(optimizer) is optimizer
        assert smp.state.optimizer is optimizer
        assert_only_local_state(model, optimizer, name)
        reference = make(list(plain.parameters()))
        for number in range(3):
            optimizer.zero_grad()
            reference.zero_grad()
            train(model, *batch(number))
            plain_step(plain, *batch(number))
            optimizer.step()
            reference.step()
        assert_local_parameters(model, plain, name)
        assert_only_local_state(model, optimizer, name)
        state = optimizer.state_dict()
        assert_close(state, reference.state_dict(), name)

        own = optimizer.local_state_dict()
        assert own.pop("_smp_is_partial") is True
        assert own["param_groups"] == optimizer.orig_state_dict()["param_groups"]
        assert list(own["state"]) == list(optimizer.orig_state_dict()["state"])

        # The whole state in one process, and back; and of each rank, in any hands.
        fresh = make(list(plain.parameters()))
        fresh.load_state_dict(state)
        assert_close(fresh.state_dict(), state, name)
        parts = smp.allgather(copy.deepcopy(own), smp.MP_GROUP)
        for given in (
            state,
            {**parts[smp.rank()], "_smp_is_partial": True},
            {**parts[1 - smp.rank()], "_smp_is_partial": True},
        ):
            again = smp.DistributedOptimizer(make(list(model.parameters())))
            again.load_state_dict(given)
            assert_only_local_state(model, again, name)
            assert_close(again.state_dict(), state, name)


def check_unsupported(smp: Any, model: Any) -> None:
    parameters = list(model.parameters())
    name, text, bases = raised(smp.DistributedOptimizer, torch.optim.LBFGS(parameters))
    assert name == "UnsupportedError"
    assert "NotImplementedError" in bases
    assert "or one partition" in text
    local = smp.DistributedOptimizer(torch.optim.SGD(model.local_parameters(), lr=0.1, momentum=1))
    for parameter in model.local_parameters():
        parameter.grad = torch.ones_like(parameter)
    local.step()
    assert "model.parameters()" in raised(local.state_dict)[1]
    own = copy.deepcopy(local.local_state_dict())
    local.load_state_dict(own)
    assert_close(local.local_state_dict(), own, "each its own")
    model.zero_grad()


def check_sparse(smp: Any, model: Any) -> None:
    """SparseAdam, of parameters that one rank holds: it is nothing to do on the other."""
    weight = model.get_module().embedding.weight
    optimizer = smp.DistributedOptimizer(torch.optim.SparseAdam([weight], lr=0.1))
    plain = nn.Embedding(*weight.shape, sparse=True)
    if smp.rank() == 0:
        plain.load_state_dict({"weight": weight.detach().clone()})
        plain(torch.tensor([3, 5])).sum().backward()
        weight.grad = plain.weight.grad.clone()
        reference = torch.optim.SparseAdam(plain.parameters(), lr=0.1)
        reference.step()
    optimizer.step()
    state = optimizer.state_dict()
    assert state["state"][0]["step"] == 1
    assert state["state"][0]["exp_avg"].shape == weight.shape
    if smp.rank() == 0:
        assert torch.equal(weight, plain.weight)
        assert_close(state, reference.state_dict(), "sparse")
    weight.grad = None


def check_inside_a_step(smp: Any, model: Any) -> None:
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scaler = smp.amp.GradScaler()

    def inside(what: str, model: Any, x: Tensor, y: Tensor) -> None:
        model.backward(loss_of(model(x), y))
        if what == "step":
            optimizer.step()
        elif what == "scaler":
            scaler.step(optimizer)
        elif what == "norm":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            collectives[what]()

    collectives: dict[str, Callable[[], Any]] = {
        "save": lambda: smp.save_checkpoint("nowhere", "x"),
        "resume": lambda: smp.resume_from_checkpoint("nowhere"),
        "export": lambda: smp.save_safetensors("nowhere"),
        "state": model.state_dict,
        "gather": lambda: smp.allgather(1, smp.PP_GROUP),
        "barrier": smp.barrier,
    }
    for what in ("step", "scaler", "norm", *collectives):
        name, text, _ = raised(smp.step(inside), what, model, *batch(0))
        assert name == ("RuntimeError" if smp.rank() == 0 else "StepAborted"), text
        assert "inside of a step" in text
        smp.mp_barrier()
    model.zero_grad()


def check_schedulers(smp: Any, model: Any, plain: nn.Module, train: Any) -> None:
    """Made before and after the optimizer is wrapped; closures; hooks of the optimizer."""
    model.load_state_dict(plain.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    before = StepLR(optimizer, 1, gamma=0.5)
    smp.DistributedOptimizer(optimizer)
    assert smp.DistributedOptimizer(optimizer) is optimizer, "twice"
    after = [CosineAnnealingLR(optimizer, 5), LambdaLR(optimizer, lambda n: 1 / (n + 1))]
    plain_ones = [
        StepLR(reference, 1, gamma=0.5),
        CosineAnnealingLR(reference, 5),
        LambdaLR(reference, lambda n: 1 / (n + 1)),
    ]
    assert optimizer.step.__func__ is not None
    steps = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))

    def closure() -> float:
        optimizer.zero_grad(set_to_none=False)
        return float(train(model, *batch(0)).reduce_mean())

    def plain_closure() -> float:
        reference.zero_grad()
        plain_step(plain, *batch(0))
        return float(loss_of(plain(batch(0)[0]), batch(0)[1]))

    for _ in range(3):
        assert optimizer.step(closure) == pytest.approx(reference.step(plain_closure), rel=1e-4)
        for scheduler in (before, *after, *plain_ones):
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] == reference.param_groups[0]["lr"]
    assert len(steps) == 3
    assert_local_parameters(model, plain, "schedulers")


class Apexlike:
    """An optimizer of a script's own, with the dialect of Apex."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.param_groups = [{"params": parameters, "lr": 0.1}]
        self.count = 0

    def step(self) -> str:
        with torch.no_grad():
            present = [each for each in self.param_groups[0]["params"] if each.grad is not None]
            torch.stack([each.grad.norm() for each in present])  # raises if there is none
            for each in present:
                each -= 0.1 * each.grad
        self.count += 1
        return "stepped"

    def zero_grad(self, set_grads_to_None: bool = False) -> None:  # noqa: N803
        for each in self.param_groups[0]["params"]:
            if set_grads_to_None:
                each.grad = None
            elif each.grad is not None:
                each.grad.zero_()

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert list(state) == ["count"]
        self.count = state["count"]


def check_scripts_own(smp: Any, model: Any, train: Any) -> None:
    optimizer = smp.DistributedOptimizer(Apexlike(list(model.parameters())))
    train(model, *batch(0))
    assert optimizer.step() == "stepped"
    optimizer.zero_grad(set_grads_to_None=False)
    assert all(not each.grad.any() for each in model.local_parameters() if each.requires_grad)
    optimizer.zero_grad()
    assert all(each.grad is None for each in model.parameters())
    assert optimizer.local_state_dict() == {"count": 1, "_smp_is_partial": True}
    assert "smp.save(partial=True)" in raised(optimizer.state_dict)[1]
    optimizer.load_state_dict({"count": 5, "_smp_is_partial": True})
    assert optimizer.orig_state_dict() == {"count": 5}


def check_tables(smp: Any, model: Any, plain: nn.Module) -> None:
    """What scripts for 16 bits read, and may replace."""
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    names = {name: number for number, (name, _) in enumerate(plain.named_parameters())}
    assert optimizer.param_name_to_index() == names
    assert smp.state.param_name_to_index_tp_group == [names]
    assert smp.state.param_index_to_name_tp_group[0][1] == list(names)[1]
    ids = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    assert optimizer._param_id_to_index() == ids
    local = {names[name]: parameter for name, parameter in model.local_named_parameters()}
    found = optimizer._param_index_to_param_local()
    assert found.keys() == local.keys()
    assert all(found[index] is parameter for index, parameter in local.items())
    assert optimizer.redefined_params is False
    assert optimizer._is_accelerate_prepared is True
    assert isinstance(optimizer, torch.optim.Optimizer)


def check_norms(smp: Any, model: Any, plain: nn.Module, train: Any) -> None:
    """The norm of the whole model, bit by bit as plain torch has it, wherever it is asked for."""
    model.load_state_dict(plain.state_dict())
    expected = dict(plain.named_parameters())

    def fill() -> None:
        generator = torch.Generator().manual_seed(3)
        for _, parameter in plain.named_parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        for name, parameter in model.local_named_parameters():
            gradient = expected[name].grad
            parameter.grad = None if gradient is None else gradient.clone()

    ways: dict[str, Any] = {
        "the method": model.clip_grad_norm_,
        "torch's": lambda *a, **k: nn.utils.clip_grad_norm_(model.parameters(), *a, **k),
        "imported before": lambda *a, **k: imported_before(model.parameters(), *a, **k),
        "deprecated": lambda *a, **k: nn.utils.clip_grad_norm(model.parameters(), *a, **k),
        "local": lambda *a, **k: nn.utils.clip_grad_norm_(model.local_parameters(), *a, **k),
    }
    for norm_type in (2.0, 1.0, 0.5, float("inf"), float("-inf")):
        for max_norm in (0.7, 1e6):
            for way, clip in ways.items():
                fill()
                total = imported_before(plain.parameters(), max_norm, norm_type=norm_type)
                found = clip(max_norm, norm_type=norm_type)
                assert torch.equal(found, total), (way, norm_type)
                for name, parameter in model.local_named_parameters():
                    if parameter.requires_grad:
                        assert torch.equal(parameter.grad, expected[name].grad), (way, name)
    fill()
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    whole = [each.grad for each in plain.parameters() if each.grad is not None]
    assert torch.equal(nn.utils.get_total_norm(gradients), nn.utils.get_total_norm(whole))
    foreach = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
    assert torch.equal(foreach, nn.utils.get_total_norm(whole))
    # Of one block, which one rank holds; of a tensor that is nobody's.
    fill()
    found = nn.utils.clip_grad_norm_(model.get_module().blocks[3].parameters(), 1.0)
    assert torch.equal(found, imported_before(plain.blocks[3].parameters(), 1.0))
    other = nn.Parameter(torch.ones(4))
    other.grad = torch.ones(4)
    if smp.rank() == 0:
        assert nn.utils.clip_grad_norm_([other], 1.0) == 2.0
        assert nn.utils.clip_grad_norm_(other, 1.0) == pytest.approx(1.0)
    else:  # a criterion's weights, which only the step's body uses, have gradients on the leader
        other.grad = None
        assert nn.utils.clip_grad_norm_([other], 1.0) == 0.0

    fill()
    if smp.rank() == 1:
        next(p for p in model.local_parameters() if p.grad is not None).grad.fill_(float("inf"))
    name, text, _ = raised(model.clip_grad_norm_, 1.0, error_if_nonfinite=True)
    assert name == "RuntimeError"
    assert "error_if_nonfinite=False" in text
    assert nn.utils.get_total_norm(
        [p.grad for p in model.parameters() if p.grad is not None]
    ) == float("inf")
    model.zero_grad()
    plain.zero_grad()
    assert model.clip_grad_norm_(1.0) == 0.0

    # In training.
    train(model, *batch(5))
    plain_step(plain, *batch(5))
    total = imported_before(plain.parameters(), 0.1)
    torch.testing.assert_close(model.clip_grad_norm_(0.1), total)
    assert torch.equal(*smp.allgather(model.clip_grad_norm_(0.1), smp.MP_GROUP))
    model.zero_grad()
    plain.zero_grad()


def check_scaler(smp: Any, model: Any, plain: nn.Module) -> None:
    """Scaled and back; infinite on one rank: nobody steps, and the scale is halved everywhere."""
    scaler = smp.amp.GradScaler(init_scale=1024.0, growth_interval=2)
    assert isinstance(scaler, torch.amp.GradScaler)

    @smp.step
    def train(model: Any, scaler: Any, x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(model(x), y)
        model.backward(scaler.scale(loss))
        return loss

    for make in (OPTIMIZERS["SGD"], OPTIMIZERS["Adam, fused"]):
        model.load_state_dict(plain.state_dict())
        optimizer = smp.DistributedOptimizer(make(list(model.parameters())))
        reference = make(list(plain.parameters()))
        for number in range(5):
            optimizer.zero_grad()
            train(model, scaler, *batch(number))
            is_bad = number in (1, 3)
            if is_bad and smp.rank() == number // 2:
                gradients = [p.grad for p in model.local_parameters() if p.grad is not None]
                gradients[-1].t()[(0,) * gradients[-1].ndim] = (
                    float("inf") if number == 1 else float("nan")
                )
            before = copy.deepcopy([p.detach() for p in model.local_parameters()])
            scale = scaler.get_scale()
            if number == 4:
                scaler.unscale_(optimizer)
                model.clip_grad_norm_(0.5)
            scaler.step(optimizer)
            scaler.update()
            if is_bad:
                assert scaler.get_scale() == scale / 2
                for parameter, was in zip(model.local_parameters(), before, strict=True):
                    assert torch.equal(parameter, was), "skipped"
                continue
            reference.zero_grad()
            plain_step(plain, *batch(number))
            if number == 4:
                imported_before(plain.parameters(), 0.5)
            reference.step()
        assert_local_parameters(model, plain, "scaled")
    states = smp.allgather(scaler.state_dict(), smp.WORLD)
    assert states[0] == states[1]
    again = smp.amp.GradScaler()
    again.load_state_dict(states[0])
    assert again.state_dict() == states[1]
    off = smp.amp.GradScaler(enabled=False)
    train(model, off, *batch(0))
    off.step(optimizer)
    off.update()
    assert off.get_scale() == 1.0
    assert off.state_dict() == {}


def check_empty_partition(smp: Any, train: Any) -> None:
    """A partition without parameters: clipping, scaling, stepping and states all work."""
    plain = network()
    small = network()
    for module in small.modules():
        smp.set_partition(module, 0)
    model = smp.DistributedModel(small)
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    assert optimizer.state_dict() == torch.optim.Adam(plain.parameters(), lr=0.01).state_dict()
    reference = torch.optim.Adam(plain.parameters(), lr=0.01)
    scaler = smp.amp.GradScaler()
    for number in range(2):
        optimizer.zero_grad()
        reference.zero_grad()
        train(model, *batch(number))
        plain_step(plain, *batch(number))
        for loss_scale in (p.grad for p in model.parameters() if p.grad is not None):
            loss_scale.mul_(65536.0)
        scaler.unscale_(optimizer)
        total = nn.utils.clip_grad_norm_(model.local_parameters(), 0.1)
        torch.testing.assert_close(total, nn.utils.clip_grad_norm_(plain.parameters(), 0.1))
        scaler.step(optimizer)
        scaler.update()
        reference.step()
    assert_local_parameters(model, plain, "empty")
    assert len(list(model.local_parameters())) == (
        0 if smp.rank() else len(list(plain.parameters()))
    )
    assert_close(optimizer.state_dict(), reference.state_dict(), "empty")
    own = smp.DistributedOptimizer(Apexlike(list(model.parameters())))
    train(model, *batch(0))
    assert own.step() == ("stepped" if smp.rank() == 0 else None)


def two_partitions(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    smp.init(by_hand(2))
    plain = network()
    train = step_function()
    inner: Any = cut(network(), 2)
    early = OrderedDict(
        # Before wrapping and partitioning; Adagrad makes its state at once.
        adagrad=torch.optim.Adagrad(inner.parameters(), lr=0.01),
        sgd=torch.optim.SGD(inner.parameters(), lr=0.01),
    )
    first: Any = smp.DistributedOptimizer(early["adagrad"])
    model: Any = smp.DistributedModel(inner)
    assert smp.DistributedOptimizer(early["sgd"]).step.__self__ is early["sgd"]
    assert raised(first.local_state_dict)[0] == "ModelNotPartitionedError"
    reference = torch.optim.Adagrad(plain.parameters(), lr=0.01)
    assert_close(first.state_dict(), reference.state_dict(), "before")
    hooks: list[Any] = []
    model.register_post_partition_hook(lambda *given: hooks.append(given))

    def fails_on_one(*_: Any) -> None:
        if rank == 1:
            raise ValueError("of the hook")

    model.register_post_partition_hook(fails_on_one)
    name, text, _ = raised(train, model, *batch(0))
    assert name == ("ValueError" if rank == 1 else "SMPError"), text
    assert "of the hook" in text
    train(model, *batch(0))
    assert hooks == [(model, early["sgd"])]
    plain_step(plain, *batch(0))
    first.step()
    reference.step()
    assert_local_parameters(model, plain, "early")
    assert_only_local_state(model, first, "early")
    assert_close(first.state_dict(), reference.state_dict(), "early")
    first.zero_grad()

    check_optimizers(smp, model, plain, train)
    check_unsupported(smp, model)
    check_sparse(smp, model)
    check_inside_a_step(smp, model)
    check_schedulers(smp, model, plain, train)
    check_scripts_own(smp, model, train)
    check_tables(smp, model, plain)
    check_norms(smp, model, plain, train)
    check_scaler(smp, model, plain)
    ours = nn.utils.clip_grad_norm_
    gone = [weakref.ref(each) for each in (inner, *inner.parameters())]
    model = inner = first = None
    early.clear()
    hooks.clear()
    gc.collect()
    gc.collect()  # of what has run it, which is let go of when the model ends
    assert [each() for each in gone] == [None] * len(gone)
    assert smp.state.optimizer is None
    check_empty_partition(smp, train)
    smp.barrier()
    smp.reset()
    assert nn.utils.clip_grad_norm_ is imported_before
    assert nn.utils.clip_grad_norm_ is not ours


def test_two_partitions() -> None:
    run_ranks(two_partitions, 2, deadline_s=DEADLINE_S)


def accumulation(rank: int, world_size: int) -> None:
    for partitions in (2, 1):
        check_accumulation(partitions)


def check_accumulation(partitions: int) -> None:
    """Gradients of several steps: what was not reduced yet is, by whoever needs them first."""
    import smdistributed.modelparallel.torch as smp

    smp.init(by_hand(partitions, ddp=True))
    replicas = smp.dp_size()
    plain: Network = network()
    options = {"backward_passes_per_step": 4, "gradient_as_bucket_view": partitions == 1}
    model = smp.DistributedModel(cut(network(), partitions), **options)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    train = step_function()
    scaler = smp.amp.GradScaler(init_scale=1.0)
    for first in ("step", "clip", "torch's clip", "torch's clip by name", "scaler"):
        optimizer.zero_grad()
        reference.zero_grad()
        for number in range(2):
            train(model, *batch(10 * number + smp.dp_rank()))
            for replica in range(replicas):
                plain_step(plain, *batch(10 * number + replica))
        for parameter in plain.parameters():
            if parameter.grad is not None:
                parameter.grad /= replicas
        if first == "clip":
            model.clip_grad_norm_(0.3)
            imported_before(plain.parameters(), 0.3)
        elif first == "torch's clip":
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            imported_before(plain.parameters(), 0.3)
        elif first == "torch's clip by name":
            imported_before(model.parameters(), 0.3)
            imported_before(plain.parameters(), 0.3)
        if first == "scaler":
            scaler.scale(torch.ones(()))
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        reference.step()
        assert_local_parameters(model, plain, f"{first}, {partitions}")
    totals = smp.allgather(model.clip_grad_norm_(0.3), smp.WORLD)
    assert all(torch.equal(total, totals[0]) for total in totals)
    smp.barrier()
    smp.reset()


def test_accumulated_gradients_of_replicas() -> None:
    run_ranks(accumulation, 4, deadline_s=DEADLINE_S)


def left_alone(rank: int, world_size: int) -> None:
    """`SMP_GLOBAL_GRADIENT_NORM=0`: torch's functions are torch's, our method is not."""
    import smdistributed.modelparallel.torch as smp

    smp.init(by_hand(2))
    model = smp.DistributedModel(cut(network(), 2))
    step_function()(model, *batch(0))
    assert nn.utils.clip_grad_norm_ is imported_before
    mine = imported_before(model.parameters(), 1e6)
    norms = smp.allgather(mine, smp.MP_GROUP)
    assert not torch.equal(*norms)
    torch.testing.assert_close(model.clip_grad_norm_(1e6), torch.stack(norms).norm())


def test_the_switch_leaves_torch_alone() -> None:
    env = {"SMP_GLOBAL_GRADIENT_NORM": "0"}
    run_ranks(left_alone, 2, env=env, deadline_s=DEADLINE_S)
