# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.save` and `smp.load`: one file, or one file for each rank, never half a file.

| call | file | |
| --- | --- | --- |
| `partial=False` | `f` | |
| `partial=True`, no tensor parallelism | `f_{mp_rank}` | v1 |
| `partial=True`, tensor parallelism | `f_{pp_rank}_{tp_rank}` | v2 |
| `partial=True, v3=True` | `f_{pp_rank}_{tp_rank}_{rdp_rank}` | v3 |

A file is replaced whole (`atomic_files`): whenever the process or the host dies, the name holds the
previous content or the new one.

Neither function is collective; they know of ranks only what they are told.

Source: modelparallel specification, section 4.8.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import pickle
import re
from typing import IO, Any, cast

import torch

from smdistributed.modelparallel.atomic_files import OpenFile, replace_file

__all__ = ["FileNames", "load", "save"]

_MOST_LISTED = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileNames:
    """The names of one rank's files.

    Attributes:
        pp_rank, tp_rank, rdp_rank: where the rank is in the mesh.
        mp_rank: its rank in the MP group.
        tp_size: ranks that share a distributed module; 1 without tensor parallelism.
    """

    pp_rank: int
    tp_rank: int
    rdp_rank: int
    mp_rank: int
    tp_size: int

    def v1(self, f: str) -> str:
        """One file for each rank of an MP group."""
        return f"{f}_{self.mp_rank}"

    def v2(self, f: str) -> str:
        """The same, named by partition and tensor parallel rank."""
        return f"{f}_{self.pp_rank}_{self.tp_rank}"

    def v3(self, f: str) -> str:
        """One file for each rank of the world."""
        return f"{f}_{self.pp_rank}_{self.tp_rank}_{self.rdp_rank}"

    def to_save(self, f: str, *, partial: bool, v3: bool) -> str:
        """The file that `save` writes."""
        if not partial:
            return f
        if v3:
            return self.v3(f)
        return self.v1(f) if self.tp_size == 1 else self.v2(f)

    def to_load(self, f: str, *, partial: bool, back_compat: bool) -> list[str]:
        """The files that `load` tries, in order."""
        if not partial:
            return [f]
        names = [self.v3(f), self.v2(f)]
        if self.tp_size == 1:
            names.insert(0 if back_compat else len(names), self.v1(f))
        return names


def save(
    obj: object,
    f: str | os.PathLike[str],
    partial: bool = True,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    v3: bool = False,
    *,
    pickel_module: Any = None,
    names: FileNames,
) -> None:
    """Writes an object with `torch.save`, whole or not at all. Not collective, blocking.

    A file that was there keeps its permissions, and a link keeps pointing at what it pointed at. A
    pipe or device is written to as it is.

    Args:
        obj: what `torch.save` takes.
        f: the path, to which the ranks are added. Its directory must be there.
        partial: whether each rank has a file of its own.
        pickle_module, pickle_protocol: as in `torch.save`.
        v3: whether ranks with identical parameters have files of their own too.
        pickel_module: the same as `pickle_module`, as the original's documentation spells it.
        names: this rank's.

    Raises:
        FileNotFoundError: the directory is not there.
        OSError: the disk is full (with the free bytes), or the file cannot be written.
        TypeError: `f` is not a path.
        Exception: what pickling the object raises.
    """
    path = names.to_save(_path(f), partial=partial, v3=v3)
    module = pickle_module if pickel_module is None else pickel_module
    identity = f"{names.pp_rank}_{names.tp_rank}_{names.rdp_rank}"

    def write(file: OpenFile) -> None:
        torch.save(
            obj, cast(IO[bytes], file), pickle_module=module, pickle_protocol=pickle_protocol
        )

    replace_file(path, identity, write)


def load(
    f: str | os.PathLike[str],
    map_location: Any = None,
    pickle_module: Any = pickle,
    partial: bool = True,
    back_compat: bool = False,
    *,
    pickel_module: Any = None,
    names: FileNames,
    **pickle_load_args: Any,
) -> Any:
    """Reads what `save` wrote, with `torch.load`. Not collective, blocking.

    With `partial`, what the rank of the same place in the mesh has saved. Parts of a model and of
    its optimizer may go into another number of partitions: their `load_state_dict` sends each rank
    what it lacks, if the ranks of a pipeline have all parts between them.

    Unpickling runs code that the file names, so load only what you trust: payloads hold
    configurations and loaders, hence `weights_only=False`, unless `pickle_load_args` has it.

    Args:
        f: the path that was given to `save`.
        map_location: where tensors go, as in `torch.load`; None: to the CPU.
        pickle_module: as in `torch.load`.
        partial: whether each rank has a file of its own. Tried are the names v3, v2 and, without
            tensor parallelism, v1.
        back_compat: try v1 first.
        pickel_module: the same as `pickle_module`, as the original's documentation spells it.
        names: this rank's.
        pickle_load_args: the others of `torch.load`.

    Raises:
        FileNotFoundError: there is none; the text lists what was tried and what is there.
        TypeError: `f` is not a path.
        Exception: what reading or unpickling raises, with a note that names the file.
    """
    base = _path(f)
    tried = names.to_load(base, partial=partial, back_compat=back_compat)
    pickle_load_args.setdefault("weights_only", False)
    if not pickle_load_args["weights_only"]:  # with True, torch refuses any module
        pickle_load_args["pickle_module"] = (
            pickle_module if pickel_module is None else pickel_module
        )
    for path in tried:
        if not os.path.exists(path):
            continue
        try:
            return torch.load(
                path,
                map_location="cpu" if map_location is None else map_location,
                **pickle_load_args,
            )
        except Exception as error:
            error.add_note(f"smp.load was reading {path}.")
            raise
    raise FileNotFoundError(errno.ENOENT, _missing(base, tried))


def _path(f: object) -> str:
    path = os.fspath(f) if isinstance(f, (str, os.PathLike)) else None
    if not isinstance(path, str):  # a Path may also stand for bytes
        raise TypeError(
            f"f is {f!r}; expected a path, as str or pathlib.Path. Ranks are added to its name, so"
            " open files cannot be passed; use torch.save and torch.load for those."
        )
    return path


def _missing(base: str, tried: list[str]) -> str:
    directory = os.path.dirname(base) or "."
    stem = os.path.basename(base)
    is_part = len(tried) > 1
    what = "The file of this rank" if is_part else "The file"
    advice = "Pass the path that was given to smp.save, with the same value of partial."
    try:
        found = [name for name in os.listdir(directory) if name.startswith(stem)]
    except FileNotFoundError:
        there = f"the directory {directory} is not there"
    else:
        found.sort(key=_natural)
        more = len(found) - _MOST_LISTED
        listed = ", ".join(found[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
        there = f"{directory} holds {listed}" if found else f"nothing in {directory} starts so"
        if found and is_part:
            advice += (
                " If fewer ranks have saved, let one without a file pass {'_smp_is_partial': True}"
                " to load_state_dict(), which gets its part from the others."
            )
    return f"{what} is missing; expected {' or '.join(tried)}, but {there}. {advice}"


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Numbers in a name sort by value."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts]
