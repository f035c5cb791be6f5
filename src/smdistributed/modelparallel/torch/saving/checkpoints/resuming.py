# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is read of a checkpoint, and how model and optimizer take it.

It is in two acts, so that a rank that cannot read its part is told to all before any of them waits
for what others have read: reading returns what loads.

Source: modelparallel specification, section 6.9.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import ConfigError, SMPError
from smdistributed.modelparallel.torch.job.state import Job
from smdistributed.modelparallel.torch.modules.assignment import module_paths
from smdistributed.modelparallel.torch.saving.checkpoints.directory import (
    PARTITION,
    CheckpointDirectory,
    Layout,
)
from smdistributed.modelparallel.torch.saving.checkpoints.parts import plain_load, read_parts
from smdistributed.modelparallel.torch.saving.checkpoints.safetensors_files import (
    find_safetensors,
    read_safetensors,
)
from smdistributed.modelparallel.torch.saving.rank_files import names_of
from smdistributed.modelparallel.torch.saving.state_dicts import IS_PARTIAL

__all__ = ["Loader", "check_saves", "full_loader", "newest_tag", "partial_loader"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loader:
    """What gives to model and optimizer what was read.

    Attributes:
        steps: as many on all ranks. Each is a collective of all of them, or none; one that fails
            on some ranks must be known to all before the next.
        save: `Layout.save` of a partial checkpoint.
    """

    steps: Sequence[Callable[[], None]]
    save: str = ""


def check_saves(saves: Sequence[str], path: str) -> None:
    """Whether all ranks have read parts of the same save. Not collective.

    Args:
        saves: `Loader.save`, by rank.
        path: of the checkpoint.

    Raises:
        ConfigError: (a ValueError) they have not.
    """
    for rank, save in enumerate(saves):
        if save != saves[0]:
            raise ConfigError(
                f"{path} holds parts of one save on the host of rank 0, and of another on that of"
                f" rank {rank}, as when a save with the tag of an earlier one did not end on all"
                " hosts; expected the same save. Resume from another tag, or copy all files of one"
                " of them to each host, and give each checkpoint a tag of its own."
            )


def newest_tag(directory: CheckpointDirectory, partial: bool) -> str | None:
    """The tag to take; None: there is no checkpoint, but a model of Hugging Face's."""
    tag = directory.newest()
    if tag is None and (partial or not find_safetensors(directory.path)):
        raise FileNotFoundError(
            errno.ENOENT,
            f"{directory.path} holds no file `newest`; expected it, as smp.save_checkpoint writes"
            " it last. Pass the path that was given to it, or a tag",
        )
    return tag


def partial_loader(
    job: Job,
    folder: str,
    model: Any,
    optimizer: Any,
    strict: bool,
    loads_optimizer: bool,
    loads_shards: bool,
) -> Loader:
    """Reads this rank's parts. Not collective.

    Args:
        job: what this process knows of the others.
        folder: of the checkpoint.
        model, optimizer: the distributed ones; without an optimizer None.
        strict, loads_optimizer, loads_shards: as of `resume_from_checkpoint`.

    Raises:
        ConfigError, FileNotFoundError, SMPError: as of `resume_from_checkpoint`.
    """
    layout = Layout.read(os.path.join(folder, PARTITION))
    if loads_optimizer and optimizer is None:
        raise SMPError(
            "smp.resume_from_checkpoint() was called before smp.DistributedOptimizer();"
            " expected it after, to load the optimizer's state. Move it, or pass"
            " load_optimizer=False."
        )
    parts = read_parts(
        job,
        names_of(job),
        folder,
        layout,
        optimizer=loads_optimizer and (loads_shards or not layout.is_sharded),
        fp16=loads_optimizer and hasattr(optimizer, "load_fp16_states"),
    )
    is_fixed = _fixes_partition(job, model, layout, strict)
    is_same = is_fixed or _is_in_partition(job, model, layout)
    if job.rank == 0 and not is_same:
        get_logger().info(
            "The checkpoint %s was saved in another partition, into %d; its parts are divided anew"
            " into %d",
            folder,
            layout.pp_size,
            job.size_of(GroupKind.PP),
        )

    def load_model() -> None:
        if is_fixed:
            model.fix_partition(layout.partition_of, folder)
        _tell(model.load_state_dict(parts.model, strict=strict, same_partition_load=is_same))

    def load_optimizer() -> None:
        if parts.optimizer is not None:
            optimizer.load_state_dict(parts.optimizer)

    def load_masters() -> None:
        _load_masters(model, optimizer, parts.fp16)

    return Loader(save=layout.save, steps=(load_model, load_optimizer, load_masters))


def _fixes_partition(job: Job, model: Any, layout: Layout, strict: bool) -> bool:
    """Whether the model, which is not partitioned yet, can take the partition of a checkpoint."""
    if model.partitioned or layout.pp_size != job.size_of(GroupKind.PP):
        return False
    differing = layout.partition_of.keys() ^ set(module_paths(model.get_module()).values())
    if differing and strict:
        raise ConfigError(
            "the checkpoint is of another model: only one of both has"
            f" {', '.join(sorted(differing)[:5])}; expected the same modules. Build the model that"
            " was saved, or pass strict=False to load what has the same names."
        )
    return not differing


def _is_in_partition(job: Job, model: Any, layout: Layout) -> bool:
    if not model.partitioned or layout.pp_size != job.size_of(GroupKind.PP):
        return False
    return bool(
        model.placement("the loaded partition").decision.partition_of == layout.partition_of
    )


def full_loader(
    job: Job,
    directory: CheckpointDirectory,
    tag: str | None,
    model: Any,
    optimizer: Any,
    strict: bool,
    translate: Callable[[dict[str, Any]], Mapping[str, Any]] | None,
) -> Loader:
    """Reads a whole model. Not collective.

    Args:
        job: what this process knows of the others.
        directory: of the checkpoint.
        tag: of the checkpoint; None: there is but a model of Hugging Face's.
        model, optimizer: the distributed ones; without an optimizer None.
        strict, translate: as of `resume_from_checkpoint`.

    Raises:
        FileNotFoundError, SMPError: as of `resume_from_checkpoint`.
    """
    shards = [] if directory.has_full(tag) else find_safetensors(directory.path)
    loaded: Any
    if shards:
        loaded = read_safetensors(shards)
    else:
        path = directory.full(tag or "")
        # Ranks of a host then share the memory of the file.
        loaded = plain_load(path, names_of(job), mmap=zipfile.is_zipfile(path))
        if not isinstance(loaded, Mapping):
            raise SMPError(
                f"{path} holds a {type(loaded).__name__}; expected a state dictionary. Pass the tag"
                " of a checkpoint that was saved with partial=False."
            )
    if translate is not None:
        loaded = {**translate(dict(loaded)), IS_PARTIAL: False}
    _add_other_names(model.get_module(), loaded)

    return Loader(
        steps=(
            lambda: _tell(model.load_state_dict(loaded, strict=strict)),
            lambda: _load_masters(model, optimizer, None),
        )
    )


def _add_other_names(module: nn.Module, loaded: dict[str, Any]) -> None:
    """Of parameters with several names, which some files hold under one of them only."""
    named = list(module.named_parameters(remove_duplicate=False))
    values = {id(parameter): loaded[name] for name, parameter in named if name in loaded}
    for name, parameter in named:
        if id(parameter) in values:
            loaded.setdefault(name, values[id(parameter)])


def _load_masters(model: Any, optimizer: Any, states: Mapping[str, Any] | None) -> None:
    """In 16-bit training: what was saved of it, or master weights from the model's parameters."""
    if states is not None:
        optimizer.load_fp16_states(states)
    elif hasattr(optimizer, "reload_model_params"):
        # At once, if it is partitioned.
        model.register_post_partition_hook(lambda *_: optimizer.reload_model_params())


def _tell(result: Any) -> None:
    """What `strict=False` has let pass."""
    for kind in ("missing", "unexpected"):
        keys = getattr(result, f"{kind}_keys")
        if keys:
            get_logger().warning(
                "%d %s names while a checkpoint was loaded, the first: %s",
                len(keys),
                kind,
                ", ".join(keys[:5]),
            )
