# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What belongs into a checkpoint: on this rank, and as a whole.

TensorFlow walks through the objects that a `tf.train.Checkpoint` holds. The whole is the same walk
where each optimizer is exchanged for one that has slots for all variables, and no values. What each
variable on it is (`Item`) means the same on every rank, so whoever has its value can be asked.

Source: TensorFlow modelparallel specification, section 5.5.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import save_util
from tensorflow.python.checkpoint.graph_view import ObjectGraphView
from tensorflow.python.trackable import trackable_utils
from tensorflow.python.trackable.base import TrackableReference
from tensorflow.python.trackable.python_state import PythonState
from tensorflow.python.training.saving.saveable_object import SaveSpec

from smdistributed.modelparallel.tensorflow.checkpoints.optimizers import (
    Slot,
    built_with,
    is_optimizer,
    named_slots,
    whole_optimizer,
)
from smdistributed.modelparallel.tensorflow.checkpoints.together import CheckpointError
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.variables import is_elsewhere, raw

__all__ = [
    "Contents",
    "Entry",
    "Item",
    "OfModel",
    "OfOptimizer",
    "Other",
    "Survey",
    "Whole",
    "tensor_in",
]


@dataclasses.dataclass(frozen=True)
class OfModel:
    """A variable of the model.

    Attributes:
        place: in the list of all of them.
    """

    place: int


@dataclasses.dataclass(frozen=True)
class OfOptimizer:
    """A variable of an optimizer.

    Attributes:
        path: of the optimizer, from the root.
        slot: which one.
    """

    path: str
    slot: Slot


@dataclasses.dataclass(frozen=True)
class Other:
    """What each rank has for itself: counters, metrics, iterators.

    Attributes:
        path: of the object, from the root.
    """

    path: str


Item = OfModel | OfOptimizer | Other


@dataclasses.dataclass(frozen=True)
class Entry:
    """An object that has values.

    Attributes:
        item: which one; the same on all ranks.
        trackable: the object, or what TensorFlow restores it through.
        tensors: by key in a checkpoint; see `tensor_in`.
    """

    item: Item
    trackable: Any
    tensors: Mapping[str, Any]

    @property
    def variable(self) -> Any:
        """The `tf.Variable`, if the object is one of either Keras or of TensorFlow; or None."""
        found = raw(self.trackable)
        return found if isinstance(found, tf.Variable) else None

    def restore(self, values: Mapping[str, Any]) -> None:
        """Gives the object values, eager tensors by name of the attribute."""
        with tf.init_scope():
            if isinstance(self.trackable, PythonState):
                (value,) = values.values()
                self.trackable.deserialize(value.numpy())
            elif self.variable is not None:
                (value,) = values.values()
                self.variable.assign(value, read_value=False)
            else:
                self.trackable._restore_from_tensors(dict(values))


@dataclasses.dataclass(frozen=True)
class Whole:
    """What a run in one process would write.

    Attributes:
        graph: the objects, a `TrackableObjectGraph`.
        entries: those that have values.
    """

    graph: Any
    entries: Sequence[Entry]


# Of each optimizer, by path: places of the variables that it has; None if it has not begun.
Survey = Mapping[str, "list[int] | None"]


class Contents:
    """What a checkpoint object holds on this rank.

    Args:
        checkpoint: a `tf.train.Checkpoint`, or what `view` gives a view of.
    """

    def __init__(self, checkpoint: Any) -> None:
        self._plain = checkpoint._saver._graph_view
        objects, paths = self._plain.breadth_first_traversal()
        self.optimizers = {
            trackable_utils.object_path_to_string(paths[each]): each
            for each in objects
            if is_optimizer(each)
        }
        inner = {id(each) for optimizer in self.optimizers.values() for each in _inside(optimizer)}
        self.optimizers = {
            path: each for path, each in self.optimizers.items() if id(each) not in inner
        }
        self.model = state.model
        self.variables: list[Any] = [] if self.model is None else self.model.smp_all_variables
        self._place_of = {id(raw(each)): place for place, each in enumerate(self.variables)}
        self._is_cut = any(is_elsewhere(each) for each in self.variables)
        self.has_model = self.model is not None and any(each is self.model for each in objects)

    @property
    def is_decided(self) -> bool:
        """Whether the variables of the model have owners and values, if there is a model."""
        if self.model is None:
            return True
        records = self.model._smp_book.records
        return bool(records) and all(each.is_decided for each in records)

    def survey(self) -> dict[str, list[int] | None]:
        """What the optimizers have here.

        Raises:
            CheckpointError: it cannot be told.
        """
        if not self._spans_ranks():
            return dict.fromkeys(self.optimizers)
        return {path: built_with(each, self.variables) for path, each in self.optimizers.items()}

    def trainable_places(self) -> list[int]:
        """Places of all variables that are trained."""
        if self.model is None:
            return []
        trained = {id(each) for each in self.model._smp_all_trainable()}
        return [i for i, each in enumerate(self.variables) if id(raw(each)) in trained]

    def whole(self, survey: Survey) -> Whole:
        """What is to be written.

        Args:
            survey: of all ranks of a pipeline together. Optimizers that have not begun are taken as
                they are here.

        Raises:
            CheckpointError: an optimizer cannot be completed.
        """
        instead: dict[int, Any] = {}
        slots: dict[int, OfOptimizer] = {}
        for path, places in survey.items():
            optimizer = self.optimizers[path]
            if places is not None:
                whole = whole_optimizer(optimizer, self.variables, places)
                _require_children(optimizer, whole)
                instead[id(optimizer)] = optimizer = whole
            for each, slot in named_slots(optimizer, self.variables, places or []):
                slots[id(each)] = OfOptimizer(path, slot)
        return self._serialized(_View(self._plain, instead), slots)

    def local(self) -> Whole:
        """What is here, optimizers as they are."""
        slots: dict[int, OfOptimizer] = {}
        for path, optimizer in self.optimizers.items():
            places = built_with(optimizer, self.variables) if self._spans_ranks() else None
            for each, slot in named_slots(optimizer, self.variables, places or []):
                slots[id(each)] = OfOptimizer(path, slot)
        return self._serialized(self._plain, slots)

    @functools.cached_property
    def _local_slots(self) -> dict[OfOptimizer, Any]:
        found: dict[OfOptimizer, Any] = {}
        for path, optimizer in self.optimizers.items():
            places = built_with(optimizer, self.variables)
            for each, slot in named_slots(optimizer, self.variables, places or []):
                found[OfOptimizer(path, slot)] = each
        return found

    def variable(self, item: Item) -> Any:
        """The `tf.Variable` of an item of the model or an optimizer; None if it is not here."""
        if isinstance(item, OfModel):
            found = raw(self.variables[item.place])
            return None if is_elsewhere(found) else found
        if isinstance(item, OfOptimizer):
            return self._local_slots.get(item)
        return None

    def require_all_weights(self, whole: Whole) -> None:
        """Fails if the model has weights that the object graph does not reach.

        States of random generators, which Keras 3 does not reach anywhere, are no weights.

        Raises:
            CheckpointError: it has; names the first.
        """
        if not self.has_model:
            return
        reached = {each.item.place for each in whole.entries if isinstance(each.item, OfModel)}
        with self.model._smp_private.showing_all():
            weights = {id(raw(each)) for each in self.model.weights}
        lost = [
            str(getattr(each, "path", each.name))
            for place, each in enumerate(self.variables)
            if place not in reached and id(raw(each)) in weights
        ]
        if lost:
            raise CheckpointError(
                f"tf.train.Checkpoint does not reach {len(lost)} variables of the model, {lost[0]}"
                " first, so a checkpoint would lack them; expected all of them. Keras 3 has names"
                " there for layers that are attributes, and none for those in lists and"
                " dictionaries. Give each of these an attribute, too: for i, layer in"
                ' enumerate(self.blocks): setattr(self, f"block{i}", layer). Or call'
                ' model.save_weights("name.weights.h5").'
            )

    def _spans_ranks(self) -> bool:
        if self._is_cut or state.job.config.partitions > 1:
            return True
        together = self.model is not None and self.model._smp_private.is_of_all_ranks
        return together and state.job.size > 1

    def _serialized(self, view: Any, slots: Mapping[int, OfOptimizer]) -> Whole:
        tensors, _, savers, graph = save_util.serialize_graph_view(view)
        if savers:
            raise CheckpointError(
                f"the checkpoint holds objects with savers of their own ({', '.join(savers)});"
                " expected variables, and objects that TensorFlow saves by itself. Leave them out"
                " of the tf.train.Checkpoint."
            )
        entries = []
        for trackable, of in tensors.items():
            if not of:
                continue
            variable = raw(trackable)
            item: Item
            if id(variable) in self._place_of:
                item = OfModel(self._place_of[id(variable)])
            elif id(variable) in slots:
                item = slots[id(variable)]
            else:
                item = Other(next(iter(of)).rpartition("/.ATTRIBUTES/")[0])
            entries.append(Entry(item, trackable, of))
        return Whole(graph, entries)


class _View(ObjectGraphView):  # type: ignore[misc] # TensorFlow has no types
    """A view of objects where some are exchanged."""

    def __init__(self, plain: Any, instead: Mapping[int, Any]) -> None:
        root = plain.root
        super().__init__(instead.get(id(root), root), plain._attached_dependencies)
        self._kept = instead.get(id(root), root)  # a view holds its root weakly
        self._instead = instead

    def list_children(self, obj: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return [
            TrackableReference(name, self._instead.get(id(child), child))
            for name, child in super().list_children(obj, *args, **kwargs)
        ]


def tensor_in(value: Any) -> dict[str, Any]:
    """Eager tensors by slice, of what TensorFlow has for a key of a checkpoint."""
    if isinstance(value, dict):
        return {piece: tensor for piece, each in value.items() for tensor in [_evaluated(each)]}
    return {"": _evaluated(value)}


def _evaluated(value: Any) -> Any:
    return value.tensor if isinstance(value, SaveSpec) else tf.convert_to_tensor(value)


def _inside(optimizer: Any) -> Iterator[Any]:
    """Optimizers that another one wraps."""
    for each in vars(optimizer).values():
        if is_optimizer(each):
            yield each
            yield from _inside(each)


def _require_children(optimizer: Any, whole: Any) -> None:
    """A script may have given its optimizer variables of its own."""
    of_whole = whole._trackable_children()
    missing = [
        name
        for name, child in optimizer._trackable_children().items()
        if name not in of_whole and _has_values(child)
    ]
    if missing:
        name = type(optimizer).__name__
        raise CheckpointError(
            f"the optimizer {name} has {', '.join(sorted(missing))}, which {name}.from_config("
            "optimizer.get_config()) does not make; expected an optimizer that is made by its"
            " configuration. Keep the others in the tf.train.Checkpoint beside it."
        )


def _has_values(child: Any) -> bool:
    """Not so what Keras 3 remembers of `weight_decay`, in a dictionary without variables."""
    tensors, *_ = save_util.serialize_graph_view(ObjectGraphView(child))
    return any(tensors.values())
