# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Results of microbatches gathered, without a framework (specification, sections 3.4 and 4.3)."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from smdistributed.modelparallel.containers.gathering import MicrobatchOutputs, gather


class Column(tuple[Any, ...]):
    """What stands here for the values of a leaf."""

    __slots__ = ()


def gathered(*values: Any) -> Any:
    return gather(list(values), Column)


def test_a_leaf_of_all_microbatches_in_their_order() -> None:
    assert gathered(3, 1, 2) == Column((3, 1, 2))
    assert gathered(3) == Column((3,))
    assert gathered({"a": [1, (2,)]}, {"a": [3, (4,)]}) == {
        "a": [Column((1, 3)), (Column((2, 4)),)]
    }


@pytest.mark.parametrize("values", [(None, 1, None), (1, None), (None, None, 1)])
def test_none_in_some_is_a_value_and_none_in_all_is_none(values: tuple[Any, ...]) -> None:
    assert gathered(*values) == Column(values)
    assert gathered(*[(value, None) for value in values]) == (Column(values), None)
    assert gathered(None, None) is None


def test_a_set_is_a_leaf() -> None:
    assert gathered({1, 2}, {3}) == Column(({1, 2}, {3}))


def test_attributes_are_those_of_the_first_microbatch() -> None:
    def one(value: int) -> Any:
        made: collections.defaultdict[str, int] = collections.defaultdict(lambda: value)
        made["x"] = value
        return made

    found = gathered(one(1), one(2))
    assert found == {"x": Column((1, 2))}
    assert found["missing"] == 1


def test_empty_containers_stay() -> None:
    assert gathered({"a": [], "b": ()}, {"a": [], "b": ()}) == {"a": [], "b": ()}


def test_microbatches_that_differ_are_told_apart() -> None:
    same, other = {"loss": 1}, {"loss": 1, "more": 2}
    words = (
        r"microbatches 0, 1, 3 returned .*; microbatch 2 returned .*Microbatches 0 and 2 first"
        r" differ.*expected the same containers, lengths and keys in all\. Return the same ones"
    )
    with pytest.raises(RuntimeError, match=words):
        gathered(same, same, other, same)
    with pytest.raises(RuntimeError, match=r"returned different containers"):
        gathered([1], 1)


def test_there_must_be_a_microbatch() -> None:
    with pytest.raises(ValueError, match=r"no results to gather; expected those of at least one"):
        gathered()


class Outputs(MicrobatchOutputs[float]):
    """Of floats."""

    __slots__ = ()
    _tensor_class = float
    _methods = "total()"

    @staticmethod
    def _is_tensor(value: Any) -> bool:
        return isinstance(value, float)

    @staticmethod
    def _describe(output: Any) -> str:
        return f"a number above {int(output)}"

    @staticmethod
    def _is_scalar(output: Any) -> bool:
        return bool(output == int(output))


def test_outputs_are_a_sequence() -> None:
    outputs = Outputs([1.0, 2.0, 4.0])
    assert (len(outputs), outputs[-1], outputs[:2], list(outputs)) == (
        3,
        4.0,
        [1.0, 2.0],
        [1, 2, 4],
    )
    assert repr(outputs) == "StepOutput([1.0, 2.0, 4.0])"
    assert repr(Outputs([1.5, 1.25, 2.0])) == "StepOutput(3 × a number above 1 | a number above 2)"


def test_an_attribute_of_a_tensor_says_what_gives_one() -> None:
    outputs = Outputs([1.0])
    words = r"no attribute 'hex'.*expected one of total\(\), or an index.*\.reduce_mean\(\)\.hex\."
    with pytest.raises(AttributeError, match=words):
        _ = outputs.hex
    with pytest.raises(AttributeError, match=r"'StepOutput' object has no attribute 'of_nobody'"):
        _ = outputs.of_nobody


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ([], ValueError, r"made from no outputs; expected a tensor for each microbatch"),
        ([1.0, 2], TypeError, r"Output 1 of a StepOutput is a int; expected a tensor for each"),
    ],
)
def test_what_are_no_outputs(values: list[Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Outputs(values)
