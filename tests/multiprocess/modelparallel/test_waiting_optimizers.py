# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""States that wait until the model is partitioned: on all ranks alike, or an error.

Up to 2.0 ranks that had loaded different things waited for one another in the first step, or went
on with a part of the states. Source: modelparallel specification, section 4.5.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import run_ranks
from torch import nn

DEADLINE_S = 240.0


def _network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


class _Script:
    """A user's, with one optimizer or several.

    Args:
        groups: by optimizer, the layers whose parameters it has; None: one optimizer of all.
        first: the partition of the first layers.
        is_optimizer_first: made before the model is wrapped.
    """

    def __init__(
        self,
        smp: Any,
        groups: list[list[int]] | None = None,
        first: int = 0,
        is_optimizer_first: bool = False,
        optimizer: Callable[..., Any] = torch.optim.AdamW,
    ) -> None:
        network = _network()
        if smp.state.cfg.pipeline_parallel_degree > 1:
            for index, layer in enumerate(network):
                smp.set_partition(layer, first if index < 2 else 1 - first)
        chosen = [[0, 2, 4]] if groups is None else groups

        def make(module: nn.Module) -> None:
            self.optimizers = [
                smp.DistributedOptimizer(
                    optimizer([p for i in group for p in network[i].parameters()], lr=0.02)
                )
                for group in chosen
            ]

        if is_optimizer_first:
            make(network)
        self.network = network
        self.model: Any = None if is_optimizer_first else smp.DistributedModel(network)
        if not is_optimizer_first:
            make(network)
        self._smp = smp

        @smp.step
        def train(model: Any, x: Any, y: Any) -> Any:
            loss = ((model(x) - y) ** 2).mean()
            model.backward(loss)
            return loss

        self._train = train

    def drop(self) -> None:
        """Before another is made: the model is where it will stay, and layers are not assigned."""
        self.model, self.optimizers = None, []
        gc.collect()

    @property
    def optimizer(self) -> Any:
        (only,) = self.optimizers
        return only

    def forward(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._train(
            self.model,
            torch.randn(4, 6, generator=generator),
            torch.randn(4, 3, generator=generator),
        )

    def run(self, steps: int) -> None:
        for step in range(steps):
            for each in self.optimizers:
                each.zero_grad()
            self.forward(step)
            for each in self.optimizers:
                each.step()

    def counts(self) -> list[list[int]]:
        """Of Adam's, by optimizer."""
        return [[int(s["step"]) for s in each.state.values()] for each in self.optimizers]


def _start(smp: Any, partitions: int = 2, **options: Any) -> None:
    config = {"partitions": partitions, "microbatches": 1, "ddp": True, **options}
    if partitions > 1:
        config |= {"auto_partition": False, "default_partition": 0}
    smp.init(config)


def _saved(script: _Script) -> list[Any]:
    return copy.deepcopy([each.local_state_dict() for each in script.optimizers])


def one_rank_has_loaded(smp: Any, rank: int) -> None:
    """A part, or all of it: an error on both ranks, and nothing of it is loaded later."""
    script = _Script(smp)
    script.run(2)
    (part,) = _saved(script)
    whole = script.optimizer.state_dict()
    for state, what in ((part, "a part of the state"), (whole, "the state")):
        script.drop()
        script = _Script(smp)
        if rank == 1:
            script.optimizer.load_state_dict(state)
        with pytest.raises(smp.exceptions.SMPError, match=f"none on rank 0 and {what} of optim"):
            script.forward()
        script.optimizer.load_state_dict(copy.deepcopy(part))  # as the text says
        script.run(1)
        assert script.counts() == [[3] * len(script.counts()[0])]


def each_has_loaded_another(smp: Any, rank: int) -> None:
    """One of the two optimizers on each rank: as many, but not the same."""
    groups = [[0], [2, 4]]
    script = _Script(smp, groups)
    script.run(3)
    saved = _saved(script)
    script.drop()
    script = _Script(smp, groups, first=1)
    for optimizer, state in zip(script.optimizers, saved, strict=True):
        if state["state"]:
            optimizer.load_state_dict(state)
    with pytest.raises(smp.exceptions.SMPError, match=r"optimizer \d+ on rank 0 and a part of"):
        script.forward()
    script.drop()
    script = _Script(smp, groups, first=1)
    for optimizer, state in zip(script.optimizers, saved, strict=True):
        optimizer.load_state_dict(state)
    script.run(1)
    assert {count for counts in script.counts() for count in counts} == {4}


def garbage_is_held_by_nobody(smp: Any, rank: int) -> None:
    """The last optimizer that was made waits, is dropped, and is garbage on rank 1 alone."""
    script = _Script(smp)
    script.run(1)
    (part,) = _saved(script)
    script.drop()
    gc.disable()
    try:
        dropped = _Script(smp)
        dropped.optimizer.load_state_dict(part)
        del dropped
        if rank == 0:
            gc.collect()
        script = _Script(smp, groups=[])
        script.forward()
    finally:
        gc.enable()


def refused(smp: Any, rank: int) -> None:
    """A load that torch refuses is not done later; what waited before it is."""
    script = _Script(smp)
    script.run(2)
    whole = script.optimizer.state_dict()
    wrong = {**whole, "param_groups": whole["param_groups"] * 2}
    for loaded, count in (([], 1), ([whole], 3)):
        script.drop()
        script = _Script(smp)
        for each in loaded:
            script.optimizer.load_state_dict(each)
        with pytest.raises(ValueError, match="different number of parameter groups"):
            script.optimizer.load_state_dict(wrong)
        script.run(1)
        assert {each for counts in script.counts() for each in counts} == {count}


def changed_afterwards(smp: Any, rank: int) -> None:
    """What is loaded is what was in the dictionaries at the call."""
    script = _Script(smp)
    script.run(2)
    (part,) = _saved(script)
    model = copy.deepcopy(script.model.local_state_dict())
    weights = script.model.state_dict()
    script.drop()
    script = _Script(smp)
    script.optimizer.load_state_dict(part)
    part["state"].clear()
    script.optimizer.state_dict()["state"].clear()
    script.model.load_state_dict(model)
    for value in model.values():
        if isinstance(value, torch.Tensor):
            value.zero_()
    model.clear()
    script.forward()
    for name, value in script.model.state_dict().items():
        assert torch.equal(value, weights[name]), name
    script.run(1)
    assert script.counts() == [[3] * len(script.counts()[0])]
    # Of all of it a model without data makes no copy, but finds out.
    for is_changed in (True, False):
        script.drop()
        with smp.delay_param_initialization():
            script = _Script(smp)
        script.model.load_state_dict(weights)
        if is_changed:
            weights["0.weight"].mul_(2.0)
            with pytest.raises(smp.exceptions.SMPError, match=r"0\.weight .* changed in place"):
                script.forward()
    script.forward()
    for name, value in script.model.state_dict().items():
        assert torch.equal(value, weights[name]), name


def several_fail(smp: Any, rank: int) -> None:
    """All failures are told, whose they are, and hooks are called all the same."""
    groups = [[0, 2], [4]]
    script = _Script(smp, groups)
    script.run(1)
    saved = [each.state_dict() for each in script.optimizers]
    model = dict(script.model.local_state_dict())
    script.drop()
    script = _Script(smp, groups)
    if rank == 1:
        model["old.x"] = torch.zeros(1)
    script.model.load_state_dict(model, strict=rank == 0)
    for optimizer, state in zip(script.optimizers, saved, strict=True):
        optimizer.load_state_dict({**state, "state": None})
    calls: list[Any] = []
    script.model.register_post_partition_hook(lambda *_: calls.append(1))
    with pytest.raises((RuntimeError, smp.exceptions.SMPError)) as told:
        script.forward()
    if rank == 1:
        assert '"old.x"; expected' in str(told.value)
    notes = "\n".join(told.value.__notes__)
    for number in (1, 2):
        assert f"loading what has waited (the state of optimizer {number}) failed" in notes
    assert notes.count("Beside it: AttributeError") == 2
    assert calls == [1]
    script.run(1)


def another_way(smp: Any, rank: int) -> None:
    """`same_partition_load` on one rank only: the other would wait for its part."""
    script = _Script(smp)
    script.run(1)
    model = copy.deepcopy(script.model.local_state_dict())
    script.drop()
    script = _Script(smp)
    script.model.load_state_dict(model, same_partition_load=rank == 0)
    with pytest.raises(smp.exceptions.SMPError, match="same_partition_load on rank 0 and a part"):
        script.forward()


def one_rank_has_made_more(smp: Any, rank: int) -> None:
    """An optimizer of something else, and one that is gone: equal loads are done."""
    script = _Script(smp)
    script.run(2)
    (part,) = _saved(script)
    script.drop()
    others = [torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1) for _ in range(1 - rank)]
    for each in others:
        smp.DistributedOptimizer(each)
    script = _Script(smp)
    if rank == 0:
        smp.DistributedOptimizer(torch.optim.SGD(script.network.parameters(), lr=0.1))
    script.optimizers = [
        smp.DistributedOptimizer(torch.optim.AdamW(script.network.parameters(), lr=0.02))
    ]
    script.optimizer.load_state_dict(part)
    script.run(1)
    assert script.counts() == [[3] * len(script.counts()[0])]


def kept_over_reset(smp: Any, rank: int) -> None:
    """A state that waits is loaded in the next job that takes the optimizer, or all are told."""
    script = _Script(smp)
    script.run(2)
    whole = script.optimizer.state_dict()
    for is_placed in (False, True):
        script.drop()
        script = _Script(smp)
        script.optimizer.load_state_dict(whole)
        script.model = None
        smp.reset()
        _start(smp, partitions=1 if is_placed else 2)
        script.model = smp.DistributedModel(script.network)
        for call in (script.optimizer.step, lambda kept=script: kept.optimizer.load_state_dict({})):
            with pytest.raises(smp.exceptions.SMPError, match=r"of a job before smp\.reset"):
                call()
        if is_placed:
            with pytest.raises(smp.exceptions.SMPError, match="state was dropped"):
                smp.DistributedOptimizer(script.optimizer)
        smp.DistributedOptimizer(script.optimizer)
        script.run(1)
        assert {each for counts in script.counts() for each in counts} == {1 if is_placed else 3}


def in_16_bits(smp: Any, rank: int) -> None:
    script = _Script(smp)
    script.run(3)
    (part,) = _saved(script)
    model = copy.deepcopy(script.model.local_state_dict())
    # The model's own load fails in the first step; weights in fp32 are loaded all the same.
    script.drop()
    script = _Script(smp)
    model["of_an_older_version.weight"] = torch.zeros(1)
    script.model.load_state_dict(model)
    loaded = copy.deepcopy(part)
    script.optimizer.load_state_dict(loaded)
    for value in loaded["fp16_states"]["masters"].values():
        value.zero_()
    loaded["fp16_states"].clear()
    with pytest.raises((RuntimeError, smp.exceptions.SMPError), match="older_version"):
        script.forward()
    masters = script.optimizer.local_fp16_states()["masters"]
    for name, value in part["fp16_states"]["masters"].items():
        assert torch.equal(masters[name], value), name
    script.forward()
    # Two kinds of loads are not each other.
    script.drop()
    script = _Script(smp)
    if rank == 0:
        script.optimizer.load_state_dict(part)
    else:
        script.optimizer.load_fp16_states(part["fp16_states"])
    with pytest.raises(smp.exceptions.SMPError, match="fp32 weights of optimizer"):
        script.forward()
    script.run(1)


def sharded(smp: Any, rank: int) -> None:
    """One partition, two replicas: merged when the model is made."""
    script = _Script(smp)
    script.run(2)
    (part,) = _saved(script)
    script.drop()
    script = _Script(smp, is_optimizer_first=True)
    if rank == 0:
        script.optimizer.load_state_dict(part)
    with pytest.raises(smp.exceptions.SMPError, match="and none on rank 1"):
        smp.DistributedModel(script.network)


def of_an_earlier_job(smp: Any, rank: int, **options: Any) -> None:
    """An optimizer that a job has changed is not taken into another."""
    script = _Script(smp)
    script.run(1)
    smp.reset()
    _start(smp, **options)
    with pytest.raises(NotImplementedError, match=r"a job before smp\.reset"):
        smp.DistributedOptimizer(script.optimizer)


def run_all(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    for check in (
        one_rank_has_loaded,
        each_has_loaded_another,
        garbage_is_held_by_nobody,
        refused,
        changed_afterwards,
        several_fail,
        another_way,
        one_rank_has_made_more,
        kept_over_reset,
    ):
        _start(smp)
        check(smp, rank)
        smp.reset()
    _start(smp)
    of_an_earlier_job(smp, rank)
    smp.reset()
    _start(smp, bf16=True)
    in_16_bits(smp, rank)
    smp.reset()
    _start(smp, bf16=True)
    of_an_earlier_job(smp, rank)
    smp.reset()
    _start(smp, partitions=1, shard_optimizer_state=True)
    sharded(smp, rank)
    smp.reset()
    _start(smp, partitions=1, shard_optimizer_state=True)
    of_an_earlier_job(smp, rank, partitions=1)


def test_ranks_load_alike_or_all_are_told() -> None:
    run_ranks(run_all, 2, deadline_s=DEADLINE_S)


def enters_another_job(rank: int, world_size: int) -> None:
    """One that no job has changed is taken: in one partition, in fp32, then in 16 bits."""
    import smdistributed.modelparallel.torch as smp

    _start(smp, partitions=1)
    script = _Script(smp)
    script.run(1)
    smp.reset()
    _start(smp, partitions=1, bf16=True)
    model = smp.DistributedModel(script.network)
    again = smp.DistributedOptimizer(script.optimizer)
    assert type(again).__name__ == "Bit16Optimizer"
    script.model, script.optimizers = model, [again]
    script.run(1)


def loads_the_rest(rank: int, world_size: int) -> None:
    """Of states that wait for the model, one that fails keeps no other from being loaded."""
    import smdistributed.modelparallel.torch as smp

    _start(smp, partitions=1, bf16=True)
    script = _Script(smp)
    script.run(3)
    whole = script.optimizer.state_dict()
    # An optimizer made first has no weights in 32 bits yet: what is loaded waits for the model.
    script.drop()
    script = _Script(smp, is_optimizer_first=True)
    script.optimizer.load_state_dict({**whole, "state": None})
    with pytest.raises(AttributeError, match="None") as failure:
        smp.DistributedModel(script.network)
    assert failure.tb is not None  # it holds the model
    assert script.optimizer.waiting_loads() == []
    masters = script.optimizer.state_dict()["fp16_states"]["masters"]
    for name, value in whole["fp16_states"]["masters"].items():
        assert torch.equal(masters[name], value), name


def test_a_load_that_fails_keeps_no_other_from_being_done() -> None:
    run_ranks(loads_the_rest, 1, deadline_s=DEADLINE_S)


def test_an_optimizer_that_no_job_has_changed_serves_another() -> None:
    run_ranks(enters_another_job, 1, deadline_s=DEADLINE_S)
