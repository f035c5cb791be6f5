# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Results of microbatches, gathered: the tables of the specification, sections 3.4 and 4.3."""

from __future__ import annotations

import collections
import copy
import dataclasses
import pickle
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from smdistributed.modelparallel.torch.pipeline.microbatches import ArgumentSplitter
from smdistributed.modelparallel.torch.pipeline.step_output import (
    StepOutput,
    detach,
    gather_outputs,
)


def output(number: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Of microbatch `number`: each element tells the microbatch and its index."""
    return (
        (1000 * number + torch.arange(max(1, torch.Size(shape).numel()))).reshape(shape).to(dtype)
    )


def outputs(count: int, *shape: int, dtype: torch.dtype = torch.float32) -> StepOutput:
    return StepOutput([output(number, *shape, dtype=dtype) for number in range(count)])


class TestReductions:
    def test_mean(self) -> None:
        assert outputs(3, 2).reduce_mean().tolist() == [1000, 1001]
        assert outputs(4).reduce_mean().item() == 1500
        assert outputs(1, 2).reduce_mean().tolist() == [0, 1]

    def test_weights_count_in_the_mean_whatever_was_done_before(self) -> None:
        ragged = StepOutput([output(0, 2), output(1, 2)], weights=(0.75, 0.25))
        for same in (
            ragged,
            ragged.detach(),
            ragged.to(torch.float64),
            ragged.cpu(),
            ragged.float(),
            copy.copy(ragged),
        ):
            assert same.reduce_mean().tolist() == [250, 251]
            assert same.reduce_sum().tolist() == [1000, 1002]

    def test_sum(self) -> None:
        assert outputs(3, 2, 1).reduce_sum().tolist() == [[3000], [3003]]
        assert outputs(4).reduce_sum().item() == 6000

    @pytest.mark.parametrize(
        "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64]
    )
    def test_dtypes_stay(self, dtype: torch.dtype) -> None:
        both = StepOutput([torch.ones(2, dtype=dtype), torch.zeros(2, dtype=dtype)])
        assert both.reduce_mean().dtype == dtype
        assert both.reduce_mean().tolist() == [0.5, 0.5]
        assert both.reduce_sum().dtype == dtype

    @pytest.mark.parametrize(
        "dtype",
        [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16],
    )
    def test_integers_are_averaged_in_float32(self, dtype: torch.dtype) -> None:
        both = StepOutput([torch.ones(2, dtype=dtype), torch.zeros(2, dtype=dtype)])
        assert both.reduce_mean().dtype == torch.float32
        assert both.reduce_mean().tolist() == [0.5, 0.5]
        assert both.reduce_sum().dtype == torch.int64
        assert both.reduce_sum().tolist() == [1, 1]

    def test_integers_do_not_overflow_and_are_not_rounded_early(self) -> None:
        full = torch.full((1,), 255, dtype=torch.uint8)
        assert StepOutput([full] * 4).reduce_mean().item() == 255
        assert StepOutput([full] * 4).reduce_sum().item() == 1020
        # In float32 each of these would lose its last bit.
        odd = torch.tensor([2**24 + 1])
        assert StepOutput([odd, -odd, odd - odd + 1]).reduce_mean().item() == pytest.approx(1 / 3)

    def test_half_precision_does_not_overflow_on_the_way(self) -> None:
        large = torch.full((1,), 40000.0, dtype=torch.float16)
        assert StepOutput([large] * 4).reduce_mean().item() == 40000

    def test_the_default_dtype_has_no_say(self) -> None:
        torch.set_default_dtype(torch.float64)
        try:
            assert outputs(2, dtype=torch.int64).reduce_mean().dtype == torch.float32
        finally:
            torch.set_default_dtype(torch.float32)

    def test_a_history_goes_through(self) -> None:
        x = torch.ones(4, requires_grad=True)
        loss = StepOutput([piece.sum() for piece in (x * 2).tensor_split(2)]).reduce_mean()
        loss.backward()
        assert x.grad is not None
        assert x.grad.tolist() == [1, 1, 1, 1]


class TestConcatAndStack:
    def test_concat_along_the_first_dimension(self) -> None:
        assert outputs(3, 1, 2).concat().tolist() == [[0, 1], [1000, 1001], [2000, 2001]]

    def test_without_dimensions_they_are_stacked(self) -> None:
        assert outputs(3).concat().tolist() == [0, 1000, 2000]

    def test_sizes_may_differ_in_the_first_dimension(self) -> None:
        ragged = StepOutput([output(0, 2, 2), output(1, 1, 2)])
        assert ragged.concat().tolist() == [[0, 1], [2, 3], [1000, 1001]]

    def test_stack(self) -> None:
        assert outputs(3).stack().tolist() == [0, 1000, 2000]
        assert outputs(2, 2).stack().tolist() == [[0, 1], [1000, 1001]]

    @pytest.mark.parametrize("operation", ["reduce_mean", "reduce_sum", "stack"])
    def test_one_shape_is_expected_and_all_are_named(self, operation: str) -> None:
        ragged = StepOutput([output(0, 2), output(1, 2), output(2, 1)])
        with pytest.raises(RuntimeError, match=f"^{operation} of a StepOutput") as error:
            getattr(ragged, operation)()
        for part in ("0: tensor of shape (2,)", "2: tensor of shape (1,)", "concat()", "one shape"):
            assert part in str(error.value)

    @pytest.mark.parametrize("shape", [(2, 3), (2,), ()])
    def test_concat_names_the_shapes_too(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(RuntimeError, match=r"^concat of a StepOutput") as error:
            StepOutput([output(0, 2, 2), output(1, *shape)]).concat()
        assert "0: tensor of shape (2, 2), float32, cpu; 1: tensor of shape" in str(error.value)
        assert f"shape {shape}" in str(error.value)
        assert "stack them" in str(error.value)


class TestOneByOne:
    def test_detach(self) -> None:
        x = torch.ones(2, requires_grad=True)
        detached = StepOutput([x * 1, x * 2]).detach()
        assert isinstance(detached, StepOutput)
        assert not any(tensor.requires_grad for tensor in detached)

    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [((torch.float64,), {}), (("cpu", torch.float64), {}), ((), {"dtype": torch.float64})],
    )
    def test_to(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        moved = outputs(2, 2).to(*args, **kwargs)
        assert isinstance(moved, StepOutput)
        assert [tensor.dtype for tensor in moved] == [torch.float64] * 2
        assert moved[1].tolist() == [1000, 1001]

    def test_cpu_and_float(self) -> None:
        halves = outputs(2, 2, dtype=torch.float16)
        assert [tensor.dtype for tensor in halves.float()] == [torch.float32] * 2
        assert [tensor.device.type for tensor in halves.cpu()] == ["cpu"] * 2
        assert isinstance(halves.cpu().float(), StepOutput)

    def test_what_the_trainer_of_hugging_face_writes(self) -> None:
        x = torch.ones(2, requires_grad=True)
        logits = StepOutput([x * 1, x * 2])
        for found in (logits.detach().concat().cpu(), logits.concat().detach().cpu()):
            assert found.tolist() == [1, 1, 2, 2]
            assert not found.requires_grad


class TestSequence:
    def test_outputs_len_index_and_iteration(self) -> None:
        tensors = [output(0, 1), output(1, 1)]
        found = StepOutput(tuple(tensors))
        assert found.outputs == tensors
        assert isinstance(found.outputs, list)
        assert len(found) == 2
        assert found[-1] is tensors[1]
        assert found[:1] == tensors[:1]
        assert [tensor is same for tensor, same in zip(found, tensors, strict=True)] == [True, True]
        with pytest.raises(IndexError):
            found[2]

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_it_can_be_pickled(self, protocol: int) -> None:
        again = pickle.loads(pickle.dumps(outputs(2, 2), protocol))
        assert isinstance(again, StepOutput)
        assert again[1].tolist() == [1000, 1001]

    def test_it_can_be_copied(self) -> None:
        original = outputs(2, 2)
        assert copy.copy(original)[0] is original[0]
        assert copy.deepcopy(original)[1].tolist() == [1000, 1001]

    def test_it_is_readable(self) -> None:
        assert repr(outputs(2)) == "StepOutput([tensor(0.), tensor(1000.)])"
        assert repr(outputs(3, 2, 1)) == "StepOutput(3 × tensor of shape (2, 1), float32, cpu)"
        ragged = StepOutput([output(0, 2), output(1, 1)])
        assert "shape (2,), float32, cpu | tensor of shape (1,)" in repr(ragged)

    def test_what_a_tensor_has_is_answered_with_what_to_write(self) -> None:
        with pytest.raises(AttributeError, match=r"no attribute 'item'.*reduce_mean\(\)\.item"):
            outputs(2).item()
        with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
            outputs(2).nonsense  # noqa: B018
        assert not hasattr(outputs(2), "shape")

    def test_it_wants_tensors(self) -> None:
        with pytest.raises(ValueError, match="made from no outputs"):
            StepOutput([])
        with pytest.raises(TypeError, match=r"Output 1 of a StepOutput is a float.*list"):
            StepOutput([torch.ones(1), 1.0])  # type: ignore[list-item]


# ---- gathering -----------------------------------------------------------------------------------


class Pair(NamedTuple):
    loss: Any
    logits: Any


class Results(dict[str, Any]):
    pass


@dataclasses.dataclass
class Report:
    loss: Any
    note: Any = None


class Box:
    pass


def plain(gathered: Any) -> Any:
    """A `StepOutput` as a tuple of numbers."""
    return tuple(tensor.item() for tensor in gathered)


class TestGather:
    def test_a_tensor(self) -> None:
        tensors = [output(0), output(1)]
        found = gather_outputs(tensors)
        assert isinstance(found, StepOutput)
        assert all(one is other for one, other in zip(found, tensors, strict=True))

    def test_none_in_all_stays_none(self) -> None:
        assert gather_outputs([None, None]) is None
        assert gather_outputs([(None, 1), (None, 2)]) == (None, [1, 2])

    def test_other_values_make_a_plain_list(self) -> None:
        found = gather_outputs([1.5, 2.5])
        assert type(found) is list
        assert sum(found) == 4
        assert gather_outputs(["a", "b"]) == ["a", "b"]
        boxes = [Box(), Box()]
        assert gather_outputs(boxes) == boxes

    def test_one_microbatch(self) -> None:
        assert plain(gather_outputs([output(1)])) == (1000,)
        assert gather_outputs([1.5]) == [1.5]
        assert gather_outputs([None]) is None

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([output(0), None], [0, None]),
            ([None, 1], [None, 1]),
            ([1, output(1)], [1, 1000]),
            ([1, "a"], [1, "a"]),
        ],
    )
    def test_a_mixture_is_a_plain_list(self, values: list[Any], expected: list[Any]) -> None:
        found = gather_outputs(values)
        assert type(found) is list
        assert found == expected

    @pytest.mark.parametrize(
        "make",
        [
            lambda a, b: [a, b],
            lambda a, b: (a, b),
            lambda a, b: Pair(a, b),
            lambda a, b: {"b": a, "a": b},
            lambda a, b: Results(b=a, a=b),
            lambda a, b: collections.OrderedDict(b=a, a=b),
            lambda a, b: collections.defaultdict(list, a=a, b=b),
            lambda a, b: collections.UserDict(a=a, b=b),
            lambda a, b: Report(a, b),
            lambda a, b: {"x": [(a, Results(y=b))]},
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
            "dataclass",
            "nested",
        ],
    )
    def test_containers_are_kept(self, make: Any) -> None:
        found = gather_outputs([make(output(number), number) for number in range(3)])
        tensors, numbers = _leaves(found)
        assert plain(tensors) == (0, 1000, 2000)
        assert numbers == [0, 1, 2]
        assert type(found) is type(make(0, 0))
        assert found == make(tensors, numbers)

    def test_a_list_of_objects_makes_a_list_of_lists(self) -> None:
        boxes = [[Box(), Box()] for _ in range(3)]
        found = gather_outputs(boxes)
        assert found == [[each[0] for each in boxes], [each[1] for each in boxes]]

    def test_empty_containers(self) -> None:
        assert gather_outputs([[], []]) == []
        assert gather_outputs([({}, ()), ({}, ())]) == ({}, ())

    def test_sets_are_leaves_as_their_elements_do_not_correspond(self) -> None:
        assert gather_outputs([{1, 2}, {3}]) == [{1, 2}, {3}]
        assert gather_outputs([[frozenset("a")], [frozenset("b")]]) == [[{"a"}, {"b"}]]

    def test_attributes_are_those_of_the_first(self) -> None:
        values = []
        for number in range(2):
            results = Results(a=number)
            results.__dict__["note"] = f"note {number}"
            values.append(results)
        found = gather_outputs(values)
        assert found == {"a": [0, 1]}
        assert found.note == "note 0"

    def test_containers_that_differ_are_refused_with_the_microbatches(self) -> None:
        one, other = {"a": output(0), "b": [1]}, {"a": output(0), "b": [1, 2]}
        with pytest.raises(RuntimeError, match=r"^The step function returned different") as error:
            gather_outputs([one, one, other, one])
        for part in (
            "microbatches 0, 1, 3 returned Structure({'a': *, 'b': [*]})",
            "microbatch 2 returned Structure({'a': *, 'b': [*, *]})",
            "Microbatches 0 and 2 first differ at ['b']: list of 1 item, and list of 2 items",
            "with None where",
        ):
            assert part in str(error.value)

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ((1, 2), [1, 2]),
            ({"a": 1}, {"b": 1}),
            ({"a": 1}, None),
            (Pair(1, 2), (1, 2)),
            (output(0), (output(0),)),
        ],
    )
    def test_other_differences(self, one: Any, other: Any) -> None:
        for values in ([one, other], [other, one]):
            with pytest.raises(
                RuntimeError, match=r"microbatch 0 returned .*; microbatch 1 returned"
            ):
                gather_outputs(values)

    def test_nothing_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no results to gather"):
            gather_outputs([])

    def test_model_outputs_of_hugging_face(self) -> None:
        module = pytest.importorskip("transformers.modeling_outputs")
        values = [
            module.CausalLMOutput(loss=output(n), hidden_states=(output(n, 2), output(n, 2)))
            for n in range(2)
        ]
        found = gather_outputs(values)
        assert type(found) is module.CausalLMOutput
        assert found.loss is found["loss"] is found[0]
        assert found.loss.reduce_mean().item() == 500
        assert found.logits is None
        assert list(found.keys()) == ["loss", "hidden_states"]
        assert found.hidden_states[1].concat().tolist() == [0, 1, 1000, 1001]
        # With a single output too, which its own constructor would take for a list of items.
        alone = gather_outputs([module.BaseModelOutput(last_hidden_state=output(0, 2))] * 2)
        assert plain(alone.last_hidden_state[0]) == (0, 1)


def _leaves(gathered: Any) -> tuple[Any, Any]:
    """The two leaves of a structure made by `make` above."""
    if isinstance(gathered, Report):
        return gathered.loss, gathered.note
    if isinstance(gathered, dict) and "x" in gathered:
        return gathered["x"][0][0], gathered["x"][0][1]["y"]
    values = list(gathered.values() if hasattr(gathered, "values") else gathered)
    return values[0], values[1]


def test_detach_reaches_every_tensor_and_keeps_the_rest() -> None:
    x = torch.ones(2, requires_grad=True)
    box = Box()
    value = {"a": [x * 1, (x * 2,)], "b": Report(x * 3, {x * 4}), "c": box, "d": None}
    found = detach(value)
    tensors = [found["a"][0], found["a"][1][0], found["b"].loss, *found["b"].note]
    assert not any(tensor.requires_grad for tensor in tensors)
    assert [tensor[0].item() for tensor in tensors] == [1, 2, 3, 4]
    assert found["c"] is box
    assert found["d"] is None
    assert value["a"][0].requires_grad  # type: ignore[index]
    assert not detach(x * 1).requires_grad


@given(
    count=st.integers(1, 5),
    share=st.integers(1, 3),
    width=st.integers(0, 3),
    axis=st.integers(0, 1),
)
def test_split_gathered_and_concatenated_is_the_identity(
    count: int, share: int, width: int, axis: int
) -> None:
    def body(batch: dict[str, Tensor], factor: float) -> Any:
        return {"out": (batch["x"], None), "factor": factor}

    shape = (count * share, width) if axis == 0 else (width, count * share)
    x = torch.arange(count * share * width).reshape(shape)
    splitter = ArgumentSplitter(body, input_split_axes={"batch": axis})
    calls = splitter.split(({"x": x},), {"factor": 2.0}, count)
    gathered = gather_outputs([body(*args, **kwargs) for args, kwargs in calls])
    assert gathered["out"][1] is None
    assert gathered["factor"] == [2.0] * count
    outputs = gathered["out"][0]
    whole = outputs.concat() if axis == 0 else torch.cat(outputs.outputs, dim=1)
    assert torch.equal(whole, x)
