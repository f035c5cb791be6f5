# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.report()` of ranks that run, for `test_report.py`: they do what their lists ask for.

Layers sleep, so that who is busy when does not depend on who else uses the processors.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.dataparallel.exceptions import SMDDPMismatch
from smdistributed.modelparallel.exceptions import StepAborted
from smdistributed.modelparallel.report.cli import main as smpreport
from smdistributed.modelparallel.report.document import Report, read_report
from smdistributed.modelparallel.report.records import read_rank_record
from smdistributed.modelparallel.report.timeline import timelines
from smdistributed.modelparallel.tensorflow.reporting import report as reporting
from smdistributed.modelparallel.tensorflow.step import pipeline as pipelines
from smdistributed.modelparallel.tensorflow.step.gradients import gradients_in_step
from smdistributed.modelparallel.tensorflow.step.pipeline import current_pipeline
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

MICROBATCHES, WIDTH, SLEEP_S = 4, 8, 0.008
BATCH = np.ones((2 * MICROBATCHES, WIDTH), "f4")
BY_HAND = {"auto_partition": False, "default_partition": 0}


def _slept(x: Any, seconds: float) -> Any:
    time.sleep(seconds)
    return x


@tf.custom_gradient
def _slow(x: Any) -> Any:
    """Takes a time, and twice of it on the way back."""

    def gradient(dy: Any) -> Any:
        found = tf.numpy_function(lambda each: _slept(each, 2 * SLEEP_S), [dy], dy.dtype)
        found.set_shape(dy.shape)
        return found

    y = tf.numpy_function(lambda each: _slept(each, SLEEP_S), [x], x.dtype)
    y.set_shape(x.shape)
    return y, gradient


class Slow(tf.keras.layers.Layer):  # type: ignore[misc] # Keras has no types
    def build(self, _: Any) -> None:
        self.kernel = self.add_weight(shape=(WIDTH, WIDTH), initializer="ones", name="kernel")

    def call(self, x: Any) -> Any:
        return _slow(x @ tf.convert_to_tensor(self.kernel))


class Model(smp.DistributedModel):  # type: ignore[misc]
    """Slow layers, each where the list says; the last one is the first once more, if `ties`."""

    def __init__(self, places: Sequence[int], ties: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.places = list(places)
        self.parts = [Slow(name=f"slow_{number}") for number in range(len(places) - ties)]
        if ties:
            self.parts.append(self.parts[0])

    def call(self, x: Any) -> Any:
        for part, place in zip(self.parts, self.places, strict=True):
            with smp.partition(place):
                x = part(x) * (1 / WIDTH)
        return x


def _job(places: Sequence[int], size: int, ties: bool = False, **more: Any) -> tuple[Any, Any]:
    """A model, and a step that trains it."""
    again = more.pop("activation_checkpointing", False)
    smp.init({"partitions": size, "microbatches": MICROBATCHES, **BY_HAND, **more})
    model = Model(places, ties, activation_checkpointing=again)

    @smp.step
    def train(x: Any) -> Any:
        loss = tf.reduce_mean(tf.square(model(x)))
        return loss, gradients_in_step(loss, model.trainable_variables)

    return model, train


def _reported(step: Callable[[Any], Any], steps: int = 4) -> Report:
    """Of steps after the first."""
    with smp.recording():
        for _ in range(1 + steps):
            step(BATCH)
    return smp.report()


def _require_as_expected(report: Report) -> None:
    measured, expected = report.measured, report.expected
    assert measured is not None
    pairs = [*zip(measured.bubble, expected.bubble, strict=True)]
    assert len(expected.peak_bytes) == report.settings.partitions
    for memory, peak in zip(measured.memory, expected.peak_bytes, strict=True):
        assert memory is not None
        assert memory.grown is not None
        pairs.append((memory.grown, peak))
        assert memory.parameters + memory.buffers > 0
    for found, told in pairs:
        # Ranks that share processors with others take longer for what is between the sleeps.
        late = 0.1 if found < 1 else 0
        assert abs(found - told) <= 0.1 * found + late, (pairs, str(report))
    assert expected.floor_s * (1 - 1e-9) <= expected.step_s <= 1.1 * measured.step_s
    sent = {pair: sum(size for _, size in kinds.values()) for pair, kinds in measured.sent.items()}
    for pair, size in expected.sent_bytes.items():
        assert size <= sent[pair] <= size + 8 * 64 * MICROBATCHES, (pair, size, sent)
    ran = timelines(report.records)
    for step in ran:
        for partition, spans in enumerate(step.spans):
            assert all(a.end_s <= b.begin_s for a, b in itertools.pairwise(spans))
            assert 0 <= spans[0].begin_s <= spans[-1].end_s <= step.seconds
            program = report.records[partition].programs[0]
            assert len(spans) == len(program.turns) == len(program.segments) * MICROBATCHES
        first, second = step.spans[0][:2]  # which need nothing of others: no time lies between
        assert first.end_s == second.begin_s


def check_expected_and_measured_agree(rank: int, size: int) -> None:
    for places, ties, pipeline in (
        ([0, 0, 1, 1], False, "interleaved"),
        ([0, 1, 1, 1], False, "interleaved"),
        ([0, 1, 0], True, "interleaved"),  # which has two segments of each pass on the first rank
        ([0, 1, 1, 1], False, "simple"),
    ):
        _, train = _job(places, size, ties, pipeline=pipeline)
        report = _reported(train)
        _require_as_expected(report)
        phases = {segment.key: segment.phase for segment in report.expected.graph}
        num_here = sum(key.endswith("@0") for key in phases)
        assert num_here == 3 + ties, phases  # each rank runs the loss
        assert {
            row.path.split("/")[-1]: row.partition for row in report.rows if row.parameters
        } == {f"slow_{number}": place for number, place in enumerate(places[: len(places) - ties])}
        smp.reset()


def check_the_unbalanced_one_and_the_advice(rank: int, size: int) -> None:
    folder = Path(os.environ["TEST_FOLDER"])
    _, train = _job([0, 1, 1, 1], size)
    text = raised(RuntimeError, smp.report)
    assert "no step to tell of; expected some after the first one of the job" in text, text
    report = _reported(train)
    (advice, *_) = report.advice
    assert re.search(r"Partition 1 is overloaded: it does 7\d% of the computing", advice), advice
    assert "slow_1 to partition 0" in advice, advice
    assert "with smp.partition(partition)" in advice, advice
    shown = str(report)
    assert "step train(x: float32 (8, 8))" in shown, shown
    assert "Times of segments are measured" in shown, shown
    assert "forward  " in shown, shown
    assert set(smp.allgather(shown, smp.PP_GROUP)) == {shown}
    report.save(folder / "report.json")  # all ranks to one place: they have the same
    assert str(read_report(folder / "report.json")) == shown
    if rank == 0:
        report.to_perfetto(folder / "trace.json")
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        assert {event["pid"] for event in events} == set(range(size))
        names = {event["name"] for event in events}
        assert {"F0", "B3"} <= names, names
        spans = {event["tid"] for event in events if event["ph"] == "X" and event["dur"] > 0}
        assert len(spans) >= 2, spans  # the steps, and the partitions
        _require_picture(report, folder / "step.png")
        assert smpreport([str(folder / "report.json"), "--save", str(folder / "again.json")]) == 0
        assert str(read_report(folder / "again.json")) == shown
    smp.reset()
    # What it says is so.
    _, train = _job([0, 0, 1, 1], size)
    after = _reported(train)
    fullest = [max(each.expected.busy_s) for each in (report, after)]
    assert fullest[1] < 0.9 * fullest[0], fullest  # and not the step's: the machine may be busy
    assert "overloaded" not in str(after)
    smp.reset()


def _require_picture(report: Report, path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        return  # `make bench` installs it
    report.draw(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    report.draw(path.with_suffix(".svg"))
    assert "<svg" in path.with_suffix(".svg").read_text()


class Uneven(smp.DistributedModel):  # type: ignore[misc]
    """A layer that multiplies much and makes little, and one of the same size that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.last = tf.keras.layers.Dense(WIDTH), tf.keras.layers.Dense(WIDTH)

    def call(self, x: Any) -> Any:
        with smp.partition(0):
            x = self.wide(tf.tile(x, [1, 4096]))
        with smp.partition(1):
            return self.last(x)


def check_lists_are_made_by_what_layers_are_guessed_to_take(rank: int, size: int) -> None:
    """Until 2026-11 multiplications did not count there, and a step took up to a fifth longer."""
    smp.init({"partitions": size, "microbatches": MICROBATCHES, **BY_HAND})
    model = Uneven()

    @smp.step
    def train(x: Any) -> Any:
        loss = tf.reduce_mean(tf.square(model(x)))
        return loss, gradients_in_step(loss, model.trainable_variables)

    report = _reported(train, 2)
    programs = [record.programs[0] for record in report.records]
    guesses = {each.key: each.seconds for each in programs[0].graph}
    # The same to the last bit, or ranks would run lists that do not fit.
    assert len(set(smp.allgather(tuple(guesses.items()), smp.PP_GROUP))) == 1
    for program in programs:
        for segment in program.segments:
            shares = sum(seconds for _, seconds in segment.shares)
            assert abs(guesses[segment.key] - shares) < 3e-4, (segment, guesses)
    assert guesses["F0@0"] > 1.5 * guesses["F1@1"], guesses
    smp.reset()


def check_several_steps_are_told_apart(rank: int, size: int) -> None:
    model, train = _job([0, 0, 1, 1], size)
    evaluate = smp.step(lambda x: model(x))
    with smp.recording():
        text = raised(RuntimeError, lambda: smp.recording().__enter__())
        assert "one at a time" in text, text
        for _ in range(4):
            evaluate(BATCH)
        text = raised(RuntimeError, tf.function(smp.report))
        assert "called in a step or a tf.function" in text, text
    report = smp.report()
    assert report.measured is not None
    assert not report.measured.timeline.goes_back
    _require_as_expected(report)
    with smp.recording():
        for _ in range(5):
            evaluate(BATCH)
        for _ in range(3):
            train(BATCH)
    evaluate(BATCH)  # not recorded
    report = smp.report()
    assert report.measured is not None
    # Of the training: two, as the first one prepares.
    assert (report.measured.num_steps, report.measured.num_others) == (2, 5)
    assert report.measured.step.startswith("train("), report.measured.step
    assert "(and 5 of another kind)" in str(report)
    smp.reset()


def check_recomputation_is_in_the_report(rank: int, size: int) -> None:
    found = {}
    for again in (False, True):
        _, train = _job([0, 0, 1, 1], size, activation_checkpointing=again)
        report = _reported(train, 2)
        _require_as_expected(report)
        found[again] = report
        smp.reset()
    for partition in range(size):
        plain, recomputing = (found[again].expected for again in (False, True))
        assert recomputing.peak_bytes[partition] <= plain.peak_bytes[partition]


def check_fit_is_recorded(rank: int, size: int) -> None:
    model, _ = _job([0, 0, 1, 1], size)
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((BATCH, BATCH)).repeat(4)
    with smp.recording():
        model.fit(data, epochs=1, verbose=0)
    report = smp.report()
    assert report.measured is not None
    assert report.measured.num_steps == 3, report.measured.num_steps
    assert report.measured.timeline.goes_back
    smp.reset()


def check_a_rank_alone(rank: int, size: int) -> None:
    _, train = _job([0, 0, 1, 1], size)
    with smp.recording():
        train(BATCH)
        train(BATCH)
    if rank == 0:
        text = raised((SMDDPMismatch, StepAborted), smp.report)
    else:
        text = raised((SMDDPMismatch, StepAborted), train, BATCH)
    assert "calls smp.report()" in text, text
    assert "runs step train" in text or "compares the arguments of step train" in text, text
    assert "expected the same on all ranks" in text, text
    smp.report()  # on all
    smp.reset()


def check_recording_on_one_rank_alone(rank: int, size: int) -> None:
    _, train = _job([0, 0, 1, 1], size)
    train(BATCH)
    if rank == 0:
        with smp.recording():
            train(BATCH)
    else:
        train(BATCH)
    text = raised(RuntimeError, smp.report)
    assert "recorded on every rank" in text, text
    smp.reset()


def check_the_environment_asks(rank: int, size: int) -> None:
    folder = Path(os.environ["TEST_FOLDER"]) / "runs"
    with (
        mock.patch.dict(os.environ, {"SMP_REPORT": str(folder / "report.json")}),
        mock.patch.object(reporting.atexit, "register") as register,
        mock.patch.object(pipelines, "_when_made", []),
    ):
        reporting.start_from_environment()
        write, pid = register.call_args.args
        _, train = _job([0, 0, 1, 1], size)
        for _ in range(3):
            train(BATCH)
        with smp.recording():  # which the variable does not forbid
            train(BATCH)
        assert len(smp.report().records[0].steps) == 1
        train(BATCH)
        smp.reset()
        write(pid)
        smp.init({"partitions": size, "microbatches": MICROBATCHES})
        smp.barrier()
        files = [str(folder / f"report.{each}.json") for each in range(size)]
        if rank == 0:
            assert smpreport(files) == 0
        own = read_rank_record(files[rank])
        assert [step.number for step in own.steps] == [2, 3, 5]
        assert own.memory is not None
        assert own.memory.parameters > 0
        smp.reset()


def check_a_plan_needs_one_process(rank: int, size: int) -> None:
    _, train = _job([0, 0, 1, 1], size)
    train(BATCH)
    text = raised(RuntimeError, smp.plan, train, (BATCH,))
    assert f"in a job of {size} partitions; expected one" in text, text
    assert current_pipeline("a test").driver.num_failures == 0
    smp.reset()
