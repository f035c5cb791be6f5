# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.save_checkpoint` and `smp.resume_from_checkpoint` of one process: files, errors, kills.

Specification, section 6.9.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smdistributed.modelparallel.torch as smp
from smdistributed._common.errors import UnsupportedError
from smdistributed.modelparallel import atomic_files
from smdistributed.modelparallel.exceptions import ConfigError, SMPError
from smdistributed.modelparallel.torch.saving.checkpoints import directory as directory_module
from smdistributed.modelparallel.torch.saving.checkpoints import save_and_resume
from tests.unit.modelparallel.torch.forked import in_a_child

pytestmark = pytest.mark.usefixtures("alone")


class Tied(nn.Module):
    """Its two layers share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(x))
        return result


class NotPlain:
    """Unpickling it needs its class."""


@pytest.fixture
def model() -> Any:
    smp.init()
    return smp.DistributedModel(Tied())


@pytest.fixture
def optimizer(model: Any) -> Any:
    return smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.5))


def listing(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def fill(model: Any, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def values(model: Any) -> set[float]:
    return {value for each in model.parameters() for value in each.flatten().tolist()}


def step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


class TestPartial:
    def test_the_layout(self, model: Any, optimizer: Any, tmp_path: Path) -> None:
        fill(model, 2)
        step(model, optimizer)
        path = tmp_path / "made" / "by it"
        smp.save_checkpoint(path, tag="a", user_content={"epoch": 3})
        assert listing(path) == ["a_partial", "newest"]
        folder = path / "a_partial"
        names = ["model_0_0.pt", "optimizer_0_0.pt", "partition.pt", "user_content.pt"]
        assert listing(folder) == names
        assert (path / "newest").read_text() == "a_partial"
        saved = torch.load(folder / "model_0_0.pt", weights_only=True)
        assert saved.keys() == model.local_state_dict().keys()
        partition = torch.load(folder / "partition.pt", weights_only=True)
        assert (partition["pp_size"], partition["tp_size"], partition["rdp_size"]) == (1, 1, 1)
        assert partition["partition_of"] == {"main": 0, "main/first": 0, "main/second": 0}

        expected = values(model)
        moments = optimizer.state_dict()["state"][0]["exp_avg"].clone()
        step(model, optimizer)
        optimizer.param_groups[0]["lr"] = 7.0
        for tag in ("a", "a_partial", None):
            fill(model, -1)
            assert smp.resume_from_checkpoint(path, tag) == {"epoch": 3}
            assert values(model) == expected
        assert torch.equal(optimizer.state_dict()["state"][0]["exp_avg"], moments)
        assert optimizer.param_groups[0]["lr"] == 0.5

    def test_what_is_not_wanted_is_not_loaded(
        self, model: Any, optimizer: Any, tmp_path: Path
    ) -> None:
        smp.save_checkpoint(tmp_path, tag="a")
        os.unlink(tmp_path / "a_partial" / "optimizer_0_0.pt")
        with pytest.raises(FileNotFoundError, match="pass load_optimizer=False"):
            smp.resume_from_checkpoint(tmp_path)
        assert smp.resume_from_checkpoint(tmp_path, load_optimizer=False) == {}
        assert smp.resume_from_checkpoint(tmp_path, load_optimizer_states=False) == {}

    def test_a_missing_optimizer_is_told(self, model: Any, tmp_path: Path) -> None:
        smp.save_checkpoint(tmp_path, tag="a")
        assert listing(tmp_path / "a_partial") == ["model_0_0.pt", "partition.pt"]
        with pytest.raises(SMPError, match=r"before smp\.DistributedOptimizer"):
            smp.resume_from_checkpoint(tmp_path)
        smp.resume_from_checkpoint(tmp_path, load_optimizer=False)

    def test_the_oldest_are_deleted_whatever_their_names_and_times(
        self, model: Any, tmp_path: Path
    ) -> None:
        (tmp_path / "mine_partial").mkdir()  # not a checkpoint
        for number, tag in enumerate(("9", "10", "b", "a", "1")):
            smp.save_checkpoint(tmp_path, tag=tag, user_content=tag)
            os.utime(tmp_path / f"{tag}_partial", (1e9 - number, 1e9 - number))
        smp.save_checkpoint(tmp_path, tag="9")  # again: now it is the newest
        smp.save_checkpoint(tmp_path, tag="c", num_kept_partial_checkpoints=3)
        kept = ["1_partial", "9_partial", "c_partial", "mine_partial", "newest"]
        assert listing(tmp_path) == kept
        smp.save_checkpoint(tmp_path, "full", partial=False, num_kept_partial_checkpoints=1)
        smp.save_checkpoint(tmp_path, tag="9", num_kept_partial_checkpoints=1)
        assert listing(tmp_path) == ["9_partial", "full", "mine_partial", "newest"]

    def test_numbers_of_numpy_are_saved_as_pythons(
        self, model: Any, optimizer: Any, tmp_path: Path
    ) -> None:
        optimizer.param_groups[0]["lr"] = np.float64(0.25)
        optimizer.param_groups[0]["betas"] = (np.float32(0.5), 0.75)
        smp.save_checkpoint(tmp_path, tag="a")
        optimizer.param_groups[0].update(lr=1.0, betas=(0.0, 0.0))
        smp.resume_from_checkpoint(tmp_path)
        group = optimizer.param_groups[0]
        assert (type(group["lr"]), group["lr"], group["betas"]) == (float, 0.25, (0.5, 0.75))

    @pytest.mark.parametrize("partial", [True, False])
    def test_what_no_resume_would_load_is_not_saved(self, partial: bool, tmp_path: Path) -> None:
        class Extra(nn.Linear):
            extra: Any = np.int64(3)

            def get_extra_state(self) -> Any:
                return {"in": [self.extra]}

            def set_extra_state(self, state: Any) -> None:
                self.extra = state["in"][0]

        smp.init()
        module = Extra(1, 1)
        model = smp.DistributedModel(module)
        smp.save_checkpoint(tmp_path, "good", partial)
        before = listing(tmp_path)
        module.extra = NotPlain()
        with pytest.raises(
            SMPError, match=r"model\S*\.pt would hold more than tensors.*: \S*NotPlain; "
        ):
            smp.save_checkpoint(tmp_path, "bad", partial)
        assert listing(tmp_path) == before
        smp.resume_from_checkpoint(tmp_path, partial=partial, load_optimizer=False)
        assert (type(module.extra), module.extra) == (int, 3)
        del model

    def test_each_save_writes_below_a_name_of_its_own(
        self, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in (".unfinished.smp-tmp", ".unfinished.0123.smp-tmp"):
            (tmp_path / name).mkdir()  # of somebody who was killed
        mine = ".unfinished-safetensors.smp-tmp"
        (tmp_path / mine).mkdir()
        made = []
        mkdir = os.mkdir
        monkeypatch.setattr(os, "mkdir", lambda path, *a: (made.append(path), mkdir(path, *a)))
        for _ in range(2):
            smp.save_checkpoint(tmp_path, "a")
            assert listing(tmp_path) == [mine, "a_partial", "newest"]
        assert len({path for path in made if ".smp-tmp" in path}) == 2

    @pytest.mark.parametrize("damage", [b"rubbish", b""])
    def test_a_damaged_one_is_told_and_counts_as_the_oldest(
        self, damage: bytes, model: Any, tmp_path: Path
    ) -> None:
        for tag in ("a", "b"):
            smp.save_checkpoint(tmp_path, tag=tag)
        (tmp_path / "b_partial" / "partition.pt").write_bytes(damage)
        with pytest.raises(SMPError, match="Resume from another checkpoint"):
            smp.resume_from_checkpoint(tmp_path)
        smp.save_checkpoint(tmp_path, tag="c", num_kept_partial_checkpoints=2)
        assert listing(tmp_path) == ["a_partial", "c_partial", "newest"]

    def test_what_cannot_be_deleted_is_a_warning(
        self, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        warnings: list[str] = []
        monkeypatch.setattr(
            directory_module.get_logger(), "warning", lambda text, *a: warnings.append(text % a)
        )
        smp.save_checkpoint(tmp_path, tag="a")

        def fails(path: str) -> None:
            raise PermissionError(errno.EACCES, "no")

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", fails)
            smp.save_checkpoint(tmp_path, tag="b", num_kept_partial_checkpoints=1)
        assert len(warnings) == 1
        assert "a_partial.smp-deleted could not be deleted" in warnings[0]
        smp.save_checkpoint(tmp_path, tag="c")
        assert listing(tmp_path) == ["b_partial", "c_partial", "newest"]

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("tp_size", 2, "use|Use that degree, or a full checkpoint"),
            ("is_sharded", True, "shard_optimizer_state True, and it is False now"),
        ],
    )
    def test_what_cannot_be_divided_anew_is_refused(
        self,
        field: str,
        value: Any,
        message: str,
        model: Any,
        optimizer: Any,
        tmp_path: Path,
    ) -> None:
        smp.save_checkpoint(tmp_path, tag="a")
        path = tmp_path / "a_partial" / "partition.pt"
        torch.save({**torch.load(path), field: value}, path)
        with pytest.raises(ConfigError, match=message):
            smp.resume_from_checkpoint(tmp_path)
        if field == "is_sharded":
            smp.resume_from_checkpoint(tmp_path, load_optimizer=False)

    def test_the_format_is_looked_at(self, model: Any, tmp_path: Path) -> None:
        smp.save_checkpoint(tmp_path, tag="a")
        path = tmp_path / "a_partial" / "partition.pt"
        good = torch.load(path)
        without = {key: value for key, value in good.items() if key != "pp_size"}
        for content, message in (
            ([], "it does not say"),
            ({**good, "version": 9}, "is of version 9"),
            (without, "it has no pp_size"),
            ({**good, "rdp_size": "2"}, r"its sizes are \(1, 1, '2'\)"),
            ({**good, "partition_of": []}, "it has no partitions"),
            ({**good, "partition_of": {"main": 1}}, "main is in partition 1 of 1"),
            ({**good, "x": NotPlain()}, "is damaged, or something else"),
        ):
            torch.save(content, path)
            with pytest.raises(SMPError, match=message):
                smp.resume_from_checkpoint(tmp_path, load_optimizer=False)


class TestFull:
    def test_plain_torch_reads_it(self, model: Any, optimizer: Any, tmp_path: Path) -> None:
        fill(model, 3)
        smp.save_checkpoint(tmp_path, tag="f.bin", partial=False, user_content=[1])
        assert listing(tmp_path) == ["f.bin", "newest", "user_content_f.bin"]
        assert (tmp_path / "newest").read_text() == "f.bin"
        plain = Tied()
        saved = torch.load(tmp_path / "f.bin", weights_only=True)
        assert plain.load_state_dict(saved) == ([], [])
        assert values(plain) == {3.0}
        for tag in ("f.bin", None):
            fill(model, 0)
            assert smp.resume_from_checkpoint(tmp_path, tag, partial=False) == [1]
            assert values(model) == {3.0}
        # Of another one with the same tag.
        smp.save_checkpoint(tmp_path, tag="f.bin", partial=False)
        assert listing(tmp_path) == ["f.bin", "newest"]
        assert smp.resume_from_checkpoint(tmp_path, partial=False) == {}

    @pytest.mark.parametrize("is_zip", [True, False])
    def test_a_plain_state_dictionary_is_translated_and_loaded(
        self, is_zip: bool, model: Any, tmp_path: Path
    ) -> None:
        state = {f"x.{key}": torch.full_like(t, 4) for key, t in Tied().state_dict().items()}
        del state["x.second.weight"]  # the other name of a weight
        torch.save(state, tmp_path / "m.bin", _use_new_zipfile_serialization=is_zip)
        seen: list[dict[str, Any]] = []

        def translate(given: dict[str, Any]) -> dict[str, Any]:
            seen.append(given)
            return {key.removeprefix("x."): value for key, value in given.items()}

        smp.resume_from_checkpoint(
            tmp_path, tag="m.bin", partial=False, translate_function=translate
        )
        assert values(model) == {4.0}
        assert seen[0].keys() == state.keys()
        with pytest.raises(RuntimeError, match="Missing key"):
            smp.resume_from_checkpoint(tmp_path, tag="m.bin", partial=False)
        smp.resume_from_checkpoint(tmp_path, tag="m.bin", partial=False, strict=False)

    def test_nothing_but_user_content_runs_code(self, model: Any, tmp_path: Path) -> None:
        torch.save({"first.weight": NotPlain()}, tmp_path / "m")
        with pytest.raises(SMPError, match="add_safe_globals"):
            smp.resume_from_checkpoint(tmp_path, "m", partial=False)
        torch.save([1], tmp_path / "m")
        with pytest.raises(SMPError, match="holds a list; expected a state dictionary"):
            smp.resume_from_checkpoint(tmp_path, "m", partial=False)
        content = {"any": NotPlain()}
        smp.save_checkpoint(tmp_path, "m", partial=False, user_content=content)
        found = smp.resume_from_checkpoint(tmp_path, "m", partial=False)
        assert isinstance(found["any"], NotPlain)

    @pytest.mark.parametrize("name", ["../other", "/other", "..", "../other_partial"])
    def test_newest_names_nothing_outside(self, name: str, model: Any, tmp_path: Path) -> None:
        smp.save_checkpoint(tmp_path, "other", partial=False)
        smp.save_checkpoint(tmp_path, "other")
        smp.save_checkpoint(tmp_path / "run", "a")
        (tmp_path / "run" / "newest").write_text(name)
        for partial in (True, False):
            with pytest.raises(SMPError, match=r"newest names.*Correct the file, or pass a tag"):
                smp.resume_from_checkpoint(tmp_path / "run", partial=partial, load_optimizer=False)

    def test_what_is_missing_is_told_with_what_is_there(self, model: Any, tmp_path: Path) -> None:
        for partial in (True, False):
            with pytest.raises(FileNotFoundError, match="holds no file `newest`"):
                smp.resume_from_checkpoint(tmp_path, partial=partial)
        with pytest.raises(FileNotFoundError, match="cannot be read"):
            smp.resume_from_checkpoint(tmp_path / "no", "a")
        smp.save_checkpoint(tmp_path, "a")
        smp.save_checkpoint(tmp_path, "b", partial=False, user_content=1)
        there = "holds a_partial, b. Pass"
        with pytest.raises(FileNotFoundError, match=f"no partial .*b_partial.*{there}") as error:
            smp.resume_from_checkpoint(tmp_path)  # the newest is a full one
        assert error.value.errno == errno.ENOENT
        with pytest.raises(FileNotFoundError, match=f"no full .*{there}.*or partial=True"):
            smp.resume_from_checkpoint(tmp_path, "a", partial=False)


class TestArguments:
    @pytest.mark.parametrize(
        "tag",
        [
            "",
            ".",
            "..",
            "a/b",
            "/a",
            "newest",
            "a_partial",
            ".a",
            "user_content_a",
            "a\n",
            None,
            b"a",
        ],
    )
    def test_tags_that_cannot_be(self, tag: Any, model: Any, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match='such as "step_1000"'):
            smp.save_checkpoint(tmp_path, tag)
        assert listing(tmp_path) == []

    def test_a_number_may_be_a_tag(self, model: Any, tmp_path: Path) -> None:
        tag: Any = 12
        smp.save_checkpoint(tmp_path, tag)
        smp.resume_from_checkpoint(tmp_path, tag, load_optimizer=False)
        assert listing(tmp_path) == ["12_partial", "newest"]

    @pytest.mark.parametrize("kept", [0, -1, 1.5, True])
    def test_numbers_of_kept_ones_that_cannot_be(
        self, kept: Any, model: Any, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError, match="expected 1 or more"):
            smp.save_checkpoint(tmp_path, "a", num_kept_partial_checkpoints=kept)

    def test_order_of_arguments_is_the_published_one(
        self, model: Any, optimizer: Any, tmp_path: Path
    ) -> None:
        smp.save_checkpoint(str(tmp_path), "a", True, model, optimizer, {"x": 1}, True, 2)
        assert smp.resume_from_checkpoint(str(tmp_path), "a", True, True, True, True, None) == {
            "x": 1
        }

    def test_an_optimizer_that_is_not_distributed(self, model: Any, tmp_path: Path) -> None:
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ConfigError, match=r"smp\.DistributedOptimizer\(\) has returned"):
            smp.save_checkpoint(tmp_path, "a", optimizer=plain)
        smp.save_checkpoint(tmp_path, "a", partial=False, optimizer=plain)  # has none in it

    def test_a_directory_that_does_not_show_its_files(
        self, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        exists = os.path.exists
        hides = lambda path: not str(path).endswith(".smp-mark") and exists(path)  # noqa: E731
        monkeypatch.setattr(os.path, "exists", hides)
        with pytest.raises(SMPError, match="which did not find it then"):
            smp.save_checkpoint(tmp_path, "a")

    def test_without_a_model(self, tmp_path: Path) -> None:
        with pytest.raises(smp.SMPNotInitialized):
            smp.save_checkpoint(tmp_path, "a")
        smp.init()
        calls: list[Callable[[], Any]] = [
            lambda: smp.save_checkpoint(tmp_path, "a"),
            lambda: smp.resume_from_checkpoint(tmp_path),
            lambda: smp.save_safetensors(tmp_path),
            lambda: smp.save_checkpoint(tmp_path, "a", model=nn.Linear(1, 1)),
        ]
        for call in calls:
            with pytest.raises(SMPError, match="Wrap the model first"):
                call()


# ---- 16 bits and shards, as their optimizers will be ---------------------------------------------


class Fake16Bit:
    """The methods that `save_checkpoint` asks for."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self.told: list[Any] = []

    def local_state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:
        self.told.append(("gather", gather_if_shard))
        own = self._optimizer.local_state_dict()
        return {**own, "fp16_states": self.local_fp16_states()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.told.append(("optimizer", sorted(state_dict)))

    def local_fp16_states(self) -> dict[str, Any]:
        scaler = {"scale": 4.0}
        return {"masters": {"w": torch.ones(2)}, "loss_scaler": scaler, "_smp_is_partial": True}

    def load_fp16_states(self, states: dict[str, Any]) -> None:
        self.told.append(("fp16", sorted(states), states["masters"]["w"].tolist()))

    def reload_model_params(self) -> None:
        self.told.append("reloaded")


FP16 = ("fp16", ["_smp_is_partial", "loss_scaler", "masters"], [1.0, 1.0])
OPTIMIZER = ("optimizer", ["_smp_is_partial", "param_groups", "state"])


class TestStates:
    def test_of_16_bits(
        self, model: Any, optimizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake = Fake16Bit(optimizer)
        monkeypatch.setattr(smp.state, "optimizer", fake)
        smp.save_checkpoint(tmp_path, "a")
        names = ["fp16_states_0_0.pt", "model_0_0.pt", "optimizer_0_0.pt", "partition.pt"]
        assert listing(tmp_path / "a_partial") == names
        smp.save_checkpoint(tmp_path, "f", partial=False)
        assert fake.told == [("gather", False)]
        for options, expected in (
            ({"tag": "a"}, [OPTIMIZER, FP16]),
            ({"tag": "a", "load_sharded_optimizer_state": False}, [OPTIMIZER, FP16]),
            ({"tag": "a", "load_optimizer": False}, ["reloaded"]),
            ({"tag": "f", "partial": False}, ["reloaded"]),
        ):
            fake.told.clear()
            smp.resume_from_checkpoint(tmp_path, **options)  # type: ignore[arg-type]
            assert fake.told == expected, options
        # Saved by an optimizer in fp32.
        monkeypatch.setattr(smp.state, "optimizer", optimizer)
        smp.save_checkpoint(tmp_path, "b")
        monkeypatch.setattr(smp.state, "optimizer", fake)
        fake.told.clear()
        smp.resume_from_checkpoint(tmp_path, "b")
        assert fake.told == [OPTIMIZER, "reloaded"]

    def test_of_shards(
        self, model: Any, optimizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake = Fake16Bit(optimizer)
        monkeypatch.setattr(smp.state, "optimizer", fake)
        object.__setattr__(smp.state.cfg, "shard_optimizer_state", True)
        smp.save_checkpoint(tmp_path, "a")
        names = ["fp16_states_0_0_0.pt", "model_0_0.pt", "optimizer_0_0_0.pt", "partition.pt"]
        assert listing(tmp_path / "a_partial") == names
        for options, expected in (
            ({}, [OPTIMIZER, FP16]),
            ({"load_sharded_optimizer_state": False}, [FP16]),
        ):
            fake.told.clear()
            smp.resume_from_checkpoint(tmp_path, **options)
            assert fake.told == expected
        path = tmp_path / "a_partial" / "partition.pt"
        torch.save({**torch.load(path), "rdp_size": 2}, path)
        with pytest.raises(ConfigError, match="1 partitions and 2 replicas"):
            smp.resume_from_checkpoint(tmp_path)

    def test_sharded_parameters_are_refused(self, model: Any, tmp_path: Path) -> None:
        object.__setattr__(smp.state.cfg, "sharded_data_parallel_degree", 2)
        with pytest.raises(UnsupportedError, match="Use a full one"):
            smp.save_checkpoint(tmp_path, "a")
        assert listing(tmp_path) == []


# ---- errors and kills ----------------------------------------------------------------------------


def full_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    write = atomic_files.OpenFile._write_some
    written = 0

    def limited(self: Any, data: memoryview) -> int:
        nonlocal written
        written += len(data)
        if written > after:
            raise OSError(errno.ENOSPC, "full")
        return write(self, data)

    monkeypatch.setattr(atomic_files.OpenFile, "_write_some", limited)


class TestErrors:
    @pytest.mark.parametrize("partial", [True, False])
    @pytest.mark.parametrize("tag", ["new", "same"])
    @pytest.mark.parametrize("after", [0, 2000, None])
    def test_what_was_there_stays_and_nothing_else_is_left(
        self,
        partial: bool,
        tag: str,
        after: int | None,
        model: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The disk is full after some bytes, or (None) the content cannot be pickled."""
        fill(model, 1)
        smp.save_checkpoint(tmp_path, "same", partial=partial, user_content="old")
        before = listing(tmp_path)
        fill(model, 2)
        with monkeypatch.context() as patch:
            content: Any = "new"
            if after is None:
                content = lambda: None  # noqa: E731
            else:
                full_disk(patch, after)
            with pytest.raises(Exception, match=r"No space|full|pickle") as error:
                smp.save_checkpoint(tmp_path, tag, partial=partial, user_content=content)
        assert error.value.__notes__[-1].startswith("smp.save_checkpoint() failed on rank 0")
        assert listing(tmp_path) == before
        resumed = smp.resume_from_checkpoint(tmp_path, partial=partial, load_optimizer=False)
        assert (resumed, values(model)) == ("old", {1.0})

    def test_a_file_in_the_way(self, model: Any, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(OSError, match="file"):
            smp.save_checkpoint(tmp_path / "file", "a")
        (tmp_path / ".0123.smp-mark").touch()  # of somebody who was killed
        (tmp_path / "a_partial").touch()
        with pytest.raises(OSError, match="a_partial"):
            smp.save_checkpoint(tmp_path, "a")
        assert listing(tmp_path) == ["a_partial", "file"]


_CHANGES = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync")


class TestKilled:
    """In a child, without the collectives: there each rank does this, between barriers."""

    @pytest.mark.parametrize("partial", [True, False])
    @pytest.mark.parametrize("tag", ["new", "same"])
    def test_before_any_change_of_the_disk(
        self,
        tag: str,
        partial: bool,
        model: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        origin = tmp_path / "origin"
        for name, value in (("older", 0), ("same", 1)):
            fill(model, value)
            smp.save_checkpoint(origin, name, partial=partial, user_content=value)
        fill(model, 2)

        def save(path: Path, dies_at: int) -> int:
            """Exits with 0 if it was done before that many changes."""
            count = 0

            def counted(name: str) -> Callable[..., Any]:
                original = getattr(os, name)

                def change(*args: Any, **kwargs: Any) -> Any:
                    nonlocal count
                    if count == dies_at:
                        os._exit(9)
                    count += 1
                    return original(*args, **kwargs)

                return change

            with monkeypatch.context() as patch:
                for name in _CHANGES:
                    patch.setattr(os, name, counted(name))
                patch.setattr(save_and_resume, "agreed", lambda job, what, check: check())
                patch.setattr(
                    save_and_resume, "together", lambda job, what, action, undo=None: [action()]
                )
                patch.setattr(save_and_resume, "keeper_of", lambda *_: 0)
                return in_a_child(
                    lambda: smp.save_checkpoint(
                        path,
                        tag,
                        partial=partial,
                        user_content=2,
                        num_kept_partial_checkpoints=1,
                    )
                )

        outcomes, mixed = [], 0
        for dies_at in range(200):
            path = tmp_path / str(dies_at)
            shutil.copytree(origin, path)
            code = save(path, dies_at)
            newest = (path / "newest").read_text().removesuffix("_partial")
            content = smp.resume_from_checkpoint(path, partial=partial, load_optimizer=False)
            assert newest in ("same", tag)
            mixed += values(model) != {float(content)}
            outcomes.append(content)
            fill(model, 2)
            shown = {"newest", "older", "same", tag}
            shown |= {f"{name}_partial" for name in shown} | {f"user_content_{n}" for n in shown}
            assert {name for name in listing(path) if not name.startswith(".")} <= shown
            # What it has left is gone after the next one.
            smp.save_checkpoint(path, "next", partial=partial)
            assert [name for name in listing(path) if name.startswith(".")] == []
            shutil.rmtree(path)
            if code == 0:
                break
            assert code == 9
        assert code == 0
        assert dies_at > 10
        # Between the names of the two files of a full one.
        assert mixed == (tag == "same" and not partial)
        assert outcomes == sorted(outcomes)  # the old ones, then the new one
        assert {outcomes[0], outcomes[-1]} == {1, 2}


# ---- safetensors ---------------------------------------------------------------------------------


@pytest.fixture
def packages() -> None:
    pytest.importorskip("safetensors", reason="the package safetensors is not installed")
    pytest.importorskip("huggingface_hub", reason="the package huggingface_hub is not installed")


@pytest.mark.usefixtures("packages")
class TestSafetensors:
    def test_there_and_back(self, model: Any, optimizer: Any, tmp_path: Path) -> None:
        from safetensors.torch import load_file

        fill(model, 5)
        smp.save_safetensors(tmp_path / "made")
        assert listing(tmp_path / "made") == ["model.safetensors"]
        found = load_file(tmp_path / "made" / "model.safetensors")
        assert found.keys() == {"first.weight", "first.bias"}  # what is shared is there once
        for tag in (None, "pytorch_model.bin"):
            fill(model, 0)
            content = smp.resume_from_checkpoint(
                path=tmp_path / "made", tag=tag, partial=False, load_optimizer=False
            )
            assert (content, values(model)) == ({}, {5.0})
        with pytest.raises(FileNotFoundError):
            smp.resume_from_checkpoint(tmp_path / "made")

    def test_shards_take_the_place_of_one_file_and_of_other_shards(
        self, model: Any, tmp_path: Path
    ) -> None:
        smp.save_safetensors(tmp_path)
        (tmp_path / "config.json").touch()
        fill(model, 6)
        smp.save_safetensors(tmp_path, max_shard_size=40)
        shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
        index = "model.safetensors.index.json"
        assert listing(tmp_path) == ["config.json", *shards, index]
        weight_map = json.loads((tmp_path / index).read_text())["weight_map"]
        assert sorted(weight_map.values()) == shards
        fill(model, 0)
        smp.resume_from_checkpoint(tmp_path, partial=False)
        assert values(model) == {6.0}
        fill(model, 7)
        smp.save_safetensors(tmp_path, max_shard_size="1GB")
        assert listing(tmp_path) == ["config.json", "model.safetensors"]

    def test_indices_and_files_that_cannot_be(self, model: Any, tmp_path: Path) -> None:
        index = tmp_path / "model.safetensors.index.json"
        for text, message in (
            ("{", "is damaged"),
            ('{"weight_map": 3}', "is damaged"),
            ('{"weight_map": {"a": "../secret"}}', "names the file '../secret'"),
            ('{"weight_map": {"a": 7}}', "names the file 7"),
        ):
            index.write_text(text)
            with pytest.raises(SMPError, match=message):
                smp.resume_from_checkpoint(tmp_path, partial=False)
        (tmp_path / "model.safetensors").write_bytes(b"rubbish")
        with pytest.raises(SMPError, match="Copy the model anew"):
            smp.resume_from_checkpoint(tmp_path, partial=False)

    def test_views_are_written_whole_and_extra_state_is_left_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from safetensors.torch import load_file

        class Odd(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                whole = torch.arange(6.0)
                self.low = nn.Parameter(whole[:3])
                self.register_buffer("high", whole[2:])
                self.register_buffer("turned", torch.arange(6.0).reshape(2, 3).t())

            def get_extra_state(self) -> dict[str, int]:
                return {"calls": 1}

        smp.init()
        model = smp.DistributedModel(Odd())
        warnings: list[str] = []
        monkeypatch.setattr(
            directory_module.get_logger(), "warning", lambda text, *a: warnings.append(text % a)
        )
        smp.save_safetensors(tmp_path)
        found = load_file(tmp_path / "model.safetensors")
        expected = {k: v for k, v in model.state_dict().items() if isinstance(v, torch.Tensor)}
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], value) for key, value in expected.items())
        assert len(warnings) == 1
        assert "_extra_state is left out" in warnings[0]

    def test_an_error_leaves_what_was_there(
        self, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        smp.save_safetensors(tmp_path)
        before = (tmp_path / "model.safetensors").read_bytes()
        fill(model, 9)

        def fails(*_: Any) -> None:
            raise OSError(errno.EIO, "no")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            with pytest.raises(OSError, match="no"):
                smp.save_safetensors(tmp_path)
        assert listing(tmp_path) == ["model.safetensors"]
        assert (tmp_path / "model.safetensors").read_bytes() == before


def test_missing_packages_are_told(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnsupportedError, match=r"pip install 'smdistributed-open\[safetensors\]'"):
        smp.save_safetensors(tmp_path / "x")
    assert listing(tmp_path) == []
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UnsupportedError, match="pip install safetensors"):
        smp.resume_from_checkpoint(tmp_path, partial=False)


def test_transformers_loads_an_export(
    tmp_path: Path, packages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="the package transformers is not installed"
    )
    config = transformers.GPT2Config(
        vocab_size=31, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    words = torch.arange(8).reshape(1, 8)
    smp.init()
    for shard_size in ("1GB", 2000):
        torch.manual_seed(3)
        inner = transformers.GPT2LMHeadModel(config).eval()
        expected = inner(words).logits
        model = smp.DistributedModel(inner)
        path = tmp_path / str(shard_size)
        smp.save_safetensors(path, max_shard_size=shard_size)
        assert ("model.safetensors" in listing(path)) == (shard_size == "1GB")
        config.save_pretrained(path)
        loaded, info = transformers.GPT2LMHeadModel.from_pretrained(path, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        assert torch.equal(loaded.eval()(words).logits, expected)
        smp.save_checkpoint(path, "pytorch_model.bin", partial=False)
        plain = torch.load(path / "pytorch_model.bin", weights_only=True)
        assert transformers.GPT2LMHeadModel(config).load_state_dict(plain) == ([], [])
        os.unlink(path / "pytorch_model.bin")
        fill(model, 0)
        smp.resume_from_checkpoint(path, tag="pytorch_model.bin", partial=False)
        assert torch.equal(inner(words).logits, expected)
        del model, inner
