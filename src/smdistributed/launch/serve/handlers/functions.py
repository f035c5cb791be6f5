# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The user's functions: found in a file, and given what each wants."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["Context", "import_program", "with_context"]


class Context:
    """What a function may ask about the server and the call.

    Args:
        properties: of the server: `model_dir`, `gpu_id`, `batch_size`.
        headers: of the call, their names in lower case.
    """

    def __init__(self, properties: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self._properties = dict(properties)
        self._headers = headers

    @property
    def system_properties(self) -> dict[str, Any]:
        """`model_dir`, `gpu_id` (None without GPUs) and `batch_size` (1)."""
        return self._properties

    def get_request_header(self, index: int, key: str) -> str | None:
        """A line of the call's header; None if it is not there.

        Args:
            index: 0, as each call is one request.
            key: of the line, in any case.
        """
        return self._headers.get(key.lower())

    def get_all_request_header(self, index: int) -> dict[str, str]:
        """All lines of the call's header, their names in lower case."""
        return dict(self._headers)


def import_program(code: Path, program: str) -> ModuleType | None:
    """Imports the file with the user's functions.

    Args:
        code: the folder that it lies in, which comes first on the path of modules.
        program: its name; empty: `inference.py`, if that is there.

    Returns: the module; None if none is named and there is no `inference.py`.

    Raises:
        FileNotFoundError: the file that is named is not there.
    """
    path = code / (program or "inference.py")
    if not path.is_file():
        if not program:
            return None
        there = ", ".join(sorted(os.listdir(code))) if code.is_dir() else "no such folder"
        raise FileNotFoundError(
            f"the entry point {program!r} is not in {code} ({there}); expected the file with the"
            " functions of the model."
        )
    if not path.name.endswith(".py"):
        raise ValueError(
            f"the entry point {program!r} is no Python file; expected one, with functions such as"
            " model_fn. Give deploy() an entry_point."
        )
    for folder in (code, path.parent):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickles name it
    spec.loader.exec_module(module)
    return module


def with_context(function: Callable[..., Any], num_arguments: int) -> Callable[..., Any]:
    """The function as it is to be called: with one argument more, the context.

    It gets the context if it has exactly one parameter more than its contract says; parameters
    with defaults count.

    Raises:
        TypeError: it has another number of parameters.
    """
    count = len(inspect.signature(function).parameters)
    if count == num_arguments + 1:
        return function
    if count != num_arguments:
        name = getattr(function, "__name__", repr(function))
        raise TypeError(f"{name} takes {count} arguments but {num_arguments} were given.")
    return lambda *arguments: function(*arguments[:-1])
