# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/slurm.md, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from machine_speed import scaled

from smdistributed.launch.backends.slurm.options import SlurmOptions
from smdistributed.launch.data.settings import Settings
from smdistributed.launch.home import Home
from tests.clusters.slurm import Slurm

PAGE = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()

TRAIN = """
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
with open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "w") as file:
    file.write("1")
"""


def commands() -> list[str]:
    (block,) = re.findall(r"## From zero.*?```console\n(.*?)```", PAGE, re.DOTALL)
    return [line.removeprefix("$ ") for line in block.splitlines()]


@pytest.mark.fresh
def test_five_commands(slurm_cluster: Slurm, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    assert len(commands()) == 5
    environ = {name: text for name, text in os.environ.items() if not name.startswith("SMD_")}
    environ |= slurm_cluster.environ | {"HOME": str(tmp_path)}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "\n".join(commands())],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=scaled(90),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(4):
        assert f"rank {rank} of 4" in done.stdout
    assert '"TrainingJobStatus": "Completed"' in done.stdout
    assert "removing first" in done.stdout
    assert not (tmp_path / "smd/jobs/first").exists()
    assert len(list((tmp_path / "smd/buckets").rglob("model.tar.gz"))) == 1


def test_the_settings_are_as_it_says(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    home = Home(tmp_path)
    home.config.write_text(block)
    found = SlurmOptions.of(Settings.of(home))
    assert (found.partition, found.account, found.qos) == ("gpu", "vision", "long")
    assert (found.gpus_per_node, found.cpus_per_node) == (8, 64)
    assert found.options == ("--constraint=ib", "--mail-type=END")


def test_python_of_the_page_compiles() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    compile(block, "docs/slurm.md", "exec")
