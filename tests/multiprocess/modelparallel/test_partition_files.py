# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The parameters `partition_file` and `load_partition`, on two pipelines of two ranks.

Each rank has another path, so that one that reads or writes its own is found out.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from harness import run_ranks
from machine_speed import scaled
from parted_models import batch, cut, network, plain_step, step_function

RANKS = 4
BLOCKS = [f"main/blocks/{number}" for number in range(4)]
SOON_S = scaled(20.0)


def _init(path: str, **more: Any) -> Any:
    """`smp`; rank 0 has the path."""
    import smdistributed.modelparallel.torch as smp

    parameters = {"partitions": 2, "microbatches": 2, "ddp": True, **more}
    smp.reset()
    smp.init({**parameters, "partition_file": path})
    return smp


def _model(smp: Any, is_cut: bool = False, **kwargs: Any) -> Any:
    return smp.DistributedModel(cut(network(**kwargs), 2) if is_cut else network(**kwargs))


def _places(model: Any) -> dict[str, int]:
    return dict(model.placement("a test").decision.partition_of)


def _train(smp: Any, model: Any) -> None:
    """A step, whose gradients are those of a process that has the whole model."""
    step_function()(model, *batch(smp.dp_rank()))
    plain = network()
    for replica in range(2):
        plain_step(plain, *batch(replica))
    expected = {name: p.grad / 2 for name, p in plain.named_parameters() if p.grad is not None}
    for name, parameter in model.local_named_parameters():
        if parameter.requires_grad:
            assert (parameter.grad - expected[name]).abs().max() < 1e-5, name


def decides_and_loads(rank: int, world_size: int, folder: str) -> None:
    mine = f"{folder}/rank{rank}.json"
    smp = _init(mine)
    model = _model(smp)
    _train(smp, model)
    decided = _places(model)
    report = model.partition_report()
    assert smp.allgather((decided, report), smp.WORLD) == [(decided, report)] * world_size
    assert "partition 1 on ranks 1, 3: load " in report
    if rank == 0:
        content = json.loads(Path(mine).read_text())
        assert (content["partitions"], content["modules"]) == (2, decided)
    assert [path.name for path in Path(folder).iterdir()] == ["rank0.json"]
    smp.barrier()

    # Somebody edits it, to what would never be decided.
    wanted = {name: int(name.startswith(BLOCKS[1])) for name in decided}
    assert wanted != decided
    if rank == 0:
        content["modules"] = wanted
        Path(mine).write_text(json.dumps(content))
    del model
    smp = _init(mine, load_partition=True)
    model = _model(smp)
    traced: list[bool] = []
    model.get_module().register_forward_pre_hook(lambda *_: traced.append(smp.is_tracing()))
    _train(smp, model)
    assert _places(model) == wanted
    assert f"as {folder}/rank0.json says" in model.partition_report()
    assert not any(traced)
    assert {name.split(".")[1] for name, _ in model.local_named_parameters()} == (
        {"1"} if smp.pp_rank() else {"0", "2", "3", "weight", "mix"}
    )
    assert smp.get_partition(model.get_module().blocks[1].up) == 1
    if rank == 0:
        assert json.loads(Path(mine).read_text())["modules"] == wanted
    smp.barrier()

    # By hand: written as well, and loaded instead.
    del model
    smp = _init(mine, auto_partition=False, default_partition=0)
    model = _model(smp, is_cut=True)
    _train(smp, model)
    by_cut = _places(model)
    assert [by_cut[name] for name in BLOCKS] == [0, 0, 1, 1]
    del model
    smp = _init(mine, auto_partition=False, default_partition=0, load_partition=True)
    model = _model(smp)
    _train(smp, model)
    assert _places(model) == by_cut
    smp.reset()


def refuses(rank: int, world_size: int, folder: str) -> list[tuple[str, str, float]]:
    """Each mistake, on all ranks; and after each the same job decides anew and works."""
    told = []
    path = Path(folder, f"rank{rank}.json")

    def attempt(name: str, smp: Any, model: Any) -> None:
        begin = time.monotonic()
        try:
            step_function()(model, *batch(0))
        except Exception as error:
            told.append((name, f"{type(error).__name__}: {error}", time.monotonic() - begin))
        assert not model.partitioned
        smp.barrier()

    smp = _init(str(path), load_partition=True)
    attempt("missing", smp, _model(smp))

    smp = _init(str(path.parent / "no" / path.name))
    attempt("no directory", smp, _model(smp))

    smp = _init(str(path))
    model = _model(smp)
    _train(smp, model)
    del model
    smp = _init(str(path), load_partition=True)
    attempt("other model", smp, _model(smp, num_blocks=5))

    if rank == 0:
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "partitions": 3}))
    attempt("other number", smp, _model(smp))

    if rank == 0:
        shared = {**content["modules"], "main/head": 1, "main/embedding": 0}
        path.write_text(json.dumps({**content, "modules": shared}))
    attempt("shared", smp, _model(smp))

    if rank == 0:
        path.write_text(json.dumps(content)[:-20])
    model = _model(smp)
    attempt("damaged", smp, model)

    if rank == 0:
        path.write_text(json.dumps(content))
    smp.barrier()
    _train(smp, model)  # it is whole by now
    smp.reset()
    return told


@pytest.mark.timeout(120)
def test_what_was_decided_is_loaded_by_all_pipelines(tmp_path: Path) -> None:
    run_ranks(decides_and_loads, RANKS, str(tmp_path), deadline_s=100)


@pytest.mark.timeout(120)
def test_files_that_do_not_fit(tmp_path: Path) -> None:
    expected = {
        "missing": ("FileNotFoundError", "rank0.json is missing"),
        "no directory": ("FileNotFoundError", "no is not there"),
        "other model": ("ConfigError", "is of another model: it has no main/blocks/4"),
        "other number": ("ConfigError", "holds a partition into 3"),
        "shared": ("ConfigError", "share a parameter"),
        "damaged": ("ConfigError", "is damaged"),
    }
    for rank, told in enumerate(run_ranks(refuses, RANKS, str(tmp_path), deadline_s=100)):
        assert [name for name, _, _ in told] == list(expected)
        for name, text, seconds in told:
            kind, words = expected[name]
            assert words in text
            assert text.startswith(kind if rank == 0 else "StepAborted: the model was not part")
            assert rank == 0 or f"rank 0 could not decide how: {kind}" in text
            assert seconds < SOON_S
