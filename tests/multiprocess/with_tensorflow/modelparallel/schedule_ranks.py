# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What runs when under a schedule, and what ranks hold meanwhile. For `test_schedules.py`."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.dataparallel.exceptions import SMDDPMismatch
from smdistributed.modelparallel.decide.schedules import ordering
from smdistributed.modelparallel.decide.schedules.schedule import Phase
from smdistributed.modelparallel.tensorflow.run import gathering
from smdistributed.modelparallel.tensorflow.run.gathering import Gathered
from smdistributed.modelparallel.tensorflow.run.record import StepRecord
from smdistributed.modelparallel.tensorflow.step.gradients import gradients_in_step
from smdistributed.modelparallel.tensorflow.step.pipeline import current_pipeline
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

MICROBATCHES = 16
WIDTH = 32
BY_HAND = {"auto_partition": False, "default_partition": 0}
BATCH = np.random.default_rng(0).standard_normal((4 * MICROBATCHES, WIDTH)).astype(np.float32)


class Deep(smp.DistributedModel):  # type: ignore[misc] # Keras has no types
    """Each layer keeps something for its backward pass; the statistics change in order."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.parts = [tf.keras.layers.Dense(WIDTH, activation="gelu") for _ in range(6)]
        self.norm = tf.keras.layers.BatchNormalization()
        self.dropout = tf.keras.layers.Dropout(0.25)

    def call(self, x: Any, training: Any = None) -> Any:
        for part in self.parts[:2]:
            x = part(x)
        x = self.dropout(self.norm(x, training=training), training=training)
        for part in self.parts[2:]:
            x = part(x)
        return x


class Attentive(smp.DistributedModel):  # type: ignore[misc] # Keras has no types
    """Its last partition has two forward segments: before attention, and what follows it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.embedding = tf.keras.layers.Embedding(9, 8)
        self.positions = tf.keras.layers.Embedding(6, 8)
        self.attention = tf.keras.layers.MultiHeadAttention(2, 4)
        self.norm = tf.keras.layers.LayerNormalization()
        self.wide = tf.keras.layers.Dense(8, activation="gelu")
        self.head = tf.keras.layers.Dense(3)

    def call(self, tokens: Any) -> Any:
        with smp.partition(0):
            x = self.embedding(tokens)
        with smp.partition(smp.pp_size() - 1):
            x = x + self.positions(tf.range(tf.shape(tokens)[1]))
        with smp.partition(0):
            mask = tf.not_equal(tokens, 0)[:, None, :]
            y = self.attention(x, x, attention_mask=mask, use_causal_mask=True)
        with smp.partition(smp.pp_size() - 1):
            x = self.norm(x + y)
            return self.head(tf.reduce_mean(x + self.wide(x), axis=1))


@contextlib.contextmanager
def _job(again: Any = False, **parameters: Any) -> Iterator[tuple[Any, list[ordering.Ordering]]]:
    """A job with a model, and what `order` says when its steps are made."""
    said = []
    order = ordering.order

    def listen(*args: Any) -> ordering.Ordering:
        said.append(order(*args))
        return said[-1]

    smp.init({"microbatches": MICROBATCHES, **parameters})
    tf.keras.utils.set_random_seed(3)
    with mock.patch.object(ordering, "order", listen):
        yield Deep(activation_checkpointing=again), said
    smp.reset()


def _train(model: Any) -> Callable[[Any], Any]:
    def train(x: Any) -> Any:
        loss = tf.reduce_mean(tf.square(model(x, training=True)))
        return loss, gradients_in_step(loss, model.trainable_variables)

    return smp.step(train)  # type: ignore[no-any-return]


def _evaluate(model: Any) -> Callable[[Any], Any]:
    return smp.step(lambda x: tf.reduce_mean(tf.square(model(x, training=False))))  # type: ignore[no-any-return]


def _recorded(step: Callable[[Any], Any], before: Callable[[Any], None] | None = None) -> Any:
    """The record of a step after the first, on this rank."""
    driver = current_pipeline("a test").driver
    with driver.recording() as records:
        step(BATCH)
        if before is not None:
            before(records[0].program)
            step(BATCH)
    return records[-1]


def check_what_runs_is_what_the_order_says(rank: int, size: int) -> None:
    for pipeline, active in (("interleaved", 2), ("interleaved", 5), ("simple", 2)):
        settings = {"partitions": size, "pipeline": pipeline, "active_microbatches": active}
        with _job(**settings) as (model, said):
            for step in (_evaluate(model), _train(model)):
                record = _recorded(step)
                everyone = smp.allgather(record.turns, smp.PP_GROUP)
                for theirs, turns in enumerate(everyone):
                    ran = [(turn.segment, turn.microbatch) for turn in turns]
                    assert ran == list(said[-1].of_rank(theirs)), (settings, theirs)
                _require_rules(pipeline, everyone)


def _require_rules(pipeline: str, everyone: list[list[Any]]) -> None:
    """What a schedule promises is true of the times at which segments ran."""
    for turns in everyone:
        times = list(itertools.chain.from_iterable((each.begin_s, each.end_s) for each in turns))
        assert times == sorted(times), "a rank does one thing at a time"
        if pipeline == "simple":
            phases = [_phase(each.segment) for each in turns]
            assert phases == sorted(phases, key=list(Phase).index), phases
    for microbatch in range(MICROBATCHES):  # goes from rank to rank
        begins = [
            min(each.begin_s for each in turns if each.microbatch == microbatch)
            for turns in everyone
        ]
        assert begins == sorted(begins), microbatch


def _phase(segment: Any) -> Phase:
    return Phase.BACKWARD if str(segment).startswith("B") else Phase.FORWARD


def check_ranks_hold_as_many_microbatches_as_allowed(rank: int, size: int) -> None:
    peaks = {}
    for pipeline, active in (
        ("interleaved", 2),
        ("interleaved", 4),
        ("interleaved", 16),
        ("simple", 4),
    ):
        settings = {"partitions": size, "pipeline": pipeline, "active_microbatches": active}
        with _job(**settings) as (model, _):
            record = _recorded(_train(model))
            bound = active if pipeline == "interleaved" else MICROBATCHES
            assert record.peak_microbatches <= bound, (settings, record.peak_microbatches)
            assert 0 < record.peak_bytes <= bound * record.peak_bytes_of_one, settings
            peaks[pipeline, active] = record.peak_bytes
            _require_counted(record)
    assert peaks["interleaved", 4] <= 0.35 * peaks["simple", 4], peaks


def _require_counted(record: StepRecord) -> None:
    """At least the input of each layer and the output of its `tanh` is held on the first rank."""
    if smp.rank() == 0:
        rows = len(BATCH) // MICROBATCHES
        here = 2  # layers that are in the first partition at least, on up to 3 ranks
        assert record.peak_bytes_of_one >= here * rows * WIDTH * 4, record.peak_bytes_of_one


def check_what_is_sent_to_a_slow_rank_does_not_pile_up(rank: int, size: int) -> None:
    """Nothing comes back in an evaluation, so nothing else would hold the first rank up."""

    def slow_down(program: Any) -> None:
        if rank == size - 1:
            first = program.plan.turns[0]
            call = first.call

            def slowly(tensors: Any) -> Any:
                time.sleep(0.3)  # the others have all the time that they could want
                return call(tensors)

            first.call = slowly

    for active in (1, 3):
        with _job(partitions=size, active_microbatches=active) as (model, _):
            record = _recorded(_evaluate(model), slow_down)
            assert record.peak_microbatches <= active, (active, record.peak_microbatches)
            assert record.peak_bytes <= active * record.peak_bytes_of_one


def check_nothing_is_recorded_unless_asked(rank: int, size: int) -> None:
    with _job(partitions=size) as (model, _):
        step = _train(model)
        driver = current_pipeline("a test").driver
        with driver.recording() as outer:
            with driver.recording() as inner:
                step(BATCH)
            step(BATCH)
        step(BATCH)
        assert (len(outer), len(inner)) == (1, 1)
        assert len(inner[0].turns) == len(inner[0].program.turns)


def check_recomputation_keeps_less_and_has_the_same_bits(rank: int, size: int) -> None:
    found = {}
    for again in (False, True):
        with _job(again, partitions=size, pipeline="simple") as (model, _):
            step = _train(model)
            driver = current_pipeline("a test").driver
            with driver.recording() as records:
                losses, gradients = zip(*(step(BATCH) for _ in range(2)), strict=True)
            found[again] = records[-1].peak_bytes
            values = [each.numpy() for loss in losses for each in loss.outputs]
            values += [each.accumulate().numpy() for row in gradients for each in row]
            values += [each.numpy() for each in model.non_trainable_variables]
            found[again, "values"] = [each.tobytes() for each in values]
            assert len(values) > 2 * MICROBATCHES + 4
    assert found[True, "values"] == found[False, "values"]
    assert found[True] <= 0.5 * found[False], (found[True], found[False])


def check_recomputation_fuses_as_before(rank: int, size: int) -> None:
    found = [_bits_of_attentive(size, again) for again in (False, True)]
    assert found[0] == found[1]
    assert len(found[0]) > 4 or rank not in (0, size - 1), "no gradient is here"


def _bits_of_attentive(size: int, again: bool) -> list[bytes]:
    """Losses and gradients of a step."""
    tokens = np.random.default_rng(0).integers(0, 9, (8, 6))
    smp.init({"partitions": size, "microbatches": 4, **BY_HAND})
    tf.keras.utils.set_random_seed(3)
    model = Attentive(activation_checkpointing=again)

    @smp.step
    def train(tokens: Any) -> Any:
        loss = tf.reduce_mean(tf.square(model(tokens)))
        return loss, gradients_in_step(loss, model.trainable_variables)

    loss, gradients = train(tokens)
    values = [tf.convert_to_tensor(each.accumulate()) for each in gradients if each is not None]
    bits = [each.numpy().tobytes() for each in (*loss.outputs, *values)]
    smp.reset()
    return bits


def check_ranks_recompute_alike(rank: int, size: int) -> None:
    with _job(rank == 1, partitions=size) as (model, _):
        text = raised(SMDDPMismatch, _train(model), BATCH)
        assert "rank 0 has activation_checkpointing=False, and that of rank 1 has True" in text, (
            text
        )
        assert "Write the same in super().__init__()" in text, text
    smp.init({"partitions": size})
    text = raised(TypeError, Deep, activation_checkpointing=1)
    assert "Deep got activation_checkpointing=1; expected True or False" in text, text
    smp.reset()


def check_sums_are_added_up_as_they_come(rank: int, size: int) -> None:
    """A graph that uses the sums alone is given no gradient of a microbatch."""
    few = mock.patch.object(gathering, "MOST_BYTES", 3 * WIDTH * WIDTH * 4)
    with few, _job(partitions=size) as (model, _):

        @smp.step
        def gradients(x: Any) -> Any:
            loss = tf.reduce_mean(tf.square(model(x, training=False)))
            return loss, gradients_in_step(loss, model.trainable_variables)

        @tf.function
        def losses(x: Any) -> Any:
            return gradients(x)[0].outputs

        @tf.function
        def means(x: Any) -> Any:
            return [each.accumulate() for each in gradients(x)[1]]

        @tf.function
        def sums_and_parts(x: Any) -> Any:
            found = gradients(x)[1]
            return [each.reduce_sum() for each in found], [each.outputs for each in found]

        expected = gradients(BATCH)[1]
        large = {i for i, each in enumerate(expected) if len(each[0].shape) == 2}
        assert large

        def given(function: Any) -> tuple[Any, list[int], list[int]]:
            """What it gives; of the gradients that it was given, and of sums, how many elements."""
            rows: list[Any] = []
            everything = Gathered.all

            def listen(gathered: Gathered) -> Any:
                rows[:] = everything(gathered)
                return rows

            with mock.patch.object(Gathered, "all", listen):
                found = function(BATCH)
            *of_microbatches, sums = rows
            columns = zip(*of_microbatches, strict=True)
            parts = [sum(int(tf.size(each)) for each in column) for column in columns]
            return found, parts[1:], [int(tf.size(each)) for each in sums]

        found, parts, sums = given(losses)
        assert len(found) == MICROBATCHES
        assert [i for i, size in enumerate(parts) if not size] == sorted(large), parts
        assert sums == [0] * len(large), sums
        found, parts, sums = given(means)
        _require_same(found, [each.accumulate() for each in expected])
        assert [i for i, size in enumerate(parts) if not size] == sorted(large), parts
        assert sums == [WIDTH * WIDTH] * len(large), sums
        (found, outputs), parts, _ = given(sums_and_parts)
        _require_same(found, [each.reduce_sum() for each in expected])
        _require_same(tf.nest.flatten(outputs), [part for each in expected for part in each])
        assert all(parts), parts
        _require_same(means(BATCH), [each.accumulate() for each in expected])


def _require_same(tensors: Any, expected: Any) -> None:
    for tensor, wanted in zip(tensors, expected, strict=True):
        assert tensor.numpy().tobytes() == wanted.numpy().tobytes()
