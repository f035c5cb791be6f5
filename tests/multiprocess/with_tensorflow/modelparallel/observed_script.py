# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a script, and writes what its model holds at the end into a folder, a file for each rank.

    python observed_script.py [--plain MICROBATCHES] FOLDER SCRIPT OPTION...

With `--plain` nothing of the library is there: `plain_keras` is in its place. TensorFlow has one
thread for operations, and one in an operation, so that sums are the same in every run.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from typing import Any


def observe(argv: list[str]) -> None:
    """Runs the script as its user would."""
    if argv[0] == "--plain":
        put_plain_keras_in_place(int(argv[1]))
        argv = argv[2:]
    os.environ |= {"TF_NUM_INTEROP_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    folder, *sys.argv = argv
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    find_horovod()
    found = runpy.run_path(sys.argv[0], run_name="__main__")

    import numpy as np  # as late as the script may import what it imports

    model = found["model"]
    values = {name_of(each): np.asarray(each) for each in model.variables}
    assert len(values) == len(model.variables)
    values["accuracy"] = np.asarray(found["accuracy"].result())
    np.savez(os.path.join(folder, f"{found['smp'].rank()}.npz"), **values)


def name_of(variable: Any) -> str:
    """Of a variable of either Keras; without its model's."""
    path = str(getattr(variable, "path", None) or variable.name)
    return re.sub(r"^model/", "", path.removesuffix(":0"))


def find_horovod() -> None:
    """As smddprun has it, where our distribution is installed."""
    from smdistributed.compat.horovod import finder

    finder.install()


def put_plain_keras_in_place(microbatches: int) -> None:
    """What the script imports from now on as the library."""
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import plain_keras

    import smdistributed.modelparallel

    plain_keras.microbatches = microbatches
    sys.modules["smdistributed.modelparallel.tensorflow"] = plain_keras
    smdistributed.modelparallel.tensorflow = plain_keras  # type: ignore[assignment]


if __name__ == "__main__":
    observe(sys.argv[1:])
