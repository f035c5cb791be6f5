# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.save_checkpoint` and `smp.resume_from_checkpoint` on several ranks.

Specification, section 6.9. One job saves, others with new processes resume; each start of ranks
serves many checks.
"""

from __future__ import annotations

import copy
import gc
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import run_ranks
from machine_speed import scaled
from parted_models import batch, by_hand, cut, network, step_function
from torch.optim.lr_scheduler import StepLR
from torch_ranks import raised

DEADLINE_S = 100.0
SOON_S = scaled(20.0)
BEFORE, AFTER = 3, 3  # steps


class Script:
    """Model, optimizer and schedule, as a training script makes them."""

    def __init__(self, smp: Any, partitions: int, inner: Any = None, **more: Any) -> None:
        smp.reset()
        smp.init(by_hand(partitions, **more))
        self.model = smp.DistributedModel(cut(network(), partitions) if inner is None else inner)
        adam = torch.optim.AdamW(self.model.parameters(), lr=0.02, weight_decay=0.1)
        self.optimizer = smp.DistributedOptimizer(adam)
        self.scheduler = StepLR(self.optimizer, 2, gamma=0.5)
        self._train = step_function()
        self._smp = smp

    def run(self, first: int, count: int) -> dict[str, torch.Tensor]:
        """Some steps; returns this rank's parameters."""
        for number in range(first, first + count):
            self.optimizer.zero_grad()
            self._train(self.model, *batch(10 * number + self._smp.dp_rank()))
            self.optimizer.step()
            self.scheduler.step()
        named = self.model.local_named_parameters()
        return {name: parameter.detach().clone() for name, parameter in named}

    def content(self) -> dict[str, Any]:
        return {"scheduler": self.scheduler.state_dict(), "step": BEFORE}


def assert_same_bits(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[key], value), key


def assert_same_states(script: Script, path: str) -> None:
    """Model and optimizer are what was saved, on any number of ranks."""
    saved = torch.load(path, weights_only=False)
    assert_same_bits(script.model.state_dict(), saved["model"])
    states = script.optimizer.state_dict()["state"]
    assert states.keys() == saved["optimizer"]["state"].keys()
    for index, values in saved["optimizer"]["state"].items():
        assert_same_bits(states[index], values)


def train_and_save(rank: int, world_size: int, folder: str, partitions: int) -> None:
    """Three steps, checkpoints of both kinds, three more; what comes out is kept."""
    import smdistributed.modelparallel.torch as smp

    script = Script(smp, partitions, ddp=world_size > partitions)
    if partitions > 1:
        with pytest.raises(smp.exceptions.ModelNotPartitionedError):
            smp.save_checkpoint(folder, tag="early")
    script.run(0, BEFORE)
    smp.save_checkpoint(folder, tag="whole", partial=False, user_content=script.content())
    smp.save_checkpoint(
        folder,
        tag="parts",
        model=script.model,
        optimizer=script.optimizer,
        user_content=script.content() if rank == 0 else "of another rank",
    )
    states = {"model": script.model.state_dict(), "optimizer": script.optimizer.state_dict()}
    at_save = copy.deepcopy(states)
    after = script.run(BEFORE, AFTER)
    at_end = script.model.state_dict()
    torch.save(after, f"{folder}.after_{rank}")
    if rank == 0:
        torch.save(at_save, f"{folder}.at_save")
        torch.save(at_end, f"{folder}.at_end")
        names = sorted(os.listdir(folder))
        assert names == ["newest", "parts_partial", "user_content_whole", "whole"]
        parts = [f"{kind}_{pp}_0.pt" for kind in ("model", "optimizer") for pp in range(partitions)]
        found = sorted(os.listdir(f"{folder}/parts_partial"))
        assert found == [*parts, "partition.pt", "user_content.pt"]
        plain = torch.load(f"{folder}/whole", weights_only=True)
        assert network().load_state_dict(plain) == ([], [])
        assert_same_bits(plain, at_save["model"])
    smp.barrier()
    smp.reset()


def goes_on(rank: int, world_size: int, folder: str, partitions: int) -> None:
    """The same bits as without a pause, of a model that would be partitioned otherwise."""
    import smdistributed.modelparallel.torch as smp

    expected = torch.load(f"{folder}.after_{rank}")
    has_replicas = world_size > partitions
    for inner in (None, network()):  # cut as it was saved, or all of it on partition 0
        script = Script(smp, partitions, inner, ddp=has_replicas)
        content = smp.resume_from_checkpoint(folder, tag=None if inner is None else "parts")
        assert content["step"] == BEFORE
        script.scheduler.load_state_dict(content["scheduler"])
        assert_same_bits(script.run(BEFORE, AFTER), expected)
        if partitions > 1:
            assert f"as {folder}/parts_partial says" in script.model.partition_report()
    # Once more, in the middle of training: the model is partitioned already.
    smp.resume_from_checkpoint(folder, tag="parts_partial")
    assert_same_states(script, f"{folder}.at_save")
    # Of the whole model, which has no state of the optimizer.
    for is_late in (False, True):
        script = Script(smp, partitions, ddp=has_replicas)
        if is_late:
            script.run(7, 1)
        content = smp.resume_from_checkpoint(folder, tag="whole", partial=False)
        assert content["step"] == BEFORE
        saved = torch.load(f"{folder}.at_save", weights_only=False)
        assert_same_bits(script.model.state_dict(), saved["model"])
    smp.barrier()
    smp.reset()


def replicas(rank: int, world_size: int, folder: str) -> list[tuple[str, str, float]]:
    """Two pipelines of two: goes on, fails in each way, and goes on again."""
    import smdistributed.modelparallel.torch as smp
    from smdistributed.modelparallel.torch.saving.checkpoints import parts
    from smdistributed.modelparallel.torch.saving.checkpoints.directory import CheckpointDirectory

    goes_on(rank, world_size, folder, 2)
    script = Script(smp, 2, ddp=True)
    smp.resume_from_checkpoint(folder, "parts")
    script.run(0, 1)
    listed = sorted(os.listdir(folder))
    told = []

    def attempt(name: str, call: Any) -> None:
        smp.barrier()
        begin = time.monotonic()
        try:
            call()
        except Exception as error:
            told.append((name, f"{type(error).__name__}: {error}", time.monotonic() - begin))
        smp.barrier()
        assert sorted(os.listdir(folder)) == listed, name

    tag = "other" if rank == 3 else "one"
    attempt("tag", lambda: smp.save_checkpoint(folder, tag))
    kept = 0 if rank == 1 else 2
    attempt("kept", lambda: smp.save_checkpoint(folder, "x", num_kept_partial_checkpoints=kept))
    content: Any = (lambda: None) if rank == 0 else None
    attempt("pickle", lambda: smp.save_checkpoint(folder, "x", user_content=content))
    attempt("pickle", lambda: smp.save_checkpoint(folder, "x", False, user_content=content))

    def full(*args: Any, **kwargs: Any) -> None:
        if rank == 1:
            raise OSError(28, "No space left on device")
        original(*args, **kwargs)

    original = parts.files.save
    parts.files.save = full  # type: ignore[assignment]
    attempt("disk", lambda: smp.save_checkpoint(folder, "parts"))
    parts.files.save = original
    mine = f"{folder}.at_save/no" if rank == 2 else folder  # below a file
    attempt("path", lambda: smp.save_checkpoint(mine, "x"))
    odd: Any = 3 if rank == 1 else folder
    attempt("no path", lambda: smp.save_checkpoint(odd, "x"))
    attempt("no path", lambda: smp.resume_from_checkpoint(odd, "parts"))
    plain = torch.nn.Linear(1, 1) if rank == 2 else None
    attempt("no model", lambda: smp.save_checkpoint(folder, "x", model=plain))
    attempt("no model", lambda: smp.save_safetensors(f"{folder}/x", model=plain))
    attempt("option", lambda: smp.resume_from_checkpoint(folder, load_optimizer=rank != 3))
    own = f"{folder}/no" if rank == 3 else folder
    attempt("missing", lambda: smp.resume_from_checkpoint(own, "parts"))
    attempt("newest", lambda: smp.resume_from_checkpoint(f"{folder}/no"))

    # Nothing of that has done harm.
    smp.resume_from_checkpoint(folder)
    assert_same_states(script, f"{folder}.at_save")
    # Disks of two hosts: each has the parts of its ranks.
    host = f"{folder}.hosts/{rank // 2}"
    for number in range(3):
        smp.save_checkpoint(host, f"{number}", user_content=[rank], num_kept_partial_checkpoints=2)
    assert sorted(os.listdir(host)) == ["1_partial", "2_partial", "newest"]
    found = sorted(os.listdir(f"{host}/2_partial"))
    if rank < 2:
        own_parts = [f"{kind}_{pp}_0.pt" for kind in ("model", "optimizer") for pp in range(2)]
    else:
        own_parts = []  # of a second replica, which holds the same
    assert found == [*own_parts, "partition.pt", "user_content.pt"]
    content = torch.load(f"{host}/2_partial/user_content.pt")
    assert content == [0], "of rank 0, on each disk"

    # One host cannot name the new one: on none it is there, nor takes it the place of another.
    def refuses(self: Any, tag: str) -> None:
        raise OSError(28, "No space left on device")

    if rank == 2:
        CheckpointDirectory.publish = refuses  # type: ignore[method-assign]
    for tag in ("2", "3"):
        attempt("publish", lambda tag=tag: smp.save_checkpoint(host, tag, user_content=["new"]))
        assert sorted(os.listdir(host)) == ["1_partial", "2_partial", "newest"]
        assert torch.load(f"{host}/2_partial/user_content.pt") == content
    # Nor can the other take its own back, as after a kill: then parts of two saves are there.
    CheckpointDirectory.withdraw = lambda self, tag: None  # type: ignore[method-assign]
    attempt("publish", lambda: smp.save_checkpoint(host, "2"))
    if rank == 2:
        for name in os.listdir(f"{folder}.hosts/0/2_partial"):
            if name.startswith(("model", "optimizer")):
                shutil.copy(f"{folder}.hosts/0/2_partial/{name}", f"{host}/2_partial")
    attempt("mixed", lambda: smp.resume_from_checkpoint(host, "2"))
    smp.barrier()
    smp.reset()
    return told


def anew(rank: int, world_size: int, folder: str, source: str, target: str | None) -> None:
    """On another number of partitions: before and after the model is partitioned."""
    import smdistributed.modelparallel.torch as smp

    script = Script(smp, world_size)
    smp.resume_from_checkpoint(folder, source)
    saved = torch.load(f"{folder}.at_save", weights_only=False)["optimizer"]
    rate = saved["param_groups"][0]["lr"]
    assert script.optimizer.param_groups[0]["lr"] == rate != 0.02, "also without a part"
    seen = []
    script.model.register_post_partition_hook(
        lambda *_: seen.append(assert_same_states(script, f"{folder}.at_save"))
    )
    script.run(0, 1)
    assert seen == [None]
    here = {id(each) for each in script.model.local_parameters()}
    assert {id(each) for each in script.optimizer.state} <= here
    smp.resume_from_checkpoint(folder, source)
    assert_same_states(script, f"{folder}.at_save")
    if target is not None:
        smp.save_checkpoint(folder, target)
    smp.barrier()
    smp.reset()


def of_another_model(rank: int, world_size: int, folder: str) -> list[str]:
    """Two partitions from three, and models that have changed since."""
    import smdistributed.modelparallel.torch as smp

    anew(rank, world_size, folder, "three", None)
    told = []
    script = Script(smp, 2, network(num_blocks=5))
    try:
        smp.resume_from_checkpoint(folder, "parts")
    except ValueError as error:
        told.append(str(error))
    smp.resume_from_checkpoint(folder, "parts", strict=False, load_optimizer=False)
    seen = []

    def check(*_: Any) -> None:
        found, saved = script.model.state_dict(), torch.load(f"{folder}/whole")
        assert len(found) > len(saved)
        assert_same_bits({key: found[key] for key in saved}, saved)
        seen.append(rank)

    script.model.register_post_partition_hook(check)
    script.run(0, 1)
    assert seen == [rank]
    smp.barrier()
    smp.reset()
    return told


def waits_in_order(smp: Any, folder: str) -> None:
    """What is loaded before the model is partitioned: the last one is right."""
    saved = torch.load(f"{folder}/whole")
    zeros = {
        key: torch.zeros_like(value) if isinstance(value, torch.Tensor) else value
        for key, value in saved.items()
    }
    some = {"head.weight": torch.ones_like(saved["head.weight"])}
    some["embedding.weight"] = some["head.weight"]
    part = {"_smp_is_partial": True, **zeros}
    for loads, expected in (
        ([(part, True), (saved, True)], saved),
        ([(saved, True), (part, True)], zeros),
        ([(part, True), (some, False)], {**zeros, **some}),
    ):
        script = Script(smp, 2)
        for loaded, strict in loads:
            script.model.load_state_dict(loaded, strict=strict)
        if loads[-1][0] is not saved:  # or it would be what the model was built with
            for export in (
                script.model.state_dict,
                script.model.cpu,
                lambda: smp.save_checkpoint(folder, "early", partial=False),
                lambda: smp.save_safetensors(folder),
            ):
                name, text, _ = raised(export)
                assert name == "ModelNotPartitionedError", text
                assert "a loaded state waits" in text
        seen = []

        def check(model: Any, _: Any, expected: Any = expected, seen: Any = seen) -> None:
            seen.append(assert_same_bits(model.state_dict(), expected))

        script.model.register_post_partition_hook(check)
        script.run(0, 1)
        assert seen == [None]


def does_not_fit_one(smp: Any, rank: int, folder: str) -> list[str]:
    """Rank 1 cannot load its part: once it is partitioned, and in the first step."""
    if rank == 0:
        shutil.copytree(f"{folder}/parts_partial", f"{folder}.bad/parts_partial")
        path = f"{folder}.bad/parts_partial/model_1_0.pt"
        part = torch.load(path)
        part["blocks.3.scale"] = torch.ones(3)
        torch.save(part, path)
    told = []
    script = Script(smp, 2)
    smp.resume_from_checkpoint(f"{folder}.bad", "parts")
    try:
        script.run(0, 1)
    except (RuntimeError, smp.exceptions.SMPError) as error:
        told.append(f"{type(error).__name__}: {error}")
    script = Script(smp, 2)
    smp.resume_from_checkpoint(folder, "parts")
    script.run(0, 1)
    try:
        smp.resume_from_checkpoint(f"{folder}.bad", "parts")
    except (RuntimeError, smp.exceptions.SMPError) as error:
        told.append(f"{type(error).__name__}: {error}")
    smp.resume_from_checkpoint(folder, "parts")  # the ranks are in step all the same
    assert_same_states(script, f"{folder}.at_save")
    return told


def waits_on_one_rank(smp: Any, rank: int, folder: str) -> None:
    """Rank 1 alone has an optimizer that waits: of an earlier job, as garbage, or of this one."""
    held = Script(smp, 2)
    smp.resume_from_checkpoint(folder, "parts")
    if rank == 0:
        del held
        gc.collect()
    script = Script(smp, 2)
    smp.resume_from_checkpoint(folder, "parts")
    gc.disable()
    optimizer = script.optimizer
    del script.model, script.optimizer, script.scheduler
    if rank == 0:
        del optimizer
        gc.collect()
    else:
        del optimizer  # it holds itself
    model = smp.DistributedModel(cut(network(), 2))
    script.model = model
    script.optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.02))
    script.scheduler = StepLR(script.optimizer, 2)
    smp.resume_from_checkpoint(folder, "parts")
    script.run(0, 1)
    gc.enable()
    script = Script(smp, 2)
    if rank == 1:
        script.optimizer.load_state_dict({"_smp_is_partial": True})
    name, text, _ = raised(script.run, 0, 1)
    assert name == "SMPError"
    assert "none on rank 0 and a part of the state of optimizer 1 on rank 1" in text, text
    # Nothing waits any more: what comes next is done by all ranks together.
    script.run(0, 1)


def dies(rank: int, world_size: int, folder: str) -> list[str]:
    """First what others survive; then rank 1 is killed in the middle of its part."""
    import smdistributed.modelparallel.torch as smp
    from smdistributed.modelparallel import atomic_files

    waits_in_order(smp, folder)
    waits_on_one_rank(smp, rank, folder)
    for text in does_not_fit_one(smp, rank, folder):
        assert "size mismatch for blocks.3.scale" in text
        assert ("failed on rank 1" in text) == (rank == 0)
    script = Script(smp, 2)
    script.run(0, 1)
    if rank == 1:
        write = atomic_files.OpenFile._write_some
        count = 0

        def limited(self: Any, data: memoryview) -> int:
            nonlocal count
            count += 1
            if count == 5:
                os._exit(9)
            return write(self, data)

        atomic_files.OpenFile._write_some = limited  # type: ignore[method-assign]
    begin = time.monotonic()
    try:
        smp.save_checkpoint(folder, "parts")
    except Exception as error:
        assert time.monotonic() - begin < SOON_S
        return [type(error).__name__, str(error)]
    return []


@pytest.mark.timeout(3 * DEADLINE_S)
def test_replicas_of_two_partitions_and_other_numbers(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    run_ranks(train_and_save, 4, folder, 2, deadline_s=DEADLINE_S)
    told = run_ranks(replicas, 4, folder, deadline_s=DEADLINE_S)
    expected = (  # who fails, and of what
        ("tag", None, "tag 'other' on rank 3"),
        ("kept", 1, "num_kept_partial_checkpoints is 0"),
        ("pickle", 0, "pickle"),
        ("pickle", 0, "pickle"),
        ("disk", 1, "No space left"),
        ("path", 2, ".at_save"),
        ("no path", 1, "PathLike"),
        ("no path", 1, "PathLike"),
        ("no model", 2, "Wrap the model first"),
        ("no model", 2, "Wrap the model first"),
        ("option", None, "load_optimizer False on rank 3, and True on rank 0"),
        ("missing", 3, "there is no partial checkpoint"),
        ("newest", 0, "holds no file `newest`"),
        ("publish", 2, "No space left"),
        ("publish", 2, "No space left"),
        ("publish", 2, "No space left"),
        ("mixed", None, "of another on that of rank 2"),
    )
    for rank, answers in enumerate(told):
        assert [name for name, _, _ in answers] == [name for name, _, _ in expected]
        for (name, text, seconds), (_, culprit, words) in zip(answers, expected, strict=True):
            assert words in text, name
            assert seconds < SOON_S, name
            if culprit is not None and rank != culprit:
                assert text.startswith("SMPError: "), name
                assert f"failed on rank {culprit}: " in text, name
    run_ranks(anew, 3, folder, "parts", "three", deadline_s=DEADLINE_S)
    for text in run_ranks(of_another_model, 2, folder, deadline_s=DEADLINE_S):
        assert "main/blocks/4" in text[0]
        assert "strict=False" in text[0]
    run_ranks(anew, 1, folder, "parts", None, deadline_s=DEADLINE_S)


@pytest.mark.timeout(3 * DEADLINE_S)
def test_one_pipeline_and_a_rank_that_dies(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    run_ranks(train_and_save, 2, folder, 2, deadline_s=DEADLINE_S)
    outcomes = run_ranks(dies, 2, folder, deadline_s=DEADLINE_S, check=False)
    assert outcomes[1].exit_code == 9
    assert outcomes[0].ok, outcomes[0]
    assert "rank 1" in outcomes[0].value[1]
    assert (tmp_path / "run" / "newest").read_text() == "parts_partial"
    run_ranks(goes_on, 2, folder, 2, deadline_s=DEADLINE_S)


@pytest.mark.timeout(2 * DEADLINE_S)
def test_one_process(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    run_ranks(train_and_save, 1, folder, 1, deadline_s=DEADLINE_S)
    run_ranks(goes_on, 1, folder, 1, deadline_s=DEADLINE_S)
