# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Load what a package of ours consists of, without the effects that its own import has.

The import of such a package reads the environment and changes the framework, which a process must
do itself; its modules only define things. So they are loaded below a module that stands where the
package will be, and are put away. A process that imports the package finds them in their places,
and the package's own code then runs in that module.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import pkgutil
import sys
import types
from collections.abc import Sequence


@dataclasses.dataclass
class _Package:
    module: types.ModuleType
    below: dict[str, types.ModuleType]


def load_rooms(*names: str) -> None:
    """Load all modules of these packages.

    Args:
        names: in the order of their layers: each may import those before it.
    """
    modules = []
    for name in names:
        above, _, last = name.rpartition(".")
        module = types.ModuleType(name)
        module.__path__ = [f"{folder}/{last}" for folder in importlib.import_module(above).__path__]
        sys.modules[name] = module
        modules.append(module)
    for module in modules:
        _load_below(module)
    packages = {}
    for module in modules:
        name = module.__name__
        below = [each for each in sys.modules if each.startswith(f"{name}.")]
        packages[name] = _Package(module, {each: sys.modules.pop(each) for each in below})
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(packages))


def _load_below(package: types.ModuleType) -> None:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if found.name.rpartition(".")[2].startswith("_"):  # libraries, which others load
            continue
        module = importlib.import_module(found.name)
        if found.ispkg:
            _load_below(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the packages where they are, and has each become the module that there is already."""

    def __init__(self, packages: dict[str, _Package]) -> None:
        self._packages = packages

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._packages:
            return None
        names = list(self._packages)
        lower = names[: names.index(fullname)]
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(self._packages[fullname], spec.loader, lower)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(
        self, package: _Package, loader: importlib.abc.Loader, lower: Sequence[str]
    ) -> None:
        self._package = package
        self._loader = loader
        self._lower = lower

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._package.module

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        for name in self._lower:  # they are imported by what is put back here
            importlib.import_module(name)
        sys.modules.update(self._package.below)
        self._loader.exec_module(module)
