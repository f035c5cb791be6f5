# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a partial checkpoint: which of them a rank writes, which it reads, and what of them.

| file | written by | content |
| --- | --- | --- |
| `model_{pp}_{tp}.pt` | rdp_rank 0 | `model.local_state_dict()` |
| `optimizer_{pp}_{tp}.pt` | rdp_rank 0 | `optimizer.local_state_dict()` |
| `optimizer_{pp}_{tp}_{rdp}.pt` | all, of a sharded state | the rank's own shard |
| `fp16_states_...pt` | as of the optimizer | `optimizer.local_fp16_states()`, in 16-bit training |

With another number of partitions each part is read by one rank of a pipeline, which passes on what
others want of it: that is what `load_state_dict` of model and optimizer do with parts.

Source: modelparallel specification, section 6.9.
"""

from __future__ import annotations

import copy
import dataclasses
import errno
import os
import pickle
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from smdistributed._common.errors import UnsupportedError
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import ConfigError, SMPError
from smdistributed.modelparallel.torch.job.state import Job
from smdistributed.modelparallel.torch.saving import files
from smdistributed.modelparallel.torch.saving.checkpoints.directory import Layout
from smdistributed.modelparallel.torch.saving.state_dicts import FP16_STATES, IS_PARTIAL

__all__ = [
    "Parts",
    "local_parts",
    "plain_load",
    "plain_save",
    "plain_values",
    "read_parts",
    "write_parts",
]

_MODEL, _OPTIMIZER, _FP16 = "model", "optimizer", "fp16_states"


@dataclasses.dataclass(kw_only=True)
class Parts:
    """What one rank saves or has read. None: there is none, or it is not wanted.

    Attributes:
        model: with `_smp_is_partial`.
        optimizer: the same.
        fp16: master weights and loss scaler.
    """

    model: dict[str, Any] | None = None
    optimizer: dict[str, Any] | None = None
    fp16: dict[str, Any] | None = None


def local_parts(job: Job, model: Any, optimizer: Any) -> Parts:
    """What this rank has to save. Not collective.

    Args:
        job: what this process knows of the others.
        model: the `DistributedModel`.
        optimizer: the `DistributedOptimizer`, or None.

    Raises:
        ModelNotPartitionedError: it is not decided yet what is here.
        UnsupportedError: (a NotImplementedError) parameters are sharded.
    """
    _refuse_sharded_parameters(job)
    parts = Parts(model=plain_values(model.local_state_dict()))
    if optimizer is not None:
        own = optimizer.local_state_dict(gather_if_shard=False)
        parts.fp16 = plain_values(own.pop(FP16_STATES, None))
        parts.optimizer = plain_values(own)
    return parts


def write_parts(job: Job, names: files.FileNames, folder: str, parts: Parts) -> None:
    """Writes what is this rank's to write. Not collective, blocking.

    Raises:
        OSError: the disk is full, or the files cannot be written.
        SMPError, Exception: as of `plain_save`.
    """
    is_first_replica = job.rank_in(GroupKind.RDP) == 0
    is_sharded = job.config.shard_optimizer_state
    for kind, content in (
        (_MODEL, parts.model),
        (_OPTIMIZER, parts.optimizer),
        (_FP16, parts.fp16),
    ):
        of_each = is_sharded and kind != _MODEL
        if content is not None and (is_first_replica or of_each):
            rdp = job.rank_in(GroupKind.RDP) if of_each else None
            name = _name(kind, job.rank_in(GroupKind.PP), job.rank_in(GroupKind.TP), rdp)
            plain_save(content, os.path.join(folder, name), names)


def read_parts(
    job: Job,
    names: files.FileNames,
    folder: str,
    layout: Layout,
    *,
    optimizer: bool,
    fp16: bool,
) -> Parts:
    """Reads what this rank is to pass to `load_state_dict`. Not collective, blocking.

    Args:
        job, names: this rank's.
        folder: of the checkpoint.
        layout: of the checkpoint.
        optimizer: whether the state of the optimizer is wanted.
        fp16: whether that of 16-bit training is, if there is any.

    Raises:
        ConfigError: (a ValueError) the parts are of another number of ranks, and cannot be divided
            anew.
        UnsupportedError: (a NotImplementedError) parameters are sharded.
        FileNotFoundError: a part is missing.
        Exception: what reading raises; weights only are unpickled.
    """
    _refuse_sharded_parameters(job)
    _check_sizes(job, layout, optimizer or fp16)
    # As many as here: the own one. More: several. Fewer: some ranks have no states.
    of_partitions = range(job.rank_in(GroupKind.PP), layout.pp_size, job.size_of(GroupKind.PP))

    def read(kind: str, partitions: Iterable[int], **more: Any) -> list[dict[str, Any]]:
        rdp = job.rank_in(GroupKind.RDP) if layout.is_sharded and kind != _MODEL else None
        found = (_name(kind, pp, job.rank_in(GroupKind.TP), rdp) for pp in partitions)
        return [_loaded(os.path.join(folder, name), names, **more) for name in found]

    parts = Parts(model=_merged_model(read(_MODEL, of_partitions)))
    if optimizer and of_partitions:
        parts.optimizer = _merged_optimizer(read(_OPTIMIZER, of_partitions), folder)
    elif optimizer:
        (first,) = read(_OPTIMIZER, [0], mmap=True)  # its tensors stay on the disk
        parts.optimizer = _only_options(first)
    if fp16 and any(name.startswith(f"{_FP16}_") for name in os.listdir(folder)):
        parts.fp16 = _merged_fp16(read(_FP16, of_partitions))
    return parts


def plain_values(value: Any) -> Any:
    """The same, with Python's numbers instead of NumPy's, which `plain_load` does not take."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (dict, OrderedDict):
        copied = copy.copy(value)  # with what torch keeps beside a state dictionary
        copied.update((key, plain_values(each)) for key, each in value.items())
        return copied
    if type(value) in (list, tuple):
        return type(value)(plain_values(each) for each in value)
    return value


def plain_save(content: object, path: str, names: files.FileNames) -> None:
    """Writes a file that `plain_load` will read. Not collective, blocking.

    Raises:
        OSError: it cannot be written.
        SMPError: the content is more than tensors and plain values.
        Exception: what pickling raises.
    """
    files.save(content, path, partial=False, names=names)
    try:
        files.load(path, partial=False, names=names, weights_only=True, mmap=True)  # without data
    except pickle.UnpicklingError as error:
        classes = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
        raise SMPError(
            f"{os.path.basename(path)} would hold more than tensors and plain values:"
            f" {', '.join(classes) or error}; expected no other classes in the states of model and"
            " optimizer, as no resume would load them. Keep tensors and Python's own values there,"
            " or allow those classes before saving and resuming:"
            " torch.serialization.add_safe_globals([...])."
        ) from error


def plain_load(path: str, names: files.FileNames, **more: Any) -> Any:
    """Reads a file of tensors and plain values: nothing in it can run code.

    Raises:
        FileNotFoundError: it is missing.
        SMPError: it holds something else.
    """
    try:
        return files.load(path, partial=False, names=names, weights_only=True, **more)
    except pickle.UnpicklingError as error:
        raise SMPError(
            f"{path} holds more than tensors and plain values, or is damaged:"
            f" {str(error).strip()}; expected no other classes, as unpickling them runs code. If"
            " you trust the file, call torch.serialization.add_safe_globals([...]) with those"
            " classes before."
        ) from error


def _name(kind: str, pp: int, tp: int, rdp: int | None = None) -> str:
    return f"{kind}_{pp}_{tp}.pt" if rdp is None else f"{kind}_{pp}_{tp}_{rdp}.pt"


def _loaded(path: str, names: files.FileNames, **more: Any) -> dict[str, Any]:
    if not os.path.exists(path):
        raise FileNotFoundError(
            errno.ENOENT,
            f"{path} is missing; expected it, as the checkpoint is of such ranks. If it was saved"
            " on disks of several hosts, copy all of its files to each host; if it was saved"
            " without an optimizer, pass load_optimizer=False",
        )
    content: dict[str, Any] = plain_load(path, names, **more)
    return content


def _refuse_sharded_parameters(job: Job) -> None:
    degree = job.config.sharded_data_parallel_degree
    if degree > 1:
        raise UnsupportedError(
            f"sharded_data_parallel_degree is {degree}: there are no partial checkpoints of sharded"
            " parameters yet; expected 1. Use a full one (partial=False)."
        )


def _check_sizes(job: Job, layout: Layout, wants_optimizer: bool) -> None:
    tp_size, rdp_size = job.size_of(GroupKind.TP), job.size_of(GroupKind.RDP)
    if layout.tp_size != tp_size:
        raise ConfigError(
            f"the checkpoint was saved with tensor_parallel_degree {layout.tp_size}, and it is"
            f" {tp_size} now; expected the same, as slices of modules are not cut anew. Use that"
            " degree, or a full checkpoint (partial=False)."
        )
    if not wants_optimizer:
        return
    is_sharded = job.config.shard_optimizer_state
    if layout.is_sharded != is_sharded:
        raise ConfigError(
            f"the checkpoint was saved with shard_optimizer_state {layout.is_sharded}, and it is"
            f" {is_sharded} now; expected the same. Set it so, or pass load_optimizer=False."
        )
    then = (layout.pp_size, layout.rdp_size)
    now = (job.size_of(GroupKind.PP), rdp_size)
    if is_sharded and then != now:
        raise ConfigError(
            "the checkpoint holds an optimizer state in shards, of"
            f" {then[0]} partitions and {then[1]} replicas, and there are {now[0]} and {now[1]}"
            " now; expected the same, as shards are not cut anew. Start as many processes with the"
            " same degrees, or pass load_optimizer=False."
        )


# ---- several parts in one ------------------------------------------------------------------------


def _merged_model(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    merged: OrderedDict[str, Any] = OrderedDict()
    metadata: dict[str, Any] = OrderedDict()
    for part in parts:
        merged.update(part)
        for prefix, version in (getattr(part, "_metadata", None) or {}).items():
            metadata.setdefault(prefix, version)
    if metadata:
        merged._metadata = metadata  # type: ignore[attr-defined]
    merged[IS_PARTIAL] = True
    return merged


def _merged_optimizer(parts: Sequence[dict[str, Any]], folder: str) -> dict[str, Any]:
    if len(parts) == 1:
        return parts[0]
    merged: dict[str, Any] = {}
    states: dict[Any, Any] = {}
    for part in parts:
        state = part.get("state")
        if not isinstance(state, Mapping) or "param_groups" not in part:
            raise ConfigError(
                f"the optimizer's parts in {folder} are not like those of torch.optim, with `state`"
                " and `param_groups`; expected such, to divide them anew. Use as many partitions as"
                " have saved, or pass load_optimizer=False."
            )
        if any(isinstance(index, int) and index in states for index in state):
            raise ConfigError(
                f"the optimizer's parts in {folder} number parameters each by themselves, as those"
                " of optimizers made from local parameters do; expected an optimizer of"
                " model.parameters(), to divide them anew. Use as many partitions as have saved,"
                " or pass load_optimizer=False."
            )
        states.update(state)
        merged.update(part)
    merged["state"] = states
    merged[IS_PARTIAL] = True
    return merged


def _only_options(part: Mapping[str, Any]) -> dict[str, Any]:
    """For a rank that others give the states to: learning rates and such, which all ranks set."""
    if "param_groups" not in part:
        return {IS_PARTIAL: True}
    return {"state": {}, "param_groups": part["param_groups"], IS_PARTIAL: True}


def _merged_fp16(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Masters are by name; the rest is the same in all parts."""
    merged: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            known = merged.get(key)
            if isinstance(known, dict) and isinstance(value, dict):
                value = {**known, **value}
            merged[key] = value
    merged[IS_PARTIAL] = True
    return merged
