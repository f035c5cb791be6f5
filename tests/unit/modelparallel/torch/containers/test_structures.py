# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Containers come back as they were: the same classes, keys, order and attributes."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import pickle
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from smdistributed.modelparallel.torch.containers import (
    LEAF,
    Structure,
    flatten,
    is_container,
    map_leaves,
)


class Pair(NamedTuple):
    first: Any
    second: Any


class PairWithNote(Pair):
    note: str  # instances have a __dict__


class MyList(list[Any]):
    pass


class MyTuple(tuple[Any, ...]):
    __slots__ = ()


class MySet(set[Any]):
    pass


class Strict(dict[str, Any]):
    """Wants arguments, and shouts when it is written to: neither may happen."""

    def __init__(self, required: int) -> None:
        super().__init__()
        self.required = required

    def __setitem__(self, key: str, value: Any) -> None:
        raise AssertionError("putting together must not call this")


class Attributed(dict[str, Any]):
    """Shows its items as attributes too, as ModelOutput and EasyDict do."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.__dict__[key] = value


class Slotted(dict[str, Any]):
    __slots__ = ("__private", "extra")

    def fill(self, extra: Any, private: Any) -> Slotted:
        self.extra = extra
        self.__private = private
        return self

    def read(self) -> tuple[Any, Any]:
        return self.extra, self.__private


class MyOrdered(collections.OrderedDict[str, Any]):
    pass


class MyDefault(collections.defaultdict[str, Any]):
    pass


class Encoding(collections.UserDict[str, Any]):
    """As BatchEncoding: unknown attributes are looked up among the items."""

    def __init__(self, data: dict[str, Any], encodings: Any = None) -> None:
        super().__init__(data)
        self._encodings = encodings

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class Foreign(Mapping[str, Any]):
    def __init__(self, items: dict[str, Any]) -> None:
        self._hidden = list(items.items())

    def __getitem__(self, key: str) -> Any:
        return dict(self._hidden)[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self._hidden)

    def __len__(self) -> int:
        return len(self._hidden)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Foreign) and self._hidden == other._hidden


class Stubborn(Foreign):
    def __init__(self) -> None:
        super().__init__({"a": 1})


class Elsewhere(dict[str, Any]):
    """A dict by name only: its items are in an attribute."""

    def __init__(self, items: dict[str, Any]) -> None:
        super().__init__()
        self.items_elsewhere = dict(items)

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_elsewhere)

    def __getitem__(self, key: str) -> Any:
        return self.items_elsewhere[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Elsewhere) and self.items_elsewhere == other.items_elsewhere


@dataclasses.dataclass
class Batch:
    ids: Any
    mask: Any = None
    late: Any = dataclasses.field(init=False, compare=False, repr=False)

    @functools.cached_property
    def length(self) -> int:
        return len(self.ids)

    def __post_init__(self) -> None:
        self.seen = True


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    left: Any
    right: Any


@dataclasses.dataclass
class Checked:
    first: Any
    second: Any

    def __post_init__(self) -> None:
        if isinstance(self.first, str):
            raise AssertionError("putting together must not call this")


@dataclasses.dataclass
class Module(nn.Module):
    size: int

    def __hash__(self) -> int:
        return id(self)


@dataclasses.dataclass
class Sized:
    size: int


class Choice(Sized, enum.Enum):
    A = 1


def _default() -> collections.defaultdict[str, Any]:
    return collections.defaultdict(list, a=1, b=[2])


def _strict() -> Strict:
    made = Strict(1)
    dict.__setitem__(made, "a", 2)
    return made


def _with_attribute(obj: Any, **attributes: Any) -> Any:
    obj.__dict__.update(attributes)
    return obj


CONTAINERS = {
    "tuple": (1, None, "x"),
    "empty tuple": (),
    "list": [1, 2.0],
    "empty list": [],
    "dict": {"b": 1, "a": 2},
    "empty dict": {},
    "keys of any type": {1: "a", (2, "x"): "b", None: "c"},
    "set": {1, 2, 3},
    "frozenset": frozenset("ab"),
    "namedtuple": Pair(1, 2),
    "namedtuple with an attribute": _with_attribute(PairWithNote(1, 2), note="n"),
    "list subclass": _with_attribute(MyList([1, 2]), note={"deep": [3]}),
    "tuple subclass": MyTuple((1, 2)),
    "set subclass": _with_attribute(MySet((1, 2)), note=3),
    "deque": collections.deque([1, 2], maxlen=5),
    "OrderedDict": collections.OrderedDict([("b", 1), ("a", [2])]),
    "OrderedDict subclass": _with_attribute(MyOrdered(a=1), note=2),
    "defaultdict": _default(),
    "defaultdict subclass": _with_attribute(MyDefault(list, a=1), note=2),
    "Counter": collections.Counter("abca"),
    "dict subclass": _strict(),
    "slots": Slotted(a=1).fill([1], [2]),
    "UserDict": collections.UserDict(a=1, b=(2,)),
    "UserDict subclass": Encoding({"a": 1}, encodings=["e"]),
    "Mapping": Foreign({"b": 1, "a": [2]}),
    "dict with items elsewhere": Elsewhere({"a": 1}),
    "dataclass": Batch([1, 2], {"m": None}),
    "frozen dataclass with slots": Frozen(1, (2,)),
    "nested": [({"a": [Pair(1, {2: (3,)})]}, [[], ()]), None, {"b": Batch(1, Frozen(2, 3))}],
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_what_was_taken_apart_is_put_together_again(name: str) -> None:
    obj = CONTAINERS[name]
    leaves, structure = flatten(obj)
    again = structure.unflatten(leaves)
    assert type(again) is type(obj)
    assert again == obj
    assert again is not obj or obj == ()
    assert getattr(again, "__dict__", None) == getattr(obj, "__dict__", None)
    assert len(leaves) == structure.num_leaves
    assert not structure.is_leaf
    assert is_container(type(obj))
    assert not any(is_container(type(leaf)) for leaf in leaves)


@pytest.mark.parametrize("name", CONTAINERS)
def test_structures_are_compared_hashed_and_pickled(name: str) -> None:
    leaves, structure = flatten(CONTAINERS[name])
    same = flatten(structure.unflatten([object() for _ in leaves]))[1]
    if "set" not in name:  # its elements were merged, or are in another order
        assert same == structure
        assert hash(same) == hash(structure)
    assert structure != flatten([CONTAINERS[name]])[1]
    assert structure != "something else"
    sent = pickle.loads(pickle.dumps(structure))
    assert sent == structure
    assert hash(sent) == hash(structure)
    assert (sent.num_leaves, sent.attribute_leaves) == (len(leaves), structure.attribute_leaves)
    assert sent.unflatten(leaves) == CONTAINERS[name]


# Elements of a set have no address, private slots another name.
_ADDRESSED = [name for name in CONTAINERS if "set" not in name and name != "slots"]


@pytest.mark.parametrize("name", _ADDRESSED)
def test_each_leaf_has_a_path_that_leads_to_it(name: str) -> None:
    obj = CONTAINERS[name]
    leaves, structure = flatten(obj)
    reached = [eval(path, {"obj": obj}) for path in structure.paths("obj")]
    assert all(one is other for one, other in zip(reached, leaves, strict=True))


def test_private_slots_are_carried_under_their_names() -> None:
    again = map_leaves(lambda leaf: -leaf, Slotted(a=1).fill(2, 3))
    assert again == {"a": -1}
    assert again.read() == (-2, -3)


@pytest.mark.parametrize(
    "leaf",
    [
        None,
        1,
        "text",
        b"bytes",
        torch.ones(2),
        nn.Parameter(torch.ones(2)),
        torch.Size((2, 3)),
        torch.float32,
        object(),
        Pair,
        Batch,
        Choice.A,
        Module,
        nn.ModuleList([nn.Linear(1, 1)]),
        ValueError("x"),
        time.gmtime(0),
        range(3),
        threading.Lock(),
    ],
    ids=lambda leaf: type(leaf).__name__,
)
def test_everything_else_is_a_leaf(leaf: object) -> None:
    leaves, structure = flatten(leaf)
    assert leaves[0] is leaf
    assert len(leaves) == 1
    assert structure == LEAF
    assert structure.is_leaf
    assert structure.unflatten([3]) == 3
    assert map_leaves(lambda it: (it,), leaf)[0] is leaf
    assert not is_container(type(leaf))


def test_a_module_is_a_leaf_even_if_it_is_a_dataclass() -> None:
    module = Module.__new__(Module)
    nn.Module.__init__(module)
    assert flatten([module])[0] == [module]


def test_leaves_come_depth_first_in_the_order_of_the_containers() -> None:
    leaves, structure = flatten({"z": [1, (2, 3)], "a": Pair({"k": 4}, 5)})
    assert leaves == [1, 2, 3, 4, 5]
    assert structure.paths("x") == [
        "x['z'][0]",
        "x['z'][1][0]",
        "x['z'][1][1]",
        "x['a'].first['k']",
        "x['a'].second",
    ]


def test_return_types_of_torch_are_containers() -> None:
    found = torch.max(torch.arange(6).reshape(2, 3), dim=1)
    doubled = map_leaves(lambda tensor: tensor * 2, found)
    assert type(doubled) is type(found)
    assert doubled.values.tolist() == [4, 10]
    sent = pickle.loads(pickle.dumps(flatten(found)[1]))
    assert type(sent.unflatten(list(found))) is type(found)


def test_attributes_that_mirror_items_follow_them() -> None:
    obj = Attributed()
    obj["loss"], obj["logits"] = torch.ones(1), torch.zeros(1)
    obj.__dict__["note"] = "beside"
    leaves, structure = flatten(obj)
    assert len(leaves) == 3
    assert structure.attribute_leaves == (2,)
    again = structure.unflatten([10, 20, "other"])
    assert dict(again) == {"loss": 10, "logits": 20}
    assert vars(again) == {"loss": 10, "logits": 20, "note": "other"}


def test_leaves_in_attributes_are_told_apart_wherever_they_are() -> None:
    inner = _with_attribute(MyList([1]), b=[2, 3], a=4)
    leaves, structure = flatten([0, _with_attribute(MyList([inner, 5]), note=(6, 7)), 8])
    assert leaves == [0, 1, 4, 2, 3, 5, 6, 7, 8]
    assert [leaves[index] for index in structure.attribute_leaves] == [4, 2, 3, 6, 7]


def test_the_order_in_which_attributes_came_to_be_does_not_matter() -> None:
    one = _with_attribute(MyList(), a=1, b=2)
    other = _with_attribute(MyList(), b=2, a=1)
    assert flatten(one) == flatten(other)


def test_defaultdicts_with_different_factories_have_the_same_structure() -> None:
    one, other = (collections.defaultdict(lambda: 0, a=1) for _ in range(2))
    assert flatten(one)[1] == flatten(other)[1]
    again = map_leaves(lambda leaf: leaf, one)
    assert again["missing"] == 0


def test_dataclasses_are_not_initialised_again() -> None:
    again = map_leaves(str, Checked(1, 2))
    assert (again.first, again.second) == ("1", "2")


def test_cached_properties_are_computed_again() -> None:
    batch = Batch([1, 2, 3])
    assert batch.length == 3
    leaves, structure = flatten(batch)
    again = structure.unflatten(leaves)
    assert "length" not in vars(again)
    assert again.length == 3
    assert again.seen


def test_a_field_without_a_value_stays_without_one() -> None:
    again = map_leaves(lambda leaf: leaf, Batch(1))
    assert not hasattr(again, "late")
    full = Batch(1)
    full.late = 2
    assert map_leaves(lambda leaf: leaf, full).late == 2
    assert flatten(full)[1] != flatten(Batch(1))[1]


def test_what_is_in_it_twice_comes_out_twice() -> None:
    shared = [torch.ones(1)]
    leaves, structure = flatten((shared, shared))
    assert len(leaves) == 2
    assert leaves[0] is leaves[1]
    first, second = structure.unflatten(leaves)
    assert first is not second


def test_containers_can_be_kept_whole() -> None:
    kept = {1, 2}
    leaves, structure = flatten([kept, (3, kept)], is_leaf=lambda node: isinstance(node, set))
    assert leaves == [kept, 3, kept]
    assert structure == flatten([0, (0, 0)])[1]
    leaves, structure = flatten(kept, is_leaf=lambda node: True)
    assert leaves == [kept]
    assert structure == LEAF
    assert flatten([kept], is_leaf=lambda node: isinstance(node, set))[1] == flatten([0])[1]
    assert map_leaves(len, [kept, {3}], is_leaf=lambda node: isinstance(node, set)) == [2, 1]


def test_is_leaf_is_asked_for_containers_only() -> None:
    asked: list[Any] = []
    flatten([1, torch.ones(1), ("x",)], is_leaf=lambda node: bool(asked.append(node)))
    assert asked == [[1, torch.ones(1), ("x",)], ("x",)]


@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_wrong_number_of_leaves_is_refused(number: int) -> None:
    structure = flatten([1, (2, 3)])[1]
    with pytest.raises(ValueError, match=rf"{number} leaves .* structure of 3.*one by one"):
        structure.unflatten(range(number))


def test_a_mapping_that_takes_no_dict_is_refused_by_name() -> None:
    leaves, structure = flatten([Stubborn()])
    with pytest.raises(TypeError, match=r"Stubborn .*UserDict"):
        structure.unflatten(leaves)


class TestEndless:
    def test_a_list_in_itself(self) -> None:
        obj: list[Any] = [1]
        obj.append({"k": (0, obj)})
        with pytest.raises(
            ValueError, match=r"list contains itself \(reached at \[1\]\['k'\]\[1\]"
        ):
            flatten(obj)

    def test_an_attribute_that_leads_back(self) -> None:
        child = MyList([1])
        parent = {"child": child}
        child.__dict__["parent"] = parent
        with pytest.raises(ValueError, match=r"dict contains itself .*\['child'\]\.parent"):
            flatten([parent])

    def test_a_dataclass_in_itself(self) -> None:
        batch = Batch(1)
        batch.mask = [batch]
        with pytest.raises(ValueError, match=r"Batch contains itself .*\.mask\[0\]"):
            map_leaves(lambda leaf: leaf, batch)

    def test_what_is_only_shared_is_no_circle(self) -> None:
        deep: list[Any] = []
        for _ in range(5000):
            deep = [deep, 1]
        with pytest.raises(ValueError, match="nested 5001 deep"):
            flatten(deep)

    def test_two_hundred_levels_are_none(self) -> None:
        deep: list[Any] = [1]
        for _ in range(200):
            deep = [deep]
        leaves, structure = flatten(deep)
        assert pickle.loads(pickle.dumps(structure)).unflatten(leaves) == deep


class TestDifferences:
    @pytest.mark.parametrize(
        ("one", "other", "words"),
        [
            ([1], (1,), "list of 1 item, and tuple of 1 item"),
            ([1], 1, "list of 1 item, and no container"),
            ([1, [2]], [1, 2], "at [1]: list of 1 item, and no container"),
            ([1, [2]], [1, [2, 3]], "at [1]: list of 1 item, and list of 2 items"),
            ({"a": 1}, {"b": 1}, "dict with keys 'a', and dict with keys 'b'"),
            (
                [{"a": 1, "b": 2}],
                [{"b": 2, "a": 1}],
                (
                    "at [0]: dict with keys 'a', 'b', "
                    "and dict with keys 'b', 'a' (the same in another order)"
                ),
            ),
            ({"a": (1, 2)}, {"a": (1,)}, "at ['a']: tuple of 2 items, and tuple of 1 item"),
            (
                Batch(1, (2,)),
                Batch(1, [2]),
                "at .mask: tuple of 1 item, and list of 1 item",
            ),
        ],
    )
    def test_the_first_one_is_named(self, one: Any, other: Any, words: str) -> None:
        assert flatten(one)[1].difference(flatten(other)[1]) == words

    def test_equal_ones_have_none(self) -> None:
        assert flatten([1, {"a": 2}])[1].difference(flatten([3, {"a": 4}])[1]) is None

    def test_attributes(self) -> None:
        one, other = MyList([1]), _with_attribute(MyList([1]), note=1)
        words = flatten(one)[1].difference(flatten(other)[1])
        assert words is not None
        assert words.endswith("MyList with other attributes")

    def test_it_is_readable(self) -> None:
        obj = {"a": [1, (2,)], "b": Pair(3, 4)}
        assert repr(flatten(obj)[1]) == "Structure({'a': [*, (*)], 'b': Pair(*, *)})"
        assert repr(LEAF) == "Structure(*)"
        assert repr(flatten(_with_attribute(MyList([1]), n=2))[1]) == "Structure(MyList(*, .n=*))"


class TestHuggingFace:
    def test_model_output(self) -> None:
        outputs = pytest.importorskip("transformers.modeling_outputs")
        loss, hidden = torch.ones(()), (torch.ones(2), torch.zeros(2))
        obj = outputs.CausalLMOutput(loss=loss, hidden_states=hidden)
        leaves, structure = flatten(obj)
        again = structure.unflatten(leaves)
        assert type(again) is type(obj)
        assert list(again.keys()) == ["loss", "hidden_states"]
        assert again.loss is again["loss"] is loss
        assert again.hidden_states == again["hidden_states"] == hidden
        assert again.logits is None
        assert again.to_tuple() == (loss, hidden)
        assert pickle.loads(pickle.dumps(structure)) == structure
        # One leaf that is itself iterable must not be mistaken for the items.
        only = map_leaves(lambda leaf: [("a", leaf)], outputs.CausalLMOutput(loss=loss))
        assert list(only.keys()) == ["loss"]

    def test_batch_encoding(self) -> None:
        base = pytest.importorskip("transformers.tokenization_utils_base")
        obj = base.BatchEncoding({"input_ids": torch.ones(2), "n": [1]}, n_sequences=1)
        leaves, structure = flatten(obj)
        again = structure.unflatten(leaves)
        assert type(again) is base.BatchEncoding
        assert again.input_ids is obj.input_ids
        assert again.data == obj.data
        assert again.n_sequences == 1
        assert structure.paths("x")[:2] == ["x['input_ids']", "x['n'][0]"]
        assert structure.attribute_leaves == (2, 3)


_KEYS = st.one_of(st.text(max_size=3), st.integers(), st.none())


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.lists(inner, max_size=3).map(MyList),
        st.lists(inner, max_size=3).map(collections.deque),
        st.dictionaries(_KEYS, inner, max_size=4),
        st.dictionaries(_KEYS, inner, max_size=3).map(collections.OrderedDict),
        st.dictionaries(_KEYS, inner, max_size=3).map(collections.UserDict),
        st.builds(Pair, inner, inner),
        st.builds(Batch, inner, inner),
        st.builds(Frozen, inner, inner),
    )


_TREES = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=3)), _containers, max_leaves=25
)


@given(_TREES)
def test_flatten_then_unflatten_is_the_identity(tree: Any) -> None:
    leaves, structure = flatten(tree)
    again = structure.unflatten(leaves)
    assert type(again) is type(tree)
    assert again == tree
    assert flatten(again) == (leaves, structure)
    assert len(structure.paths()) == len(leaves)


@given(_TREES, _TREES)
def test_structures_are_equal_exactly_if_they_put_leaves_together_alike(
    one: Any, other: Any
) -> None:
    mine, yours = flatten(one)[1], flatten(other)[1]
    if mine == yours:
        assert hash(mine) == hash(yours)
        numbered = list(range(mine.num_leaves))
        assert mine.unflatten(numbered) == yours.unflatten(numbered)
        assert mine.difference(yours) is None
    else:
        assert mine.difference(yours)


@given(_TREES)
def test_mapping_keeps_the_structure(tree: Any) -> None:
    mapped = map_leaves(repr, tree)
    assert [repr(leaf) for leaf in flatten(tree)[0]] == flatten(mapped)[0]


def test_structure_can_be_made_in_another_process() -> None:
    structure = flatten({"a": (1, 2)})[1]
    assert isinstance(pickle.loads(pickle.dumps(structure, protocol=0)), Structure)
