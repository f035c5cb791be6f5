# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A few rows of docs/keras-models.md, and that what compares them notices what is wrong.

`make keras-models` runs all rows.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.keras_models.comparison import TOLERANCE, Keras, Result, compare, differences
from tests.keras_models.registry import rows
from tests.keras_models.run import PAGE, page
from tests.keras_models.trained import Trained

# One encoder for two inputs; losses that layers add; a base made before the model.
SAMPLE = (
    ("siamese", Keras.THREE, 2),
    ("regularised", Keras.LEGACY, 3),
    ("transfer", Keras.THREE, 2),
)


@pytest.mark.parametrize(("name", "keras", "partitions"), SAMPLE)
def test_a_model_does_what_its_row_says(name: str, keras: Keras, partitions: int) -> None:
    result = compare(rows()[name], keras, [partitions])
    assert result.is_expected, f"{result.verdict}: {result.reason}\n{result.detail}"
    assert result.verdict == "equal"
    assert sum(result.shares[partitions]) == pytest.approx(1)


def _trained() -> Trained:
    values = {0: np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4), 1: np.array([3, 7], "u4")}
    return Trained([2.0, 1.5], ["kernel", "state"], values, {0: 1e-2, 1: 1.0}, 56, 0.1)


def _parts() -> list[Trained]:
    """The same on two ranks."""
    whole = _trained()
    return [dataclasses.replace(whole, values={place: whole.values[place]}) for place in (0, 1)]


def test_equal_is_equal() -> None:
    assert differences(_trained(), _parts(), TOLERANCE) == ([], 0.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kernel", np.linspace(-1, 1.01, 12, dtype="f4").reshape(3, 4)),
        ("kernel", np.full((3, 4), np.nan, "f4")),
        ("kernel", np.zeros((4, 3), "f4")),
        ("kernel", np.linspace(-1, 1, 12).reshape(3, 4)),
        ("state", np.array([3, 6], "u4")),
    ],
)
def test_a_wrong_variable_is_noticed(name: str, value: np.ndarray) -> None:
    parts = _parts()
    place = parts[0].names.index(name)
    parts[place].values[place] = value
    found, _ = differences(_trained(), parts, TOLERANCE)
    assert len(found) == 1
    assert name in found[0]


def test_a_variable_that_no_rank_or_two_have_is_noticed() -> None:
    one, other = _parts()
    nothing = dataclasses.replace(other, values={})
    assert any("hold 1 variables" in each for each in differences(_trained(), [one, nothing], 1)[0])
    both = dataclasses.replace(other, values=_trained().values)
    assert any("hold 3 variables" in each for each in differences(_trained(), [one, both], 1)[0])


def test_a_wrong_loss_is_noticed_on_any_rank() -> None:
    one, other = _parts()
    wrong = dataclasses.replace(other, losses=[2.0, 1.50003])
    (found,) = differences(_trained(), [one, wrong], TOLERANCE)[0]
    assert "losses of rank 1" in found


def test_what_learns_nothing_shows_nothing() -> None:
    idle = dataclasses.replace(_trained(), losses=[2.0, 2.0])
    parts = [dataclasses.replace(part, losses=idle.losses) for part in _parts()]
    (found,) = differences(idle, parts, TOLERANCE)[0]
    assert "nothing was learned" in found


def test_a_page_has_a_line_for_each_result() -> None:
    row = rows()["siamese"]
    shares = {2: (0.25, 0.75)}
    result = Result(row, Keras.THREE, "equal", "", shares, 2e-7, is_expected=True)
    written = page(PAGE.read_text(), [result])
    assert "1 runs, with tensorflow" in written
    assert "| siamese | equal | 25%, 75% | - | 2e-07 | one encoder, called twice |" in written
