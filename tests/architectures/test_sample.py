# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A few rows of docs/architectures.md, and that what compares them notices what is wrong.

`make architectures` runs all rows.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.architectures.comparison import Result, compare, differences
from tests.architectures.ranks import Trained
from tests.architectures.registry import architectures
from tests.architectures.run import PAGE, page
from tests.packages import require

# Shared weights, and tokens from a cache; what layers return beside their states; an error.
SAMPLE = ("t5-writes", "qwen2-moe", "mixtral-routers")


@pytest.mark.parametrize("name", SAMPLE)
def test_an_architecture_does_what_its_row_says(name: str) -> None:
    require("transformers")
    result = compare(architectures()[name])
    assert result.is_expected, f"{result.verdict}: {result.reason}\n{result.detail}"
    if result.verdict == "equal":
        assert sum(result.shares) == pytest.approx(1)
        assert min(result.shares) > 0.3


def _trained() -> Trained:
    state = {"weight": torch.linspace(-1, 1, 12).reshape(3, 4), "count": torch.tensor(3)}
    return Trained([2.0, 1.5, 1.25], state, {"weight": 1e-2}, 48, [torch.tensor([4, 5])])


def test_equal_is_equal() -> None:
    assert differences(_trained(), [_trained(), _trained()]) == []


def test_a_thousandth_of_a_gradient_is_noticed() -> None:
    found = _trained()
    found.state["weight"][1, 2] += 1e-3 * 1e-2
    (wrong,) = differences(_trained(), [found])
    assert "weight differs by 1e-05" in wrong


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weight", torch.full((3, 4), torch.nan)),
        ("weight", torch.zeros(4, 3)),
        ("count", torch.tensor(4)),
        ("another", torch.tensor(4)),
    ],
)
def test_a_wrong_tensor_is_noticed(name: str, value: torch.Tensor) -> None:
    found = _trained()
    found.state[name] = value
    (wrong,) = differences(_trained(), [found])
    assert name in wrong


def test_a_wrong_loss_is_noticed_on_any_rank() -> None:
    found = dataclasses.replace(_trained(), losses=[2.0, 1.5, 1.25001])
    (wrong,) = differences(_trained(), [_trained(), found])
    assert "loss of step 3 on rank 1" in wrong


@pytest.mark.parametrize("generated", [[], [torch.tensor([4, 6])]])
def test_wrong_tokens_are_noticed_on_any_rank(generated: list[torch.Tensor]) -> None:
    found = dataclasses.replace(_trained(), generated=generated)
    (wrong,) = differences(_trained(), [_trained(), found])
    assert "rank 1 generates" in wrong


def test_what_learns_nothing_shows_nothing() -> None:
    idle = dataclasses.replace(_trained(), losses=[2.0, 2.0, 2.0])
    assert "nothing was learned" in differences(idle, [idle])


def test_the_page_has_a_line_for_each_row() -> None:
    text = PAGE.read_text()
    known = architectures()
    for name in known:
        assert f"\n| {name} |" in text
    result = Result(known["mixtral-routers"], "refused", "it says <why>", is_expected=True)
    written = page(text, [result])
    assert "1 rows, with torch" in written
    assert "| mixtral-routers | `MixtralForCausalLM` | refused | - | - | with the loss" in written
    assert "- **mixtral-routers**: it says &lt;why>" in written
