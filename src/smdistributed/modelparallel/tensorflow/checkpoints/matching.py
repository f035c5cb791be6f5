# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What in a file belongs to what is here: two object graphs, side by side.

Objects are matched as TensorFlow does it, from the root along the names of attributes. Other than
there, all that is here must be in the file, and of what is here the file may have no more.

Source: TensorFlow modelparallel specification, section 5.5; the strictness is our choice.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

__all__ = ["Matched", "keras_of", "match", "variables_of_optimizer"]

# A model that is compiled holds its optimizer: a file may have it where the model here has none.
_OPTIONAL_EDGES = frozenset(("optimizer",))
# Optimizers list what the model has under names, which tell more than positions.
_LISTS_OF_OTHERS = frozenset(("_trainable_variables",))
# Optimizers that wrap another one have it as one of these.
_WRAPPED = frozenset(("inner_optimizer", "base_optimizer", "_optimizer"))
# What `tf.train.Checkpoint.write` leaves out.
_OPTIONAL_KEYS = frozenset(("save_counter",))


@dataclasses.dataclass(frozen=True)
class Matched:
    """What two object graphs have in common.

    Attributes:
        key_of: by key here, the key in the file.
        missing: keys here that the file lacks, in order.
        surplus: keys of the file for which there is nothing here, in order.
    """

    key_of: dict[str, str]
    missing: list[str]
    surplus: list[str]

    def key_in_file(self, key: str) -> str | None:
        """The key in the file of a tensor here; None if there is none.

        Iterators keep their tensors under longer keys than the graph has: `ITERATOR_STATE`.
        """
        known = key if key in self.key_of else key.removesuffix("_STATE")
        found = self.key_of.get(known)
        return None if found is None else found + key.removeprefix(known)


def match(here: Any, file: Any) -> Matched:
    """Matches two graphs, each a `TrackableObjectGraph`."""
    pairs = _pairs(here, file)
    key_of: dict[str, str] = {}
    missing: list[str] = []
    for number, node in enumerate(here.nodes):
        other = file.nodes[pairs[number]] if number in pairs else None
        keys = (
            {} if other is None else {each.name: each.checkpoint_key for each in other.attributes}
        )
        for attribute in node.attributes:
            if attribute.name in keys:
                key_of[attribute.checkpoint_key] = keys[attribute.name]
            elif attribute.checkpoint_key.partition("/")[0] not in _OPTIONAL_KEYS:
                missing.append(attribute.checkpoint_key)
    taken = set(pairs.values())
    surplus = [
        attribute.checkpoint_key
        for number in sorted(_claimed(here, file, pairs))
        if number not in taken
        for attribute in file.nodes[number].attributes
    ]
    return Matched(key_of, missing, surplus)


def keras_of(graph: Any) -> str | None:
    """Which Keras has written a graph, as far as its objects tell."""
    names = {child.local_name for node in graph.nodes for child in node.children}
    if "_trainable_variables_indices" in names or "_kernel" in names:
        return "Keras 3"
    if "_index_dict" in names or "kernel" in names:
        return "tf-keras (TF_USE_LEGACY_KERAS=1)"
    return None


def variables_of_optimizer(file: Any, path: str) -> list[str] | None:
    """What an optimizer in a file has slots for.

    Args:
        file: a `TrackableObjectGraph`.
        path: of the optimizer, from the root.

    Returns:
        Keys of variables, in the file's order; None if the file does not tell.
    """
    number = 0
    for name in path.split("/"):
        children = dict(_children(file, number))
        if name not in children:
            return None
        number = children[name]
    while inner := [child for name, child in _children(file, number) if name in _WRAPPED]:
        number = inner[0]
    children = dict(_children(file, number))
    numbers: list[int] | None
    if "_trainable_variables" in children:  # Keras 3
        numbers = _in_order(file, children["_trainable_variables"])
    elif file.nodes[number].slot_variables:  # tf-keras' legacy optimizers
        slots = file.nodes[number].slot_variables
        numbers = list(dict.fromkeys(each.original_variable_node_id for each in slots))
    else:
        numbers = _by_names(file, children)
    if numbers is None:
        return None
    keys = [[each.checkpoint_key for each in file.nodes[number].attributes] for number in numbers]
    return [of[0] for of in keys] if all(len(of) == 1 for of in keys) else None


def _by_names(file: Any, children: dict[str, int]) -> list[int] | None:
    """Of an optimizer of tf-keras, whose slots have names that end in those of their variables."""
    lists = [_in_order(file, child) for name, child in children.items() if name != "_variables"]
    slots = max(lists, key=len, default=[])
    own = {number for child in children.values() for number in _in_order(file, child)}
    own |= set(children.values())
    by_name: dict[str, list[int]] = collections.defaultdict(list)
    for number, node in enumerate(file.nodes):
        if number not in own:
            for each in node.attributes:
                by_name[each.full_name].append(number)
    found = []
    for slot in slots:
        full_name = "".join(each.full_name for each in file.nodes[slot].attributes)
        parts = full_name.split("/")
        # "Adam/m/net/dense/kernel" is of "net/dense/kernel": the longest that there is.
        names = ["/".join(parts[i:]) for i in range(1, len(parts))]
        of_name = next((by_name[name] for name in names if name in by_name), [])
        if len(of_name) != 1:
            return None
        found += of_name
    return found or None


def _in_order(file: Any, number: int) -> list[int]:
    """Elements of a list."""
    elements = [(int(name), child) for name, child in _children(file, number) if name.isdigit()]
    return [child for _, child in sorted(elements)]


def _children(file: Any, number: int) -> Iterator[tuple[str, int]]:
    for child in file.nodes[number].children:
        yield child.local_name, child.node_id


def _pairs(here: Any, file: Any) -> dict[int, int]:
    """By number of a node here, the number of the one in the file; no two have the same."""
    pairs, taken = {0: 0}, {0}
    waiting, by_position = collections.deque([0]), collections.deque[int]()
    while waiting or by_position:
        number = (waiting or by_position).popleft()
        theirs = {each.local_name: each.node_id for each in file.nodes[pairs[number]].children}
        for child in here.nodes[number].children:
            other = theirs.get(child.local_name)
            if other is None or other in taken or child.node_id in pairs:
                continue
            pairs[child.node_id] = other
            taken.add(other)
            later = by_position if child.local_name in _LISTS_OF_OTHERS else waiting
            later.append(child.node_id)
    for number in list(pairs):  # slots of tf-keras' legacy optimizers
        slots = {
            (each.original_variable_node_id, each.slot_name): each.slot_variable_node_id
            for each in file.nodes[pairs[number]].slot_variables
        }
        for slot in here.nodes[number].slot_variables:
            original = pairs.get(slot.original_variable_node_id, -1)
            found = slots.get((original, slot.slot_name))
            if found is not None:
                pairs[slot.slot_variable_node_id] = found
    return pairs


def _claimed(here: Any, file: Any, pairs: dict[int, int]) -> set[int]:
    """Nodes of the file that are parts of what is here.

    Other objects beside them, of which the root here knows nothing, are not: a script may restore
    its model alone.
    """
    names_here = {
        theirs: {each.local_name for each in here.nodes[number].children}
        for number, theirs in pairs.items()
    }
    found = {0}
    waiting = [0]
    while waiting:
        number = waiting.pop()
        for name, child in _edges(file, number):
            is_known = name in names_here.get(number, ())
            is_left_out = number in names_here and (number == 0 or name in _OPTIONAL_EDGES)
            if child not in found and (is_known or not is_left_out):
                found.add(child)
                waiting.append(child)
    return found


def _edges(graph: Any, number: int) -> Iterator[tuple[str, int]]:
    yield from _children(graph, number)
    for slot in graph.nodes[number].slot_variables:
        yield f".OPTIMIZER_SLOT/{slot.slot_name}", slot.slot_variable_node_id
