# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the stand-in as `horovod` where nobody else finds a `horovod`.

A line in a `.pth` file of our distribution installs the finder at the start of each interpreter
that has `SMDDP_HOROVOD=stand-in`, so this module imports next to nothing. No file of the name
`horovod` is installed beside other packages: neither distribution touches the other's files.

Source: our choice; see docs/horovod.md.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["STAND_IN", "STAND_IN_FOLDER", "VARIABLE", "Finder", "install"]

VARIABLE = "SMDDP_HOROVOD"
STAND_IN = "stand-in"
"""The variable's value by which the finder is installed when an interpreter starts."""

STAND_IN_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stand_in")

_NAME = "horovod"

# Modules of Horovod that the stand-in lacks, and what to do instead.
_INSTEAD = {
    "mxnet": "MXNet is not served",
    "ray": "start the script with smddprun, or Ray Train's workers with the smddp backend",
    "tensorflow.data": "read the data with tf.data in each process",
    "spark": "write the data to files, and start the script with smddprun or an estimator's fit()",
}


class Finder:
    """Stands last in `sys.meta_path`, and asks those that have come behind it before it answers."""

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The spec of `horovod`, if nobody else has one; its modules are found by its path.

        Raises:
            ModuleNotFoundError: the stand-in has no such module, or a folder that is no package
                has taken its name.
        """
        if fullname != _NAME and not fullname.startswith(f"{_NAME}."):
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        for other in others:
            spec = other.find_spec(fullname, path, target) if hasattr(other, "find_spec") else None
            if spec is not None:
                return spec
        if fullname == _NAME:
            # Only here: at the start of an interpreter each import counts.
            from importlib.machinery import PathFinder

            return PathFinder.find_spec(_NAME, [STAND_IN_FOLDER], target)
        why_not = _why_not(fullname)
        if why_not is not None:
            raise ModuleNotFoundError(why_not, name=fullname)
        return None


def _why_not(fullname: str) -> str | None:
    """Why a module below `horovod` is not there, where that is ours to say."""
    package = sys.modules.get(_NAME)
    file = getattr(package, "__file__", None)
    if file is None:
        folders = ", ".join(getattr(package, "__path__", ()))
        return (
            f"{fullname} is not there: Python has taken the folder {folders} for horovod, as its"
            " name is that and it is found before the stand-in. Rename it, or start the script"
            " where no such folder lies beside it."
        )
    if os.path.dirname(os.path.dirname(file)) != STAND_IN_FOLDER:
        return None
    below = fullname.partition(".")[2]
    instead = _INSTEAD.get(below, "docs/horovod.md has a table of its names")
    return (
        f"{fullname} is not there: this horovod is the stand-in of smdistributed-open, which has"
        f" horovod.tensorflow, horovod.keras and horovod.torch. Instead: {instead}."
    )


def install() -> None:
    """Has `import horovod` find the stand-in in this process; once, however often it is called."""
    if not any(isinstance(each, Finder) for each in sys.meta_path):
        sys.meta_path.append(Finder())
