# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Training that stops and goes on: in files of each rank or of the whole model, on other ranks.

Specification, sections 4.4, 4.5 and 4.8: what a script of the original does to save and resume.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import run_ranks
from parted_models import batch, by_hand, cut, loss_of, network
from torch.optim.lr_scheduler import StepLR

DEADLINE_S = 110.0
BEFORE, AFTER = 3, 2  # steps, and those after the checkpoint


class Script:
    """Model, optimizer and schedule, as a training script makes them."""

    def __init__(self, smp: Any, partitions: int, wraps_early: bool = True) -> None:
        inner = cut(network(), partitions)
        if wraps_early:
            self.model = smp.DistributedModel(inner)
            self.optimizer = smp.DistributedOptimizer(self._adam(self.model.parameters()))
        else:
            self.optimizer = smp.DistributedOptimizer(self._adam(inner.parameters()))
            self.model = smp.DistributedModel(inner)
        self.scaler = smp.amp.GradScaler(init_scale=256.0, growth_interval=2)
        self.scheduler = StepLR(self.optimizer, 2, gamma=0.5)
        self.train = smp.step(self._body)
        self._smp = smp

    @staticmethod
    def _adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1)

    @staticmethod
    def _body(model: Any, scaler: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model(x), y)
        model.backward(scaler.scale(loss))
        return loss

    def run(self, first: int, count: int) -> list[torch.Tensor]:
        """Some steps; returns this rank's parameters."""
        for number in range(first, first + count):
            self.optimizer.zero_grad()
            x, y = batch(10 * number + self._smp.dp_rank())
            self.train(self.model, self.scaler, x, y)
            self.scaler.unscale_(self.optimizer)
            self.model.clip_grad_norm_(0.5)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
        return [each.detach().clone() for each in self.model.local_parameters()]


def assert_same_bits(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def two_by_two(rank: int, world_size: int, folder: str) -> None:
    """Saves in every way, and resumes: two more steps give the same bits as without a pause."""
    import smdistributed.modelparallel.torch as smp

    smp.init(by_hand(2, ddp=True))
    script = Script(smp, 2)
    script.run(0, BEFORE)
    others = {"scheduler": script.scheduler.state_dict(), "scaler": script.scaler.state_dict()}
    if smp.dp_rank() == 0:
        own = {
            "model": script.model.local_state_dict(),
            "optimizer": script.optimizer.local_state_dict(),
            **others,
        }
        smp.save(own, f"{folder}/partial.pt", partial=True)
        whole = {"model": script.model.state_dict(), "optimizer": script.optimizer.state_dict()}
        if smp.mp_rank() == 0:
            smp.save(whole["model"], f"{folder}/model.pt", partial=False)
            smp.save({**whole, **others}, f"{folder}/full.pt", partial=False)
    at_checkpoint = script.run(BEFORE, 0)
    expected = script.run(BEFORE, AFTER)
    final = script.model.state_dict(gather_to_rank0=True)
    if rank == 0:
        smp.save(final, f"{folder}/final.pt", partial=False)
    smp.barrier()

    for is_partial, wraps_early in ((True, True), (True, False), (False, True)):
        smp.barrier()
        smp.reset()  # as a new job
        smp.init(by_hand(2, ddp=True))
        script = Script(smp, 2, wraps_early)
        name = "partial.pt" if is_partial else "full.pt"
        saved = smp.load(f"{folder}/{name}", partial=is_partial)
        script.model.load_state_dict(saved["model"])
        script.optimizer.load_state_dict(saved["optimizer"])
        script.scheduler.load_state_dict(saved["scheduler"])
        script.scaler.load_state_dict(saved["scaler"])
        assert script.optimizer.param_groups[0]["lr"] == 0.01
        states: list[int] = []

        def look(_: Any, optimizer: Any, states: list[int] = states) -> None:
            states.append(len(optimizer.state))

        script.model.register_post_partition_hook(look)
        assert_same_bits(script.run(BEFORE, AFTER), expected)
        assert states == [len(script.optimizer.state)], "loaded before the hooks"
    # In the middle of training, by a hook, as trainers do.
    saved = smp.load(f"{folder}/partial.pt", partial=True)

    def hook(model: Any, optimizer: Any) -> None:
        model.load_state_dict(saved["model"], same_partition_load=True)
        optimizer.load_state_dict(saved["optimizer"])

    script.model.register_post_step_hook(hook)
    script.train(script.model, script.scaler, *batch(99))
    assert_same_bits(script.run(0, 0), at_checkpoint)
    script.scheduler.load_state_dict(saved["scheduler"])
    script.scaler.load_state_dict(saved["scaler"])
    assert_same_bits(script.run(BEFORE, AFTER), expected)

    if rank == 0:
        names = sorted(path.name for path in Path(folder).iterdir())
        assert names == ["final.pt", "full.pt", "model.pt", "partial.pt_0", "partial.pt_1"]
    smp.barrier()
    with pytest.raises(FileNotFoundError, match=r"partial.pt_0, partial.pt_1"):
        smp.load(f"{folder}/partial.pt", partial=False)
    smp.barrier()
    smp.reset()


def three_partitions(rank: int, world_size: int, folder: str) -> None:
    """Files of two partitions, on three: before and after they are cut."""
    import smdistributed.modelparallel.torch as smp

    smp.init(by_hand(3))
    whole = torch.load(f"{folder}/full.pt", weights_only=False)

    def part() -> dict[str, Any]:
        if rank < 2:
            found: dict[str, Any] = smp.load(f"{folder}/partial.pt", partial=True)
            return found
        return {"model": {"_smp_is_partial": True}, "optimizer": {"_smp_is_partial": True}}

    def check(script: Script) -> None:
        found = script.model.state_dict()
        for key, value in whole["model"].items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(found[key], value), key
        state = script.optimizer.state_dict()
        assert state["state"].keys() == whole["optimizer"]["state"].keys()
        for index, values in whole["optimizer"]["state"].items():
            for name, value in values.items():
                assert torch.equal(state["state"][index][name], value), (index, name)
        rates = [group["lr"] for group in script.optimizer.param_groups]
        assert rates == [whole["optimizer"]["param_groups"][0]["lr"]]
        here = {id(each) for each in script.model.local_parameters()}
        assert {id(each) for each in script.optimizer.state} <= here

    script = Script(smp, 3)
    script.model.load_state_dict(part()["model"])
    script.optimizer.load_state_dict(part()["optimizer"])
    seen = []
    script.model.register_post_partition_hook(lambda *_: seen.append(check(script)))
    script.run(0, 2)
    assert seen == [None]
    script.model.load_state_dict(part()["model"])
    script.optimizer.load_state_dict(part()["optimizer"])
    check(script)
    parts = {
        "model": script.model.local_state_dict(),
        "optimizer": script.optimizer.local_state_dict(),
    }
    smp.save(parts, f"{folder}/three.pt", partial=True)
    smp.barrier()
    smp.reset()


def two_of_three_partitions(rank: int, world_size: int, folder: str) -> None:
    """Files of three partitions, on two: one rank passes what two of them hold."""
    import smdistributed.modelparallel.torch as smp

    smp.init(by_hand(2))
    whole = torch.load(f"{folder}/full.pt", weights_only=False)
    parts = [
        torch.load(f"{folder}/three.pt_{number}", weights_only=False)
        for number in range(rank, 3, 2)
    ]
    model: dict[str, Any] = {}
    optimizer: dict[str, Any] = {"state": {}}
    for part in parts:
        model |= part["model"]
        optimizer |= {**part["optimizer"], "state": optimizer["state"] | part["optimizer"]["state"]}
    script = Script(smp, 2)
    script.model.load_state_dict(model)
    script.optimizer.load_state_dict(optimizer)
    seen = []

    def check(*_: Any) -> None:
        found = script.model.state_dict()
        for key, value in whole["model"].items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(found[key], value), key
        state = script.optimizer.state_dict()["state"]
        assert state.keys() == whole["optimizer"]["state"].keys()
        for index, values in whole["optimizer"]["state"].items():
            for name, value in values.items():
                assert torch.equal(state[index][name], value), (index, name)
        seen.append(rank)

    script.model.register_post_partition_hook(check)
    script.run(0, 1)
    assert seen == [rank]
    smp.barrier()
    smp.reset()


def one_process(rank: int, world_size: int, folder: str) -> None:
    """Files of two partitions in one, and files of the whole model in plain torch; and back."""
    import smdistributed.modelparallel.torch as smp

    plain = network()
    final = torch.load(f"{folder}/final.pt", weights_only=False)
    only_weights = torch.load(f"{folder}/model.pt", weights_only=True)
    assert plain.load_state_dict(only_weights) == ([], [])
    reference = torch.optim.AdamW(plain.parameters(), lr=0.02)
    whole = torch.load(f"{folder}/full.pt", weights_only=True)
    reference.load_state_dict(whole["optimizer"])
    assert reference.param_groups[0]["lr"] == 0.01

    smp.init(by_hand(1))
    files = [torch.load(f"{folder}/partial.pt_{n}", weights_only=True) for n in range(2)]
    script = Script(smp, 1)
    merged = {**files[0]["model"], **files[1]["model"]}
    assert script.model.load_state_dict(merged) == ([], [])
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, dict(script.model.named_parameters())[name]), name
    states = [file["optimizer"]["state"] for file in files]
    assert not states[0].keys() & states[1].keys()
    script.optimizer.load_state_dict({**files[0]["optimizer"], "state": {**states[0], **states[1]}})
    script.scheduler.load_state_dict(whole["scheduler"])
    script.scaler.load_state_dict(whole["scaler"])
    # The same steps as both replicas together: each took the mean of its own half.
    for number in range(BEFORE, BEFORE + AFTER):
        halves = [batch(10 * number + replica) for replica in range(2)]
        x, y = (torch.cat([half[which] for half in halves]) for which in range(2))
        script.optimizer.zero_grad()
        script.train(script.model, script.scaler, x, y)
        script.scaler.unscale_(script.optimizer)
        script.model.clip_grad_norm_(0.5)
        script.scaler.step(script.optimizer)
        script.scaler.update()
        script.scheduler.step()
    for key, value in script.model.state_dict().items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, final[key], rtol=1e-3, atol=1e-4)
    assert script.model.local_state_dict().keys() == {*final, "_smp_is_partial"}
    smp.reset()


@pytest.mark.timeout(4 * DEADLINE_S)
def test_stop_and_go_on(tmp_path: Path) -> None:
    run_ranks(two_by_two, 4, str(tmp_path), deadline_s=DEADLINE_S)
    run_ranks(three_partitions, 3, str(tmp_path), deadline_s=DEADLINE_S)
    run_ranks(two_of_three_partitions, 2, str(tmp_path), deadline_s=DEADLINE_S)
    run_ranks(one_process, 1, str(tmp_path), deadline_s=DEADLINE_S)
