# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments cut into microbatches: each row of the specification's table, section 3.3, and 4.2."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import io
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.containers import splitting as module
from smdistributed.modelparallel.torch.containers import map_leaves
from smdistributed.modelparallel.torch.pipeline.microbatches import ArgumentSplitter, Call

N = 4


@pytest.fixture(autouse=True)
def said() -> Iterator[list[logging.LogRecord]]:
    """What was logged during the test."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler, logger = Keep(), get_logger()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    module._warned.clear()
    yield records
    module._warned.clear()
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.fixture(autouse=True)
def _first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)


def rows(count: int = 8, width: int = 3) -> Tensor:
    """Each element tells its row and column."""
    return (torch.arange(count)[:, None] * 100 + torch.arange(width)).float()


def step(x: Any) -> None:
    """The step function of most tests."""


def pieces(value: Any, count: int = N, **options: Any) -> list[Any]:
    """What the microbatches get for one argument."""
    calls = ArgumentSplitter(step, **options).split((value,), {}, count)
    assert all(kwargs == {} and len(args) == 1 for args, kwargs in calls)
    return [args[0] for args, _ in calls]


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Batch:
    ids: Any
    note: Any = None


@dataclasses.dataclass
class Settings:
    rate: float
    history: list[float]


class Encoding(collections.UserDict[str, Any]):
    def __init__(self, data: dict[str, Any], encodings: Any = None) -> None:
        super().__init__(data)
        self.encodings = encodings


class MyDict(dict[str, Any]):
    pass


class Boxes:
    """What detection models pass: cuts itself."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.asked: list[tuple[int, int, int]] = []

    def smp_slice(self, num_mb: int, mb: int, axis: int) -> Boxes:
        self.asked.append((num_mb, mb, axis))
        share = len(self.numbers) // num_mb
        return Boxes(self.numbers[mb * share : (mb + 1) * share])


class Opaque:
    pass


# ---- tensors -------------------------------------------------------------------------------------


class TestTensors:
    def test_they_are_cut_along_the_first_axis_into_views(self) -> None:
        x = rows()
        found = pieces(x)
        assert [piece.tolist() for piece in found] == [
            x[2 * i : 2 * i + 2].tolist() for i in range(N)
        ]
        assert all(piece._base is x for piece in found)
        found[3][0, 0] = -1  # in place, in the memory of the batch
        assert x[6, 0] == -1

    @pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
    def test_along_the_axis_of_the_argument(self, axis: int) -> None:
        x = torch.arange(4 * 8 * 12).reshape(4, 8, 12)
        found = pieces(x, input_split_axes={"x": axis})
        assert [piece.shape[axis] for piece in found] == [x.shape[axis] // N] * N
        assert torch.equal(torch.cat(found, dim=axis), x)

    def test_a_history_goes_through_and_pieces_can_be_written_to(self) -> None:
        x = torch.ones(8, requires_grad=True)
        found = pieces(x * 2)
        for number, piece in enumerate(found):
            piece.mul_(number)
        torch.stack(found).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0, 0, 2, 2, 4, 4, 6, 6]

    @pytest.mark.parametrize("count", [1, 2, 4])
    def test_without_dimensions_they_are_passed_whole(self, count: int) -> None:
        scale = torch.tensor(3.0)
        assert all(piece is scale for piece in pieces(scale, count))
        assert all(piece is scale for piece in pieces(scale, count, input_split_axes={"x": 1}))

    def test_one_microbatch_gets_the_tensor_itself(self) -> None:
        x = rows(7)
        (only,) = pieces(x, 1)
        assert only is x

    def test_of_size_zero_they_make_empty_pieces(self) -> None:
        assert [piece.shape for piece in pieces(torch.zeros(0, 3))] == [(0, 3)] * N

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, torch.complex64])
    def test_of_any_dtype(self, dtype: torch.dtype) -> None:
        x = torch.zeros(8, dtype=dtype)
        assert all(piece.dtype == dtype and piece.shape == (2,) for piece in pieces(x))

    def test_parameters_and_meta_tensors(self) -> None:
        assert [piece.shape for piece in pieces(nn.Parameter(rows()))] == [(2, 3)] * N
        found = pieces(torch.empty(8, 3, device="meta"))
        assert all(piece.is_meta and piece.shape == (2, 3) for piece in found)

    @pytest.mark.parametrize("axis", [0, 1])
    def test_sparse_ones_are_copied(self, axis: int) -> None:
        x = rows(8, 8)
        found = pieces(x.to_sparse(), input_split_axes={"x": axis})
        assert all(piece.layout is torch.sparse_coo for piece in found)
        assert torch.equal(torch.cat([piece.to_dense() for piece in found], dim=axis), x)

    @pytest.mark.filterwarnings("ignore:Sparse CSR")
    def test_layouts_that_torch_cannot_cut_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"Argument x of step .*sparse_csr.*non_split_inputs"):
            pieces(rows().to_sparse_csr())

    def test_a_size_that_is_not_divisible_is_refused_with_both_numbers(self) -> None:
        with pytest.raises(
            ValueError, match=r"Argument x of step has size 10 along axis 0"
        ) as error:
            pieces(rows(10))
        for part in ("not divisible by 4 microbatches", "multiple of 4", "drop_last"):
            assert part in str(error.value)

    def test_deep_inside_it_is_refused_by_its_path(self) -> None:
        batch = {"ids": rows(), "more": [Pair(rows(), rows(6))]}
        with pytest.raises(
            ValueError, match=r"Argument x\['more'\]\[0\]\.second of step has size 6"
        ):
            pieces(batch)

    @pytest.mark.parametrize("axis", [2, -3])
    def test_an_axis_that_is_not_there_is_refused(self, axis: int) -> None:
        with pytest.raises(ValueError, match=rf"no axis {axis}; expected one of -2 to 1.*step"):
            pieces(rows(), input_split_axes={"x": axis})


@given(
    count=st.integers(1, 6),
    share=st.integers(0, 4),
    before=st.lists(st.integers(1, 3), max_size=2),
    after=st.lists(st.integers(1, 3), max_size=2),
    negative=st.booleans(),
)
def test_cut_and_concatenated_is_the_identity(
    count: int, share: int, before: list[int], after: list[int], negative: bool
) -> None:
    shape = (*before, count * share, *after)
    x = torch.arange(math.prod(shape)).reshape(shape)
    axis = len(before) - (x.dim() if negative else 0)
    found = pieces({"a": [x]}, count, input_split_axes={"x": axis})
    tensors = [piece["a"][0] for piece in found]
    assert {piece.shape[axis] for piece in tensors} == {share}
    assert torch.equal(torch.cat(tensors, dim=axis), x)


# ---- containers ----------------------------------------------------------------------------------


class TestContainers:
    @pytest.mark.parametrize(
        "make",
        [
            lambda a, b: [a, b],
            lambda a, b: (a, b),
            lambda a, b: Pair(a, b),
            lambda a, b: {"a": a, "b": b},
            lambda a, b: MyDict(a=a, b=b),
            lambda a, b: collections.OrderedDict(b=a, a=b),
            lambda a, b: collections.defaultdict(int, a=a, b=b),
            lambda a, b: collections.UserDict(a=a, b=b),
            lambda a, b: collections.deque([a, b], maxlen=3),
            lambda a, b: Batch(a, b),
            lambda a, b: [{"x": ((a,), Batch(b))}],
        ],
        ids=[
            "list",
            "tuple",
            "namedtuple",
            "dict",
            "dict subclass",
            "OrderedDict",
            "defaultdict",
            "UserDict",
            "deque",
            "dataclass",
            "nested",
        ],
    )
    def test_they_are_rebuilt_around_the_pieces(self, make: Callable[[Any, Any], Any]) -> None:
        a, b = rows(), torch.arange(4)

        def check(leaf: Any) -> Any:
            """The name of the tensor that this is the piece of."""
            if not isinstance(leaf, Tensor):
                return leaf
            origin, name = (a, "a") if leaf.dim() == 2 else (b, "b")
            share = len(origin) // N
            assert torch.equal(leaf, origin[number * share : (number + 1) * share])
            return name

        for number, piece in enumerate(pieces(make(a, b))):  # noqa: B007 (check reads it)
            assert type(piece) is type(make(a, b))
            assert map_leaves(check, piece) == make("a", "b")

    @pytest.mark.parametrize("make", [set, frozenset])
    def test_sets(self, make: type) -> None:
        found = pieces(make([rows(), torch.arange(4)]))
        assert all(type(piece) is make for piece in found)
        for number, piece in enumerate(found):
            by_dims = sorted(piece, key=lambda tensor: tensor.dim())
            assert by_dims[0].tolist() == [number]
            assert by_dims[1][0, 0] == 200 * number

    def test_the_container_itself_is_never_cut(self) -> None:
        found = pieces([rows()] * 8)
        assert [len(piece) for piece in found] == [8] * N

    def test_lists_of_values_are_neither(self) -> None:
        assert pieces([1, "two", None, (3.0,)]) == [[1, "two", None, (3.0,)]] * N
        assert pieces([]) == [[]] * N
        assert pieces({}) == [{}] * N

    def test_every_microbatch_may_change_its_own(self) -> None:
        batch = {"ids": rows(), "options": [1]}
        found = pieces(batch)
        found[0].pop("ids")
        found[1]["options"].append(2)
        assert [sorted(piece) for piece in found] == [["options"], *[["ids", "options"]] * 3]
        assert found[2]["options"] == [1] == batch["options"]

    def test_of_the_users_own_class_without_anything_to_cut_they_are_passed_whole(self) -> None:
        settings = Settings(0.1, [])
        own = MyDict(rate=1, scale=torch.tensor(2.0))
        for value in (settings, own, Pair(1, 2)):
            assert all(piece is value for piece in pieces(value))
        found = pieces({"x": rows(), "settings": settings, "own": own})
        assert all(piece["settings"] is settings and piece["own"] is own for piece in found)

    def test_what_is_not_an_item_is_carried_over(self) -> None:
        lengths = torch.arange(3)  # not a batch, and not divisible
        obj = Encoding({"ids": rows()}, encodings=[lengths, Opaque()])
        found = pieces(obj)
        assert all(type(piece) is Encoding for piece in found)
        assert all(piece.encodings[0] is lengths for piece in found)
        assert torch.equal(torch.cat([piece["ids"] for piece in found]), obj["ids"])

    def test_one_axis_for_all_tensors_of_an_argument(self) -> None:
        found = pieces((rows(2, 8), [rows(1, 4)]), input_split_axes={"x": 1})
        assert [(piece[0].shape, piece[1][0].shape) for piece in found] == [((2, 2), (1, 1))] * N

    def test_a_circle_is_refused(self) -> None:
        batch: list[Any] = [rows()]
        batch.append(batch)
        with pytest.raises(ValueError, match="list contains itself"):
            pieces(batch)

    def test_of_hugging_face(self) -> None:
        base = pytest.importorskip("transformers.tokenization_utils_base")
        outputs = pytest.importorskip("transformers.modeling_outputs")
        encoding = base.BatchEncoding({"input_ids": rows(), "labels": torch.arange(8)})
        for number, piece in enumerate(pieces(encoding)):
            assert type(piece) is base.BatchEncoding
            assert piece.input_ids[0, 0] == 200 * number
            assert piece["labels"].tolist() == [2 * number, 2 * number + 1]
        output = outputs.BaseModelOutput(last_hidden_state=rows(), attentions=(rows(),))
        for number, piece in enumerate(pieces(output)):
            assert type(piece) is outputs.BaseModelOutput
            assert piece.last_hidden_state is piece[0]
            assert piece.attentions[0][0, 0] == 200 * number
            assert piece.hidden_states is None


# ---- other values --------------------------------------------------------------------------------


class TestObjectsThatCutThemselves:
    def test_they_are_asked_once_for_each_microbatch(self) -> None:
        boxes = Boxes(list(range(8)))
        found = pieces(boxes, input_split_axes={"x": 2})
        assert [piece.numbers for piece in found] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert boxes.asked == [(N, i, 2) for i in range(N)]

    def test_inside_of_containers(self, said: list[logging.LogRecord]) -> None:
        found = pieces([Boxes(list(range(4))), Settings(1, [Boxes(list(range(4)))])])  # type: ignore[list-item]
        assert [piece[0].numbers for piece in found] == [[0], [1], [2], [3]]
        assert [piece[1].history[0].numbers for piece in found] == [[0], [1], [2], [3]]
        assert not said

    def test_even_if_they_are_containers_or_tensors(self) -> None:
        class BoxList(list[int]):
            def smp_slice(self, num_mb: int, mb: int, axis: int) -> BoxList:
                return BoxList(self[mb::num_mb])

        class BoxTensor(Tensor):
            def smp_slice(self, num_mb: int, mb: int, axis: int) -> int:
                return mb

        assert pieces(BoxList(range(8))) == [[0, 4], [1, 5], [2, 6], [3, 7]]
        assert pieces(torch.ones(3).as_subclass(BoxTensor)) == [0, 1, 2, 3]

    def test_a_method_of_the_object_alone_counts(self) -> None:
        value = Opaque()
        value.smp_slice = lambda num_mb, mb, axis: mb  # type: ignore[attr-defined]
        assert pieces(value) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        2.5,
        1j,
        "text",
        b"bytes",
        ...,
        torch.device("cpu"),
        torch.float16,
        torch.Size((8,)),
        np.float32(1),
        np.int64(2),
        nn.Linear(1, 1),
        nn.ModuleList([nn.Linear(1, 1)]),
        torch.amp.GradScaler("cpu", enabled=False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_and_modules_are_passed_whole_and_silently(
    value: object, said: list[logging.LogRecord]
) -> None:
    assert all(piece is value for piece in pieces(value))
    assert all(piece[0] is value for piece in pieces([value]))
    assert not said


class TestWarnings:
    def test_an_optimizer_is_passed_whole_and_warned_of_once(
        self, said: list[logging.LogRecord]
    ) -> None:
        optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters())
        for _ in range(2):
            assert all(piece is optimizer for piece in pieces(optimizer))
        (record,) = said
        assert record.levelno == logging.WARNING
        assert "Argument x of step is an optimizer, torch.optim.sgd.SGD" in record.getMessage()
        assert "should be used outside of smp.step" in record.getMessage()
        assert "might *potentially* be a bug" in record.getMessage()

    def test_other_objects_are_passed_whole_and_warned_of_once_for_each_type(
        self, said: list[logging.LogRecord]
    ) -> None:
        values = [Opaque(), Opaque(), np.zeros(8), step, range(8), io.StringIO("a\nb")]
        for value in values:
            assert all(piece is value for piece in pieces(value))
        pieces({"deep": [Opaque()]})
        texts = [record.getMessage() for record in said]
        assert len(texts) == 5
        assert all("Non-splittable object of type" in text for text in texts)
        assert all("implement a 'smp_slice' method" in text for text in texts)
        assert "Opaque: Argument x of step" in texts[0]
        assert "type numpy.ndarray" in texts[1]

    def test_only_the_first_rank_is_loud(
        self, said: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "3")
        pieces(Opaque())
        assert [record.levelno for record in said] == [logging.DEBUG]

    def test_what_is_named_as_whole_is_not_warned_of(self, said: list[logging.LogRecord]) -> None:
        pieces(Opaque(), non_split_inputs=["x"])
        assert not said


class TestRefused:
    @pytest.mark.parametrize(
        "value",
        [
            DataLoader(TensorDataset(torch.ones(8))),
            iter([1]),
            (number for number in range(3)),
            map(str, [1]),
            enumerate([1]),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_loaders_and_iterators(self, value: object) -> None:
        with pytest.raises(
            TypeError, match=r"Argument x of step .*pass the batches, not the loader"
        ):
            pieces(value)
        with pytest.raises(TypeError, match=r"Argument x\['k'\] of step"):
            pieces({"k": value})
        assert all(piece is value for piece in pieces(value, non_split_inputs=["x"]))

    def test_packed_sequences(self) -> None:
        packed = pack_sequence([torch.ones(3), torch.ones(1)])
        for value, name in ((packed, "x"), ([packed], r"x\[0\]"), (Batch(packed), r"x\.ids")):
            with pytest.raises(TypeError, match=rf"Argument {name} of step is a PackedSequence"):
                pieces(value)


# ---- names ---------------------------------------------------------------------------------------


def split(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Call]:
    """Calls of a function whose arguments `whole...` stay whole and `wide...` are cut at axis 1."""
    parameters = inspect.signature(function).parameters
    return ArgumentSplitter(
        function,
        non_split_inputs=[name for name in parameters if name.startswith("whole")],
        input_split_axes={name: 1 for name in parameters if name.startswith("wide")},
    ).split(args, kwargs, N)


class TestNames:
    def test_positional_arguments_have_the_names_of_parameters(self) -> None:
        def function(whole: Any, x: Any, wide: Any) -> None: ...

        table = rows(8, 4)
        for number, (args, kwargs) in enumerate(split(function, table, table, table)):
            assert args[0] is table
            assert torch.equal(args[1], table[2 * number : 2 * number + 2])
            assert torch.equal(args[2], table[:, number : number + 1])
            assert kwargs == {}

    def test_arguments_stay_positional_or_keyword_in_their_order(self) -> None:
        def function(a: Any, b: Any, *, wide: Any, whole: Any) -> None: ...

        calls = split(function, rows(), whole=1, b=rows(), wide=rows(2, 4))
        assert [list(kwargs) for _, kwargs in calls] == [["whole", "b", "wide"]] * N
        assert [kwargs["wide"].shape for _, kwargs in calls] == [(2, 1)] * N
        assert [len(args) for args, _ in calls] == [1] * N

    def test_more_positional_arguments_have_the_name_of_their_parameter(self) -> None:
        def cut(a: Any, *wide: Any) -> None: ...

        def kept(a: Any, *whole: Any) -> None: ...

        table = rows(8, 4)
        shapes = [[piece.shape for piece in args] for args, _ in split(cut, table, table, table)]
        assert shapes == [[(2, 4), (8, 1), (8, 1)]] * N
        assert all(args[1] is args[2] is table for args, _ in split(kept, table, table, table))

    def test_more_keyword_arguments_have_their_own_names_and_that_of_the_parameter(self) -> None:
        def function(**others: Any) -> None: ...

        table = rows(8, 4)
        batch = {"a": table, "b": table, "c": table}
        splitter = ArgumentSplitter(
            function, non_split_inputs=["c"], input_split_axes={"others": 1, "a": -2}
        )
        for _, kwargs in splitter.split((), batch, N):
            assert kwargs["a"].shape == (2, 4)
            assert kwargs["b"].shape == (8, 1)
            assert kwargs["c"] is table
        whole = ArgumentSplitter(function, non_split_inputs=["others"])
        assert all(kwargs == batch for _, kwargs in whole.split((), batch, N))

    def test_the_name_of_the_parameter_does_not_reach_other_parameters(self) -> None:
        def function(a: Any, **others: Any) -> None: ...

        splitter = ArgumentSplitter(function, non_split_inputs=["others"])
        calls = splitter.split((), {"a": rows(), "b": rows()}, N)
        assert [(kwargs["a"].shape, kwargs["b"].shape) for _, kwargs in calls] == [
            ((2, 3), (8, 3))
        ] * N

    def test_a_key_is_not_confused_with_a_positional_only_parameter(self) -> None:
        def function(whole: Any, /, **others: Any) -> None: ...

        calls = ArgumentSplitter(function).split((1,), {"whole": rows()}, N)
        assert [kwargs["whole"].shape for _, kwargs in calls] == [(2, 3)] * N

    def test_whole_wins_over_an_axis(self) -> None:
        x = rows()
        found = pieces(x, non_split_inputs=["x"], input_split_axes={"x": 1})
        assert all(piece is x for piece in found)

    def test_a_method_called_with_its_object(self) -> None:
        class Trainer:
            def train(self, x: Any) -> None: ...

        me = Trainer()
        bound = ArgumentSplitter(me.train).split((rows(),), {}, N)
        assert [args[0].shape for args, _ in bound] == [(2, 3)] * N
        free = ArgumentSplitter(Trainer.train, non_split_inputs=["self"]).split((me, rows()), {}, N)
        assert all(args[0] is me for args, _ in free)

    def test_functions_without_a_signature(self) -> None:
        calls = ArgumentSplitter(max).split((rows(),), {"key": 1}, N)
        assert [(args[0].shape, kwargs) for args, kwargs in calls] == [((2, 3), {"key": 1})] * N

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (
                {"non_split_inputs": ["model", "network"]},
                r"non_split_inputs of .*function names 'network'",
            ),
            (
                {"input_split_axes": {"z": 1, "y": 0}},
                r"input_split_axes of .*function names 'y', 'z'",
            ),
        ],
    )
    def test_unknown_ones_are_refused_at_the_first_call(
        self, options: dict[str, Any], words: str
    ) -> None:
        def function(model: Any, x: Any = 1, *rest: Any) -> None: ...

        splitter = ArgumentSplitter(function, **options)
        for _ in range(2):
            with pytest.raises(ValueError, match=words + ".*its parameters: model, x, rest"):
                splitter.split((1,), {}, N)

    def test_wrong_options_are_refused_at_once(self) -> None:
        with pytest.raises(TypeError, match=r"expected a list of names. Pass \['x'\]"):
            ArgumentSplitter(step, non_split_inputs="x")
        for axis in ("0", True, None, [0]):
            with pytest.raises(TypeError, match=r"input_split_axes\['x'\] .* expected an integer"):
                ArgumentSplitter(step, input_split_axes={"x": axis})  # type: ignore[dict-item]

    @pytest.mark.parametrize(
        ("args", "kwargs"), [((), {}), ((1, 2), {}), ((1,), {"x": 1}), ((1,), {"y": 1})]
    )
    def test_a_wrong_call_is_refused_before_anything_runs(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        splitter = ArgumentSplitter(step)
        for _ in range(2):
            with pytest.raises(TypeError, match=r"step: .*expected the arguments \(x: "):
                splitter.split(args, kwargs, N)


class TestDefaults:
    table = rows(8, 4)

    def test_tensors_are_cut(self) -> None:
        table = self.table

        def function(a: Any, wide: Any = table, *, whole: Any = table, b: Any = table) -> None: ...

        for number, (args, kwargs) in enumerate(split(function, 1)):
            assert args == (1,)
            assert list(kwargs) == ["wide", "whole", "b"]
            assert torch.equal(kwargs["wide"], self.table[:, number : number + 1])
            assert kwargs["whole"] is self.table
            assert torch.equal(kwargs["b"], self.table[2 * number : 2 * number + 2])
        for args, kwargs in split(function, 1, 2, b=3):
            assert args == (1, 2)
            assert list(kwargs) == ["b", "whole"]

    def test_positional_only_ones_too(self) -> None:
        def function(a: Any, b: Any = 5, c: Any = self.table, d: Any = 7, /) -> None: ...

        for number, (args, kwargs) in enumerate(split(function, 1)):
            assert kwargs == {}
            assert args[:2] == (1, 5)
            assert torch.equal(args[2], self.table[2 * number : 2 * number + 2])
            assert len(args) == 3
        assert all(args == (1, 2, 3) for args, _ in split(function, 1, 2, 3))

    def test_others_are_left_to_python(self) -> None:
        memory: dict[str, Any] = {}
        counter, scale = iter(range(99)), torch.tensor(1)

        def function(a: Any, memory: Any = memory, n: Any = counter, s: Any = scale) -> None: ...

        splitter = ArgumentSplitter(function)
        assert splitter.split((1,), {}, N) == [((1,), {})] * N
        memory["kept"] = rows()  # and stays what the function uses
        assert splitter.split((1,), {}, N) == [((1,), {})] * N
        assert splitter.split((), {"a": 2}, N) == [((), {"a": 2})] * N


def test_no_arguments_make_as_many_calls_each_with_its_own_dict() -> None:
    def function(*args: Any, **kwargs: Any) -> None: ...

    calls = ArgumentSplitter(function).split((), {}, N)
    assert calls == [((), {})] * N
    assert len({id(kwargs) for _, kwargs in calls}) == N


def test_many_forms_of_a_call_do_not_pile_up() -> None:
    def function(**kwargs: Any) -> None: ...

    splitter = ArgumentSplitter(function)
    for number in range(1000):
        assert splitter.split((), {f"k{number}": 1}, 1) == [((), {f"k{number}": 1})]
    assert len(splitter._plans) <= 256


# ---- batches of any size -------------------------------------------------------------------------


class TestRagged:
    @pytest.mark.parametrize(
        ("size", "sizes"),
        [
            (8, [2, 2, 2, 2]),
            (9, [3, 2, 2, 2]),
            (11, [3, 3, 3, 2]),
            (4, [1, 1, 1, 1]),
            (3, [1, 1, 1]),
            (1, [1]),
            (0, [0]),
        ],
    )
    def test_pieces_differ_by_one_at_most(self, size: int, sizes: list[int]) -> None:
        x = rows(size)
        found = pieces({"x": x, "n": 1}, ragged=True)
        assert [len(piece["x"]) for piece in found] == sizes
        assert torch.equal(torch.cat([piece["x"] for piece in found]), x)

    def test_all_tensors_make_the_same_number(self) -> None:
        found = pieces((rows(3), [rows(3, 1)], torch.tensor(1)), ragged=True)
        assert [(len(piece[0]), len(piece[1][0])) for piece in found] == [(1, 1)] * 3
        assert [(len(a), len(b)) for a, b in pieces((rows(9), rows(4)), ragged=True)] == [
            (3, 1),
            (2, 1),
            (2, 1),
            (2, 1),
        ]

    def test_different_numbers_are_refused_with_both(self) -> None:
        with pytest.raises(
            ValueError, match=r"Argument x\[1\] of step has size 9, .*4 pieces"
        ) as error:
            pieces((rows(3), rows(9)), ragged=True)
        assert "Argument x[0] of step has size 3, 3 pieces" in str(error.value)

    def test_objects_that_cut_themselves_are_asked_for_as_many(self) -> None:
        boxes = Boxes([1, 2, 3])
        found = pieces((boxes, rows(3)), ragged=True)
        assert [piece[0].numbers for piece in found] == [[1], [2], [3]]
        assert boxes.asked == [(3, 0, 0), (3, 1, 0), (3, 2, 0)]

    def test_what_is_not_cut_does_not_count(self) -> None:
        def function(model: Any, a: Any, whole: Any, b: Any) -> None: ...

        splitter = ArgumentSplitter(
            function, non_split_inputs=["whole"], input_split_axes={"b": 1}, ragged=True
        )
        encoding = Encoding({"ids": rows(2)}, encodings=rows(7))
        calls = splitter.split((nn.Linear(1, 1), encoding, rows(1), rows(1, 2)), {}, N)
        assert [(args[1]["ids"].shape, args[3].shape) for args, _ in calls] == [
            ((1, 3), (1, 1))
        ] * 2

    def test_without_tensors_every_microbatch_runs(self) -> None:
        assert pieces([1, torch.tensor(2)], ragged=True) == [[1, torch.tensor(2)]] * N

    def test_an_axis_that_is_not_there_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no axis 3"):
            pieces(rows(), ragged=True, input_split_axes={"x": 3})

    def test_sparse_ones(self) -> None:
        x = rows(9)
        found = pieces(x.to_sparse(), ragged=True)
        assert [len(piece) for piece in found] == [3, 2, 2, 2]
        assert torch.equal(torch.cat(found).to_dense(), x)


@given(size=st.integers(0, 40), count=st.integers(1, 9))
def test_ragged_pieces_make_up_the_batch(size: int, count: int) -> None:
    x = torch.arange(size)
    found = pieces(x, count, ragged=True)
    sizes = [len(piece) for piece in found]
    assert torch.equal(torch.cat(found), x)
    assert len(sizes) == min(count, max(1, size))
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    assert size == 0 or min(sizes) >= 1
