# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The rules for arguments and results of step functions that hold for every framework.

Each function in `RULES` fails if a framework breaks one. `test_rules.py` runs them with PyTorch,
`tests/multiprocess/with_tensorflow/modelparallel/containers_ranks.py` with TensorFlow.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

N = 4


class Framework:
    """What the rules need to know of a framework."""

    def tensor(self, array: np.ndarray) -> Any:
        """An eager tensor of an array."""
        raise NotImplementedError

    def is_tensor(self, value: Any) -> bool:
        raise NotImplementedError

    def split(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        count: int,
        **options: Any,
    ) -> list[Any]:
        """The positional and keyword arguments of each microbatch."""
        raise NotImplementedError

    def gather(self, values: list[Any]) -> Any:
        """What the step returns, from what the microbatches return."""
        raise NotImplementedError

    def rows(self, count: int = 8, width: int = 3) -> Any:
        """Each element tells its row and column."""
        return self.tensor(table(count, width))

    def pieces(self, value: Any, count: int = N, **options: Any) -> list[Any]:
        """What the microbatches get for the argument `x` of `step`."""
        return [args[0] for args, _ in self.split(step, (value,), {}, count, **options)]


def table(count: int = 8, width: int = 3) -> np.ndarray:
    return (np.arange(count)[:, None] * 100 + np.arange(width)).astype(np.float32)


def step(x: Any) -> None: ...


class Pair(NamedTuple):
    first: Any
    second: Any


class MyDict(dict[str, Any]):
    pass


@dataclasses.dataclass(frozen=True)
class Batch:
    ids: Any
    note: Any = None


class Noted(collections.UserDict[str, Any]):
    def __init__(self, data: dict[str, Any], note: Any = None) -> None:
        super().__init__(data)
        self.note = note


_CONTAINERS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: [a, b],
    lambda a, b: (a, b),
    lambda a, b: Pair(a, b),
    lambda a, b: {"b": a, "a": b},
    lambda a, b: MyDict(b=a, a=b),
    lambda a, b: collections.OrderedDict(b=a, a=b),
    lambda a, b: collections.defaultdict(int, a=a, b=b),
    lambda a, b: collections.UserDict(a=a, b=b),
    lambda a, b: collections.deque([a, b], maxlen=3),
    lambda a, b: Batch(a, b),
    lambda a, b: [{"x": ((a,), Batch(b))}],
]


def tensors_are_cut_along_an_axis(framework: Framework) -> None:
    x = np.arange(4 * 8 * 12).reshape(4, 8, 12)
    for axis in (0, 1, 2, -1, -2, -3):
        found = framework.pieces(framework.tensor(x), input_split_axes={"x": axis})
        for piece, part in zip(found, np.split(x, N, axis), strict=True):
            np.testing.assert_array_equal(np.asarray(piece), part)


def some_tensors_stay_the_same_object(framework: Framework) -> None:
    scalar, x = framework.tensor(np.array(3.0)), framework.rows()
    for count in (1, 2, 4):
        assert all(piece is scalar for piece in framework.pieces(scalar, count))
    assert framework.pieces(x, 1)[0] is x
    assert all(piece is x for piece in framework.pieces(x, non_split_inputs=["x"]))


def containers_are_rebuilt_around_pieces(framework: Framework) -> None:
    a, b = table(), np.arange(4)
    for make in _CONTAINERS:
        found = framework.pieces(make(framework.tensor(a), framework.tensor(b)))
        for number, piece in enumerate(found):
            part = make(a[2 * number : 2 * number + 2], b[number : number + 1])
            assert type(piece) is type(part)
            assert repr(_as_lists(piece)) == repr(_as_lists(part))


def _as_lists(value: Any) -> Any:
    """Containers and tensors as lists with their classes' names."""
    if isinstance(value, (dict, collections.UserDict)):
        return [type(value).__name__, [(k, _as_lists(v)) for k, v in value.items()]]
    if isinstance(value, (list, tuple, collections.deque)):
        return [type(value).__name__, [_as_lists(each) for each in value]]
    if isinstance(value, Batch):
        return ["Batch", _as_lists(value.ids), _as_lists(value.note)]
    return np.asarray(value).tolist()


def values_and_configurations_stay(framework: Framework) -> None:
    for value in (None, True, 3, 2.5, 1j, "text", b"bytes", ..., Pair(1, 2), MyDict(rate=1)):
        assert all(piece is value for piece in framework.pieces(value))
        assert all(piece[0] is value for piece in framework.pieces([value]))
    assert framework.pieces([1, "two", None, (3.0,)]) == [[1, "two", None, (3.0,)]] * N
    assert framework.pieces([]) == [[]] * N


def attributes_are_not_cut(framework: Framework) -> None:
    note = framework.tensor(np.arange(3))  # not divisible
    found = framework.pieces(Noted({"ids": framework.rows()}, note=[note, "text"]))
    assert all(type(piece) is Noted for piece in found)
    assert all(np.asarray(piece.note[0]).tolist() == [0, 1, 2] for piece in found)
    assert all(piece.note[1] == "text" for piece in found)


def arguments_have_the_names_of_parameters(framework: Framework) -> None:
    x = framework.rows(8, 4)

    def function(whole: Any, x: Any, wide: Any = x, *more: Any, **others: Any) -> None: ...

    options = {"non_split_inputs": ["whole"], "input_split_axes": {"wide": 1, "others": 1}}
    for args, kwargs in framework.split(function, (x, x, x, x), {"k": x}, N, **options):
        assert args[0] is x
        assert [tuple(each.shape) for each in args[1:]] == [(2, 4), (8, 1), (2, 4)]
        assert {key: tuple(each.shape) for key, each in kwargs.items()} == {"k": (8, 1)}
    for args, kwargs in framework.split(function, (1,), {"x": 2}, N, **options):
        assert args == (1,)
        assert kwargs["x"] == 2
        assert tuple(kwargs["wide"].shape) == (8, 1)  # a default is an argument too


def errors_name_arguments_and_say_what_to_do(framework: Framework) -> None:
    x = framework.rows(10)
    for expected, words, value, options in (
        (ValueError, r"x\b.* 10\b.* 4 microbatches.*drop_(last|remainder)=True", x, {}),
        (ValueError, r"x\['k'\]\[0\]", {"k": [x]}, {}),
        (ValueError, "no axis 2; expected one of -2 to 1", x, {"input_split_axes": {"x": 2}}),
        (ValueError, "non_split_inputs of step names 'y'", 1, {"non_split_inputs": ["y"]}),
        (TypeError, r"Pass \['x'\]", 1, {"non_split_inputs": "x"}),
        (TypeError, "expected an integer", 1, {"input_split_axes": {"x": True}}),
        (TypeError, "Argument x of step .*not the loader", iter([1]), {}),
    ):
        with pytest.raises(expected, match=words):
            framework.pieces(value, **options)
    with pytest.raises(TypeError, match=r"step: .*expected the arguments \(x: "):
        framework.split(step, (), {"y": 1}, N)


def results_are_gathered(framework: Framework) -> None:
    for make in _CONTAINERS:
        values = [make(framework.rows(2 + number, 1), None) for number in range(3)]
        found = framework.gather(values)
        assert type(found) is type(values[0])
        outputs, nothing = _results(found)
        assert nothing is None
        assert [tuple(each.shape) for each in outputs] == [(2, 1), (3, 1), (4, 1)]
        assert all(framework.is_tensor(each) for each in (outputs[0], outputs.concat()))
        assert tuple(outputs.concat().shape) == (9, 1)
    assert framework.gather([None, None]) is None
    assert framework.gather([[], []]) == []


def _results(found: Any) -> tuple[Any, Any]:
    if isinstance(found, list) and isinstance(found[0], dict):
        ((first,), second) = found[0]["x"]
        return first, second.ids if isinstance(second, Batch) else second
    if isinstance(found, Batch):
        return found.ids, found.note
    if isinstance(found, (dict, collections.UserDict)):
        first, second = found.values()
        return first, second
    first, second = found
    return first, second


def results_that_differ_are_refused(framework: Framework) -> None:
    x = framework.rows()
    for one, other in (((x, x), [x, x]), ({"a": x}, {"b": x}), ({"a": x}, None), (x, (x,))):
        with pytest.raises(RuntimeError, match=r"microbatch 0 returned .*; microbatch 1 returned"):
            framework.gather([one, other])
    with pytest.raises(ValueError, match="no results to gather"):
        framework.gather([])


def means_of_integers_are_float32(framework: Framework) -> None:
    whole = [framework.tensor(np.array([number], np.int64)) for number in (1, 2)]
    mean = framework.gather(whole).reduce_mean()
    assert np.asarray(mean).dtype == np.float32
    assert np.asarray(mean).tolist() == [1.5]
    halves = [framework.tensor(np.array([40000.0], np.float16))] * 4
    assert np.asarray(framework.gather(halves).reduce_mean()).tolist() == [40000]


RULES = [
    tensors_are_cut_along_an_axis,
    some_tensors_stay_the_same_object,
    containers_are_rebuilt_around_pieces,
    values_and_configurations_stay,
    attributes_are_not_cut,
    arguments_have_the_names_of_parameters,
    errors_name_arguments_and_say_what_to_do,
    results_are_gathered,
    results_that_differ_are_refused,
    means_of_integers_are_float32,
]
