# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Writing a checkpoint: rank 0 asks the owners for their values, one after the other.

Source: TensorFlow modelparallel specification, section 5.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import ModelNotPartitionedError
from smdistributed.modelparallel.tensorflow.checkpoints.contents import (
    Contents,
    Item,
    OfModel,
    OfOptimizer,
    Survey,
    Whole,
    tensor_in,
)
from smdistributed.modelparallel.tensorflow.checkpoints.files import GRAPH_KEY
from smdistributed.modelparallel.tensorflow.checkpoints.together import (
    CheckpointError,
    together,
)
from smdistributed.modelparallel.tensorflow.checkpoints.values import (
    receive_value,
    send_value,
    value_of,
)
from smdistributed.modelparallel.tensorflow.job.communication import allgather_in
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.variables import raw

__all__ = [
    "fetch",
    "gather",
    "merge_surveys",
    "requests_for",
    "require_alike",
    "require_values",
    "surveys_of",
]

# What is asked of the ranks, in order: the rank of the pipeline, and the item.
Requests = Sequence[tuple[int, Item]]
Tensors = dict[str, dict[str, Any]]


def gather(checkpoint: Any, call: str) -> Tensors | None:
    """What a checkpoint object holds on all ranks; a collective of the world.

    Args:
        checkpoint: a `tf.train.Checkpoint`.
        call: what the script has called.

    Returns:
        On rank 0 all of it, in host memory, by key and slice. None on the others.

    Raises:
        ModelNotPartitionedError: the model has no values yet.
        CheckpointError: something cannot be gathered; names it.
    """
    contents = together(lambda: Contents(checkpoint))
    surveys = surveys_of(contents, call)
    survey = merge_surveys(surveys)

    def ask() -> tuple[Whole, Requests]:
        whole = contents.whole(survey)
        contents.require_all_weights(whole)
        return whole, requests_for([each.item for each in whole.entries], contents, surveys)

    whole, came = fetch(contents, ask)
    return None if whole is None else _collected(contents, whole, came, survey)


def fetch(
    contents: Contents, ask: Callable[[], tuple[Any, Requests]]
) -> tuple[Any, dict[Item, Any]]:
    """Brings values of other ranks of its pipeline to rank 0; a collective of the world.

    Args:
        ask: called on rank 0: gives something for the caller, and what is asked for.

    Returns:
        On rank 0, the caller's, and eager tensors in host memory. None and nothing on the others.

    Raises:
        Exception: what `ask` raises, on all ranks.
        CheckpointError: a rank does not have what it is asked for.
    """
    is_writer = state.job.rank == 0
    asked = together(lambda: ask() if is_writer else None)
    (requests, *_) = allgather_in(GroupKind.MP, None if asked is None else asked[1])
    mine = together(lambda: _answers(contents, requests or ()))
    if asked is None:
        for variable in mine:
            send_value(value_of(variable), 0)
        return None, {}
    ranks = state.job.members(GroupKind.PP)
    return asked[0], {item: receive_value(ranks[rank]) for rank, item in requests}


def require_values(contents: Contents, call: str) -> None:
    """Fails if the model has no values.

    Raises:
        ModelNotPartitionedError: it has none.
    """
    if contents.is_decided:
        return
    raise ModelNotPartitionedError(
        f"{call} was called before the first step: {type(contents.model).__name__} has no values"
        " yet; expected a call of a function with @smp.step before it, which decides which rank"
        " owns what. Call one first."
    )


def merge_surveys(
    surveys: Sequence[Survey],
) -> Survey:
    """What the optimizers of all ranks of a pipeline have together."""
    merged: dict[str, list[int] | None] = {}
    for path in surveys[0]:
        places = [each for survey in surveys for each in survey[path] or ()]
        merged[path] = sorted(places) or None
    return merged


def surveys_of(contents: Contents, call: str) -> list[Survey]:
    """Of all ranks of this pipeline."""

    def look() -> Survey:
        require_values(contents, call)
        return contents.survey()

    surveys: list[Survey] = allgather_in(GroupKind.MP, together(look))
    together(lambda: require_alike(surveys))  # other pipelines may be alike, and would go on
    return surveys


def require_alike(surveys: Sequence[Survey]) -> None:
    """Fails if the ranks of this pipeline have different optimizers.

    Args:
        surveys: by rank.

    Raises:
        CheckpointError: they have.
    """
    for rank, theirs in zip(state.job.members(GroupKind.MP), surveys, strict=True):
        if theirs.keys() != surveys[0].keys():
            raise CheckpointError(
                f"the checkpoint object of rank {rank} has the optimizers {sorted(theirs)}, and"
                f" that of rank {state.job.members(GroupKind.MP)[0]} has {sorted(surveys[0])};"
                " expected the same on all ranks. Make tf.train.Checkpoint alike everywhere."
            )


def requests_for(
    items: Iterable[Item], contents: Contents, surveys: Sequence[Survey]
) -> list[tuple[int, Item]]:
    """Which of these items other ranks of the pipeline have, and which rank."""
    found: list[tuple[int, Item]] = []
    for item in items:
        if isinstance(item, OfModel):
            if contents.variable(item) is None:
                owner = raw(contents.variables[item.place]).owner
                found.append((owner.partition, item))
        elif isinstance(item, OfOptimizer) and (holder := _holder(item, surveys)):
            found.append((holder, item))
    return found


def _holder(item: OfOptimizer, surveys: Sequence[Survey]) -> int:
    """The rank of the pipeline that has a variable of an optimizer."""
    for rank, survey in enumerate(surveys):
        places = survey[item.path]
        if places and (item.slot.variable is None or item.slot.variable in places):
            return rank
    return 0


def _answers(contents: Contents, requests: Requests) -> list[Any]:
    """The variables that this rank is asked for."""
    here = state.job.rank_in(GroupKind.PP)
    found = []
    for rank, item in requests:
        if rank != here:
            continue
        variable = contents.variable(item)
        if variable is None:
            raise CheckpointError(
                f"rank {state.job.rank} does not have {item}; expected it in its optimizer, as the"
                " others say. Use the same optimizer, with the same arguments, on all ranks."
            )
        found.append(variable)
    return found


def _collected(
    contents: Contents, whole: Whole, came: Mapping[Item, Any], survey: Survey
) -> Tensors:
    tensors: Tensors = {}
    for entry in whole.entries:
        item = entry.item
        for key, value in entry.tensors.items():
            if item in came:
                tensors[key] = {"": came[item]}
            elif isinstance(item, OfOptimizer) and survey[item.path] is not None:
                # What the whole has is a variable without a value.
                tensors[key] = {"": value_of(contents.variable(item))}
            else:
                tensors[key] = tensor_in(value)
    tensors[GRAPH_KEY] = {"": tf.constant(whole.graph.SerializeToString())}
    return tensors
