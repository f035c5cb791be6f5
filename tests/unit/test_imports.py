# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What an import may load. Asked in a process of its own, as this one has loaded much already."""

import importlib.metadata
import json
import subprocess
import sys

import pytest
from machine_speed import scaled

import smdistributed
from smdistributed._common import version

FRAMEWORKS = {"torch", "tensorflow", "keras", "numpy", "mpi4py", "ray", "jax"}


def modules_after(statement: str) -> set[str]:
    code = (
        f"import sys; before = set(sys.modules); {statement}; import json; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        timeout=scaled(60),
    )
    return set(json.loads(done.stdout))


def test_the_top_package_loads_nothing_else() -> None:
    # What keeps the import far below the promised 50 ms, on any machine. An editable installation
    # brings a finder, which loads modules of the standard library and is not ours.
    loaded = {name.partition(".")[0] for name in modules_after("import smdistributed")}
    assert loaded - sys.stdlib_module_names == {"smdistributed"}
    assert {name for name in modules_after("import smdistributed") if "smdist" in name} == {
        "smdistributed",
        "smdistributed._common",
        "smdistributed._common.version",
    }


def test_the_top_package_says_the_version_that_is_installed() -> None:
    assert smdistributed.__version__ == version.__version__
    assert smdistributed.__version__ == importlib.metadata.version("smdistributed-open")


@pytest.mark.parametrize(
    "module",
    [
        "smdistributed.dataparallel",
        "smdistributed.dataparallel.exceptions",
        "smdistributed.dataparallel.trace.cli",
        "smdistributed._common.discovery",
        "smdistributed._common.settings",
        "smdistributed.launch.cli",
        "smdistributed.modelparallel.decide.config",
        "smdistributed.compat.horovod.common",
    ],
)
def test_framework_neutral_modules_load_no_framework(module: str) -> None:
    loaded = modules_after(f"import {module}")
    assert module in loaded
    assert not FRAMEWORKS & {name.partition(".")[0] for name in loaded}
    assert not any(name.startswith("smdistributed.collectives") for name in loaded)


def test_model_parallelism_loads_no_triton_of_its_own() -> None:
    # A process that holds TensorFlow can die when Triton is loaded: both carry LLVM.
    def triton(statement: str) -> set[str]:
        return {name for name in modules_after(statement) if name.partition(".")[0] == "triton"}

    assert triton("import smdistributed.modelparallel.torch") <= triton("import torch")
    traces = (
        "import sys; import smdistributed.modelparallel.torch.partitioning.observation as t;"
        " sys.modules['tensorflow'] = sys; assert t._flop_registry()"
    )
    assert triton(traces) <= triton("import torch")
