# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Small models are cut: losses, gradients and states are those of one process.

A sample, and with `--run-slow` each model in each way: 16 ways have all pairs of partitions,
microbatches, schedules, placements, threads and kinds of calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import Checks

HERE = Path(__file__).parent
NAMES = re.findall(r"^@case\ndef (\w+)", (HERE / "zoo.py").read_text(), re.MULTILINE)
RULES = Checks(HERE / "zoo_in_one_process.py").names  # each checks one, with a model of its own
DEADLINE_S = 240.0
SLOW_DEADLINE_S = 1800.0

# What is run on ranks each time: of each kind of thing that ranks could get wrong, a model.
_ON_TWO_RANKS = (
    "tied_transformer",
    "dropout",
    "called_twice",
    "metrics_in_evaluation",
    "integer_output",
    "contexts",
)
_ON_THREE_RANKS = (
    "cnn_batchnorm",
    "embedding_slices",
    "two_inputs_dict_outputs",
    "bare_operations",
    "control_flow",
    "weight_decay_and_clipping",
)

# Of tf-keras: layers, states and losses whose graphs it makes in its own way. What is TensorFlow's
# alone, such as bare operations, is run with one Keras.
_OF_TF_KERAS = (
    "cnn_batchnorm",
    "tied_transformer",
    "gru",
    "embedding_slices",
    "dropout",
    "two_inputs_dict_outputs",
    "layer_reuse",
    "control_flow",
    "regularized",
    "mixed_bfloat16",
    "norms_without_results",
    "metrics_in_evaluation",
    "weight_decay_and_clipping",
)

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


def way(number: int) -> dict[str, Any]:
    """One of 16: any two of its values meet in one of them (a product of Latin squares)."""
    row, column = divmod(number, 4)
    one = row ^ column
    other = row ^ (0, 2, 3, 1)[column]
    return {
        "partitions": row + 1,
        "microbatches": 2**column,
        "pipeline": ("interleaved", "simple")[one & 1],
        "contiguous": bool(one & 2),
        "threads": (1, 4)[other & 1],
        "eagerly": bool(other & 2),
    }


def in_one_process(names: Sequence[str], ways: int, repetitions: int, first: int) -> str:
    """Settings by name: some ways to cut each, which are not the same for all."""
    found = {}
    for place, name in enumerate(names):
        found[name] = []
        for number in range(ways):
            settings = way((4 + first + 5 * place + number) % 16 if ways < 16 else number)
            if ways < 16 and settings["partitions"] == 1:
                settings["partitions"] = 3
            del settings["eagerly"], settings["threads"]
            scatter = None if settings["contiguous"] else place
            found[name].append({**settings, "scatter": scatter, "repetitions": repetitions})
    return json.dumps(found)


def in_some_ways(name: str, names: Sequence[str], keras: str, threads: str) -> None:
    """Runs some models in one process, each in one way, and says what came of one."""
    checks = Checks(HERE / "zoo_in_one_process.py", DEADLINE_S)
    settings = in_one_process(NAMES, 1, 2, 8 * int(keras))
    env = {"SMP_TEST_SETTINGS": settings, "SMP_TEST_THREADS": threads}
    checks.require(name, 1, names, TF_USE_LEGACY_KERAS=keras, **env)


@pytest.mark.parametrize("name", [*NAMES, *RULES])
def test_all_ranks_in_one_process(name: str) -> None:
    in_some_ways(name, [*NAMES, *RULES], "0", "4")


@pytest.mark.parametrize("name", _OF_TF_KERAS)
def test_all_ranks_in_one_process_of_tf_keras(name: str) -> None:
    in_some_ways(name, _OF_TF_KERAS, "1", "1")


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_rules_with_tf_keras(name: str) -> None:
    in_some_ways(name, RULES, "1", "1")


@pytest.mark.slow
@pytest.mark.timeout(SLOW_DEADLINE_S)
@pytest.mark.parametrize(("keras", "threads"), [("0", "4"), ("1", "1")])
@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_in_one_process_in_all_ways(name: str, keras: str, threads: str) -> None:
    checks = Checks(HERE / "zoo_in_one_process.py", SLOW_DEADLINE_S)
    env = {"SMP_TEST_SETTINGS": in_one_process([name], 16, 20, 0), "SMP_TEST_THREADS": threads}
    checks.require(name, 1, [name], TF_USE_LEGACY_KERAS=keras, **env)


def on_ranks(name: str, names: Sequence[str], keras: str, deadline_s: float, **way: Any) -> None:
    """Runs some models in one way, and says what came of one."""
    ranks = way.pop("partitions")
    checks = Checks(HERE / "zoo_ranks.py", deadline_s)
    env = {"SMP_TEST_SETTINGS": json.dumps(way), "TF_USE_LEGACY_KERAS": keras}
    checks.require(name, ranks, names, **env)


@pytest.mark.parametrize("name", _ON_TWO_RANKS)
def test_on_two_ranks(name: str) -> None:
    on_ranks(name, _ON_TWO_RANKS, "0", DEADLINE_S, **{**way(6), "eagerly": False})


@pytest.mark.parametrize("name", _ON_THREE_RANKS)
def test_on_three_ranks(name: str) -> None:
    on_ranks(name, _ON_THREE_RANKS, "1", DEADLINE_S, **way(9))


@pytest.mark.slow
@pytest.mark.timeout(SLOW_DEADLINE_S)
@pytest.mark.parametrize("keras", ["0", "1"])
@pytest.mark.parametrize("number", range(16))
def test_on_ranks_in_all_ways(number: int, keras: str) -> None:
    for name in NAMES:
        on_ranks(name, NAMES, keras, SLOW_DEADLINE_S, **way(number))


def test_the_ways_have_all_pairs() -> None:
    ways = [list(way(number).items()) for number in range(16)]
    for one in range(len(ways[0])):
        for other in range(one):
            pairs = {(each[one][1], each[other][1]) for each in ways}
            firsts = {each[one][1] for each in ways}
            assert len(pairs) == len(firsts) * len({each[other][1] for each in ways})
