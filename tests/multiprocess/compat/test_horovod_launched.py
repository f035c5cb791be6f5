# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`import horovod` in jobs: of smddprun as they are, and by the command under other launchers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launchers import launch_command, run_to_end
from preloaded import Preload

from tests.multiprocess.compat.installed import (
    STAND_IN,
    Installed,
    path_with,
    write_package,
)
from tests.packages import require

COMMAND = ("-m", "smdistributed.compat.horovod")
# Found before anything of ours is imported by the script, and without help of PYTHONPATH.
SCRIPT = """\
import horovod, os, sys
rank = os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
# One write: print() makes two, between which another rank's line could fall.
os.write(1, f"{rank} {horovod.__file__} {os.environ.get('PYTHONPATH')} {sys.argv[1:]}\\n".encode())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def require_both(output: str, path: str | None = None) -> None:
    for rank in range(2):
        assert f"{rank} {STAND_IN}/__init__.py {path} ['--epochs', '1']\n" in output, output


@pytest.mark.parametrize("launcher", ["smddprun", "mpirun smddprun"])
def test_a_job_of_smddprun_has_it(installed: Installed, script: Path, launcher: str) -> None:
    *words, _ = launch_command(launcher, 2)
    done = run_to_end([*words, installed.python, str(script), "--epochs", "1"])
    assert done.returncode == 0, done.stdout
    require_both(done.stdout, os.environ.get("PYTHONPATH"))


def test_mpirun_has_it_by_the_command(installed: Installed, script: Path) -> None:
    *words, _ = launch_command("mpirun", 2)
    done = run_to_end([*words, installed.python, *COMMAND, str(script), "--epochs", "1"])
    assert done.returncode == 0, done.stdout
    require_both(done.stdout, os.environ.get("PYTHONPATH"))


def test_a_job_may_do_without(installed: Installed, script: Path) -> None:
    command = [*launch_command("smddprun", 1)[:-1], installed.python, str(script)]
    done = run_to_end(command, environment={"SMDDP_HOROVOD": "off"})
    assert "ModuleNotFoundError: No module named 'horovod'" in done.stdout
    done = run_to_end(command, environment={"SMDDP_HOROVOD": "never"})
    assert "SMDDP_HOROVOD" in done.stdout
    assert "stand-in" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_job_that_is_not_python_hears_nothing_of_it(tmp_path: Path) -> None:
    done = run_to_end([*launch_command("smddprun", 1)[:-1], "sh", "-c", "echo $PYTHONPATH; pwd"])
    assert done.returncode == 0
    assert "horovod" not in done.stdout


def test_smddprun_tells_of_a_horovod_that_goes_before_it(tmp_path: Path) -> None:
    where = write_package(tmp_path / "elsewhere") / "horovod" / "__init__.py"
    command = [*launch_command("smddprun", 2)[:-1], "true"]
    done = run_to_end(command, environment=path_with(tmp_path / "elsewhere"))
    assert done.returncode == 0
    assert f"Horovod is installed at {where}." in done.stdout
    off = {**path_with(tmp_path / "elsewhere"), "SMDDP_HOROVOD": "off"}
    assert "Horovod" not in run_to_end(command, environment=off).stdout


def test_torchrun_has_it_by_the_command_with_torch(tmp_path: Path) -> None:
    require("torch")
    script = tmp_path / "train.py"
    script.write_text(
        "import horovod.torch as hvd\n"
        "from horovod.common.exceptions import HorovodInternalError\n"
        "from horovod.torch.compression import Compression\n"
        "from horovod.torch.mpi_ops import allreduce_async_, synchronize\n"
        "import os, torch\n"
        "hvd.init()\n"
        "assert Compression is hvd.Compression\n"
        "assert HorovodInternalError is hvd.HorovodInternalError\n"
        "mine = torch.tensor([1.0 + hvd.rank()])\n"
        "synchronize(allreduce_async_(mine, op=hvd.Sum))\n"
        "os.write(1, f'{hvd.rank()} of {hvd.size()} has {mine.item()}\\n'.encode())\n"
    )
    done = run_to_end([*launch_command("torchrun", 2), *COMMAND, str(script)])
    assert done.returncode == 0, done.stdout
    for rank in range(2):
        assert f"{rank} of 2 has 3.0\n" in done.stdout, done.stdout


def test_names_of_tensorflow_and_keras_are_those_of_ours(tmp_path: Path) -> None:
    require("tensorflow")
    script = tmp_path / "train.py"
    script.write_text(
        "import horovod.tensorflow as hvd\n"
        "import horovod.keras, horovod.tensorflow.keras, horovod.tensorflow.keras.callbacks\n"
        "import os, tensorflow as tf\n"
        "hvd.init()\n"
        "keras = horovod.tensorflow.keras\n"
        "assert keras.rank() == hvd.rank() and keras.Compression is hvd.Compression\n"
        "name = 'MetricAverageCallback'\n"
        "assert getattr(keras.callbacks, name) is getattr(horovod.keras.callbacks, name)\n"
        "total = hvd.allreduce(tf.constant([1.0 + hvd.rank()]), op=hvd.Sum).numpy()\n"
        "os.write(1, f'{hvd.rank()} of {hvd.size()} has {total[0]}\\n'.encode())\n"
    )
    command = launch_command("smddprun", 2, preload=Preload.KERAS_3)
    done = run_to_end([*command, *COMMAND, str(script)])
    assert done.returncode == 0, done.stdout
    for rank in range(2):
        assert f"{rank} of 2 has 3.0\n" in done.stdout, done.stdout
