# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Reading a checkpoint: nothing is assigned before all ranks have found all that they need.

Who sees the files reads its own part. Who does not, as a host without a shared directory, is sent
what it needs by the first rank that does.

Source: TensorFlow modelparallel specification, section 5.5.
"""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.tensorflow.checkpoints.contents import (
    Contents,
    Entry,
    Item,
    OfModel,
    OfOptimizer,
    Other,
    Survey,
    Whole,
)
from smdistributed.modelparallel.tensorflow.checkpoints.files import Reader, digest_of
from smdistributed.modelparallel.tensorflow.checkpoints.matching import (
    Matched,
    keras_of,
    match,
    variables_of_optimizer,
)
from smdistributed.modelparallel.tensorflow.checkpoints.optimizers import build
from smdistributed.modelparallel.tensorflow.checkpoints.saving import merge_surveys, require_alike
from smdistributed.modelparallel.tensorflow.checkpoints.together import (
    CheckpointError,
    known_to_all,
    together,
)
from smdistributed.modelparallel.tensorflow.checkpoints.values import receive_value, send_value
from smdistributed.modelparallel.tensorflow.job.communication import allgather_in
from smdistributed.modelparallel.tensorflow.job.state import state

__all__ = ["Part", "restore"]


class Part:
    """Which of the items of a checkpoint are restored."""

    ALL = (OfModel, OfOptimizer, Other)
    BEFORE_THE_DECISION = (OfOptimizer, Other)
    AT_THE_DECISION = (OfModel, OfOptimizer)


@dataclasses.dataclass(frozen=True)
class _Row:
    """A thing that is restored.

    Attributes:
        item: which one.
        keys: in the file, by name of the attribute.
    """

    item: Item
    keys: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class _Found:
    """What the rank that compares the graphs tells the others.

    Attributes:
        rows: what is restored.
        begun: places of the variables that optimizers have in the file and have not begun with
            here, by path.
    """

    rows: Sequence[_Row]
    begun: Survey


def restore(
    checkpoint: Any,
    prefix: str,
    part: tuple[type, ...],
    optional: tuple[type, ...] = (),
) -> None:
    """Gives objects the values of a checkpoint; a collective of the world.

    Args:
        checkpoint: a `tf.train.Checkpoint`.
        prefix: of the files; the same on all ranks. One of them at least must see them.
        part: which items.
        optional: kinds of items that the files may lack; they stay as they are.

    Raises:
        FileNotFoundError: no rank sees the files.
        CheckpointError: the files have something else, or are damaged. Nothing was changed.
    """
    contents = together(lambda: Contents(checkpoint))
    digests: list[str | None] = allgather_in(GroupKind.WORLD, digest_of(prefix))
    source = next((rank for rank, each in enumerate(digests) if each is not None), None)
    if source is None:
        raise known_to_all(
            FileNotFoundError(
                errno.ENOENT,
                f"{prefix}.index is on no rank; expected the files of a checkpoint. Restore one of"
                " manager.checkpoints, or begin anew without restore()",
            )
        )
    blind = {rank for rank, each in enumerate(digests) if each != digests[source]}
    _Restoring(contents, prefix, part, optional, source, blind).run()


class _Restoring:
    def __init__(
        self,
        contents: Contents,
        prefix: str,
        part: tuple[type, ...],
        optional: tuple[type, ...],
        source: int,
        blind: set[int],
    ) -> None:
        self._contents = contents
        self._prefix = prefix
        self._part = part
        self._optional = optional
        self._rank = state.job.rank
        self._source = source
        self._blind = blind
        self._reader: Reader | None = None

    def run(self) -> None:
        surveys = allgather_in(GroupKind.MP, together(self._contents.survey))
        together(lambda: require_alike(surveys))
        found: _Found = self._from_source(lambda: self._compare(merge_surveys(surveys)))
        together(lambda: self._begin(found.begun))
        targets: list[Entry | None] = together(lambda: self._targets(found.rows))
        mine = {number for number, each in enumerate(targets) if each is not None}
        needs: list[set[int]] = allgather_in(GroupKind.WORLD, mine)
        receivers = {
            number: [rank for rank in sorted(self._blind) if number in needs[rank]]
            for number in range(len(targets))
        }
        together(lambda: self._try_to_read(found.rows, mine, receivers))
        together(lambda: self._assign(found.rows, targets, receivers))

    def _from_source(self, do: Callable[[], Any]) -> Any:
        result = together(lambda: do() if self._rank == self._source else None)
        return allgather_in(GroupKind.WORLD, result)[self._source]

    # ---- what is restored ------------------------------------------------------------------------

    def _compare(self, survey: Survey) -> _Found:
        reader = self._open()
        whole = self._contents.whole(survey)
        if self._is_strict:
            self._contents.require_all_weights(whole)
        matched = match(whole.graph, reader.graph)
        begun: dict[str, list[int] | None] = {}
        idle = [path for path, places in survey.items() if places is None]
        if self._is_strict and matched.surplus and idle:
            begun = {path: self._places_in_file(path, whole, matched, reader) for path in idle}
            with_slots = self._contents.whole({**survey, **begun})
            again = match(with_slots.graph, reader.graph)
            if len(again.surplus) < len(matched.surplus):
                whole, matched = with_slots, again
            else:
                begun = {}
        if self._is_strict:
            optional = {
                key
                for entry in whole.entries
                if isinstance(entry.item, self._optional)
                for key in entry.tensors
            }
            missing = [key for key in matched.missing if key not in optional]
            self._require_all(dataclasses.replace(matched, missing=missing), reader)
        rows = [row for entry in whole.entries for row in self._rows(entry, matched, reader)]
        return _Found(rows, begun)

    def _places_in_file(
        self, path: str, whole: Whole, matched: Matched, reader: Reader
    ) -> list[int]:
        """Of the variables that an optimizer has slots for; all that train, if it is not told."""
        keys = variables_of_optimizer(reader.graph, path)
        places = {
            matched.key_in_file(key): entry.item.place
            for entry in whole.entries
            if isinstance(entry.item, OfModel)
            for key in entry.tensors
        }
        if keys is None or not all(key in places for key in keys):
            return self._contents.trainable_places()
        return [places[key] for key in keys]

    @property
    def _is_strict(self) -> bool:
        return OfModel in self._part

    def _rows(self, entry: Entry, matched: Matched, reader: Reader) -> list[_Row]:
        keys = {
            key.rpartition("/")[2]: found
            for key in entry.tensors
            if (found := matched.key_in_file(key)) is not None
        }
        if not keys or not isinstance(entry.item, self._part):
            return []
        for key in keys.values():
            self._require_alike(entry, key, reader)
        return [_Row(entry.item, keys)]

    def _require_alike(self, entry: Entry, key: str, reader: Reader) -> None:
        variable = entry.variable
        if key not in reader:
            raise CheckpointError(
                f"the checkpoint {self._prefix} lists {key} and does not have it; expected whole"
                " files. Restore another checkpoint. Nothing was changed."
            )
        if variable is None:
            return
        shape, dtype = reader.shape(key), reader.dtype(key)
        if not variable.shape.is_compatible_with(shape) or variable.dtype != dtype:
            raise CheckpointError(
                f"{key} has the shape {tuple(shape)} and dtype {dtype.name} in the checkpoint"
                f" {self._prefix}, and {tuple(variable.shape)} and {variable.dtype.name} here;"
                " expected the same. Make the model and the optimizer as they were when it was"
                " saved, or restore another checkpoint. Nothing was changed."
            )

    def _require_all(self, matched: Matched, reader: Reader) -> None:
        """All that is here must be in the file, and the file may have no more of it."""
        if not matched.missing and not matched.surplus:
            return
        file, here = keras_of(reader.graph), _keras_here()
        if file is not None and file != here:
            raise CheckpointError(
                f"the checkpoint {self._prefix} was written with {file}, and this process runs"
                f" {here}, whose names differ; expected the same. Set TF_USE_LEGACY_KERAS="
                f"{0 if here.startswith('tf-keras') else 1} before TensorFlow is imported. Nothing"
                " was changed."
            )
        if matched.missing:
            first, more = matched.missing[0], len(matched.missing) - 1
            difference = f"does not have {first}, which is here"
        else:
            first, more = matched.surplus[0], len(matched.surplus) - 1
            difference = f"has {first}, for which there is nothing here"
        raise CheckpointError(
            f"the checkpoint {self._prefix} {difference}"
            + (f" (the first of {more + 1} differences)" if more else "")
            + "; expected the same layers, and the same optimizer with its slots. Make both as they"
            " were when it was saved, or restore another checkpoint. Nothing was changed."
        )

    # ---- on every rank ---------------------------------------------------------------------------

    def _begin(self, begun: Survey) -> None:
        """Lets optimizers make their slots, as their first `apply_gradients` would."""
        contents = self._contents
        for path, places in begun.items():
            here = [each for each in places or () if contents.variable(OfModel(each)) is not None]
            if here:
                with tf.init_scope():
                    build(contents.optimizers[path], [contents.variables[each] for each in here])

    def _targets(self, rows: Sequence[_Row]) -> list[Entry | None]:
        """What of it is here; None for what is on other ranks."""
        local: Whole = self._contents.local()
        entry_of = {each.item: each for each in local.entries}
        found: list[Entry | None] = []
        for row in rows:
            entry = entry_of.get(row.item)
            if isinstance(row.item, OfModel | OfOptimizer):
                variable = self._contents.variable(row.item)
                entry = None if variable is None else Entry(row.item, variable, {})
            found.append(entry)
        return found

    def _try_to_read(
        self, rows: Sequence[_Row], mine: set[int], receivers: Mapping[int, Sequence[int]]
    ) -> None:
        """Reads all, and keeps nothing: damaged files are found before anything is assigned."""
        if self._rank in self._blind:
            return
        reader = self._open()
        for number, row in enumerate(rows):
            if number in mine or (self._rank == self._source and receivers[number]):
                for key in row.keys.values():
                    reader.read(key)

    def _assign(
        self,
        rows: Sequence[_Row],
        targets: Sequence[Entry | None],
        receivers: Mapping[int, Sequence[int]],
    ) -> None:
        is_blind, is_source = self._rank in self._blind, self._rank == self._source
        for number, (row, target) in enumerate(zip(rows, targets, strict=True)):
            others = receivers[number] if is_source else ()
            if target is None and not others:
                continue
            values = {}
            for name, key in row.keys.items():
                value = receive_value(self._source) if is_blind else self._open().read(key)
                for rank in others:
                    send_value(value, rank)
                values[name] = value
            if target is not None:
                target.restore(values)

    def _open(self) -> Reader:
        if self._reader is None:
            self._reader = Reader(self._prefix)
        return self._reader


def _keras_here() -> str:
    return (
        "tf-keras (TF_USE_LEGACY_KERAS=1)"
        if tf.keras.Model.__module__.startswith("tf_keras")
        else "Keras 3"
    )
