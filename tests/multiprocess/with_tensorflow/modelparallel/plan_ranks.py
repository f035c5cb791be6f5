# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.plan()` in one process, and what ranks then run. For `test_report.py`.

The first check runs on one rank and writes what it planned, the second on two and compares.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.report.cli import main as smpreport
from smdistributed.modelparallel.report.document import read_report
from smdistributed.modelparallel.report.records import write_rank_record
from smdistributed.modelparallel.tensorflow.step.gradients import gradients_in_step
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

WIDTH, MICROBATCHES = 16, 4
X = np.random.default_rng(0).standard_normal((2 * MICROBATCHES, WIDTH)).astype("f4")
PARAMETERS = {"auto_partition": True, "optimize": "speed", "pipeline": "interleaved"}


class Model(smp.DistributedModel):  # type: ignore[misc] # Keras has no types
    """Statistics that change, a seed that does, a skip over the middle, rows that nobody counts."""

    def __init__(self) -> None:
        super().__init__()
        dense = tf.keras.layers.Dense
        regular = tf.keras.regularizers.L2(1e-3)
        self.parts = [dense(WIDTH, kernel_regularizer=regular, name=f"part_{n}") for n in range(6)]
        self.norm = tf.keras.layers.BatchNormalization()
        self.dropout = tf.keras.layers.Dropout(0.2)

    def call(self, x: Any, training: Any = None) -> Any:
        first = x = self.parts[0](x)
        for part in self.parts[1:5]:
            x = part(x)
        x = tf.boolean_mask(x, tf.reduce_all(tf.equal(x, x), axis=1))
        x = self.dropout(self.norm(x, training=training), training=training)
        with smp.partition(1):  # which counts by hand alone
            return self.parts[5](x) + first


def _job(partitions: int) -> tuple[Any, Any]:
    smp.init({"partitions": partitions, "microbatches": MICROBATCHES, **PARAMETERS})
    tf.keras.utils.set_random_seed(1)
    model = Model()

    @smp.step
    def train(x: Any) -> Any:
        loss = tf.reduce_mean(tf.square(model(x, training=True))) + sum(model.losses)
        return loss, gradients_in_step(loss, model.trainable_variables)

    return model, train


def check_a_plan_in_one_process(rank: int, size: int) -> None:
    model, train = _job(1)
    text = raised(RuntimeError, smp.plan, train, (X,))
    assert "before the first step; expected it after one" in text, text
    train(X)
    text = raised(TypeError, smp.plan, lambda x: x, (X,))
    assert "expected a function with @smp.step" in text, text
    text = raised(ValueError, smp.plan, train, (X,), microbatches=3)
    assert "not divisible by 3 microbatches" in text, text
    text = raised(ValueError, smp.plan, smp.step(lambda x: x + 1), (X,))
    assert "does not call the model" in text, text
    before = [each.numpy() for each in model.variables]
    plan = smp.plan(train, (X,), ranks=[2, 3], microbatches=MICROBATCHES)
    for value, variable in zip(before, model.variables, strict=True):
        assert (value == variable.numpy()).all(), variable.name
    assert [report.settings.partitions for report in plan.reports] == [2, 3]
    for report in plan.reports:
        expected = report.expected
        assert 0 < expected.floor_s <= expected.step_s * (1 + 1e-9)
        assert len(expected.peak_bytes) == report.settings.partitions
        assert "planned, not run" in str(report)
        assert sum(row.parameters for row in report.rows) > 6 * WIDTH * WIDTH
    assert "held at most" in str(plan), str(plan)
    by_hand = {"auto_partition": False, "default_partition": 0}
    rows = smp.plan(train, (X,), ranks=2, microbatches=2, config=by_hand)[0].rows
    assert [r.path.split("/")[-1] for r in rows if r.partition and r.parameters] == ["part_5"], rows
    # The model is as it was: it trains on.
    _, gradients = train(X)
    assert len(gradients) == len(model.trainable_variables)
    plan[0].save(Path(os.environ["TEST_FOLDER"]) / "plan.json")
    with smp.recording():
        train(X)
    text = raised(RuntimeError, smp.report)
    assert "with one partition" in text, text
    smp.reset()


def check_replicas_have_reports_of_their_own(rank: int, size: int) -> None:
    """Two pipelines of two ranks."""
    smp.init({"partitions": 2, "microbatches": MICROBATCHES, "horovod": True, **PARAMETERS})
    model = Model()

    @smp.step
    def train(x: Any) -> Any:
        loss = tf.reduce_mean(tf.square(model(x, training=True)))
        return loss, gradients_in_step(loss, model.trainable_variables)

    with smp.recording():
        for _ in range(3):
            train(X)
    report = smp.report()
    assert report.ranks == smp.state.members(GroupKind.PP), report.ranks
    assert report.settings.partitions == 2
    assert report.measured is not None
    assert report.measured.num_steps == 2
    everyone = smp.allgather((report.ranks, str(report)), smp.WORLD)
    assert len(set(everyone)) == 2, everyone
    path = Path(os.environ["TEST_FOLDER"]) / f"report.{rank}.json"
    write_rank_record(path, report.records[smp.pp_rank()])
    smp.barrier()
    files = [str(path.with_name(f"report.{each}.json")) for each in range(size)]
    for number in range(2 if rank == 0 else 0):
        assert smpreport([*files, "--pipeline", str(number)]) == 0
    smp.reset()


def check_ranks_run_what_was_planned(rank: int, size: int) -> None:
    plan = read_report(Path(os.environ["TEST_FOLDER"]) / "plan.json")
    _, train = _job(size)
    with smp.recording():
        train(X)
        train(X)
    report = smp.report()
    assert report.expected.lists == plan.expected.lists
    assert [each.key for each in report.expected.graph] == [
        each.key for each in plan.expected.graph
    ]
    assert report.expected.sent_bytes == plan.expected.sent_bytes
    assert report.names == plan.names
    found, planned = (
        [(r.path, r.partition, r.parameters) for r in each.rows] for each in (report, plan)
    )
    assert found == planned
    assert report.beside(plan).expected.peak_bytes == plan.expected.peak_bytes
    smp.reset()
