# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Without a GPU: what `full` answers to the user's own files, and to nobody else.

Source: dataparallel specification, section 4.6: `full` "lets
torch.cuda.is_available()/device_count() answer 'one device per local process' to calls made from
the user's own files (the directory of the main script) [...]; libraries and torch itself see the
truth".
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.dataparallel.cpu_shims.runs import (
    NO_CUDA,
    ONE_RANK,
    TEST_TIMEOUT_S,
    needs_no_cuda,
    run_python,
)

pytestmark = pytest.mark.timeout(TEST_TIMEOUT_S)


ASK = """
import torch
def ask():
    return [torch.cuda.is_available(), torch.cuda.device_count()]
"""

MAIN = """
import json, sys
import torch
import smdistributed.dataparallel.torch.torch_smddp
import helpers, library, models.net, installed
from torch.cuda import is_available

def ask():
    return [torch.cuda.is_available(), torch.cuda.device_count()]

torch.cuda.set_device(2)
print(json.dumps({
    "main": ask(),
    "helpers": helpers.ask(),
    "models/net": models.net.ask(),
    "imported by name": is_available(),
    "library": library.ask(),
    "installed": installed.ask(),
    "torch": torch.amp.GradScaler("cuda").is_enabled(),
    "current": torch.cuda.current_device(),
    "name": torch.cuda.get_device_name(0),
    "capability": torch.cuda.get_device_capability(),
    "memory": torch.cuda.get_device_properties(0).total_memory > 2**20,
    "free": torch.cuda.mem_get_info()[0] > 0,
}))
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A user's project: main script, modules beside and below it, an environment inside it."""
    for path in (
        "project/helpers.py",
        "project/models/net.py",
        "project/venv/lib/python3/site-packages/installed.py",
        "elsewhere/library.py",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(ASK)
    (tmp_path / "project" / "train.py").write_text(MAIN)
    return tmp_path


@needs_no_cuda
@pytest.mark.parametrize("mode", ["full", "auto"])
def test_full_answers_yes_to_the_users_own_files_only(project: Path, mode: str) -> None:
    paths = [project / "elsewhere", project / "project/venv/lib/python3/site-packages"]
    job = {**ONE_RANK, "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4", "SMDDP_CPU_SHIM": mode}
    job["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    done = run_python([str(project / "project" / "train.py")], environ=job)
    if mode == "auto":
        assert NO_CUDA.search(done.stderr)
        return
    assert done.returncode == 0, done.stderr
    yes, no = [True, 4], [False, 0]
    assert json.loads(done.stdout) == {
        "main": yes,
        "helpers": yes,
        "models/net": yes,
        "imported by name": True,
        "library": no,
        "installed": no,
        "torch": False,
        "current": 2,
        "name": "CPU (SMDDP_CPU_SHIM=full)",
        "capability": [0, 0],
        "memory": True,
        "free": True,
    }


@needs_no_cuda
def test_full_knows_the_users_files_under_python_m(project: Path) -> None:
    """`python -m tool train.py`, like `python -m mpi4py train.py`: the tool runs the script."""
    tool = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    (project / "elsewhere" / "tool.py").write_text(tool)
    script = project / "project" / "train.py"
    script.write_text(
        "import sys, pathlib; sys.path.insert(0, str(pathlib.Path(__file__).parent))\n"
        "import smdistributed.dataparallel.torch.torch_smddp\n"
        "import helpers; print(helpers.ask())"
    )
    paths = str(project / "elsewhere")
    job = {**ONE_RANK, "SMDDP_CPU_SHIM": "full", "PYTHONPATH": paths}
    done = run_python(["-m", "tool", str(script)], environ=job)
    assert done.stdout == "[True, 1]\n", done.stderr
