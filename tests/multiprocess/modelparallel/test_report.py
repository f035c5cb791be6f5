# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.report()` of ranks that run: what was recorded is what the schedule asks for.

Modules sleep, so that who is busy when does not depend on who else uses the processors.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import run_ranks
from torch import Tensor, nn
from torch.autograd import Function

from smdistributed.modelparallel.report.document import Report, read_report
from smdistributed.modelparallel.report.timeline import Span, order_of, timelines

RANKS = 2
MICROBATCHES = 4
STEPS = 3
WIDTH = 8
SLEEP_S = 0.02  # much more than what else a module takes


class Sleep(Function):
    """Takes a time, and twice of it on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


class Part(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Sleep.apply(self.dense(x), self.seconds)  # type: ignore[no-untyped-call]
        return result


def _net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(Part(SLEEP_S) for _ in range(4)))


def _job(places: list[int], **more: Any) -> tuple[Any, Any, Any]:
    import smdistributed.modelparallel.torch as smp

    smp.reset()
    config = {"auto_partition": False, "default_partition": 0, "microbatches": MICROBATCHES}
    smp.init({"partitions": RANKS, **config, **more})
    net = _net()
    for part, place in zip(net, places, strict=True):
        smp.set_partition(part, place)
    plan = smp.plan(
        net, (torch.zeros(2 * MICROBATCHES, WIDTH),), ranks=RANKS, microbatches=MICROBATCHES,
        config={key: config[key] for key in ("auto_partition", "default_partition")},
    )  # fmt: skip
    return smp, smp.DistributedModel(net), plan


def _train(smp: Any, model: Any, steps: int) -> None:
    @smp.step
    def step(model: Any, x: Tensor) -> Tensor:
        loss: Tensor = model(x).pow(2).mean()
        model.backward(loss)
        return loss

    for _ in range(steps):
        model.zero_grad()
        step(model, torch.ones(2 * MICROBATCHES, WIDTH))


def reports(rank: int, world_size: int, folder: str) -> dict[str, str]:
    texts = {}
    for name, places, more in (
        ("even", [0, 0, 1, 1], {}),
        ("uneven", [0, 1, 1, 1], {}),
    ):
        smp, model, plan = _job(places, **more)
        with pytest.raises(RuntimeError, match="no step to tell of"):
            smp.report()
        with smp.recording():
            with (
                pytest.raises(RuntimeError, match="one at a time"),
                smp.recording(),
            ):
                pass
            _train(smp, model, 1)  # learns, and is left out
            _train(smp, model, 1 + STEPS)
        _train(smp, model, 1)  # not recorded
        report = smp.report(plan)
        texts[name] = str(report)
        report.save(f"{folder}/{name}.json")  # all ranks to one place: they have the same
        if rank == 0:
            report.to_perfetto(f"{folder}/{name}.trace.json")
        smp.barrier()
    return texts


def fails_and_goes_on(rank: int, world_size: int) -> list[int]:
    """Numbers of the steps that are recorded."""
    smp, model, _ = _job([0, 0, 1, 1])
    _train(smp, model, 1)
    part = model.get_module()[3]
    seconds = part.seconds
    with smp.recording():
        part.seconds = -1.0  # which sleep refuses
        with pytest.raises((ValueError, smp.exceptions.StepAborted)):
            _train(smp, model, 1)
        part.seconds = seconds
        _train(smp, model, 2)
    report: Report = smp.report()
    # Nobody looks any longer, after a failure either.
    assert not torch.nn.modules.module._global_forward_pre_hooks
    return [step.number for step in report.records[rank].steps]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    first, second = run_ranks(reports, RANKS, str(folder))
    assert first == second  # the same on all ranks
    return folder


def _last_of_each(spans: Sequence[Span], phase: str) -> list[Span]:
    """The last stretch of a phase of each microbatch, in order of time."""
    last = {span.microbatch: span for span in spans if span.phase == phase}
    return sorted(last.values(), key=lambda span: span.begin_s)


def test_who_did_what_when(folder: Path) -> None:
    report = read_report(folder / "even.json")
    assert [visit.rank for visit in report.expected.way] == [0, 1]
    steps = timelines(report.records)
    assert len(steps) == 1 + STEPS
    for step, partition in itertools.product(steps, range(RANKS)):
        spans = step.spans[partition]
        assert all(a.end_s <= b.begin_s for a, b in itertools.pairwise(spans))
        assert 0 <= spans[0].begin_s <= spans[-1].end_s <= step.seconds
        # Two modules' sleep, in each phase of each microbatch, in the order of microbatches. Before
        # it goes back there is a stretch that hands the microbatch on.
        for phase, least_s in (("F", 2 * SLEEP_S), ("B", 4 * SLEEP_S)):
            own = _last_of_each(spans, phase)
            assert [span.microbatch for span in own] == list(range(MICROBATCHES))
            assert min(span.seconds for span in own) >= least_s
        assert step.busy_s(partition) >= MICROBATCHES * 6 * SLEEP_S
    what = {span.what for phase in "FB" for span in _last_of_each(steps[-1].spans[1], phase)}
    # The loss is computed where its input is.
    assert len(what) == 1
    assert what.pop().startswith("main/2 ... ")


def test_bubble_messages_and_modules(folder: Path) -> None:
    even, uneven = (read_report(folder / f"{name}.json") for name in ("even", "uneven"))
    for report in (even, uneven):
        measured = report.measured
        assert measured is not None
        assert measured.num_steps == STEPS
        assert all(0 < bubble < 1 for bubble in measured.bubble)
        # At the least: the way of a microbatch, and the busiest rank's work for the others.
        assert report.expected.step_s >= report.expected.floor_s * (1 - 1e-9)
        assert {row.path: row.partition for row in report.rows if row.parameters} == {
            f"main/{number}": place for number, place in enumerate([0, int(report is uneven), 1, 1])
        }
        kinds = measured.sent["0-1"]
        assert kinds["Call"][0] == MICROBATCHES
        # A microbatch's values, beside what says what to do with them.
        assert kinds["Call"][1] > MICROBATCHES * 2 * WIDTH * 4
        assert kinds["End"][0] == 1
        assert measured.sent["1-0"]["Gradients"][0] == MICROBATCHES
    assert uneven.measured is not None
    # One module of four, and three: so are the times that nobody waits.
    assert uneven.measured.bubble[0] > uneven.measured.bubble[1]
    assert "Partition 1 is overloaded" in uneven.advice[0]
    assert "Move main/1 to partition 0" in uneven.advice[0]
    assert "overloaded" not in str(even)


def test_memory_beside_what_a_plan_expects(folder: Path) -> None:
    report = read_report(folder / "even.json")
    measured = report.measured
    assert measured is not None
    own = 2 * 4 * (WIDTH * WIDTH + WIDTH)
    for memory, expected in zip(measured.memory, report.expected.standing_bytes, strict=True):
        assert memory is not None
        assert (memory.parameters, memory.states, memory.buffers) == (own, 0, 0)
        assert expected == 4 * own  # with gradients and what Adam would keep
        assert memory.grown is None or memory.grown >= 0
        order = [str(task) for task in order_of(memory.stretches, 1)]
        passes = [f"{phase}{number}" for phase in "FB" for number in range(MICROBATCHES)]
        assert sorted(order) == sorted(passes)
    assert all(p >= s for p, s in zip(
        report.expected.peak_bytes, report.expected.standing_bytes, strict=True
    ))  # fmt: skip


def test_the_trace_of_all_ranks(folder: Path) -> None:
    events = json.loads((folder / "even.trace.json").read_text())["traceEvents"]
    steps = [event for event in events if event["ph"] == "X" and event["name"].startswith("step")]
    assert len(steps) == RANKS * (1 + STEPS)
    assert {event["pid"] for event in events} == set(range(RANKS))


def test_a_step_that_fails_is_not_recorded() -> None:
    assert run_ranks(fails_and_goes_on, RANKS) == [[2, 3]] * RANKS


_SCRIPT = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}
from test_report import _job, _train
smp, model, plan = _job([0, 0, 1, 1])
_train(smp, model, 4)
with smp.recording():  # which the variable does not forbid
    _train(smp, model, 2)
assert len(smp.report().records[0].steps) == 2
_train(smp, model, 1)
smp.reset()
"""


def test_a_variable_records_and_the_command_tells(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    launch = [sys.executable, "-m", "smdistributed.launch", "-np", str(RANKS)]
    environment = {**os.environ, "SMP_REPORT": str(tmp_path / "runs" / "report.json")}
    done = subprocess.run(
        [*launch, sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    files = sorted(str(path) for path in (tmp_path / "runs").iterdir())
    assert [Path(file).name for file in files] == ["report.0.json", "report.1.json"]
    command = [sys.executable, "-m", "smdistributed.modelparallel.report.cli", *files]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert "2 partitions, 4 microbatches (4 active), interleaved; 3 steps recorded" in told.stdout
