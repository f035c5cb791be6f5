# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/ray.md, as they stand there, on machines with nothing but Ray."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from machine_speed import scaled

from smdistributed.launch.backends.ray.settings import RaySettings
from smdistributed.launch.home import Home
from tests.clusters.ray import why_not
from tests.clusters.ssh import SshHosts, ssh_hosts

PAGE = (Path(__file__).parents[2] / "docs" / "ray.md").read_text()

TRAIN = """
import os
print("here is", os.environ["SM_CURRENT_HOST"], "of", os.environ["SM_HOSTS"], flush=True)
"""


def commands() -> list[str]:
    (block,) = re.findall(r"## From zero.*?```bash\n(.*?)```", PAGE, re.DOTALL)
    return [re.sub(r"\s+# \d.*", "", line) for line in block.splitlines()]


def typed(command: str, environ: Mapping[str, str], folder: Path, *prefix: str) -> str:
    done = subprocess.run(
        [*prefix, "bash", "-e", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=scaled(90),
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def typed_at(hosts: SshHosts, name: str, command: str) -> str:
    machine = hosts.machines[name]
    # By its way out Ray finds out which address a machine has.
    subprocess.run(
        machine.command(["ip", "route", "add", "default", "via", hosts.address]), check=True
    )
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(Path.home()),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return typed(command, environ, Path("/"), *machine.command([]))


def test_what_is_installed_is_there_to_be() -> None:
    extras = importlib.metadata.metadata("smdistributed-open").get_all("Provides-Extra") or []
    for command in (commands()[0], commands()[2]):
        found = re.fullmatch(r"pip install 'smdistributed-open\[([\w,]+)\]'", command)
        assert found is not None
        assert set(found[1].split(",")) <= set(extras)


@pytest.mark.fresh
@pytest.mark.timeout(240)
def test_five_commands(tmp_path: Path) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    (tmp_path / "train.py").write_text(TRAIN)
    assert len(commands()) == 5
    _, start, _, *rest = commands()
    environ = {
        name: text for name, text in os.environ.items() if not name.startswith(("SMD_", "RAY_"))
    }
    environ |= {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}"}
    with ssh_hosts() as hosts:
        said = typed_at(hosts, "host-0", start)
        join = re.search(r"ray start --address='[\d.]+:\d+'", said)
        assert join is not None, said
        typed_at(hosts, "host-1", join[0])
        address = hosts.links["host-0"].address
        told = typed("\n".join(rest).replace("HEAD", address), environ, tmp_path)
    for host in ("algo-1", "algo-2"):
        assert f'here is {host} of ["algo-1","algo-2"]' in told.replace(", ", ",")


def test_the_settings_are_as_it_says(tmp_path: Path) -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", PAGE, re.MULTILINE)
    keys = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert keys == {
        "address",
        "python",
        "cpus_per_host",
        "gpus_per_host",
        "shared",
        "serve_address",
    }
    home = Home(tmp_path)
    home.config.write_text(
        '[ray]\naddress = "http://a:1"\npython = "p"\ncpus_per_host = 2\ngpus_per_host = 3\n'
        'shared = ["/mnt"]\nserve_address = "http://c:8000"\n'
    )
    found = RaySettings.of(home, {})
    assert found == RaySettings("http://a:1", "p", 2, 3, (Path("/mnt"),), "http://c:8000")
    home.config.unlink()
    without = RaySettings.of(home, {"RAY_ADDRESS": "http://b:1"})
    assert without == RaySettings("http://b:1", "python", 1, 0, ())
