# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Modules of `modelparallel.tensorflow` that use no TensorFlow, imported without it.

The package itself imports it, which pytest's process must not. So these are loaded beside it, and
no other test finds them.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from unittest import mock

import smdistributed.modelparallel

_PACKAGE = "smdistributed.modelparallel.tensorflow"


def load(*names: str) -> list[types.ModuleType]:
    """The modules of such names, below the package."""
    (root,) = smdistributed.modelparallel.__path__
    package = types.ModuleType(_PACKAGE)
    package.__path__ = [str(Path(root) / "tensorflow")]
    hidden = {name: module for name, module in sys.modules.items() if name.startswith(_PACKAGE)}
    with mock.patch.dict(sys.modules):
        for name in hidden:
            del sys.modules[name]
        sys.modules[_PACKAGE] = package
        return [importlib.import_module(f"{_PACKAGE}.{name}") for name in names]
