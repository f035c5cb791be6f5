# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.save` and `smp.load`: `files`, under the names of this rank.

Source: modelparallel specification, section 4.8.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.torch.job.state import Job, state
from smdistributed.modelparallel.torch.saving import files

__all__ = ["load", "names_of", "save"]


def save(
    obj: object,
    f: str | os.PathLike[str],
    partial: bool = True,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    v3: bool = False,
    *,
    pickel_module: Any = None,
) -> None:
    """Writes an object with `torch.save`, whole or not at all. Not collective, blocking.

    With `partial` it is this rank's: the file is `f_{mp_rank}`, with tensor parallelism
    `f_{pp_rank}_{tp_rank}`, with `v3` also `_{rdp_rank}`; else `f`. Whoever calls, writes:

        if smp.dp_rank() == 0:
            smp.save(model.local_state_dict(), "model.pt", partial=True)

    The other arguments and the errors are those of `files.save`.

    Raises:
        SMPNotInitialized: before `smp.init()`.
    """
    names = names_of(state.require("smp.save()"))
    files.save(
        obj,
        f,
        partial,
        pickle_module,
        pickle_protocol,
        v3,
        pickel_module=pickel_module,
        names=names,
    )


def load(
    f: str | os.PathLike[str],
    map_location: Any = None,
    pickle_module: Any = pickle,
    partial: bool = True,
    back_compat: bool = False,
    *,
    pickel_module: Any = None,
    **pickle_load_args: Any,
) -> Any:
    """Reads what `smp.save` wrote for this rank, with `torch.load`. Not collective, blocking.

    Parts may go into another number of partitions, see `files.load`. Tensors go into CPU memory
    unless `map_location` says otherwise. Load only what you trust. The arguments and the errors are
    those of `files.load`.

    Raises:
        SMPNotInitialized: before `smp.init()`.
    """
    names = names_of(state.require("smp.load()"))
    return files.load(
        f,
        map_location,
        pickle_module,
        partial,
        back_compat,
        pickel_module=pickel_module,
        names=names,
        **pickle_load_args,
    )


def names_of(job: Job) -> files.FileNames:
    """This rank's."""
    return files.FileNames(
        pp_rank=job.rank_in(GroupKind.PP),
        tp_rank=job.rank_in(GroupKind.TP),
        rdp_rank=job.rank_in(GroupKind.RDP),
        mp_rank=job.rank_in(GroupKind.MP),
        tp_size=job.size_of(GroupKind.TP),
    )
