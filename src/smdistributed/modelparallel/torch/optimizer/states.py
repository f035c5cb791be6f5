# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The state of an optimizer whose parameters are on several ranks: which of it is here, and whole.

Every rank's optimizer holds all parameters of the model, in one order. Those of other ranks never
get a gradient, so optimizers skip them and make no state for them; an index means the same
parameter on every rank. So the whole state is the union of those of the ranks, and a rank's part is
what has its indices.

Source: modelparallel specification, section 4.5.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from smdistributed._common.errors import UnsupportedError
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.torch.job.gathering import gather
from smdistributed.modelparallel.torch.job.state import Job, state
from smdistributed.modelparallel.torch.modules.placement import Placement
from smdistributed.modelparallel.torch.optimizer.sharding import parameters_of
from smdistributed.modelparallel.torch.optimizer.sixteen_bit.masters import model_parameter_of

__all__ = [
    "SHARDS",
    "absent",
    "current_placement",
    "gathered_shards",
    "gathered_state",
    "has_nothing_here",
    "indices_by_id",
    "is_like_torchs",
    "local_state",
    "merged_state",
    "move_state",
    "parameters_here",
    "united_shards",
]

SHARDS = "_smp_shards"
"""A key of dictionaries that hold shards: of each the partition, dp_rank and number of replicas."""


class _Note(NamedTuple):
    """What a rank tells the others of its part.

    Attributes:
        groups: its `param_groups`; None if the part is not like those of torch's optimizers.
        numbering: by group, which parameters of the model it holds.
        local: indices of the parameters whose state belongs here.
        shards: those that were put together to it.
    """

    groups: Any
    numbering: list[list[int]]
    local: set[int]
    shards: Sequence[Sequence[int]]


def current_placement() -> Placement | None:
    """Of the model, if it is partitioned."""
    model = state.model
    if model is None or not model.partitioned:
        return None
    placement: Placement = model.placement("the optimizer's part")
    return placement


def absent(placement: Placement | None) -> frozenset[int]:
    """`id`s of the model's parameters that are on other ranks."""
    if placement is None:
        return frozenset()
    named = placement.model.named_parameters()
    return frozenset(id(parameter) for name, parameter in named if not placement.is_here(name))


def indices_by_id(optimizer: Any) -> dict[int, int]:
    """The index in state dictionaries, by `id` of the parameter; of a master, by both `id`s."""
    indices: dict[int, int] = {}
    for index, parameter in enumerate(parameters_of(optimizer)):
        indices.setdefault(id(parameter), index)
        indices.setdefault(id(model_parameter_of(parameter)), index)
    return indices


def parameters_here(optimizer: Any, placement: Placement | None) -> dict[int, Tensor]:
    """This rank's, by index; all of them where nothing is placed yet."""
    elsewhere = absent(placement)
    found: dict[int, Tensor] = {}
    by_id = {id(parameter): parameter for parameter in parameters_of(optimizer)}
    for identity, index in optimizer._param_id_to_index().items():
        if identity not in elsewhere and identity in by_id:
            found[index] = by_id[identity]
    return found


def has_nothing_here(optimizer: Any, placement: Placement | None) -> bool:
    """Whether all its parameters are on other ranks."""
    elsewhere = absent(placement)
    return bool(elsewhere) and all(id(each) in elsewhere for each in parameters_of(optimizer))


def is_like_torchs(own: Any) -> bool:
    """Whether a state dictionary is one as torch's optimizers make it."""
    return (
        isinstance(own, Mapping)
        and isinstance(own.get("state"), Mapping)
        and isinstance(own.get("param_groups"), Sequence)
    )


def local_state(
    optimizer: Any,
    placement: Placement | None,
    own: dict[str, Any],
    others: Collection[int] = (),
) -> dict[str, Any]:
    """A state dictionary without what is of parameters on other ranks.

    Args:
        others: `id`s of those whose state is on other replicas.
    """
    elsewhere = absent(placement).union(others)
    if not is_like_torchs(own) or not elsewhere:
        return own
    indices = {
        index for identity, index in indices_by_id(optimizer).items() if identity in elsewhere
    }
    kept = {key: value for key, value in own["state"].items() if key not in indices}
    return {**own, "state": kept}


def gathered_state(
    optimizer: Any, placement: Placement, job: Job, own_state: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """The state of all parameters, in CPU memory; a collective of the MP group, blocking.

    Args:
        own_state: the optimizer's own dictionary.

    Raises:
        UnsupportedError: that is not like torch's, or the optimizers of the ranks were made from
            different parameters.
        SMPError: another rank failed to take part; says which, and how.
    """
    own: dict[str, Any] = {}

    def offer() -> tuple[Any, Mapping[Any, Any]]:
        nonlocal own
        own = local_state(optimizer, placement, own_state())
        if not is_like_torchs(own):
            raise UnsupportedError(
                f"{type(optimizer).__name__}.state_dict() does not return `state` and"
                " `param_groups`; expected both, as of torch.optim, to merge those of all ranks."
                " Save each rank's own: optimizer.local_state_dict() and smp.save(partial=True)."
            )
        return _numbering(optimizer, placement), own["state"]

    numberings, values = gather(job, offer, lambda *_: True, copies=True)
    if any(each != numberings[0] for each in numberings):
        raise UnsupportedError(
            "the optimizers of the ranks hold different parameters, so their states have no common"
            " order; expected each to be made from model.parameters(). Make it so, or save each"
            " rank's own: optimizer.local_state_dict() and smp.save(partial=True)."
        )
    return {**own, "state": {key: values[key] for key in sorted(values, key=_in_order)}}


def gathered_shards(job: Job, own: dict[str, Any]) -> dict[str, Any]:
    """On the first replica the state of its partition, in CPU memory; on others the own shard.

    A collective of the DP group, blocking.

    Args:
        own: the shard of this rank.

    Raises:
        SMPError: another rank failed to take part; says which, and how.
    """
    _, values = gather(
        job,
        lambda: (None, own["state"]),
        lambda member, *_: member == 0,
        copies=True,
        kind=GroupKind.DP,
    )
    if job.rank_in(GroupKind.DP) != 0:
        return own
    whole = {key: value for key, value in own.items() if key != SHARDS}
    return {**whole, "state": {key: values[key] for key in sorted(values, key=_in_order)}}


def united_shards(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several parts as one."""
    states: dict[Any, Any] = {}
    for part in parts:
        states.update(part["state"])
    shards = [shard for part in parts for shard in part.get(SHARDS, ())]
    return {**parts[0], "state": states, SHARDS: shards}


def merged_state(
    optimizer: Any,
    placement: Placement,
    job: Job,
    part: dict[str, Any],
    others: Callable[[], Collection[int]] | None = None,
) -> dict[str, Any]:
    """A rank's part with what others' parts hold of this rank's parameters.

    A collective of the MP group, of sharded states of all ranks, blocking. So parts that were saved
    with another number of partitions can be loaded.

    Args:
        others: of sharded states, returns `id`s of parameters whose state is on other replicas;
            what it raises is told to all ranks.

    Raises:
        ValueError: of the shards of a state, some were given to no rank.
    """
    kind = GroupKind.MP if others is None else GroupKind.WORLD

    def offer() -> tuple[Any, Mapping[Any, Any]]:
        is_known = is_like_torchs(part)
        here = parameters_here(optimizer, placement)
        of_others = () if others is None else others()
        local = {index for index, each in here.items() if id(each) not in of_others}
        groups = part["param_groups"] if is_known else None
        note = _Note(groups, _numbering(optimizer, placement), local, part.get(SHARDS, ()))
        return note, part["state"] if is_known else {}

    def wants(member: int, key: Any, notes: Sequence[_Note]) -> bool:
        if any(note.numbering != notes[0].numbering for note in notes):
            return False  # an index is another parameter on each rank
        return not isinstance(key, int) or key in notes[member].local

    notes, values = gather(job, offer, wants, copies=False, kind=kind)
    _check_shards([shard for note in notes for shard in note.shards])
    rank = job.rank_in(kind)
    if part and not is_like_torchs(part):
        return part
    groups = next((note.groups for note in notes if note.groups is not None), None)
    if groups is None:
        return part
    held = {key: value for key, value in values.items() if wants(rank, key, notes)}
    own = part.get("state", {})
    return {"param_groups": groups, **part, "state": {**held, **own}}


def move_state(
    optimizer: Any, placement: Placement, others: Callable[[], Collection[int]] = tuple
) -> None:
    """States that were made before the model was placed go where their parameters went.

    Args:
        others: returns `id`s of parameters whose state is on other replicas.
    """
    states = getattr(optimizer, "state", None)
    if not isinstance(states, dict) or not states:
        return
    elsewhere = absent(placement).union(others())
    for parameter in list(states):
        if id(parameter) in elsewhere:
            del states[parameter]
        elif isinstance(parameter, Tensor) and isinstance(states[parameter], dict):
            for key, value in states[parameter].items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    states[parameter][key] = value.to(parameter.device)


def _check_shards(shards: Sequence[Sequence[int]]) -> None:
    """Whether those of each partition are complete."""
    of_each: dict[tuple[int, int], set[int]] = {}
    for partition, rank, count in shards:
        of_each.setdefault((partition, count), set()).add(rank)
    for (partition, count), found in of_each.items():
        missing = sorted(set(range(count)) - found)
        if missing:
            raise ValueError(
                f"the optimizer state was saved in {count} shards, and those of partition"
                f" {partition} and dp_rank {', '.join(map(str, missing))} were given to no rank;"
                " expected all of them. Start as many processes as then, or let a rank load"
                " several: optimizer.load_state_dict([shard, another]). What local_state_dict()"
                " returns on dp_rank 0 needs no others."
            )


def _in_order(key: Any) -> tuple[bool, int]:
    """Indices, and what else is in a state after them."""
    return (False, key) if isinstance(key, int) else (True, 0)


def _numbering(optimizer: Any, placement: Placement) -> list[list[int]]:
    """By group, which parameters of the model it holds; -1 is none of them."""
    parameters = placement.model.parameters()
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    return [
        [numbers.get(id(model_parameter_of(parameter)), -1) for parameter in group["params"]]
        for group in optimizer.param_groups
    ]
