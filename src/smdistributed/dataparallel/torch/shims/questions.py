# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`SMDDP_CPU_SHIM=full`: the user's own files are told that there is one device per local process.

Scripts ask `torch.cuda.is_available()` and raise, or choose another backend, if the answer is no.
Libraries ask the same question to choose their kernels, allocators and device handles, and must
hear the truth. So the answer depends on who asks: code in a file below the directory of the main
script (installed packages there excepted), or in the main module itself, is the user's.

Looking at the caller costs one frame access and one dictionary lookup per question.

Source: specification, section 4.6. The questions beyond `is_available` and `device_count` are those
that a script asks next once it has been told yes; without CUDA they raise.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from smdistributed.dataparallel.torch.notices import inform_once
from smdistributed.dataparallel.torch.shims.calls import chosen_index
from smdistributed.dataparallel.torch.shims.patches import Patches

__all__ = ["DeviceProperties", "UserFiles", "install"]

_DEVICE_NAME = "CPU (SMDDP_CPU_SHIM=full)"
# The second is the name of the script in a spawned worker, whose first is multiprocessing's own.
_MAIN_MODULES = ("__main__", "__mp_main__")
_INSTALLED_PACKAGES = ("site-packages", "dist-packages")
_OWN_PACKAGE = Path(__file__).resolve().parents[3]


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What `torch.cuda.get_device_properties` answers: the fields that scripts print or compare.

    Attributes:
        name: name of the stand-in.
        major, minor: compute capability; 0.0, below all that a script could ask for.
        total_memory: bytes of main memory, which all processes share.
        multi_processor_count: processors that this process may use.
        warp_size: 1, as there are no warps.
    """

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    warp_size: int = 1


class UserFiles:
    """Tells which source files are the user's own.

    Args:
        directory: where the main script lies, or `None` if there is none.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = None if directory is None else directory.resolve()
        self._known: dict[str, bool] = {}

    @classmethod
    def of_main_module(cls) -> UserFiles:
        """The files around the main module; under `python -m` tools, the script that they run."""
        for name in _MAIN_MODULES:
            path = getattr(sys.modules.get(name), "__file__", None)
            if path is not None:
                return cls(Path(path).parent)
        return cls(None)

    def contains(self, module_name: str, filename: str) -> bool:
        """True if code of that module, compiled from that file, is the user's."""
        if module_name in _MAIN_MODULES:
            return True  # also `python -c`, notebooks and standard input, which have no file
        known = self._known.get(filename)
        if known is None:
            known = self._known[filename] = self._decide(filename)
        return known

    def _decide(self, filename: str) -> bool:
        if self._directory is None:
            return False
        path = Path(filename).resolve()
        if path.is_relative_to(_OWN_PACKAGE) or not path.is_relative_to(self._directory):
            return False
        return not set(path.relative_to(self._directory).parts) & set(_INSTALLED_PACKAGES)


def install(patches: Patches) -> None:
    """Wraps the questions."""
    files = UserFiles.of_main_module()
    for name, answer in _ANSWERS.items():
        patches.wrap(torch.cuda, name, functools.partial(_wrap_question, files, name, answer))


def _wrap_question(
    files: UserFiles, name: str, answer: Callable[[], Any], original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        if not files.contains(caller.f_globals.get("__name__", ""), caller.f_code.co_filename):
            return original(*args, **kwargs)
        result = answer()
        inform_once(name, f"torch.cuda.{name}() answers {result!r} to this script's own files")
        return result

    # torch.compile asks once while it traces, and hears the truth; it cannot trace a frame access.
    # (As torch.compiler.assume_constant_result does, which would import all of the compiler.)
    ask._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return ask


def _is_available() -> bool:
    return True


def _device_count() -> int:
    # Read when asked: under some launchers the number is agreed on in init_process_group.
    return int(os.environ.get("LOCAL_WORLD_SIZE") or 1)


def _get_device_name() -> str:
    return _DEVICE_NAME


def _get_device_capability() -> tuple[int, int]:
    return 0, 0


def _get_device_properties() -> DeviceProperties:
    _, total_bytes = _mem_get_info()
    num_processors = len(os.sched_getaffinity(0))
    return DeviceProperties(_DEVICE_NAME, *_get_device_capability(), total_bytes, num_processors)


def _mem_get_info() -> tuple[int, int]:
    """Free and total bytes of main memory."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page_bytes, os.sysconf("SC_PHYS_PAGES") * page_bytes


# The arguments, if any, name the device; the answer is the same for each.
_ANSWERS: dict[str, Callable[[], Any]] = {
    "current_device": chosen_index,
    "device_count": _device_count,
    "get_device_capability": _get_device_capability,
    "get_device_name": _get_device_name,
    "get_device_properties": _get_device_properties,
    "is_available": _is_available,
    "mem_get_info": _mem_get_info,
}
