# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.save_checkpoint`, `smp.resume_from_checkpoint`, `smp.save_safetensors`.

All are collectives of all ranks: they succeed on every rank, or raise on every rank. The directory
is described in `checkpoints.directory`, the files of a partial checkpoint in
`checkpoints.parts`.

Source: modelparallel specification, section 6.9; `save_safetensors` is our choice.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.atomic_files import OpenFile, replace_file
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import ConfigError, SMPError
from smdistributed.modelparallel.torch.job.communication import RankType, recv_from, send
from smdistributed.modelparallel.torch.job.state import Job, state
from smdistributed.modelparallel.torch.saving import files
from smdistributed.modelparallel.torch.saving.checkpoints.agreement import (
    agreed,
    keeper_of,
    together,
)
from smdistributed.modelparallel.torch.saving.checkpoints.directory import (
    MODEL,
    PARTITION,
    USER_CONTENT,
    CheckpointDirectory,
    Layout,
    checked_tag,
)
from smdistributed.modelparallel.torch.saving.checkpoints.parts import (
    Parts,
    local_parts,
    plain_save,
    plain_values,
    write_parts,
)
from smdistributed.modelparallel.torch.saving.checkpoints.resuming import (
    Loader,
    check_saves,
    full_loader,
    newest_tag,
    partial_loader,
)
from smdistributed.modelparallel.torch.saving.checkpoints.safetensors_files import (
    require_packages,
    write_safetensors,
)
from smdistributed.modelparallel.torch.saving.rank_files import names_of

__all__ = ["resume_from_checkpoint", "save_checkpoint", "save_safetensors"]

_SAVE, _RESUME, _EXPORT = (
    "smp.save_checkpoint()",
    "smp.resume_from_checkpoint()",
    "smp.save_safetensors()",
)


# ---- saving --------------------------------------------------------------------------------------


def save_checkpoint(
    path: str | os.PathLike[str],
    tag: str,
    partial: bool = True,
    model: Any = None,
    optimizer: Any = None,
    user_content: Any = None,
    translate_if_full: bool = True,
    num_kept_partial_checkpoints: int | None = None,
) -> None:
    """Saves model, optimizer and what else the script needs. A collective of all ranks, blocking.

    A checkpoint with a new tag is there whole, or not at all, and `newest` names one that is there,
    whenever a process or host dies. So is a partial one that replaces one of the same tag; of a
    full one and its user content each file is whole.

    Args:
        path: the directory, which is made. It may be one for all hosts, or one on each; each then
            holds the parts of its ranks.
        tag: the name of the checkpoint. Give each one of its own.
        partial: each rank saves its part of model and optimizer, to resume from; else rank 0 saves
            the whole model's state dictionary, as plain torch reads it, and no optimizer.
        model: the `DistributedModel`; None: the one there is.
        optimizer: the `DistributedOptimizer`; None: the one there is, if any.
        user_content: anything that pickles; that of rank 0 is saved, in each directory.
        translate_if_full: give parameters of distributed modules their names in the original module
            again. Without effect as yet: nothing else has other names.
        num_kept_partial_checkpoints: delete the partial checkpoints in `path` that were saved
            before so many last ones; None: keep all. There is room needed for one more.

    Raises:
        SMPNotInitialized: before `smp.init()`.
        ConfigError: (a ValueError) an argument cannot be, or differs between ranks.
        RuntimeError: inside of a step, with several partitions.
        ModelNotPartitionedError: before the first step: partial, or a loaded state waits for it.
        OSError: on the rank that could not write; what was there before is still there.
        SMPError: a state holds more than tensors and plain values, which no resume would load.
        SMPError: on the others; names that rank, and why.
    """
    job = state.require_outside_of_body(_SAVE)
    kept = num_kept_partial_checkpoints

    def check() -> dict[str, Any]:
        nonlocal model
        CheckpointDirectory(path)
        model = _model_or_registered(model, _SAVE)
        if partial and optimizer is not None and not hasattr(optimizer, "local_state_dict"):
            raise ConfigError(
                f"smp.save_checkpoint() got the optimizer {type(optimizer).__name__}; expected what"
                " smp.DistributedOptimizer() has returned. Pass that one, or none."
            )
        if kept is not None and (type(kept) is not int or kept < 1):
            raise ConfigError(
                f"num_kept_partial_checkpoints is {kept!r}; expected 1 or more, or None to keep"
                " all. Correct it."
            )
        return {
            "tag": checked_tag(tag),
            "partial": bool(partial),
            "num_kept_partial_checkpoints": kept,
        }

    optimizer = state.optimizer if optimizer is None else optimizer
    agreed(job, _SAVE, check)
    tag = checked_tag(tag)
    save = together(job, _SAVE, lambda: secrets.token_hex(8))[0]
    directory = CheckpointDirectory(path, save)
    parts = Parts()
    whole: Mapping[str, Any] = {}

    def prepare() -> None:
        nonlocal parts, whole
        if partial:
            parts = local_parts(job, model, optimizer)
        else:
            whole = plain_values(model.state_dict(gather_to_rank0=True))
        if partial or job.rank == 0:
            os.makedirs(directory.path, exist_ok=True)

    together(job, _SAVE, prepare)
    if partial:
        layout = Layout(
            save=save,
            number=0,
            pp_size=job.size_of(GroupKind.PP),
            tp_size=job.size_of(GroupKind.TP),
            rdp_size=job.size_of(GroupKind.RDP),
            is_sharded=job.config.shard_optimizer_state,
            partition_of=dict(model.placement(_SAVE).decision.partition_of),
        )
        _save_partial(job, directory, tag, parts, layout, user_content, kept)
    else:
        together(job, _SAVE, lambda: _save_full(job, directory, tag, whole, user_content))
    if job.rank == 0:
        kind = "partial" if partial else "full"
        get_logger().info("Saved the %s checkpoint %s in %s", kind, tag, directory.path)


def _save_partial(
    job: Job,
    directory: CheckpointDirectory,
    tag: str,
    parts: Parts,
    layout: Layout,
    user_content: Any,
    kept: int | None,
) -> None:
    names = names_of(job)
    keeps = keeper_of(job, _SAVE, directory.path) == job.rank
    beside = os.path.join(directory.unfinished, USER_CONTENT)

    def of_keepers(action: Callable[[], None], undo: Callable[[], None] = _nothing) -> None:
        if keeps:
            together(job, _SAVE, action, undo=undo)
        else:
            together(job, _SAVE, _nothing)

    def write() -> tuple[bool, bool]:
        write_parts(job, names, directory.unfinished, parts)
        if keeps:
            numbered = dataclasses.replace(layout, number=directory.next_number())
            path = os.path.join(directory.unfinished, PARTITION)
            files.save(numbered.content(), path, partial=False, names=names)
        if job.rank == 0 and user_content is not None:  # the lowest rank is a keeper
            files.save(user_content, beside, partial=False, names=names)
        return keeps, user_content is not None

    try:
        of_keepers(directory.begin)
        (_, has_content), *rest = together(job, _SAVE, write)
        if has_content:
            others = [rank for rank, (keeps_too, _) in enumerate(rest, 1) if keeps_too]
            _copy_to_keepers(job, beside, others)
        of_keepers(lambda: directory.publish(tag), lambda: directory.withdraw(tag))
    except BaseException:
        if keeps:
            directory.abandon()
        raise
    of_keepers(lambda: directory.finish(tag, kept))


def _copy_to_keepers(job: Job, path: str, others: Sequence[int]) -> None:
    """What rank 0 has written goes to those who look after other directories, if there are any."""
    if not others:
        return
    content = b""

    def read() -> None:
        nonlocal content
        if job.rank == 0:
            with open(path, "rb") as file:
                content = file.read()

    def copy(file: OpenFile) -> None:
        file.write(content)

    def write() -> None:
        if job.rank in others:
            replace_file(path, USER_CONTENT, copy)

    together(job, _SAVE, read)
    if job.rank == 0:
        for rank in others:
            send(content, rank, RankType.WORLD_RANK)
    elif job.rank in others:
        content = recv_from(0, RankType.WORLD_RANK)
    together(job, _SAVE, write)


def _save_full(
    job: Job, directory: CheckpointDirectory, tag: str, whole: Mapping[str, Any], content: Any
) -> None:
    if job.rank != 0:
        return
    directory.begin()
    try:
        names = names_of(job)
        plain_save(whole, os.path.join(directory.unfinished, MODEL), names)
        if content is not None:
            path = os.path.join(directory.unfinished, USER_CONTENT)
            files.save(content, path, partial=False, names=names)
        directory.publish_full(tag)
    finally:
        directory.abandon()
    directory.write_newest(tag)


def save_safetensors(
    path: str | os.PathLike[str], max_shard_size: int | str = "5GB", model: Any = None
) -> None:
    """Writes the whole model as Hugging Face does (ours). A collective of all ranks, blocking.

    The directory gets `model.safetensors`, or shards and `model.safetensors.index.json`. With the
    model's `config.json` beside it, `from_pretrained` of transformers loads it, and so does
    `smp.resume_from_checkpoint(path, partial=False)`. Rank 0 gathers the model in its memory.

    Args:
        path: the directory, which is made. Earlier files of these names in it are replaced.
        max_shard_size: of a file, in bytes or as "5GB".
        model: the `DistributedModel`; None: the one there is.

    Raises:
        UnsupportedError: (a NotImplementedError) the packages for it are missing.
        RuntimeError: inside of a step, with several partitions.
        ModelNotPartitionedError: a loaded state waits for the first step.
        OSError: on rank 0: the files cannot be written.
        SMPError: on the others; says why.
    """
    job = state.require_outside_of_body(_EXPORT)

    def check() -> None:
        nonlocal model
        model = _model_or_registered(model, _EXPORT)
        os.fspath(path)
        if job.rank == 0:
            require_packages()

    def write() -> None:
        whole = model.state_dict(gather_to_rank0=True)
        if job.rank == 0:
            os.makedirs(path, exist_ok=True)
            write_safetensors(whole, os.fspath(path), max_shard_size)

    together(job, _EXPORT, check)
    together(job, _EXPORT, write)


# ---- resuming ------------------------------------------------------------------------------------


def resume_from_checkpoint(
    path: str | os.PathLike[str],
    tag: str | None = None,
    partial: bool = True,
    strict: bool = True,
    load_optimizer: bool = True,
    load_sharded_optimizer_state: bool = True,
    translate_function: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
    *,
    load_optimizer_states: bool | None = None,
) -> Any:
    """Loads what `save_checkpoint` has saved. A collective of all ranks, blocking.

    To be called when model and optimizer are wrapped. What must wait until the model is partitioned
    is loaded in the first step.

    A partial checkpoint gives the model the partition that it was saved in. With another number of
    partitions its parts are divided anew, and so they are for a model that is partitioned already.

    Args:
        path: the directory. Each rank must find the files of its parts there.
        tag: of the checkpoint, with or without `_partial`; None: the newest.
        partial: which kind. A full one is what `save_checkpoint(partial=False)` or `torch.save` has
            written at `path/tag`; if that is missing, `path/model.safetensors` or the shards of
            `path/model.safetensors.index.json` are read.
        strict: missing and unexpected names of parameters raise.
        load_optimizer: whether the state of the optimizer is loaded, of partial checkpoints.
        load_sharded_optimizer_state: whether, of a state that is sharded over replicas, more than
            master weights and loss scale is loaded.
        translate_function: takes the state dictionary of a full checkpoint, and returns it with the
            names of this model.
        load_optimizer_states: an older name of `load_optimizer`.

    Returns: the user content, `{}` if there is none. Unpickling it runs code that the file names:
        load only what you trust. All other files are read as tensors and plain values only.

    Raises:
        SMPNotInitialized: before `smp.init()`.
        FileNotFoundError: there is no such checkpoint, or part of it.
        ConfigError: (a ValueError) it is of another model, or of ranks whose parts cannot be
            divided anew; hosts have parts of different saves; arguments differ between ranks.
        RuntimeError: torch's, of names and shapes; with `strict` also in the first step. Or the
            call is inside of a step, with several partitions.
        SMPError: on ranks where nothing was wrong; names the one where it was.
    """
    job = state.require_outside_of_body(_RESUME)
    if load_optimizer_states is not None:
        load_optimizer = load_optimizer_states
    if tag is not None:
        tag = str(tag)  # a number, as `save_checkpoint` takes it

    def check() -> dict[str, Any]:
        CheckpointDirectory(path)
        _model_or_registered(None, _RESUME)
        return {
            "tag": tag,
            "partial": bool(partial),
            "strict": bool(strict),
            "load_optimizer": bool(load_optimizer),
            "load_sharded_optimizer_state": bool(load_sharded_optimizer_state),
        }

    agreed(job, _RESUME, check)
    directory = CheckpointDirectory(path)
    model, optimizer = state.model, state.optimizer
    if tag is None:
        of_first = together(
            job, _RESUME, lambda: newest_tag(directory, partial) if job.rank == 0 else None
        )
        tag = of_first[0]
    loader = Loader(steps=())
    folder = ""
    content: Any = {}

    def read() -> str:
        nonlocal loader, folder, content
        if partial:
            assert tag is not None
            folder = directory.partial(tag)
            loader = partial_loader(
                job, folder, model, optimizer, strict, load_optimizer, load_sharded_optimizer_state
            )
            beside = os.path.join(folder, USER_CONTENT)
        else:
            loader = full_loader(job, directory, tag, model, optimizer, strict, translate_function)
            beside = "" if tag is None else directory.full_user_content(tag)
        if os.path.isfile(beside):
            content = files.load(beside, partial=False, names=names_of(job))
        return loader.save

    check_saves(together(job, _RESUME, read), folder)
    for load in loader.steps:
        together(job, _RESUME, load)
    if job.rank == 0:
        kind = "partial" if partial else "full"
        shown = tag or "of Hugging Face"
        get_logger().info("Loaded the %s checkpoint %s in %s", kind, shown, directory.path)
    return content


# ---- both ----------------------------------------------------------------------------------------


def _model_or_registered(model: Any, what: str) -> Any:
    model = state.model if model is None else model
    if model is None or not hasattr(model, "local_state_dict"):
        raise SMPError(
            f"{what} got no model but {type(model).__name__}; expected that smp.DistributedModel()"
            " was made, and is alive. Wrap the model first, and pass that one or none."
        )
    return model


def _nothing() -> None:
    """What ranks do while others do something."""
