# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models that are made without data, on two partitions (specification, 6.5). One start for all."""

from __future__ import annotations

import copy
import logging
import resource
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import run_ranks
from parted_models import batch, by_hand, cut, loss_of, network, plain_step, step_function
from torch import Tensor, nn
from torch_ranks import raised

DEADLINE_S = 60.0
WIDTH = 768
LAYERS = 80  # together 189 MB, beside which what a first step takes anyway (some 20) is little


class Looks(nn.Module):
    """Its forward pass does what its weights say."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 256)
        self.middle = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
        self.second = nn.Linear(256, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if hidden.sum().item() > 1e9:
            hidden = -hidden
        result: Tensor = self.second(self.middle(hidden))
        return result


def delayed(smp: Any, make: Callable[[], nn.Module]) -> nn.Module:
    with smp.model_creation():
        return make()


def placed(smp: Any, model: Any, x: Tensor, mask: Tensor | None = None) -> list[nn.Parameter]:
    """Runs a step; the parameters of this rank."""

    @smp.step
    def evaluate(x: Tensor, mask: Tensor | None) -> Tensor:
        result = model(x) if mask is None else model(x, attention_mask=mask).logits
        assert isinstance(result, Tensor)
        return result

    with torch.no_grad():
        evaluate(x, mask)
    return list(model.local_parameters())


def assert_values(model: Any, eager: nn.Module) -> None:
    expected = dict(eager.named_parameters())
    count = 0
    for name, parameter in model.local_named_parameters():
        assert torch.equal(parameter, expected[name]), name
        count += 1
    assert 0 < count < len(expected)
    for name, buffer in model.local_named_buffers():
        assert torch.equal(buffer, eager.get_buffer(name)), name


def check_training(smp: Any, **config: Any) -> None:
    """Made without data it trains as a model in one piece."""
    smp.init({"partitions": 2, "microbatches": 2, **config})
    plain = network()
    net = delayed(smp, network)
    parameters = list(net.parameters())
    assert all(parameter.is_meta for parameter in parameters)
    if not config.get("auto_partition", True):
        cut(net, 2)  # type: ignore[arg-type]
    model = smp.DistributedModel(net)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    model.register_post_partition_hook(lambda found, _: assert_values(found, plain))
    train = step_function()
    for number in range(2):
        optimizer.zero_grad()
        reference.zero_grad()
        train(model, *batch(number))
        plain_step(plain, *batch(number))
        optimizer.step()
        reference.step()
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    expected = dict(plain.named_parameters())
    for name, parameter in model.local_named_parameters():
        torch.testing.assert_close(parameter, expected[name], rtol=2e-4, atol=2e-5)
    smp.reset()


def check_values_in_forward(smp: Any, records: list[str]) -> None:
    """Who decides holds the whole model, and says so; the others do not."""
    smp.init({"partitions": 2, "microbatches": 1})
    torch.manual_seed(5)
    eager = Looks()
    torch.manual_seed(5)
    model = smp.DistributedModel(delayed(smp, Looks))
    placed(smp, model, torch.ones(2, 4))
    assert_values(model, eager)
    told = any("watched with values" in each for each in records)
    assert told == (smp.rank() == 0), records
    records.clear()
    smp.reset()


def check_transformers(smp: Any, records: list[str]) -> None:
    """Tied weights, `_init_weights`, masks and position ids; a mask decides in Python."""
    import transformers

    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16, use_cache=False
    )

    def make() -> nn.Module:
        torch.manual_seed(6)
        return transformers.GPT2LMHeadModel(config)

    smp.init({"partitions": 2, "microbatches": 1})
    eager = make().eval()
    model = smp.DistributedModel(delayed(smp, make).eval())
    x = torch.arange(10).reshape(2, 5)
    placed(smp, model, x, torch.ones(2, 5, dtype=torch.long))
    assert not any("watched with values" in each for each in records), records
    assert_values(model, eager)
    smp.reset()


def check_loading(smp: Any) -> None:
    """A state that is loaded before there is anything to load it into."""
    smp.init(by_hand(2))
    torch.manual_seed(11)
    other = copy.deepcopy(network())
    for parameter in other.parameters():
        nn.init.uniform_(parameter)
    model = smp.DistributedModel(cut(delayed(smp, network), 2))  # type: ignore[arg-type]
    model.load_state_dict(other.state_dict())
    placed(smp, model, batch(0)[0])
    assert_values(model, other)
    del model
    model = None
    smp.reset()
    smp.init(by_hand(2))
    model = smp.DistributedModel(cut(delayed(smp, network), 2))  # type: ignore[arg-type]
    model.half()
    placed(smp, model.float(), batch(0)[0])
    rounded = network().half().float()
    assert_values(model, rounded)
    smp.reset()
    smp.init(by_hand(2))
    net = network().to("meta")
    lost = smp.DistributedModel(cut(net, 2))
    kind, text, _ = raised(placed, smp, lost, batch(0)[0])
    assert kind in ("ValueError", "StepAborted"), text
    smp.reset()


def check_memory(smp: Any) -> None:
    """Neither making nor placing takes what the whole model would."""
    smp.init(by_hand(2))
    whole = LAYERS * WIDTH * WIDTH * 4
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def make() -> nn.Module:
        return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])

    net = delayed(smp, make)
    made = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    assert made < whole / 4, f"{made / 1e6} MB of {whole / 1e6}"
    for number, layer in enumerate(net):  # type: ignore[arg-type]
        smp.set_partition(layer, number * 2 // LAYERS)
    model = smp.DistributedModel(net)
    assert len(placed(smp, model, torch.ones(2, WIDTH))) == LAYERS / 2
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    assert held < whole * 3 / 4, f"{held / 1e6} MB of {whole / 1e6}"
    smp.reset()


def in_ranks(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("smdistributed").addHandler(handler)
    check_memory(smp)  # first: it looks at the most memory that the process ever had
    # By memory: messages would cost so small a model more than they save.
    check_training(smp, memory_weight=1.0)
    check_training(smp, memory_weight=1.0, skip_tracing=True)
    check_training(smp, auto_partition=False, default_partition=0)
    assert not any("watched with values" in each for each in records), records
    check_values_in_forward(smp, records)
    check_transformers(smp, records)
    check_loading(smp)


def test_models_without_data() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    run_ranks(in_ranks, 2, deadline_s=DEADLINE_S)


def in_replicas(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    smp.init({"ddp": True, "delayed_parameter_initialization": True})
    model = smp.DistributedModel(network())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, network().get_parameter(name)), name
    loss = loss_of(model(batch(0)[0]), batch(0)[1])
    model.backward(loss)
    assert all(each.grad is not None for each in model.parameters() if each.requires_grad)


def test_replicas() -> None:
    run_ranks(in_replicas, 2)
