# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Import this to load what `smdistributed.modelparallel.torch` consists of, without its effects.

The import of that package reads the environment and registers the backend, which a process must do
itself; its modules only define things. So they are loaded below a stand-in for the package, which
then goes away: a process that imports the package finds them, and runs the package's own code.
"""

import importlib
import pkgutil
import sys
import types
from pathlib import Path

import smdistributed.modelparallel

_NAME = "smdistributed.modelparallel.torch"

_package = types.ModuleType(_NAME)
_package.__path__ = [str(Path(smdistributed.modelparallel.__path__[0], "torch"))]
sys.modules[_NAME] = _package
# One folder deep: they import the rest. What a package's own code does there is to define names.
for _module in pkgutil.iter_modules(_package.__path__, f"{_NAME}."):
    importlib.import_module(_module.name)
del sys.modules[_NAME]
