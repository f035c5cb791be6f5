# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizer states that are spread over replicas (specification, 6.6).

The reference is plain torch on the same gradients: parameters must be the same bits.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import run_ranks
from parted_models import batch, by_hand, cut, loss_of, network
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch_ranks import raised

DEADLINE_S = 120.0

Make = Callable[[list[nn.Parameter]], Any]


def in_groups(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [
        {"params": [each for each in parameters if each.ndim > 1], "weight_decay": 0.1},
        {"params": [each for each in parameters if each.ndim == 1], "lr": 0.02},
    ]


class Own:
    """No optimizer of torch: plain descent with momentum, with what ours asks for."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.param_groups = [{"params": parameters, "lr": 0.1}]
        self.state: dict[Tensor, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    own = self.state.setdefault(each, {"sum": torch.zeros_like(each)})
                    each.sub_(own["sum"].mul_(0.9).add_(each.grad), alpha=group["lr"])

    def state_dict(self) -> dict[str, Any]:
        numbers = {id(p): n for n, p in enumerate(self.param_groups[0]["params"])}
        groups = [{"lr": 0.1, "params": list(numbers.values())}]
        return {"state": {numbers[id(p)]: s for p, s in self.state.items()}, "param_groups": groups}


OPTIMIZERS: dict[str, Make] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(in_groups(p), lr=0.01),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "own": Own,
}


def with_lamb(p: list[nn.Parameter]) -> Any:
    import smdistributed.modelparallel.torch as smp

    return smp.optimizers.FusedLAMB(p, lr=0.01, max_grad_norm=0.01)


class Job:
    """A sharded model, and one in one piece that gets the same gradients."""

    def __init__(self, config: dict[str, Any]) -> None:
        import smdistributed.modelparallel.torch as smp

        smp.init({**config, "ddp": True, "shard_optimizer_state": True})
        self.smp = smp
        self.plain = network()
        net = copy.deepcopy(self.plain)
        self.model = smp.DistributedModel(cut(net, smp.pp_size()))
        model = self.model

        @smp.step
        def train(x: Tensor, y: Tensor) -> Tensor:
            loss = loss_of(model(x), y)
            model.backward(loss)
            return loss

        self.train = train

    def backward(self, number: int, reference: nn.Module) -> None:
        """Each replica has its own batch; the reference gets the gradients of all."""
        self.model.zero_grad()
        self.train(*batch(number * 10 + self.smp.dp_rank()))
        own = {name: each.grad for name, each in self.here().items()}
        for theirs in self.smp.allgather(own, self.smp.PP_GROUP):
            for name, grad in theirs.items():
                parameter = reference.get_parameter(name)
                # In its layout, or a fused optimizer of torch takes elements in another order.
                parameter.grad = None if grad is None else torch.empty_like(parameter).copy_(grad)

    def here(self) -> dict[str, nn.Parameter]:
        return dict(self.model.local_named_parameters())

    def assert_same(self, reference: nn.Module, what: str) -> None:
        expected = dict(reference.named_parameters())
        for name, parameter in self.here().items():
            assert torch.equal(parameter, expected[name]), f"{what}: {name}"
        theirs = self.smp.allgather(
            {name: each.detach().clone() for name, each in self.here().items()}, self.smp.DP_GROUP
        )
        for other in theirs:
            for name, parameter in self.here().items():
                assert torch.equal(parameter, other[name]), f"{what}: {name} of another replica"


def nbytes(states: Any) -> int:
    return sum(v.nbytes for s in states.values() for v in s.values() if isinstance(v, Tensor))


def assert_states(found: Any, expected: Any, what: str) -> None:
    assert list(found) == sorted(expected), what
    for index, state in found.items():
        assert list(state) == list(expected[index]), what
        for key, value in state.items():
            assert torch.equal(value, expected[index][key]), f"{what}: {index}, {key}"


def check_training(job: Job, name: str, make: Make) -> None:
    smp, model = job.smp, job.model
    model.load_state_dict(job.plain.state_dict())
    plain = copy.deepcopy(job.plain)
    optimizer = make(list(model.parameters()))
    groups = optimizer.param_groups
    held = [group["params"] for group in groups]
    schedulers = []
    if isinstance(optimizer, torch.optim.Optimizer):
        schedulers.append(StepLR(optimizer, 1, gamma=0.5))
    assert smp.DistributedOptimizer(optimizer) is optimizer
    assert optimizer.redefined_params is False
    reference = make(list(plain.parameters()))
    if schedulers:
        schedulers.append(StepLR(reference, 1, gamma=0.5))
    for number in range(3):
        job.backward(number, plain)
        optimizer.step()
        reference.step()
        for scheduler in schedulers:
            scheduler.step()
    job.assert_same(plain, name)
    assert optimizer.param_groups is groups
    assert all(group["params"] is each for group, each in zip(groups, held, strict=True))

    # States: about one share each, and together those of the reference.
    whole = reference.state_dict()
    indices = {id(p): n for n, p in enumerate(p for group in held for p in group)}
    here = {indices[id(parameter)] for parameter in job.here().values()}
    expected = {index: state for index, state in whole["state"].items() if index in here}
    mine = optimizer.local_state_dict(gather_if_shard=False)
    assert set(mine["state"]) < set(expected)
    shares = smp.allgather(nbytes(mine["state"]), smp.DP_GROUP)
    largest = max(nbytes({0: state}) for state in expected.values())
    assert sum(shares) == nbytes(expected), name
    assert max(shares) <= nbytes(expected) / smp.dp_size() + largest, name
    assert max(shares) < 0.75 * nbytes(expected), name
    gathered = optimizer.local_state_dict()
    if smp.dp_rank() == 0:
        assert_states(gathered["state"], expected, name)
        assert "_smp_shards" not in gathered
    else:
        assert list(gathered["state"]) == list(mine["state"])
    assert gathered["_smp_is_partial"] is True
    if not hasattr(reference, "load_state_dict"):
        return

    # And back: shards as they were, given to others, the partition's, and the whole model's.
    everyone = smp.allgather(copy.deepcopy(mine), smp.WORLD)
    partitions = smp.allgather(copy.deepcopy(gathered), smp.DP_GROUP)
    for given in (
        mine,
        everyone[(smp.rank() + 1) % smp.size()],
        everyone if smp.rank() == 0 else [everyone[0]],
        partitions[0],
        whole,
    ):
        again = smp.DistributedOptimizer(make(list(model.parameters())))
        again.load_state_dict(copy.deepcopy(given))  # torch takes tensors as they are
        assert_states(again.local_state_dict(False)["state"], mine["state"], name)
    incomplete = everyone[0]
    kind, text, _ = raised(again.load_state_dict, incomplete)
    assert kind == "ValueError"
    assert "were given to no rank" in text
    # It goes on as the reference does.
    job.backward(3, plain)
    for group, other in zip(again.param_groups, reference.param_groups, strict=True):
        group["lr"] = other["lr"]
    again.step()
    reference.step()
    job.assert_same(plain, f"{name}, loaded")


def check_details(job: Job) -> None:
    smp, model = job.smp, job.model
    parameters = list(model.parameters())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(parameters[:3], lr=0.1, momentum=0.9))
    plain = copy.deepcopy(job.plain)
    plain.load_state_dict(model.state_dict())
    reference = torch.optim.SGD(list(plain.parameters())[:3], lr=0.1, momentum=0.9)
    job.backward(0, plain)
    optimizer.step()
    reference.step()
    optimizer.add_param_group({"params": parameters[3:], "lr": 0.05})
    reference.add_param_group({"params": list(plain.parameters())[3:], "lr": 0.05})
    job.backward(1, plain)

    def closure() -> Tensor:
        before = [each.grad for each in model.local_parameters()]
        optimizer.zero_grad()
        assert all(each.grad is None for each in model.local_parameters())
        for each, grad in zip(model.local_parameters(), before, strict=True):
            each.grad = grad
        return torch.tensor(5.0)

    assert float(optimizer.step(closure)) == 5.0
    reference.step()
    job.assert_same(plain, "groups that were added")
    kind, text, bases = raised(optimizer.state_dict)
    assert kind == "UnsupportedError"
    assert "NotImplementedError" in bases
    assert "gather_if_shard=False" in text
    assert raised(model.join)[0] == "UnsupportedError"
    assert "LBFGS with shard" in raised(smp.DistributedOptimizer, torch.optim.LBFGS(parameters))[1]


def check_other_tensors(job: Job) -> None:
    """`shard` by itself, of copies in place of parameters; and of two dtypes."""
    from smdistributed.modelparallel.torch.optimizer.sharding import shard

    smp = job.smp
    placement = job.model.placement("a test")
    masters = [nn.Parameter(each.detach().double()) for each in job.model.local_parameters()]
    for master, each in zip(masters, job.model.local_parameters(), strict=True):
        master._smp_master_of = each  # type: ignore[attr-defined]
        master.grad = torch.full_like(master, 2.0)
    expected = [master.detach() - 1.0 for master in masters]
    optimizer = torch.optim.SGD(masters, lr=0.5, momentum=0.9)
    shards = shard(optimizer, smp.state.job, placement)
    assert shards is not None
    shards.step(optimizer.step)
    for master, value in zip(masters, expected, strict=True):
        assert torch.equal(master, value)
    assert 0 < len(optimizer.state) < len(masters)
    masters[0].data = masters[0].data.float()
    mixed = shard(torch.optim.SGD(masters, lr=0.5), smp.state.job, placement)
    assert mixed is not None
    kind, text, _ = raised(mixed.step, optimizer.step)
    assert kind == "UnsupportedError"
    assert "float32 and float64" in text


def check_waiting(config: dict[str, Any]) -> None:
    """A shard that is loaded before the model is placed."""
    job = Job(config)
    smp, model = job.smp, job.model
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    job.backward(0, job.plain)
    optimizer.step()
    mine = copy.deepcopy(optimizer.local_state_dict(gather_if_shard=False))
    file = io.BytesIO()
    torch.save(mine, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    del model, optimizer, job
    smp.reset()
    job = Job(config)
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(job.model.parameters(), lr=0.01))
    optimizer.load_state_dict(loaded)
    job.backward(1, job.plain)
    assert_states(optimizer.local_state_dict(False)["state"], mine["state"], "waited")
    if smp.pp_size() > 1:  # one partition cannot be sharded
        del optimizer, job
        smp.reset()
        job = Job(config)
        last = list(job.model.parameters())[-1]
        last.data = last.data.double()
        optimizer = smp.DistributedOptimizer(torch.optim.Adam(job.model.parameters(), lr=0.01))
        optimizer.load_state_dict(loaded)
        assert "float32 and float64" in raised(job.train, *batch(0))[1]
    smp.reset()


def in_ranks(rank: int, world_size: int, config: dict[str, Any], names: list[str]) -> None:
    job = Job(config)
    job.backward(0, job.plain)  # places the model
    for name in names:
        check_training(job, name, OPTIMIZERS[name])
    check_training(job, "LAMB", with_lamb)
    check_details(job)
    check_other_tensors(job)
    job.smp.reset()
    del job
    check_waiting(config)


def check_sixteen_bits_and_fp32() -> None:
    """Masters and a norm in fp32: states before the first update, made early, and in shards."""
    import smdistributed.modelparallel.torch as smp

    smp.init({**by_hand(1), "ddp": True, "bf16": True, "shard_optimizer_state": True})
    torch.manual_seed(2)
    plain = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    masters = {"0.weight", "0.bias", "2.weight", "2.bias"}
    inner = copy.deepcopy(plain)
    model = smp.DistributedModel(inner)
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters()))
    fresh = optimizer.local_state_dict(gather_if_shard=False)
    assert fresh["state"] == {}
    assert set(fresh["fp16_states"]["masters"]) == masters

    # Of an optimizer that has made steps before.
    del model, inner, optimizer
    inner = copy.deepcopy(plain)
    early = torch.optim.Adam(inner.parameters())
    inner(torch.linspace(-1, 1, 12).view(3, 4)).pow(2).sum().backward()
    early.step()
    early.zero_grad()
    expected = copy.deepcopy(early.state_dict()["state"])
    optimizer = smp.DistributedOptimizer(early)
    model = smp.DistributedModel(inner)
    mine = optimizer.local_state_dict(gather_if_shard=False)
    assert 0 < len(mine["state"]) < len(expected)
    own = dict(sorted(mine["state"].items()))
    assert_states(own, {index: expected[index] for index in own}, "early")

    # Several shards; each has some of the masters, and no rank is given all of its own.
    whole = copy.deepcopy(mine["fp16_states"]["masters"])
    part = copy.deepcopy(mine)
    for name in sorted(masters)[smp.dp_rank() :: 2]:
        del part["fp16_states"]["masters"][name]
    everyone = smp.allgather(part, smp.WORLD)
    again = smp.DistributedOptimizer(torch.optim.Adam(model.parameters()))
    for each in again.local_fp16_states()["masters"].values():
        each.zero_()
    again.load_state_dict(everyone if smp.rank() == 0 else [everyone[0]])
    found = again.local_state_dict(gather_if_shard=False)
    assert_states(dict(sorted(found["state"].items())), own, "a list of shards")
    for name, master in found["fp16_states"]["masters"].items():
        assert torch.equal(master, whole[name]), name
    smp.reset()


def in_sixteen_bits(rank: int, world_size: int) -> None:
    """Masters are sharded: the same bits as with states that are whole."""
    results = []
    for is_sharded in (False, True):
        import smdistributed.modelparallel.torch as smp

        config = {**by_hand(1), "ddp": True, "bf16": True, "shard_optimizer_state": is_sharded}
        smp.init(config)
        model = smp.DistributedModel(network())
        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
        for number in range(3):
            optimizer.zero_grad()
            model.backward(loss_of(model(batch(number)[0]), batch(number)[1]))
            optimizer.step()
        if is_sharded:
            count = len(list(model.parameters()))
            mine = optimizer.local_state_dict(gather_if_shard=False)
            assert 0 < len(mine["state"]) < count
            again = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
            again.load_state_dict(copy.deepcopy(mine))
            state = again.local_state_dict(gather_if_shard=False)
            assert_states(state["state"], mine["state"], "16 bits")
            del again
        results.append({name: each.detach().clone() for name, each in model.named_parameters()})
        del model, optimizer
        smp.reset()
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name
    check_sixteen_bits_and_fp32()


@pytest.mark.parametrize(
    ("size", "partitions", "names"),
    [
        (2, 1, list(OPTIMIZERS)),
        (3, 1, ["AdamW"]),
        (4, 2, ["Adam", "AdamW", "SGD"]),
    ],
)
def test_parameters_are_those_of_whole_states(size: int, partitions: int, names: list[str]) -> None:
    run_ranks(in_ranks, size, by_hand(partitions), names, deadline_s=DEADLINE_S)


def test_sixteen_bits() -> None:
    run_ranks(in_sixteen_bits, 2, deadline_s=DEADLINE_S)
