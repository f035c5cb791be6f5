# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Finds `sagemaker` in smdistributed.sagemaker, if nobody else finds a `sagemaker`.

A line in a `.pth` file installs the finder when the interpreter starts, so this module imports next
to nothing. No file of the name `sagemaker` is installed: neither this package nor the SDK touches
the other's files, in whatever order they come and go.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

_NAME = "sagemaker"
_OURS = "smdistributed.sagemaker"


class Finder:
    """Stands first in `sys.meta_path`, to say who has won; asks all others before it answers."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of `sagemaker` and what is below it; None of all else.

        Raises:
            ModuleNotFoundError: `sagemaker` is ours, and has no such module.
        """
        if fullname == _NAME:
            others = real_sdk()
            if others is not None:
                import warnings

                warnings.warn(f"{_verdict(others)} The alias does nothing.", stacklevel=2)
                return None
        elif not fullname.startswith(f"{_NAME}.") or not _is_ours(sys.modules.get(_NAME)):
            return None
        from importlib.util import find_spec

        ours = fullname.replace(_NAME, _OURS, 1)
        try:
            found = find_spec(ours)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{fullname} is an alias of {ours}, and that cannot be imported ({error}); expected"
                " smdistributed-open. Install it: pip install smdistributed-open",
                name=fullname,
            ) from None
        if found is None:
            raise ModuleNotFoundError(
                f"{fullname} is not there: {_NAME} is the alias of {_OURS}, which has no such"
                " module. Where it is needed, install the SDK itself: pip install 'sagemaker<3'",
                name=fullname,
            )
        is_package = found.submodule_search_locations is not None
        # A loader by its methods: importlib.abc is a lot to import at each interpreter's start.
        loader: Any = _Loader(ours)
        return ModuleSpec(fullname, loader, origin=found.origin, is_package=is_package)


class _Loader:
    """Gives a module that is there already under its own name: its classes are the same ones."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module under its own name."""
        from importlib import import_module

        module = import_module(self._ours)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed; only gives it back what the import system has overwritten."""
        module.__spec__ = self._spec


def install() -> None:
    """Has `import sagemaker` ask us first."""
    if not any(isinstance(each, Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, Finder())


def real_sdk() -> ModuleSpec | None:
    """Of a `sagemaker` that is not ours; None if there is none.

    A folder of that name without an `__init__.py` counts only where a distribution has put it, as
    line 3.x of the SDK does; other such folders are examples that lie about.
    """
    for finder in sys.meta_path:
        if isinstance(finder, Finder) or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(_NAME, None, None)
        if spec is None:
            continue
        if spec.origin is not None or _is_installed(spec.submodule_search_locations or ()):
            return spec
    return None


def _is_installed(folders: Sequence[str]) -> bool:
    from pathlib import Path

    return any(any(Path(folder).parent.glob(f"{_NAME}*.dist-info")) for folder in list(folders))


def _is_ours(module: ModuleType | None) -> bool:
    return module is not None and module is sys.modules.get(_OURS)


def _verdict(others: ModuleSpec) -> str:
    where = others.origin or list(others.submodule_search_locations or ())
    return (
        f"`sagemaker` is installed at {where}, beside smdistributed-open-sagemaker-alias; the"
        " installed one wins. To have smdistributed.sagemaker under its name, uninstall it."
    )
