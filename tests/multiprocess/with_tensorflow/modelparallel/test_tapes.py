# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`tf.GradientTape` in steps (`tape_ranks.py`): values, bits, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

HERE = Path(__file__).parent
CHECKS = Checks(HERE / "tape_ranks.py")
NAMES = re.findall(r"^@case\ndef (\w+)", (HERE / "zoo.py").read_text(), re.MULTILINE)
_FIVE = (
    "mlp",
    "cnn_batchnorm",
    "tied_transformer",
    "embedding_slices",
    "two_inputs_dict_outputs",
)

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize(
    ("ranks", "is_legacy"), [(2, 1), pytest.param(3, 0, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", CHECKS.names)
def test_tapes(name: str, ranks: int, is_legacy: int) -> None:
    CHECKS.require(name, ranks, TF_USE_LEGACY_KERAS=str(is_legacy))


@pytest.mark.parametrize("name", ["check_training", *_FIVE])
def test_the_bits_of_get_gradients(name: str) -> None:
    CHECKS.require(name, 2, ("check_training", *_FIVE), TF_USE_LEGACY_KERAS="0")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("is_legacy", [0, 1])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_the_bits_of_get_gradients_of_all_models(name: str, ranks: int, is_legacy: int) -> None:
    CHECKS.require(name, ranks, NAMES, TF_USE_LEGACY_KERAS=str(is_legacy))
