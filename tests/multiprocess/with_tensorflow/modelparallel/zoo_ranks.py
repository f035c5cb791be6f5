# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Each case of the zoo on the ranks of a pipeline, and whole in one process. For `test_zoo.py`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from one_process import Whole, WholeModel, plain_gradients, require_close, set_values
from zoo import CASES, Case, parameters_of, rewind

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.tensorflow.step.gradients import gradients_in_step
from smdistributed.modelparallel.tensorflow.variables import raw

_SEED = 7


@contextlib.contextmanager
def around_checks(rank: int, world_size: int) -> Iterator[tuple[dict[str, Any]]]:
    settings = json.loads(os.environ["SMP_TEST_SETTINGS"])
    tf.config.threading.set_inter_op_parallelism_threads(settings.pop("threads"))
    tf.config.threading.set_intra_op_parallelism_threads(1)
    yield ({**settings, "partitions": world_size},)


def __getattr__(name: str) -> Any:
    """A check for each case."""
    if name not in CASES:
        raise AttributeError(name)
    return lambda parameters: _check(name, parameters)


def _check(name: str, parameters: dict[str, Any]) -> None:
    parameters = {**parameters, **parameters_of(name)}
    is_eager = parameters.pop("eagerly")
    smp.init(parameters)
    tf.keras.utils.set_random_seed(_SEED)
    theirs = CASES[name](smp.DistributedModel)
    mine = CASES[name](WholeModel)
    batch = [tf.constant(each) for each in theirs.batch]
    steps = ["evaluate", "step"] if theirs.evaluate is not None else ["step"]
    whole = Whole(mine)
    functions = {}
    for step in steps:
        rewind(theirs.model)
        functions[step] = _step_function(theirs, step, is_eager)
        functions[step](*batch)  # makes the variables, with other values than the whole one's
    everything = [raw(each) for each in theirs.model.smp_all_variables]
    local = [raw(each) for each in theirs.model.variables]
    here = [number for number, each in enumerate(everything) if any(each is one for one in local)]
    assert len(everything) == len(whole.states)
    _require_disjoint(here, len(everything))
    pieces = whole.pieces(parameters["microbatches"])
    for step in steps:
        rewind(mine.model)
        reference = _reference(mine, step)
        for tensors in pieces:  # as often as the other: some operations count their calls
            reference(*tensors)
        set_values(whole.states)
        for number in here:
            everything[number].assign(whole.states[number])
        for metric in (*theirs.metrics, *mine.metrics):
            metric.reset_state()
        found = functions[step](*batch)
        expected = [reference(*tensors) for tensors in pieces]
        mine_here = {id(whole.states[number]) for number in here}
        trained = [id(raw(each)) for each in mine.model.trainable_variables]
        places = [place for place, each in enumerate(trained) if each in mine_here]
        _compare(found, expected, places, mine.tolerance)
        for number in here:
            require_close(
                everything[number].numpy(),
                whole.states[number].numpy(),
                mine.tolerance,
                f"{step}: {everything[number].name}",
            )
        for one, other in zip(theirs.metrics, mine.metrics, strict=True):
            require_close(one.result().numpy(), other.result().numpy(), mine.tolerance, one.name)
    smp.reset()


def _step_function(case: Case, step: str, is_eager: bool) -> Any:
    def body(*tensors: Any) -> Any:
        return getattr(case, step)(gradients_in_step, *tensors)

    function = smp.step(body)
    if is_eager:
        return lambda *batch: _outputs(function(*batch))
    return tf.function(lambda *batch: _outputs(function(*batch)))


def _outputs(results: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: [each.outputs for each in value] if isinstance(value, list) else value.outputs
        for name, value in results.items()
    }


def _reference(case: Case, step: str) -> Any:
    def whole(*tensors: Any) -> Any:
        return getattr(case, step)(plain_gradients, *tensors)

    return tf.function(whole, autograph=False)


def _compare(
    found: Mapping[str, Any],
    expected: Sequence[Mapping[str, Any]],
    places: Sequence[int],
    tolerance: float,
) -> None:
    """Fails unless results are those of one process.

    Args:
        found: by name, values by microbatch; of gradients those of local variables.
        expected: by microbatch.
        places: of local variables among those that are trained.
    """
    assert found.keys() == expected[0].keys()
    for name, values in found.items():
        if not name.startswith("gradients"):
            for number, (one, row) in enumerate(zip(values, expected, strict=True)):
                _require_close(one, row[name], tolerance, f"{name} of microbatch {number}")
            continue
        assert len(values) == len(places), (name, len(values), places)
        for place, mine in zip(places, values, strict=True):
            for number, (one, row) in enumerate(zip(mine, expected, strict=True)):
                where = f"{name} {place} of microbatch {number}"
                _require_close(one, row[name][place], tolerance, where)


def _require_close(one: Any, other: Any, tolerance: float, where: str) -> None:
    if isinstance(other, tf.IndexedSlices):
        assert isinstance(one, tf.IndexedSlices), where
        _require_close(one.indices, other.indices, tolerance, where)
        one, other = one.values, other.values
    require_close(one.numpy(), other.numpy(), tolerance, where)


def _require_disjoint(here: Sequence[int], count: int) -> None:
    """The ranks' local variables are disjoint, and together all."""
    everyone = smp.allgather(list(here), smp.PP_GROUP)
    assert sorted(number for each in everyone for number in each) == list(range(count)), everyone
