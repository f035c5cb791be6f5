# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/ssh.md, as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from machine_speed import scaled

from smdistributed.launch.backends.ssh_settings import SshSettings
from smdistributed.launch.home import Home
from tests.clusters.ssh import SshHosts

PAGE = (Path(__file__).parents[2] / "docs" / "ssh.md").read_text()

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
def test_five_commands(two_ssh_hosts: SshHosts, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    assert len(commands()) == 5
    programs = tmp_path / "bin"
    programs.mkdir()
    client = programs / "ssh"  # which has the names and keys of these machines as a user's own has
    client.write_text(
        f'#!/bin/sh\nexec {shutil.which("ssh")} -F {shlex.quote(str(two_ssh_hosts.config))} "$@"\n'
    )
    client.chmod(0o755)
    environ = {name: text for name, text in os.environ.items() if not name.startswith("SMD_")}
    environ["HOME"] = str(tmp_path)
    environ["PATH"] = f"{programs}:{Path(sys.executable).parent}:{environ['PATH']}"
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
    assert re.search(r"^backend +ssh$", done.stdout, re.MULTILINE)
    for name in two_ssh_hosts.names:
        address = re.escape(two_ssh_hosts.links[name].address)
        assert re.search(rf"^{name} +answers at {address}, 0 GPUs", done.stdout, re.MULTILINE)
    for rank in range(2):
        assert f"rank {rank} of 2" in done.stdout
    assert len(list((tmp_path / ".smdistributed/buckets").rglob("model.tar.gz"))) == 1


def test_the_settings_are_as_it_says(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    home = Home(tmp_path)
    home.config.write_text(block)
    found = SshSettings.of(home)
    assert found.hosts == ("gpu-1", "gpu-2", "gpu-3")
    assert found.python == "/opt/train/bin/python"
    assert found.shared == (Path("/mnt/data"),)
    assert found.command == ("ssh", "-F", "/home/me/cluster_config")
    assert found.addresses == {"gpu-1": "10.0.0.1"}


def test_python_of_the_page_compiles() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    compile(block, "docs/ssh.md", "exec")
