# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Methods of Keras that read or write a whole model, for one whose parts are on several ranks.

All ranks call them. Where a file is written, rank 0 is lent the values of the others, in host
memory, and Keras' own method writes them; where one is read, rank 0's variables are lent places for
what Keras' method assigns, and each value goes to whoever owns it when all is read. So files follow
the rules of the active Keras, and what fails has changed nothing.

Source: TensorFlow modelparallel specification, section 5.4.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint.checkpoint_management import generate_checkpoint_state_proto

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.tensorflow.checkpoints import files
from smdistributed.modelparallel.tensorflow.checkpoints.contents import (
    Contents,
    Item,
    OfModel,
    OfOptimizer,
    Other,
    Survey,
)
from smdistributed.modelparallel.tensorflow.checkpoints.leading import announced
from smdistributed.modelparallel.tensorflow.checkpoints.optimizers import (
    named_slots,
    whole_optimizer,
)
from smdistributed.modelparallel.tensorflow.checkpoints.restoring import Part, restore
from smdistributed.modelparallel.tensorflow.checkpoints.saving import (
    fetch,
    gather,
    merge_surveys,
    requests_for,
    require_values,
    surveys_of,
)
from smdistributed.modelparallel.tensorflow.checkpoints.served_model import write_served_model
from smdistributed.modelparallel.tensorflow.checkpoints.together import (
    meet,
    one_method,
    together,
    within,
)
from smdistributed.modelparallel.tensorflow.checkpoints.values import (
    receive_value,
    send_value,
    value_of,
)
from smdistributed.modelparallel.tensorflow.job.communication import allgather_in
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.model.whole_model import answer
from smdistributed.modelparallel.tensorflow.variables import GuardedVariable, Loan, lending, raw

__all__ = ["answer_for_whole_models"]

_H5 = (".h5", ".hdf5", ".keras")
Original = Callable[..., Any]


def answer_for_whole_models() -> None:
    """Lets models whose parts are on several ranks have these methods."""
    methods: dict[str, Callable[..., Any]] = {
        "get_weights": _get_weights,
        "save_weights": _save_weights,
        "load_weights": _load_weights,
        "save": _save,
        "export": _export,
    }
    for name, method in methods.items():
        answer(name, _named(name, announced(name, method)))
    answer("set_weights", announced("set_weights", _set_weights))
    answer("save_model", _named("save_model", _save_model))


def _named(name: str, method: Original) -> Original:
    def named(*args: Any, **kwargs: Any) -> Any:
        with one_method, within(f"model.{name}()"):
            return method(*args, **kwargs)

    return named


def _get_weights(model: Any, original: Original) -> list[Any]:
    """All values, in the order of the whole model, on every rank of a pipeline."""
    del original
    call = "model.get_weights()"
    contents = _contents(model)
    meet(call, None, GroupKind.MP)
    together(lambda: require_values(contents, call), GroupKind.MP)
    with model._smp_private.showing_all():
        variables = list(model.weights)
    ranks = state.job.members(GroupKind.PP)
    weights = []
    for variable in variables:
        of_tensorflow = raw(variable)
        owner = getattr(of_tensorflow, "owner", None)
        if owner is not None:
            value = receive_value(ranks[owner.partition])
        else:
            value = value_of(of_tensorflow)
            if isinstance(of_tensorflow, GuardedVariable):
                for rank in ranks:
                    if rank != state.job.rank:
                        send_value(value, rank)
        weights.append(value.numpy())
    return weights


def _set_weights(model: Any, original: Original, weights: Any) -> None:
    """Takes values of all variables, in the order of the whole model, the same on all ranks."""
    variables = [raw(each) for each in model.smp_all_variables]
    with _lent(model, [each for each in variables if isinstance(each, GuardedVariable)]) as loans:
        original(weights)
    for variable, loan in loans:
        if loan.value is not None and variable.owner is None:
            variable.assign(loan.value, read_value=False)


def _save_weights(model: Any, original: Original, filepath: Any, *args: Any, **kwargs: Any) -> None:
    path = os.fspath(filepath)
    if _is_of_tensorflow(path, kwargs.get("save_format", args[1] if len(args) > 1 else None)):
        _save_checkpoint(model, os.path.abspath(files.require_local(path)))
    else:
        write = _write_whole(original, path, *args, **kwargs)
        _written_by_rank_0(model, "model.save_weights()", write)


def _load_weights(model: Any, original: Original, filepath: Any, *args: Any, **kwargs: Any) -> None:
    path = os.fspath(filepath)
    if _is_of_tensorflow(path, None):
        meet("model.load_weights()", path)
        restore(model._checkpoint, os.path.abspath(path), Part.ALL, (OfOptimizer, Other))
        return
    _read_by_rank_0(model, "model.load_weights()", lambda: original(path, *args, **kwargs))


def _save(model: Any, original: Original, filepath: Any, *args: Any, **kwargs: Any) -> None:
    write = _write_whole(original, os.fspath(filepath), *args, **kwargs)
    _written_by_rank_0(model, "model.save()", write)


def _export(model: Any, original: Original, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    path = os.fspath(filepath)

    def write_hidden(hidden: str) -> Any:
        with _printing_instead(hidden, path):
            return original(hidden, *args, **kwargs)

    def write() -> Any:
        if "://" in path:
            return original(path, *args, **kwargs)
        files.make_directory(os.path.dirname(os.path.abspath(path)))
        return files.write_whole(path, write_hidden)

    return _written_by_rank_0(model, "model.export()", write)


@contextlib.contextmanager
def _printing_instead(hidden: str, path: str) -> Iterator[None]:
    """While it is open, what is printed (Keras says where it has written) names another path."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        sys.stdout.write(printed.getvalue().replace(hidden, path))


def _save_model(model: Any, path: str) -> None:
    """See `DistributedModel.save_model`."""
    _written_by_rank_0(model, "model.save_model()", lambda: write_served_model(model, path))


# ---- writing -------------------------------------------------------------------------------------


def _write_whole(original: Original, path: str, *args: Any, **kwargs: Any) -> Callable[[], None]:
    """A method of Keras that writes a file or directory, which is there whole or not at all."""
    overwrites = kwargs.get("overwrite", args[0] if args else True)

    def write() -> None:
        if "://" in path or (not overwrites and os.path.exists(path)):  # which Keras asks about
            original(path, *args, **kwargs)
        else:
            files.write_whole(path, lambda hidden: original(hidden, *args, **kwargs))

    return write


def _written_by_rank_0(model: Any, call: str, write: Callable[[], Any]) -> Any:
    """Calls something on rank 0, where the model is whole meanwhile; a collective of the world.

    Returns:
        What it returned there; None on other ranks.

    Raises:
        Exception: what it raised, on all ranks.
    """
    meet(call, None)
    contents = together(lambda: _contents(model))
    surveys = surveys_of(contents, call)
    survey = merge_surveys(surveys)

    def ask() -> tuple[_Parts, list[tuple[int, Item]]]:
        parts = _parts(contents, survey)
        return parts, requests_for([item for item, _ in parts.items], contents, surveys)

    parts, came = fetch(contents, ask)

    def write_on_rank_0() -> Any:
        if parts is None:
            return None
        variables = [each for _, each in parts.items]
        with _lent(model, variables, parts.instead) as loans:
            for (item, _), (variable, loan) in zip(parts.items, loans, strict=True):
                if item in came:
                    loan.value = came[item]
                elif isinstance(item, OfOptimizer):
                    loan.value = value_of(contents.variable(item))
                else:
                    variable.loan = None  # it has its value
            return write()

    return together(write_on_rank_0)


@dataclasses.dataclass(frozen=True)
class _Parts:
    """A model and its optimizers, as a whole.

    Attributes:
        items: what there is, and the variable that stands for it.
        instead: by path, optimizers that stand for those in use.
    """

    items: Sequence[tuple[Item, GuardedVariable]]
    instead: Mapping[str, Any]


def _parts(contents: Contents, survey: Survey) -> _Parts:
    items: list[tuple[Item, GuardedVariable]] = [
        (OfModel(place), raw(each))
        for place, each in enumerate(contents.variables)
        if isinstance(raw(each), GuardedVariable)
    ]
    instead = {}
    for path, places in survey.items():
        if places is None:
            continue
        whole = instead[path] = whole_optimizer(
            contents.optimizers[path], contents.variables, places
        )
        for variable, slot in named_slots(whole, contents.variables, places):
            if isinstance(variable, GuardedVariable):
                items.append((OfOptimizer(path, slot), variable))
    return _Parts(items, instead)


@contextlib.contextmanager
def _lent(
    model: Any, variables: Sequence[GuardedVariable], instead: Mapping[str, Any] | None = None
) -> Iterator[list[tuple[GuardedVariable, Loan]]]:
    """The model shows all its variables, which use what they are lent."""
    loans = [(each, Loan()) for each in variables]
    in_use = getattr(model, "optimizer", None)
    whole = next(iter((instead or {}).values()), None)
    try:
        if whole is not None:
            model.optimizer = whole
        with lending(loans), model._smp_private.being_lent():
            yield loans
    finally:
        if whole is not None:
            model.optimizer = in_use


def _contents(model: Any) -> Contents:
    return Contents(tf.train.Checkpoint(model=model))


# ---- reading -------------------------------------------------------------------------------------


def _read_by_rank_0(model: Any, call: str, read: Callable[[], Any]) -> None:
    """Calls something on rank 0 that assigns to the model; then values go to their owners."""
    meet(call, None)
    contents = together(lambda: _contents(model))
    survey = merge_surveys(surveys_of(contents, call))
    values: dict[Item, Any] = {}

    def read_on_rank_0() -> None:
        if state.job.rank != 0:
            return
        parts = _parts(contents, survey)
        with _lent(model, [each for _, each in parts.items], parts.instead) as loans:
            read()
        for (item, _), (_, loan) in zip(parts.items, loans, strict=True):
            if loan.value is not None:
                values[item] = loan.value

    together(read_on_rank_0)
    items: list[Item] = allgather_in(GroupKind.WORLD, list(values))[0]
    targets = {item: contents.variable(item) for item in items}
    held: list[list[bool]] = allgather_in(
        GroupKind.WORLD, [targets[item] is not None for item in items]
    )
    for number, item in enumerate(items):
        if state.job.rank == 0:
            for rank in range(1, len(held)):
                if held[rank][number]:
                    send_value(values[item], rank)
            value = values.pop(item)
        elif held[state.job.rank][number]:
            value = receive_value(0)
        if targets[item] is not None:
            targets[item].assign(value, read_value=False)
    together(lambda: None)


# ---- files of TensorFlow, which tf-keras writes where a name has no ending ----------------------


def _is_of_tensorflow(path: str, save_format: Any) -> bool:
    if not tf.keras.Model.__module__.startswith("tf_keras"):
        return False
    if save_format is not None:
        return str(save_format).lower() in ("tf", "tensorflow")
    return not path.endswith(_H5)


def _save_checkpoint(model: Any, prefix: str) -> None:
    meet("model.save_weights()", prefix)
    tensors = gather(model._checkpoint, "model.save_weights()")
    directory, name = os.path.split(prefix)

    def write() -> None:
        if tensors is None:
            return
        files.make_directory(directory)
        files.write_checkpoint(prefix, tensors)
        files.write_state(directory, generate_checkpoint_state_proto(directory, name))

    together(write)
