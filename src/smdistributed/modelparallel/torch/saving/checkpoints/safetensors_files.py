# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Model files as Hugging Face writes and reads them: `model.safetensors`, or shards and an index.

A tensor that has several names, such as a tied embedding, is in a file once, under its first name;
who loads it ties it again. The packages `safetensors` and `huggingface_hub` are imported when they
are needed.

Source: our choice; the modelparallel specification, section 6.9, wants such files read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from smdistributed._common.errors import UnsupportedError
from smdistributed._common.log import get_logger
from smdistributed.modelparallel.atomic_files import synchronise_directory
from smdistributed.modelparallel.exceptions import SMPError

__all__ = ["find_safetensors", "read_safetensors", "require_packages", "write_safetensors"]

_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_OURS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")
_UNFINISHED = ".unfinished-safetensors.smp-tmp"


def require_packages() -> None:
    """Looks whether what writes such files is there.

    Raises:
        UnsupportedError: (a NotImplementedError) it is not; says how to get it.
    """
    try:
        import huggingface_hub  # noqa: F401
        import safetensors.torch  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            f"safetensors files need a package that cannot be imported ({error}); expected"
            " safetensors and huggingface_hub. Install them: pip install"
            " 'smdistributed-open[safetensors]'"
        ) from error


def write_safetensors(state: Mapping[str, Any], path: str, max_shard_size: int | str) -> None:
    """Writes a model's state dictionary. Not collective, blocking.

    Files of an earlier call are replaced when all new ones are on the disk, one after the other.

    Args:
        state: of tensors. Extra state of modules, which such files cannot hold, is left out with a
            warning.
        path: the directory; it is there.
        max_shard_size: in bytes, or as "5GB"; more than that goes into several files.

    Raises:
        OSError: the files cannot be written.
    """
    from huggingface_hub import save_torch_state_dict

    left_out = [key for key, value in state.items() if not isinstance(value, Tensor)]
    if left_out:
        get_logger().warning(
            "safetensors files hold tensors only, so %s is left out: extra state of modules; who"
            " loads the files must do without it",
            ", ".join(left_out),
        )
    unfinished = os.path.join(path, _UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    os.mkdir(unfinished)
    try:
        save_torch_state_dict(_each_once(state), unfinished, max_shard_size=max_shard_size)
        new = sorted(os.listdir(unfinished))
        for name in new:
            with open(os.path.join(unfinished, name), "rb") as file:
                os.fsync(file.fileno())
        # The index last; before it what readers would take instead of it, or of the one file.
        stale = [name for name in os.listdir(path) if _OURS.fullmatch(name) and name not in new]
        for name in sorted(new, key=lambda name: name == _INDEX):
            os.replace(os.path.join(unfinished, name), os.path.join(path, name))
        for name in stale:
            os.unlink(os.path.join(path, name))
        synchronise_directory(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def find_safetensors(path: str) -> list[str]:
    """The files of a model in a directory; none if there is none.

    Raises:
        SMPError: the index is damaged, or names something outside of the directory.
    """
    single = os.path.join(path, _FILE)
    if os.path.isfile(single):
        return [single]
    index = os.path.join(path, _INDEX)
    try:
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise SMPError(
            f"{index} is damaged, or something else: {error!r}; expected JSON with a"
            " `weight_map` from names to files. Copy the model anew."
        ) from error
    for name in names:
        if not isinstance(name, str) or os.path.basename(name) != name:
            raise SMPError(
                f"{index} names the file {name!r}; expected files beside it. Copy the model anew."
            )
    return [os.path.join(path, name) for name in names]


def read_safetensors(files: list[str]) -> dict[str, Tensor]:
    """All tensors of the files, in CPU memory.

    Raises:
        UnsupportedError: the package is missing.
        OSError: a file cannot be read.
        SMPError: a file is damaged.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise UnsupportedError(
            f"{files[0]} is to be read, but the package safetensors is missing; expected it, to"
            " load a model from such files. Install it: pip install safetensors"
        ) from error
    state: dict[str, Tensor] = {}
    for path in files:
        try:
            state.update(load_file(path))
        except SafetensorError as error:
            raise SMPError(
                f"{path} is damaged, or something else: {error}; expected a safetensors file. Copy"
                " the model anew."
            ) from error
    return state


def _each_once(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors none of which share memory; of those that are the same one, the first."""
    kept: dict[str, Tensor] = {}
    seen: set[Any] = set()
    storages: set[int] = set()
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            continue
        what = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and what in seen:
            continue
        seen.add(what)
        storage = tensor.untyped_storage()
        is_view = storage.nbytes() != tensor.nbytes or storage.data_ptr() in storages
        storages.add(storage.data_ptr())
        plain = tensor.detach()
        kept[name] = plain.clone(memory_format=torch.contiguous_format) if is_view else plain
    return kept
